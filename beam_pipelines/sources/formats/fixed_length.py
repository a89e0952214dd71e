"""Source `fixed_length`: binary files in which all records have the same length.

`--record_layout` lists a record's fields in order. For example, CIFAR-10 has `label:uint8,image:uint8[3,32,32]`.
"""

import math
import re
from typing import Iterator

import numpy as np

from beam_pipelines.config.prepare_config import COLUMN_PATTERN, PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.arrays.array_columns import ArrayColumns, raw_layout
from beam_pipelines.sources.arrays.array_images import (
    ImageSet,
    check_inside,
    find_array_files,
    list_images,
    ranges,
    split_of_file,
)
from beam_pipelines.sources.arrays.array_streams import Field, Records, Stream, unpack
from beam_pipelines.sources.source import Source
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.files import input_size

_TYPES = {
    **{f"{prefix}int{8 * size}": f"{prefix[:1] or 'i'}{size}" for prefix in ("", "u") for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"f{size}" for size in (2, 4, 8)},
}
_FIELD = re.compile(
    r"\s*(?:skip\[(?P<skip>\d{1,10})\]"
    r"|(?P<name>[^:,\[\]]+):(?P<order>[<>]?)(?P<type>[a-z]+\d*)(?:\[(?P<shape>\d{1,10}(?:,\d{1,10})*)\])?)\s*"
)
_MAX_FIELDS = 1000


class FixedLength(Source):
    """Lists the examples in fixed-length records."""

    kind = SourceKind(
        name="fixed_length",
        summary="records of a fixed length, such as those of CIFAR",
        options=(
            "labels", "label_names", "features", "has_images", "image_column", "key_column", "split_column", "group",
            "weight_column", "record_layout", "header_bytes", "footer_bytes",
        ),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config)
        self._source = config.source
        self._spool_directory = spool_directory
        self._split_folders = config.split_folders
        self._files = find_array_files(config.input, config.ignore, config.follow_links)
        self._paths = [self._files.only] if self._files.only else self._files.paths
        self._root = self._files.root
        self.root = self._root.path
        self._dtype = parse_record_type(config.source.record_layout)
        image = config.source.image_column or "image"
        is_open = config.source.image_column is None and bool(config.source.features)  # whether an image is optional
        self.has_images = config.source.has_images and (image in self._dtype.names or not is_open)
        if self.has_images and image not in self._dtype.names:
            raise UserError(
                f"--record_layout={config.source.record_layout}: no field {printable(image)!r}. Name the field of the image "
                "with --image_column. For examples without images, add --feature for each field to keep."
            )
        if not self.has_images and not config.source.features:
            raise UserError("--image=none: pass --feature for each field to keep.")
        self._lead = image if self.has_images else self._dtype.names[0]
        fields = {name: self._opener(name) for name in self._dtype.names if not (self.has_images and name == image)}
        self._raw = raw_layout(Field(self._records(Stream("--record_layout"), 0), image)) if self.has_images else None
        self._columns = ArrayColumns(config.source, fields, "label" if "label" in fields else None)
        self.features, self.targets = self._columns.mapper.features, self._columns.mapper.targets

    def parts(self) -> list[str]:
        """Returns `FILE:START:STOP` strings: the index of a file and a range of records. A compressed file is one part."""
        parts = []
        for position, path in enumerate(self._paths):
            check_inside(self._root, path)
            if _is_packed(path):
                parts.append(f"{position}:0:0")
            else:
                num = self._count_records(path, input_size(f"{self.root}/{path}"))
                parts += [f"{position}:{start}:{stop}" for start, stop in ranges(num, self._dtype.itemsize)]
        return parts

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        position, start, stop = map(int, part.split(":"))
        path, spool = check_inside(self._root, self._paths[position]), 0
        if position == start == 0:
            self.num_ignored = self._files.num_ignored
            yield from self._files.dead_letters
        stream = Stream(path, "gzip" if _is_packed(path) else "")
        if stream.packing:
            spool, num_bytes = unpack(self.root, stream, self._spool_directory)
            stop = self._count_records(path, num_bytes)
        else:
            num_bytes = input_size(f"{self.root}/{path}")
        records = self._records(stream, num_bytes)
        columns = {name: (lambda name=name: Field(records, name)) for name in self._dtype.names}
        images = ImageSet(path, self._split(path), Field(records, self._lead), self._raw, columns)
        yield from list_images(self._root, images, self._columns, range(start, stop), {stream: spool} if spool else {})

    def label_names(self) -> dict[str, tuple[str, ...]]:
        return self._columns.mapper.label_names

    def _opener(self, name: str):
        return lambda: Field(self._records(Stream("--record_layout"), 0), name)

    def _records(self, stream: Stream, num_bytes: int) -> Records:
        num = (num_bytes - self._source.header_bytes - self._source.footer_bytes) // self._dtype.itemsize
        return Records(stream, self._dtype, num, self._source.header_bytes, num_bytes)

    def _count_records(self, path: str, num_bytes: int) -> int:
        header, footer, record = self._source.header_bytes, self._source.footer_bytes, self._dtype.itemsize
        num, remainder = divmod(num_bytes - header - footer, record)
        if num < 1 or remainder:
            left = f" ({remainder} bytes are left over)" if num > 0 else ""
            raise UserError(
                f"{printable(path)}: {num_bytes} bytes; it must have a header of {header} bytes, records "
                f"of {record} bytes each and a footer of {footer} bytes{left}. Correct --record_layout, "
                "--header_bytes or --footer_bytes, or exclude the file with --ignore."
            )
        return num

    def _split(self, path: str) -> str | None:
        split = split_of_file(path)
        if self._split_folders and split is None:
            raise UserError(
                f"--split_folders=yes: {printable(path)} is not named like a split. Its name must contain train, validation or test."
            )
        return None if self._split_folders is False else split


def _is_packed(path: str) -> bool:
    return path.lower().endswith(".gz")


def parse_record_type(text: str | None) -> np.dtype:
    """Parses `--record_layout` into the structured dtype of a record. Raises `UserError` if the layout is invalid."""
    fields, offset = {}, 0
    for part in re.split(r",(?![^\[]*\])", text or ""):
        match = _FIELD.fullmatch(part)
        if not match:
            raise _bad_layout(text, part, "be NAME:TYPE or NAME:TYPE[N,…], such as label:uint8,image:uint8[3,32,32]")
        num_bytes = int(match["skip"] or 0)
        if not match["skip"]:
            name, dtype = match["name"].strip(), _field_type(match, text, part)
            if name in fields or not COLUMN_PATTERN.fullmatch(name):
                raise _bad_layout(text, part, "have a name that occurs once, of letters, digits, '_', '.', '-'")
            fields[name] = (dtype, offset)
            num_bytes = dtype.itemsize
        offset += num_bytes
        if not num_bytes or offset > MAX_FILE_BYTES or len(fields) > _MAX_FIELDS:
            limits = f"1 to {MAX_FILE_BYTES} bytes and at most {_MAX_FIELDS} fields"
            raise _bad_layout(text, part, f"be in a record of {limits}")
    formats, offsets = zip(*fields.values()) if fields else ((), ())
    return np.dtype({"names": list(fields), "formats": list(formats), "offsets": list(offsets), "itemsize": offset})


def _field_type(match: re.Match[str], text: str | None, part: str) -> np.dtype:
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    is_text = match["type"] == "char"
    if not is_text and match["type"] not in _TYPES:
        raise _bad_layout(text, part, f"be of type {', '.join(_TYPES)} or char[N]")
    if is_text and (len(shape) != 1 or match["order"]):
        raise _bad_layout(text, part, "be of type char[N]")
    num_bytes = math.prod(shape) * (1 if is_text else int(_TYPES[match["type"]][1:]))
    if not 0 < num_bytes <= MAX_FILE_BYTES:
        raise _bad_layout(text, part, f"have 1 to {MAX_FILE_BYTES} bytes")
    return np.dtype(f"S{shape[0]}") if is_text else np.dtype(((match["order"] or "<") + _TYPES[match["type"]], shape))


def _bad_layout(text: str | None, part: str, expected: str) -> UserError:
    if not text:
        return UserError(f"--source=fixed_length needs --record_layout: each field must {expected}.")
    return UserError(f"--record_layout={printable(text)}: {printable(part)!r} must {expected}.")
