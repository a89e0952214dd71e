"""Parses the values of command-line options, such as splits and sizes.

The functions raise `ValueError` if a value is invalid. Functions for options that can be repeated raise `UserError`
instead.
"""

import itertools
import os
import re
from fractions import Fraction
from typing import Any, Callable, Sequence

from beam_pipelines.errors import CONTROL, UserError, did_you_mean, printable, require
from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import ABOUT

MAX_NAME_LENGTH = 80  # The name of a shard contains two names, and file systems allow 255 characters.
NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
NAME = "letters, digits and '_', with a letter first"

_VALUE = re.compile(r"\s*([0-9]{1,5})\s*=\s*([0-9]{1,5})\s*")
_MAX_DESCRIPTION = 1000
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
YES_NO = {"yes": True, "no": False}


def parse_integer(text: str) -> int:
    """Parses an integer of at most 20 digits."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", text):
        raise ValueError
    return int(text)


def parse_names(text: str) -> tuple[str, ...]:
    """Parses comma-separated names. Repeated names are invalid."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError
    return names


def parse_shape(text: str) -> tuple[int, ...]:
    """Parses comma-separated integers, optionally in brackets, such as `48,48`."""
    sides = text.strip().removeprefix("[").removesuffix("]").split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", side) for side in sides):
        raise ValueError
    return tuple(map(int, sides))


def is_pixel_shape(shape: tuple[int, ...]) -> bool:
    """Returns whether a shape is (height, width) or (height, width, channels) of an image."""
    return (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))) and 0 < min(shape) <= max(shape) < 1 << 16


def is_delimiter(text: str) -> bool:
    """Returns whether a string can separate the cells of a CSV file."""
    return len(text) == 1 and not text.isalnum() and text not in "\"\r\n\0"


def parse_pairs(text: str, convert: Callable[[str], Any]) -> dict[str, Any]:
    """Parses `NAME=VALUE,NAME=VALUE…` into a mapping from name to converted value."""
    pairs: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name.strip() in pairs:
            raise ValueError
        pairs[name.strip()] = convert(value.strip())
    return pairs


def parse_splits(text: str) -> dict[str, Fraction]:
    """Parses `--splits`, such as `train=0.9,validation=0.1`, into a mapping from split names to exact fractions."""
    try:
        return parse_pairs(text, Fraction)
    except ZeroDivisionError as error:
        raise ValueError from error


def parse_num_shards(text: str) -> int | dict[str, int]:
    """Parses `--num_shards`: one number for the whole dataset, or a number for each split (`train=14,validation=2`)."""
    return int(text) if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) else parse_pairs(text, int)


def parse_image_size(text: str) -> tuple[str, int] | tuple[str, int, int]:
    """Parses `--image_size`: `short=256` becomes ("short", 256), and `exact=240x320` becomes ("exact", 240, 320).

    Sizes are in pixels.
    """
    match = re.fullmatch(r"\s*(?:(short|long)=(\d{1,6})|exact=(\d{1,6})x(\d{1,6}))\s*", text)
    if not match or "0" in {number.lstrip("0") or "0" for number in match.groups()[1:] if number}:
        raise ValueError
    return (match[1], int(match[2])) if match[1] else ("exact", int(match[3]), int(match[4]))


def show_image_size(size: tuple[str, int] | tuple[str, int, int]) -> str:
    """Converts the result of `parse_image_size` back to a string."""
    return f"{size[0]}={'x'.join(map(str, size[1:]))}"


def parse_height_and_width(text: str) -> tuple[int, int]:
    """Parses an image size in pixels: `224` becomes (224, 224), and `240x320` becomes (240, 320)."""
    if not re.fullmatch(r"[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})?", text):
        raise ValueError
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def parse_size(text: str) -> int:
    """Parses a size with an optional unit (B, KB, MB, GB, KiB, MiB or GiB) to bytes: `128MiB` becomes 134217728."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS:
        raise ValueError
    return int(Fraction(match[1]) * _UNITS[match[2].upper()])


def parse_path(text: str) -> str:
    """Removes trailing slashes from a path."""
    if not text:
        raise ValueError("the path is empty. Give a path.")
    return text.rstrip("/") or "/"


def parse_paths(texts: Sequence[str]) -> tuple[str, ...]:
    """Removes trailing slashes from several paths."""
    return tuple(map(parse_path, texts))


def parse_mask_values(text: str) -> dict[int, int]:
    """Parses `--mask_values`, such as `0=0,255=1`."""
    pairs = [_VALUE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(pairs) or len({int(pair[1]) for pair in pairs}) < len(pairs):
        raise ValueError
    return {int(pair[1]): int(pair[2]) for pair in pairs}


def default_name(output: str) -> str:
    """Derives the name of a dataset from the last component of the output path.

    The name consists of letters, digits and underscores, as required by TensorFlow Datasets.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "_", os.path.basename(os.path.abspath(output))).strip("_").lower()
    return (name if name[:1].isalpha() else f"data_{name}")[:MAX_NAME_LENGTH].rstrip("_")


def parse_name(text: str) -> str:
    """Parses `--name`, which cannot be empty."""
    if not text:
        raise ValueError
    return text


def check_name(option: str, name: str, expected: str) -> None:
    """Checks that the name of a dataset or a split can be part of a shard's file name.

    Args:
        option: The name of the option, for messages.
        name: The name to check.
        expected: A description of valid names, for messages.

    Raises:
        UserError: The name is invalid or too long.
    """
    require(NAME_PATTERN.fullmatch(name), option, name, expected)
    if len(name) > MAX_NAME_LENGTH:
        raise UserError(f"{option}={name[:20]}… has {len(name)} characters. Give a name of at most {MAX_NAME_LENGTH}.")


def parse_patterns(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the values of `--ignore` as a tuple. No pattern may be empty."""
    if "" in texts:
        raise ValueError("the pattern is empty. Give a pattern of file names, such as '*.txt'.")
    return tuple(texts)


def parse_image_roots(texts: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Parses the values of `--image_root`: one folder, or several folders separated by commas.

    Returns:
        A single folder and (), or the common parent of several folders and these folders relative to the parent.

    Raises:
        UserError: The folders have no common parent, because they are in different stores.
    """
    paths = [path for text in texts for path in ([text] if os.path.isdir(text) else [part.strip() for part in text.split(",")])]
    if len(paths) < 2:
        return (paths[0] if paths else None), ()
    if not all(paths):
        raise UserError(f"--image_root={printable(','.join(texts))}: a folder has no name. Separate the folders by commas.")
    return common_parent([path if is_remote(path) else os.path.abspath(path) for path in paths])


def common_parent(paths: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Returns the folder that contains all folders in `--image_root`, and the folders relative to it. Local paths must be
    absolute. Raises `UserError` if the folders have no common parent, because they are in different stores."""
    schemes = {path.partition("://")[0] if is_remote(path) else "" for path in paths}
    parts = [path.rstrip("/").split("/") for path in paths]
    common = [some[0] for some in itertools.takewhile(lambda some: len(set(some)) == 1, zip(*parts))]
    if len(schemes) > 1 or (schemes != {""} and len(common) < 3):
        raise UserError(f"--image_root={printable(','.join(paths))}: the folders must be on one disk or in one bucket.")
    return "/".join(common) or "/", tuple("/".join(some[len(common) :]) for some in parts)


def parse_defaults(texts: list[str]) -> dict[str, str]:
    """Parses the values of `--default`, which have the form `COLUMN=VALUE`.

    Raises:
        UserError: A value does not have this form, or a column has two defaults.
    """
    defaults: dict[str, str] = {}
    for text in texts:
        column, equals, value = text.partition("=")
        if not column or not equals or column in defaults:
            raise UserError(f"--default={text}: invalid value. Give COLUMN=VALUE, with each column only once.")
        defaults[column] = value
    return defaults


def parse_descriptions(texts: Sequence[str]) -> dict[str, str]:
    """Parses the values of `--describe` into a mapping from feature to description.

    Raises:
        UserError: A description is empty, or a feature is described twice.
    """
    return _parse_texts("--describe", "FEATURE", texts)


def parse_about(texts: Sequence[str]) -> dict[str, str]:
    """Parses the values of `--about` into a mapping from topic to text, in the order of the dataset card.

    Raises:
        UserError: A topic is unknown or occurs twice, or a text is empty.
    """
    texts_by_name = _parse_texts("--about", "WHAT", texts)
    for name in texts_by_name:
        if name not in ABOUT:
            raise UserError(
                f"--about={printable(name)}=…: unknown name. Choose one of "
                f"{', '.join(ABOUT)}{did_you_mean(name, ABOUT)}"
            )
    return {name: texts_by_name[name] for name in ABOUT if name in texts_by_name}


def _parse_texts(option: str, metavar: str, texts: Sequence[str]) -> dict[str, str]:
    texts_by_name: dict[str, str] = {}
    for text in texts:
        name, equals, description = (part.strip() for part in text.partition("="))
        is_valid = name and description and len(description) <= _MAX_DESCRIPTION and not CONTROL.search(description)
        if not is_valid:
            raise UserError(
                f"{option}={printable(text)}: invalid value. Give {metavar}=TEXT in one line of at most {_MAX_DESCRIPTION} "
                "characters."
            )
        if name in texts_by_name:
            raise UserError(f"{option}={printable(text)}: {name!r} is given twice. Give each {metavar} only once.")
        texts_by_name[name] = description
    return texts_by_name
