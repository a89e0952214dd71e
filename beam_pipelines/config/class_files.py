"""Reads the files with class names that are given on the command line."""

import re
from typing import Sequence

from beam_pipelines.errors import UserError
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import LABEL, MANIFEST, OBJECTS, decode_manifest

OBJECT_LABEL = f"{OBJECTS}/{LABEL}"
# HEAD=FILE, where HEAD is a label. For a file name that contains "=", users can write ./a=b.txt.
_HEAD = re.compile(r"(?P<head>[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/label)?)=(?P<file>.+)")
_NUMBERED = re.compile(r"(?P<number>\d{1,9}):\s*(?P<name>.*\S)")


def read_class_names(texts: Sequence[str]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
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
    return (_read_names(plain[0]) if plain else ()), {label: _read_names(file) for label, file in files_by_label.items()}


def _read_names(path: str) -> tuple[str, ...]:
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


def read_class_tables(directory: str) -> dict[str, tuple[str, ...]]:
    """Reads the class names of each feature from an earlier dataset.

    Raises:
        OSError: The manifest cannot be read.
        ValueError: The manifest is corrupt, or has another format version.
    """
    path = f"{directory.rstrip('/')}/{MANIFEST}"
    schema = decode_manifest(files_at(path).read(path), path).schema
    return {feature.name: feature.label_names for feature in schema if feature.label_names}
