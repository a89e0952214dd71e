"""Parses strings with several class names, such as `["cat", "dog"]` or `cat;dog`."""

import ast
import json
import re
from typing import Any, Collection

import numpy as np

_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_ITEM = rf"(?:{_QUOTED}|-?\d+)"
_ITEMS = re.compile(rf"\s*(?:{_ITEM}(?:\s*,\s*{_ITEM})*\s*,?\s*)?")
# Also matches NumPy's lists without commas, which cannot be parsed, but are no class names.
_LOOSE_ITEMS = re.compile(rf"\s*(?:(?:{_QUOTED}|-?[\d.]+)[\s,]*)*")
_BRACKETS = ("[]", "()", "{}")


def parse_list(text: str) -> list[Any] | None:
    """Parses a JSON or Python list, tuple or set, such as `['a', 'b']` or `[1, 2]`. Returns None for other strings."""
    text = text.strip()
    if text[:1] + text[-1:] not in _BRACKETS or len(text) < 2:
        return None
    try:
        items = json.loads(text)
        return items if isinstance(items, list) else None
    except (ValueError, RecursionError):
        pass
    if not _ITEMS.fullmatch(text[1:-1]):
        return None
    try:
        return [ast.literal_eval(item) for item in re.findall(_ITEM, text[1:-1])]
    except (ValueError, SyntaxError):  # A number has too many digits, or an escape is invalid.
        return None


def is_bracketed(text: str) -> bool:
    """Returns whether a string begins with "[" and ends with "]"."""
    text = text.strip()
    return len(text) > 1 and text[0] == "[" and text[-1] == "]"


def looks_like_list(name: str) -> bool:
    """Returns whether a string looks like a list of names or numbers, and not like a class name."""
    return is_bracketed(name) and bool(_LOOSE_ITEMS.fullmatch(name.strip()[1:-1]))


def split_names(text: str, separator: str) -> list[str]:
    """Splits a string into names. If the separator is a space, consecutive spaces count as one separator."""
    if not separator.strip():
        return text.split() if separator == " " else [part for part in text.split(separator) if part.strip()]
    return text.split(separator) if text.strip() else []


def is_one_flag_each(items: Collection[Any], num_classes: int) -> bool:
    """Returns whether a list seems to contain a flag (0 or 1) for each class, and not class numbers.

    Args:
        items: The items of the list.
        num_classes: The number of classes, or 0 if unknown.
    """
    if items and all(isinstance(item, (bool, np.bool_)) for item in items):
        return True
    flags = [str(item).strip() for item in items]
    # Repeated zeros must be flags, because a class number occurs only once. Repeated ones may be class 1, given twice.
    is_repeated = len(set(flags)) < len(flags) and not set(flags) <= {"1", "1.0"}
    return len(flags) > 1 and set(flags) <= {"0", "1", "0.0", "1.0"} and (is_repeated or len(flags) == num_classes)
