"""Reads the lists in a large JSON object as streams. Only one list entry is in memory at a time."""

import itertools
from typing import Any, BinaryIO, Container, Iterator, Mapping, Sequence

from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.annotations.json_events import Events, RepeatedField, check_new, json_errors, json_events, read_value, skip_value
from beam_pipelines.sources.cells.unused_fields import UnusedFields

_MAX_DEPTH = 4  # The nesting depth of a field. The outlines of an object have three levels.


def read_sections(
    path: str,
    file: BinaryIO,
    fields: Mapping[str, Sequence[str]],
    others: Mapping[str, UnusedFields] = {},
    optional: Container[str] = (),
    advice: str = "",
) -> Iterator[tuple[str, int, dict[str, Any] | None]]:
    """Yields the list entries of the requested sections, in the order of the file. A section is a field of the JSON
    object whose value is a list.

    Args:
        path: The path of the file, for messages.
        file: The file, open at its start.
        fields: A mapping from section to the fields to read from each entry.
        others: A mapping from section to a collector for the names of all other fields.
        optional: The sections that may be missing.
        advice: Advice to append to the message about a missing section.

    Yields:
        Tuples (section, index in the section, entry). Entries that are not objects and values that are nested too
        deeply become None.

    Raises:
        UserError: The file is not UTF-8 or not a JSON object with lists, a section is missing, or a section or a
            requested field occurs twice.
    """
    missing = dict.fromkeys(fields)
    with json_errors(path):
        try:
            for section, position, entry in _read(path, json_events(file), fields, others):
                if position is not None:
                    yield section, position, entry
                elif section in missing:
                    del missing[section]
                else:
                    raise UserError(f"{printable(path)}: {section!r} occurs twice. Join the two, or write two files.")
        except RepeatedField as error:
            raise UserError(
                f"{printable(path)}: an object in {section!r} has the field {str(error)!r} twice. Write each field once."
            ) from None
    for section in (section for section in missing if section not in optional):
        raise UserError(
            f"{printable(path)}: has no {section!r}. The file must be an object with the lists {', '.join(fields)}."
            + f" {advice}" * bool(advice)
        )


def _read(
    path: str, events: Events, fields: Mapping[str, Sequence[str]], others: Mapping[str, UnusedFields]
) -> Iterator[tuple[str, int | None, Any]]:
    """Yields the tuples of `read_sections`, and additionally `(section, None, None)` at the start of each section."""
    if next(events)[0] != "start_map":
        raise UserError(
            f"{printable(path)}: not a JSON object. The file must be an object with the lists {', '.join(fields)}."
        )
    for event, section in events:
        if event == "end_map":
            continue  # Continue, because the parser raises an error if data follows the object.
        event, _ = next(events)
        if section not in fields:
            skip_value(events, event)
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
            skip_value(events, event)
            yield None


def _read_entry(events: Events, wanted: Sequence[str], others: UnusedFields) -> dict[str, Any]:
    entry = {}
    for event, field in events:
        if event == "end_map":
            return entry
        event, value = next(events)
        if field in wanted:
            check_new(field, entry)
            entry[field] = read_value(events, event, value, _MAX_DEPTH)
        else:
            others.add((field,))
            skip_value(events, event)
    raise AssertionError("the parser ended inside an object")
