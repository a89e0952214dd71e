"""Streams the lists of a large JSON object and keeps only one list entry in memory at a time."""

import itertools
from typing import Any, BinaryIO, Container, Iterator, Mapping, Sequence

import ijson

from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.storage.input_errors import listing_error

_BUFFER_BYTES = 1 << 16  # all events of a buffer are in memory together
_MAX_DEPTH = 4  # levels of lists and objects within a field; the outlines of an object have three
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Events = Iterator[tuple[str, Any]]


def read_sections(
    path: str, file: BinaryIO, fields: Mapping[str, Sequence[str]], others: Mapping[str, UnusedFields] = {}
) -> Iterator[tuple[str, int, dict[str, Any] | None]]:
    """Yields the list entries of the requested sections, in the order of the file.

    Args:
        path: The path of the file, for messages.
        file: The file, open at its start.
        fields: Section -> the fields to read from each entry.
        others: Section -> a collector for the names of all other fields.

    Yields:
        (section, index in the section, entry). An entry that is not an object becomes None. A value that is nested too
        deeply also becomes None.

    Raises:
        UserError: The file is not UTF-8 or not a JSON object of this form; a section is missing; a section or a
            requested field occurs twice.
    """
    if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
        file.seek(0)
    missing = dict.fromkeys(fields)
    try:
        for section, position, entry in _read(path, ijson.basic_parse(file, use_float=True, buf_size=_BUFFER_BYTES), fields, others):
            if position is not None:
                yield section, position, entry
            elif section in missing:
                del missing[section]
            else:
                raise UserError(
                    f"{printable(path)}: {section!r} occurs twice. Join the two, or write two files."
                )
    except _RepeatedField as error:
        raise UserError(
            f"{printable(path)}: an object in {section!r} has the field {str(error)!r} twice. Write each field once."
        ) from None
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
    for section in missing:
        raise UserError(
            f"{printable(path)}: has no {section!r}. The file must be an object with the lists {', '.join(fields)}."
        )


class _RepeatedField(Exception):
    """Raised if a JSON object contains the same field twice. The error message is the printable name of the repeated
    field."""


def _read(
    path: str, events: Events, fields: Mapping[str, Sequence[str]], others: Mapping[str, UnusedFields]
) -> Iterator[tuple[str, int | None, Any]]:
    """Yields the entries for `read_sections`. At the start of each section, `(section, None, None)` is also yielded."""
    if next(events)[0] != "start_map":
        raise UserError(
            f"{printable(path)}: not a JSON object. The file must be an object with the lists {', '.join(fields)}."
        )
    for event, section in events:
        if event == "end_map":
            continue  # keep reading: any data after the object is an error
        event, _ = next(events)
        if section not in fields:
            _skip(events, event)
            continue
        if event not in ("start_array", "start_map"):
            raise UserError(f"{printable(path)}: {section!r} is neither a list of objects nor an object of objects.")
        yield section, None, None
        entries = _list_entries(events) if event == "start_array" else _named_entries(events)
        for position, entry in enumerate(
            _read_entries(events, entries, fields[section], others.get(section) or UnusedFields())
        ):
            yield section, position, entry


def _list_entries(events: Events) -> Iterator[str]:
    """Yields the first parser event of each entry of a list."""
    return itertools.takewhile(lambda event: event != "end_array", (event for event, _ in events))


def _named_entries(events: Events) -> Iterator[str]:
    """Yields the first parser event of each value of an object such as `{"7": {"id": 7, …}, …}`.

    The keys of the object are ignored.
    """
    for event, _ in events:
        if event == "end_map":
            return
        yield next(events)[0]


def _read_entries(
    events: Events, entries: Iterator[str], wanted: Sequence[str], others: UnusedFields
) -> Iterator[dict[str, Any] | None]:
    for event in entries:
        if event == "start_map":
            yield _read_entry(events, wanted, others)
        else:
            _skip(events, event)
            yield None


def _read_entry(events: Events, wanted: Sequence[str], others: UnusedFields) -> dict[str, Any]:
    entry = {}
    for event, field in events:
        if event == "end_map":
            return entry
        event, value = next(events)
        if field in wanted:
            _check_new(field, entry)
            entry[field] = _read_value(events, event, value, _MAX_DEPTH)
        else:
            others.add((field,))
            _skip(events, event)
    raise AssertionError("the parser ended inside an object")


def _check_new(field: str, entry: Container[str]) -> None:
    if field in entry:
        raise _RepeatedField(printable(field[:80]))


def _read_value(events: Events, event: str, value: Any, depth: int) -> Any:
    """Returns the value that starts with `event`. Values nested more than `depth` levels deep become None."""
    if event not in ("start_array", "start_map"):
        return value
    if depth == 0:
        _skip(events, event)
        return None
    if event == "start_map":
        members = {}
        for event, name in events:
            if event == "end_map":
                return members
            _check_new(name, members)
            members[name] = _read_value(events, *next(events), depth - 1)
    items = []
    for event, value in events:
        if event == "number":
            items.append(value)
        elif event == "end_array":
            return items
        else:
            items.append(_read_value(events, event, value, depth - 1))
    raise AssertionError("the parser ended inside a list")


def _skip(events: Events, event: str) -> None:
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
