"""Source `fixed_length`: binary files in which all records have the same length.

`--record_layout` lists a record's fields in order. For example, CIFAR-10 has `label:uint8,image:uint8[3,32,32]`.
"""

import math
import re
from typing import Mapping, Sequence

import numpy as np

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.columns.forms import COLUMN_PATTERN
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.arrays.array_columns import ArrayColumns
from beam_pipelines.sources.arrays.array_source import ArraySource, ImageSet, divide_records, record_set, split_of_file
from beam_pipelines.sources.arrays.array_streams import Records, Stream, unpack
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


class FixedLength(ArraySource):
    """Lists the examples in fixed-length records."""

    kind = SourceKind(
        name="fixed_length",
        summary="records of a fixed length, such as those of CIFAR",
        options=(
            "labels", "label_names", "features", "has_images", "image_column", "key_column", "split_column", "group",
            "weight_column", "record_layout", "header_bytes", "footer_bytes",
        ),
    )

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory)
        self._containers = [[path] for path in ([self._only] if self._only else self._paths)]
        self._dtype = parse_record_type(options.source.record_layout)
        image = options.source.image_column or "image"
        is_open = options.source.image_column is None and bool(options.source.features)  # whether an image is optional
        self.has_images = options.source.has_images and (image in self._dtype.names or not is_open)
        if self.has_images and image not in self._dtype.names:
            raise UserError(
                f"--record_layout={options.source.record_layout}: no field {printable(image)!r}. Name the field of the image "
                "with --image_column. For examples without images, add --feature for each field to keep."
            )
        if not self.has_images and not options.source.features:
            raise UserError("--image=none: pass --feature for each field to keep.")
        self._image = image if self.has_images else None
        columns = record_set("", None, Records(Stream("--record_layout"), self._dtype, 0, 0, 0), self._image).columns
        self._columns = ArrayColumns(options.source, columns, "label" if "label" in columns else None)
        self.features, self.targets = self._columns.mapper.features, self._columns.mapper.targets

    def _find_sets(self, paths: Sequence[str]) -> Sequence[ImageSet]:
        path = self._check_inside(paths[0])
        stream = Stream(path, "gzip" if path.lower().endswith(".gz") else "")
        # The number of records in a compressed file is known after it has been decompressed.
        unknown = Records(stream, self._dtype, 0, 0, 0)
        records = unknown if stream.packing else self._divide(stream, input_size(f"{self.root}/{path}"))
        return [record_set(path, self._choose_split(path, split_of_file(path)), records, self._image)]

    def _divide(self, stream: Stream, num_bytes: int) -> Records:
        advice = "Correct --record_layout, --header_bytes or --footer_bytes, or exclude the file with --ignore."
        source = self._options.source
        return divide_records(stream, self._dtype, num_bytes, advice, source.header_bytes, source.footer_bytes)

    def _unpack(self, images: ImageSet) -> tuple[ImageSet, Mapping[Stream, int]]:
        stream = images.images.records.stream
        if not stream.packing:
            return images, {}
        spool, num_bytes = unpack(self.root, stream, self._spool_directory)
        return record_set(images.name, images.split, self._divide(stream, num_bytes), self._image), {stream: spool}


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
