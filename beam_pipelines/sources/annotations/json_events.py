"""Parses large JSON files as streams of events, with a limit for the nesting depth."""

import contextlib
from typing import Any, BinaryIO, Container, Iterator

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.input_errors import listing_error

_BUFFER_BYTES = 1 << 16  # The events of a whole buffer are in memory.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Events = Iterator[tuple[str, Any]]


class RepeatedField(Exception):
    """Raised if a JSON object contains a field twice. The error message is the printable name of the field."""


def json_events(file: BinaryIO) -> Events:
    """Returns the parser events of an open JSON file. The file must be at its start. A byte order mark is skipped."""
    if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
        file.seek(0)
    import ijson  # not installed beside the reader alone

    return ijson.basic_parse(file, use_float=True, buf_size=_BUFFER_BYTES)


@contextlib.contextmanager
def json_errors(path: str) -> Iterator[None]:
    """Context manager that converts parse and read errors to `UserError` or `StorageError`.

    Args:
        path: The path of the file, for messages.
    """
    import ijson  # not installed beside the reader alone

    try:
        yield
    except RepeatedField as error:
        raise UserError(f"{printable(path)}: an object has the field {str(error)!r} twice. Write each field once.") from None
    except UnicodeDecodeError as error:
        invalid_byte = error.object[error.start : error.start + 1]
        raise UserError(
            f"{printable(path)}: it contains the byte {invalid_byte!r}, which is not UTF-8. Convert the file to UTF-8."
        ) from None
    except ijson.JSONError as error:
        text = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        raise UserError(
            f"{printable(path)}: not valid JSON ({' '.join(text.split())[:200]}). The file must contain one complete JSON object."
        ) from None
    except OSError as error:
        raise listing_error(error, path, f"{printable(path)} cannot be read: {error.strerror or error}") from error


def check_new(field: str, entry: Container[str]) -> None:
    """Raises `RepeatedField` if an object already has a field."""
    if field in entry:
        raise RepeatedField(printable(field[:80]))


def read_value(events: Events, event: str, value: Any, depth: int) -> Any:
    """Returns the value that starts with `event`. Values at more than `depth` levels of nesting become None."""
    if event not in ("start_array", "start_map"):
        return value
    if depth == 0:
        skip_value(events, event)
        return None
    if event == "start_map":
        members = {}
        for event, name in events:
            if event == "end_map":
                return members
            check_new(name, members)
            members[name] = read_value(events, *next(events), depth - 1)
    items = []
    for event, value in events:
        if event == "number":
            items.append(value)
        elif event == "end_array":
            return items
        else:
            items.append(read_value(events, event, value, depth - 1))
    raise AssertionError("the parser ended inside a list")


def skip_value(events: Events, event: str) -> None:
    """Skips the value that starts with `event`."""
    if event not in ("start_array", "start_map"):
        return
    depth = 1
    for event, _ in events:
        if event == "start_array" or event == "start_map":
            depth += 1
        elif event == "end_array" or event == "end_map":
            depth -= 1
            if not depth:
                return


def read_list_or_map(events: Events, event: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yields the entries of a list or an object that starts with `event`, one at a time.

    Args:
        events: The events after `event`.
        event: `start_array` or `start_map`.
        depth: The maximum number of nested levels of an entry.

    Yields:
        Pairs (name, entry). The name is the key in an object, or the index in a list as a string.
    """
    position = 0
    for entry_event, value in events:
        if entry_event in ("end_array", "end_map"):
            return
        name = str(position)
        if event == "start_map":
            name, (entry_event, value) = value, next(events)
        yield name, read_value(events, entry_event, value, depth)
        position += 1
