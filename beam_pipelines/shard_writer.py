"""Writes one shard and its index: references in rank order in, a TFRecord file out. Plain, for light processes."""

import dataclasses
import functools
import struct
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np

from beam_pipelines.errors import RunError
from beam_pipelines.examples import ExampleEncoder, entry_integers, extra_features, is_core, split_entries
from beam_pipelines.files import files_at, make_folder, write_file
from beam_pipelines.image_reader import ImageReader
from beam_pipelines.light_processes import shared
from beam_pipelines.quality import LabelSequence, one_label
from beam_pipelines.references import References
from tf_input.dataset_format import LABEL, NO_LABEL, Feature, ShardInfo, encode_index, index_name, shard_name

_WRITE_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


@dataclasses.dataclass(frozen=True)
class WriteContext:
    """What every shard of a run shares.

    Attributes:
        root: The source's root.
        directory: Where the data set is being written.
        spool_directory: Where the spool files lie.
        name: Of the data set.
        schema: Of its examples.
        has_checksums: Whether references carry the checksum of what was checked.
        layout: How its shards lie: one of `LAYOUTS`.
    """

    root: str
    directory: str
    spool_directory: str
    name: str
    schema: tuple[Feature, ...]
    has_checksums: bool
    layout: str = "flat"

    @property
    def has_labels(self) -> bool:
        """Whether an example has one class, which the index then speaks of."""
        return any(feature.name == LABEL and is_core(feature) for feature in self.schema)

    @functools.cached_property
    def extra_heads(self) -> dict[int, str]:
        """Which of an example's extras are labels: the feature's name by its place among them."""
        extras = enumerate(extra_features(self.schema))
        return {place: feature.name for place, feature in extras if feature.kind == "class_label"}

    @functools.cached_property
    def encoder(self) -> ExampleEncoder:
        return ExampleEncoder(self.schema)


class ShardAddress(NamedTuple):
    """Which shard of which split."""

    split: str
    shard_index: int
    num_shards: int


class WrittenShard(NamedTuple):
    """A shard that is in place; `labels` by the names of the features with class names, for the shuffle quality."""

    address: ShardAddress
    info: ShardInfo
    labels: dict[str, LabelSequence]


def write_shard(shared_context: bytes, address: ShardAddress, packed: bytes) -> WrittenShard:
    """Reads what the references point to and writes the shard's records in their order.

    Raises:
        RunError: A file is not what it was when it was checked.
    """
    context: WriteContext = shared(shared_context)
    references = References.unpack(packed)
    shard = shard_name(context.name, *address, context.layout)
    index = index_name(context.name, *address)
    try:
        path = make_place(context.directory, shard)
        with (
            ImageReader(context.root, context.spool_directory, context.has_checksums) as reader,
            files_at(path).create(path) as file,
        ):
            writer = RecordWriter(file)
            index_rows, labels = _write_examples(context, references, reader, writer)
    except OSError as error:
        raise RunError(f"{shard} could not be written: {error.strerror or error}") from error
    write_file(make_place(context.directory, index), encode_index(index_rows))
    info = ShardInfo(shard, len(references), writer.num_bytes, writer.crc32c, index)
    if context.has_labels:
        labels[LABEL] = references.rows["label"]
    return WrittenShard(address, info, {name: LabelSequence.of(np.asarray(values)) for name, values in labels.items()})


def make_place(directory: str, name: str) -> str:
    """The path of a data set's file, whose folder is made, but not the data set's: that may be gone with its run."""
    folder = name.rpartition("/")[0]
    if folder:
        make_folder(f"{directory}/{folder}")
    return f"{directory}/{name}"


def _write_examples(
    context: WriteContext, references: References, reader: ImageReader, writer: "RecordWriter"
) -> tuple[list[tuple[int, int, int, int]], dict[str, list[int]]]:
    """Writes the records and returns their index rows, and what stands for the labels of each, by the features of the extras."""
    encode_around = context.encoder.encode_around
    index_rows = []
    has_labels, heads = context.has_labels, context.extra_heads
    labels: dict[str, list[int]] = {name: [] for name in heads.values()}
    columns = references.rows[["label", "num_bytes", "height", "width"]].tolist()
    for position, ((extras, image), (label, num_bytes, height, width)) in enumerate(zip(reader.read_all(references), columns)):
        values = {"height": height, "key": references.keys[position], "label": label, "width": width}
        before, after = encode_around(num_bytes, values, extras)
        if heads:
            entries = list(split_entries(extras))
            for place, name in heads.items():
                labels[name].append(one_label(entry_integers(entries[place])))
        record_offset = writer.write(before, image, after)
        index_rows.append(
            (record_offset, record_offset + RecordWriter.HEADER_BYTES + len(before), num_bytes, label if has_labels else NO_LABEL)
        )
    writer.flush()
    return index_rows, labels


class RecordWriter:
    """Frames records as TFRecord and writes them in large pieces.

    A record is its length (uint64), the length's masked CRC-32C, the data, the data's masked CRC-32C; all little-endian.

    Attributes:
        num_bytes: Written so far, with what is still buffered.
        crc32c: Of what has been flushed.
    """

    HEADER_BYTES = 12

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._parts: list[bytes] = []
        self._buffered = 0
        self.num_bytes = 0
        self.crc32c = 0

    def write(self, *data: bytes) -> int:
        """Writes one record, given in pieces, and returns its offset."""
        offset = self.num_bytes
        length = sum(map(len, data))
        header = _LENGTH.pack(length)
        crc = 0
        for piece in data:
            crc = google_crc32c.extend(crc, piece)
        self._parts += (header, _CRC.pack(masked(google_crc32c.value(header))), *data, _CRC.pack(masked(crc)))
        self.num_bytes += length + 16
        self._buffered += length + 16
        if self._buffered >= _WRITE_BYTES:
            self.flush()
        return offset

    def flush(self) -> None:
        block = b"".join(self._parts)
        self.crc32c = google_crc32c.extend(self.crc32c, block)
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]
        self._parts.clear()
        self._buffered = 0


def masked(crc: int) -> int:
    """TFRecord's rotation of a CRC, which keeps a CRC of data with CRCs in it sound."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
