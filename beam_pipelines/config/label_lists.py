"""Several class names in one text: in brackets as JSON and Python write lists, else with a separator between them."""

import ast
import json
import re
from typing import Any, Collection, Iterable

import numpy as np

DEFAULT_SEPARATOR = "|"
# What others put between names, and what a name of one class has in it only where it is followed by a blank.
_SEPARATORS = ("|", ";", ",", " ")

_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_ITEM = rf"(?:{_QUOTED}|-?\d+)"
_ITEMS = re.compile(rf"\s*(?:{_ITEM}(?:\s*,\s*{_ITEM})*\s*,?\s*)?")
# Of NumPy too, which writes no commas: such a text cannot be read as a list, and is no name of a class either.
_LOOSE_ITEMS = re.compile(rf"\s*(?:(?:{_QUOTED}|-?[\d.]+)[\s,]*)*")
_BRACKETS = ("[]", "()", "{}")


def parse_list(text: str) -> list[Any] | None:
    """Reads the items of a list such as `["a", "b"]`, `['a', 'b']` or `[1, 2]`, or so of a tuple or a set; None: the text is none."""
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
    except (ValueError, SyntaxError):  # a number of too many digits, an escape that is none
        return None


def is_bracketed(text: str) -> bool:
    """Whether a text begins and ends as a list does."""
    text = text.strip()
    return len(text) > 1 and text[0] == "[" and text[-1] == "]"


def looks_like_list(name: str) -> bool:
    """Whether what should be the name of one class is a list of names or numbers."""
    return is_bracketed(name) and bool(_LOOSE_ITEMS.fullmatch(name.strip()[1:-1]))


def split_names(text: str, separator: str) -> list[str]:
    """Splits a text into the names in it; blanks that separate them count as one."""
    if not separator.strip():
        return text.split() if separator == " " else [part for part in text.split(separator) if part.strip()]
    return text.split(separator) if text.strip() else []


def is_one_flag_each(items: Collection[Any], num_classes: int) -> bool:
    """Whether a list has a 0 or 1 for each class, as far as that can be told, and not the numbers of classes.

    Args:
        items: The items of the list.
        num_classes: The number of classes; 0: unknown.
    """
    if items and all(isinstance(item, (bool, np.bool_)) for item in items):
        return True
    flags = [str(item).strip() for item in items]
    # Several zeros are flags: the number of a class would stand there once. A list of ones alone may be of class 1, stated twice.
    is_repeated = len(set(flags)) < len(flags) and not set(flags) <= {"1", "1.0"}
    return len(flags) > 1 and set(flags) <= {"0", "1", "0.0", "1.0"} and (is_repeated or len(flags) == num_classes)


def find_separator(names: Iterable[str], *, is_one_each: bool) -> str | None:
    """What seems to stand between several names in one, where these were to be the names of one class each.

    A natural name has a blank in it (`hot dog`), a comma too (`tench, Tinca tinca`). So what counts is whether parts come again.

    Args:
        names: All class names that were found.
        is_one_each: Whether no example has two of the names, though it might.

    Returns:
        The separator; None: there seems to be none.
    """
    names = set(names)
    for separator in _SEPARATORS:
        parts = {name: [part.strip() for part in name.split(separator)] for name in names if separator in name}
        of_others = [name for name, several in parts.items() if names.issuperset(several)]
        if separator != " " and of_others:
            return separator
        if is_one_each and parts and _is_list_like(separator, names, parts):
            return separator
    return None


def _is_list_like(separator: str, names: set[str], parts: dict[str, list[str]]) -> bool:
    once = {part for several in parts.values() for part in several}
    if separator == " ":
        return len(once | (names - parts.keys())) < len(names)
    is_tight = any(re.search(rf"\D{re.escape(separator)}(?! )", name) for name in parts)  # not as in 1,000
    return is_tight or separator != "," or len(once) <= 0.8 * sum(map(len, parts.values()))
