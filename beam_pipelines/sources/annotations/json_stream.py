"""Parses large JSON files as streams of events. Only one entry of a list is in memory at a time."""

import contextlib
from typing import Any, Iterator

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import read_errors

_BUFFER_BYTES = 1 << 16  # The events of a whole buffer are in memory.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Events = Iterator[tuple[str, Any]]


@contextlib.contextmanager
def open_json(path: str, name: str) -> Iterator[Events]:
    """Context manager that opens a JSON file as an iterator of parser events, such as the start of an object.

    Args:
        path: The path of the file.
        name: The name of the file in messages.

    Raises:
        UserError: The file cannot be read, is not valid JSON in UTF-8, or an object in it has a field twice.
    """
    import ijson  # not installed beside the reader alone

    try:
        with read_errors(path, name), open_file(path) as file:
            if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
                file.seek(0)
            events = ijson.basic_parse(file, use_float=True, buf_size=_BUFFER_BYTES)
            yield events
            for _ in events:  # The parser raises an error if data follows the value.
                pass
    except _RepeatedField as error:
        raise UserError(f"{printable(name)}: an object has the field {str(error)!r} twice. Write each field once.") from None
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.start + 1]
        raise UserError(f"{printable(name)}: it contains the byte {found!r}, which is not UTF-8. Convert the file to UTF-8.") from None
    except ijson.JSONError as error:
        text = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        text = " ".join(text.split())[:200]
        raise UserError(f"{printable(name)}: not valid JSON ({text}). The file must contain one complete JSON value.") from None


class _RepeatedField(Exception):
    """Raised if a JSON object contains a field twice. The error message is the name of the field, in printable form."""


def read_value(events: Events, event: str, value: Any, depth: int) -> Any:
    """Returns the value that starts with `event`. Values nested more than `depth` levels deep become None."""
    if event not in ("start_array", "start_map"):
        return value
    if depth == 0:
        skip_value(events, event)
        return None
    if event == "start_map":
        members: dict[str, Any] = {}
        for event, name in events:
            if event == "end_map":
                return members
            if name in members:
                raise _RepeatedField(printable(name[:80]))
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
    depth = event in ("start_array", "start_map")
    while depth:
        event, _ = next(events)
        depth += (event in ("start_array", "start_map")) - (event in ("end_array", "end_map"))


def read_entries(events: Events, event: str, depth: int) -> Iterator[tuple[str, Any]]:
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
