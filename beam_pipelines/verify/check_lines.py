"""Checks the JSON lines files that list dead letters, thumbnails and near-duplicates.

The commands `recordmill report` and `recordmill repair` read these files.
"""

import base64
import io
import itertools
import json
from typing import Any, BinaryIO, Iterator, Mapping, NamedTuple

from beam_pipelines.elements.dead_letters import MAX_LINE_BYTES, DeadLetter
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.thumbnails import check_thumbnail
from beam_pipelines.verify.corruption import Corruption
from tf_input.dataset_format import DEAD_LETTER_THUMBNAILS, DEAD_LETTERS, NEAR_DUPLICATES

_READ_BYTES = MAX_LINE_BYTES + 1  # One byte more than the limit, to detect longer lines.
_TEXT, _TEXT_OR_NULL = (str,), (str, type(None))
_DEAD_LETTER = dict.fromkeys(DeadLetter._fields[:-1], _TEXT)
_NEAR_DUPLICATE = {"cluster": _TEXT, "key": _TEXT, "labels": (dict,), "dropped": (bool,)}
_GROUPED = {"group": _TEXT, "original_group": _TEXT_OR_NULL}


class _Line(NamedTuple):
    """A parsed line of a file, with its line number (counted from 1), its byte offset and its fields."""

    file: str
    number: int
    offset: int
    fields: Mapping[str, Any]

    def corruption(self, reason: str) -> Corruption:
        return Corruption(self.file, f"line {self.number}: {reason}", offset=self.offset)

    def name(self) -> tuple[str, ...]:
        """Returns the fields that identify a dead letter."""
        return tuple(self.fields[name] for name in _DEAD_LETTER)


def check_dead_letters(dead_letters: BinaryIO, thumbnails: bytes, num_dead_letters: int) -> Iterator[Corruption]:
    """Checks the number of dead letters, and that each thumbnail is a valid image and belongs to a dead letter."""
    seen: dict[tuple[str, ...], _Line] = {}
    for line in _read_lines(DEAD_LETTER_THUMBNAILS, io.BytesIO(thumbnails), _DEAD_LETTER | {"thumbnail": _TEXT}):
        if isinstance(line, Corruption):
            yield line
            continue
        seen[line.name()] = line
        try:
            check_thumbnail(base64.b64decode(line.fields["thumbnail"], validate=True))
        except (ValueError, InvalidInput) as error:
            yield line.corruption(f"invalid thumbnail: {error}")
    num = 0
    for num, line in enumerate(_read_lines(DEAD_LETTERS, dead_letters, _DEAD_LETTER), start=1):
        if isinstance(line, Corruption):
            yield line
        else:
            seen.pop(line.name(), None)
    if num != num_dead_letters:
        yield Corruption(DEAD_LETTERS, f"{num} lines instead of {num_dead_letters}")
    for line in seen.values():
        yield line.corruption(f"the thumbnail {line.fields['path']!r} does not belong to a dead letter")


def check_near_duplicates(near_duplicates: BinaryIO, num_dropped: int) -> Iterator[Corruption]:
    """Checks the lines about near-duplicates, and the number of dropped images."""
    num_found = 0
    for line in _read_lines(NEAR_DUPLICATES, near_duplicates, _NEAR_DUPLICATE):
        if isinstance(line, Corruption):
            yield line
        elif wrong := _wrong_fields(line.fields, _GROUPED) if "group" in line.fields else "":
            yield line.corruption(wrong)
        else:
            num_found += line.fields["dropped"]
    if num_found != num_dropped:
        yield Corruption(NEAR_DUPLICATES, f"{num_found} dropped images instead of {num_dropped}")


def _read_lines(name: str, file: BinaryIO, expected: Mapping[str, tuple[type, ...]]) -> Iterator[_Line | Corruption]:
    """Yields the parsed lines of a file. Yields a `Corruption` for an invalid line."""
    offset = 0
    for number in itertools.count(1):
        text = rest = file.readline(_READ_BYTES)
        line, num_bytes = _Line(name, number, offset, {}), len(text)
        while len(rest) == _READ_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(_READ_BYTES)
            num_bytes += len(rest)
        offset += num_bytes
        if not text:
            return
        try:
            fields = json.loads(text if num_bytes <= MAX_LINE_BYTES else "{}")
        except (ValueError, RecursionError) as error:  # Includes UTF-8 errors.
            yield line.corruption(f"not valid JSON: {error}")
            continue
        if num_bytes > MAX_LINE_BYTES or not text.endswith(b"\n"):
            yield line.corruption(f"{num_bytes} bytes without an end of line; the limit is {MAX_LINE_BYTES}")
        elif wrong := _wrong_fields(fields, expected):
            yield line.corruption(wrong)
        else:
            yield line._replace(fields=fields)


def _wrong_fields(fields: Any, expected: Mapping[str, tuple[type, ...]]) -> str:
    """Returns a message about missing or invalid fields of a line, or an empty string."""
    if not isinstance(fields, dict):
        return f"a JSON {type(fields).__name__} instead of an object"
    wrong = [name for name, types in expected.items() if not isinstance(fields.get(name, 0), types)]
    return f"missing or invalid fields: {', '.join(wrong)}" if wrong else ""
