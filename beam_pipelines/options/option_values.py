"""Parses the values of command-line options, such as splits, sizes and image formats."""

import itertools
import os
import re
from fractions import Fraction
from typing import Sequence

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.prepare_config import MAX_NAME_LENGTH, OBJECT_LABEL
from beam_pipelines.elements.class_tables import read_class_tables
from beam_pipelines.errors import CONTROL, UserError, did_you_mean, printable
from beam_pipelines.sources.files.mask_classes import read_mask_classes
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import ABOUT, OBJECTS

# HEAD=FILE, where HEAD is a label. For a file name that contains "=", users can write ./a=b.txt.
_HEAD = re.compile(r"(?P<head>[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/label)?)=(?P<file>.+)")
_VALUE = re.compile(r"\s*([0-9]{1,5})\s*=\s*([0-9]{1,5})\s*")
_NUMBERED = re.compile(r"(?P<number>\d{1,9}):\s*(?P<name>.*\S)")
_MAX_DESCRIPTION = 1000
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_splits(text: str) -> dict[str, Fraction]:
    """Parses `--splits`, such as `train=0.9,validation=0.1`, into a mapping from split names to exact fractions."""
    expected = "NAME=FRACTION[,NAME=FRACTION…], such as train=0.9,validation=0.1"
    return _parse_pairs("--splits", text, Fraction, expected)


def parse_names(option: str, text: str) -> tuple[str, ...]:
    """Parses comma-separated names. Raises `UserError` if a name is empty."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UserError(f"{option}={printable(text)}: invalid value. Give names separated by commas.")
    return names


def parse_image_roots(texts: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Parses the values of `--image_root`: a folder, or several folders that are separated by commas.

    Returns:
        The folder, or the folder that contains all folders; and the folders relative to it if there are several.

    Raises:
        UserError: The folders have no common parent, because they are in different stores.
    """
    paths = [path for text in texts for path in ([text] if os.path.isdir(text) else [part.strip() for part in text.split(",")])]
    if len(paths) < 2:
        return (paths[0] if paths else None), ()
    if not all(paths):
        raise UserError(f"--image_root={printable(','.join(texts))}: a folder has no name. Separate the folders by commas.")
    schemes = {path.partition("://")[0] if is_remote(path) else "" for path in paths}
    parts = [path.rstrip("/").split("/") if is_remote(path) else os.path.abspath(path).split("/") for path in paths]
    common = [some[0] for some in itertools.takewhile(lambda some: len(set(some)) == 1, zip(*parts))]
    if len(schemes) > 1 or (schemes != {""} and len(common) < 3):
        raise UserError(f"--image_root={printable(','.join(paths))}: the folders must be on one disk or in one bucket.")
    return "/".join(common) or "/", tuple("/".join(some[len(common) :]) for some in parts)


def parse_shape(option: str, text: str) -> tuple[int, ...]:
    """Parses integers that are separated by commas, optionally in brackets, such as `48,48`. Raises `UserError`
    otherwise."""
    sides = text.strip().removeprefix("[").removesuffix("]").split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", side) for side in sides):
        raise UserError(f"{option}={printable(text)}: invalid value. Give integers separated by commas, such as 48,48.")
    return tuple(map(int, sides))


def parse_num_shards(text: str) -> int | dict[str, int]:
    """Parses `--num_shards`: one number for the whole dataset, or a number for each split (`train=14,validation=2`)."""
    if re.fullmatch(r"\s*[0-9]{1,18}\s*", text):
        return int(text)
    return _parse_pairs("--num_shards", text, int, "a number, or NAME=NUMBER[,NAME=NUMBER…]")


def _parse_pairs(option: str, text: str, convert: type, expected: str) -> dict:
    """Parses `NAME=VALUE,NAME=VALUE…` into a mapping from name to converted value. Raises `UserError` otherwise."""
    pairs: dict = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        try:
            if not equals or name.strip() in pairs:
                raise ValueError
            pairs[name.strip()] = convert(value.strip())
        except (ValueError, ZeroDivisionError):
            raise UserError(f"{option}={text}: invalid value. Give {expected}.") from None
    return pairs


def parse_image_size(text: str) -> tuple[str, int] | tuple[str, int, int]:
    """Parses `--image_size`: `short=256` becomes ("short", 256), and `exact=240x320` becomes ("exact", 240, 320).

    Sizes are in pixels.
    """
    match = re.fullmatch(r"\s*(?:(short|long)=(\d{1,6})|exact=(\d{1,6})x(\d{1,6}))\s*", text)
    if not match or "0" in {number.lstrip("0") or "0" for number in match.groups()[1:] if number}:
        raise UserError(
            f"--image_size={text}: invalid value. Give short=PIXELS, long=PIXELS or exact=HEIGHTxWIDTH, such as short=256"
        )
    return (match[1], int(match[2])) if match[1] else ("exact", int(match[3]), int(match[4]))


def parse_image_format(text: str) -> tuple[str, int]:
    """Parses `--image_format` into (format, quality): `jpeg:90` becomes ("jpeg", 90); `jpeg` becomes ("jpeg", 95)."""
    name, colon, quality = text.partition(":")
    if colon and (name not in ("jpeg", "webp") or not re.fullmatch(r"\d{1,3}", quality)):
        raise UserError(
            f"--image_format={text}: invalid value. Give keep, png, jpeg or webp, the last two optionally with a quality, "
            "such as jpeg:90"
        )
    return name, int(quality) if colon else ImageConfig.quality


def parse_size(text: str) -> int:
    """Parses a size with an optional unit (B, KB, MB, GB, KiB, MiB or GiB) to bytes: `128MiB` becomes 134217728."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS:
        raise UserError(
            f"--shard_size={text}: invalid value. Give a size such as 128MiB (units: KB, MB, GB, KiB, MiB, GiB)"
        )
    return int(Fraction(match[1]) * _UNITS[match[2].upper()])


def default_name(output: str) -> str:
    """Derives the name of a dataset from the last component of the output path.

    The name consists of letters, digits and underscores, as required by TensorFlow Datasets.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "_", os.path.basename(os.path.abspath(output))).strip("_").lower()
    return (name if name[:1].isalpha() else f"data_{name}")[:MAX_NAME_LENGTH].rstrip("_")


def parse_patterns(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the values of `--ignore` as a tuple. Raises `UserError` if a value is empty."""
    if "" in texts:
        raise UserError("--ignore=: the pattern is empty. Give a pattern of file names, such as '*.txt'")
    return tuple(texts)


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


def parse_directory(option: str, text: str) -> str:
    """Removes trailing slashes from a path. Raises `UserError` if the path is empty."""
    if not text:
        raise UserError(f"{option}=: the path is empty. Give a path.")
    return text.rstrip("/") or "/"


def parse_label_names(texts: Sequence[str]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Reads class names from the files in `--label_names`, which has the form `FILE` or `LABEL=FILE`.

    Returns:
        The class names of the only label, and the class names by label. At least one of the two is empty.

    Raises:
        UserError: Both forms are used, a label has two files, or a file cannot be read or is empty.
    """
    files_by_label: dict[str, str] = {}
    plain = []
    for text in texts:
        match = _HEAD.fullmatch(text)
        label = match and (OBJECT_LABEL if match["head"] == OBJECTS else match["head"])
        if label in files_by_label or (not match and plain):
            raise UserError(f"--label_names={text}: invalid value. Give one FILE, or LABEL=FILE once per label.")
        if match:
            files_by_label[label] = match["file"]
        else:
            plain.append(text)
    if files_by_label and plain:
        raise UserError(f"--label_names={plain[0]} names no label, but other --label_names do. Give LABEL=FILE for each label.")
    return (read_label_names(plain[0]) if plain else ()), {label: read_label_names(file) for label, file in files_by_label.items()}


def parse_mask_colors(text: str) -> dict[str, str]:
    """Reads the classes of the colors of masks from the file in `--mask_colors`. The result is empty for `none`."""
    return {} if text == "none" else read_mask_classes(text)


def parse_mask_values(text: str) -> dict[int, int]:
    """Parses `--mask_values`, such as `0=0,255=1`.

    Raises:
        UserError: A part is not of the form `VALUE=CLASS`, or a value occurs twice.
    """
    pairs = [_VALUE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(pairs) or len({int(pair[1]) for pair in pairs}) < len(pairs):
        raise UserError(f"--mask_values={text}: invalid value. List each value once as VALUE=CLASS, such as 0=0,255=1.")
    return {int(pair[1]): int(pair[2]) for pair in pairs}


def read_earlier_names(directory: str) -> dict[str, tuple[str, ...]]:
    """Reads the class names of the earlier dataset in `--label_names_from`.

    Returns:
        The class names of each label, in order.

    Raises:
        UserError: There is no dataset, or the dataset has no class names.
        StorageError: A disk or an object store failed.
    """
    try:
        tables = read_class_tables(directory)
    except (OSError, ValueError, UserError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"--label_names_from={directory}: {reason}. Give a dataset that was prepared earlier."
        raise listing_error(error, directory, message) from None
    if not tables:
        raise UserError(f"--label_names_from={directory}: the dataset has no classes. Give a dataset with class names.")
    return tables


def read_label_names(path: str) -> tuple[str, ...]:
    """Reads class names from a file with one name per line.

    If each line begins with a number, such as `0:daisy`, the class names are sorted by number.

    Raises:
        UserError: The file cannot be read, is not UTF-8, has no names, or has gaps in its numbers.
        StorageError: A disk or an object store failed.
    """
    try:
        text = files_at(path).read(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise listing_error(error, path, f"--label_names={path}: {reason}. Give a file with one class name per line.") from None
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not names:
        raise UserError(f"--label_names={path}: the file is empty. Give one class name per line.")
    numbered = [_NUMBERED.fullmatch(name) for name in names]
    if not all(numbered):
        return names
    by_number = {int(match["number"]): match["name"] for match in numbered}
    for number in range(len(names)):
        if number not in by_number:
            raise UserError(
                f"--label_names={path}: no line has number {number}. Number the names from 0 to {len(names) - 1}, or give only names."
            )
    return tuple(by_number[number] for number in range(len(names)))
