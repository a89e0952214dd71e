"""Reads small text files beside the images, such as lists of class names."""

from typing import Any, Iterable

from beam_pipelines.errors import InvalidInput, UserError, printable, reject_repeated_names
from beam_pipelines.sources.cells.class_cells import class_name
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.input_errors import read_errors

_MAX_BYTES = 1 << 20


def read_small_text(path: str) -> str:
    """Reads a UTF-8 file, with or without a byte order mark. Raises `UserError` if the file cannot be read or is too
    large."""
    with read_errors(path):
        data = files_at(path).read_range(path, 0, _MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise UserError(f"{printable(path)}: more than {_MAX_BYTES} bytes, too large for a file of settings.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{printable(path)}: not valid UTF-8 at byte {error.start}. Convert the file to UTF-8.") from None


def read_class_list(path: str) -> tuple[str, ...]:
    """Reads a file with a class name in each line, such as `classes.txt`. Raises `UserError` if the file cannot be read,
    or a name is invalid or repeated."""
    text = read_small_text(path).strip()
    try:
        names = check_class_names(text.split("\n") if text else ())
    except ValueError as error:
        raise UserError(f"{printable(path)}: {error}.") from None
    reject_repeated_names(printable(path), names)
    return names


def check_class_names(names: Iterable[Any]) -> tuple[str, ...]:
    """Returns class names without leading and trailing whitespace. Raises `ValueError` if a name is invalid."""
    checked = []
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise ValueError(f"the name of class {number} must be a text")
        try:
            checked.append(class_name(name))
        except InvalidInput as error:
            raise ValueError(f"the name of class {number} {error}") from None
    return tuple(checked)
