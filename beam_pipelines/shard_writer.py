"""Writes one shard and its index: references in rank order in, a TFRecord file out. Plain, for light processes."""

import dataclasses
import functools
import struct
from typing import BinaryIO, Iterator, NamedTuple

import google_crc32c
import numpy as np

from beam_pipelines.errors import RunError, printable
from beam_pipelines.examples import ExampleEncoder
from beam_pipelines.files import files_at, is_remote, make_folder, write_file
from beam_pipelines.light_processes import shared
from beam_pipelines.quality import LabelSequence
from beam_pipelines.read_ahead import read_ahead
from beam_pipelines.references import References
from beam_pipelines.spool import SpoolReader
from tf_input.dataset_format import Feature, ShardInfo, encode_index, index_name, shard_name

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
    """

    root: str
    directory: str
    spool_directory: str
    name: str
    schema: tuple[Feature, ...]
    has_checksums: bool

    @functools.cached_property
    def encoder(self) -> ExampleEncoder:
        return ExampleEncoder(self.schema)


class ShardAddress(NamedTuple):
    """Which shard of which split."""

    split: str
    shard_index: int
    num_shards: int


class WrittenShard(NamedTuple):
    """A shard that is in place."""

    address: ShardAddress
    info: ShardInfo
    labels: LabelSequence


def write_shard(shared_context: bytes, address: ShardAddress, packed: bytes) -> WrittenShard:
    """Reads what the references point to and writes the shard's records in their order.

    Raises:
        RunError: A file is not what it was when it was checked.
    """
    context: WriteContext = shared(shared_context)
    references = References.unpack(packed)
    shard = shard_name(context.name, *address)
    index = index_name(context.name, *address)
    path = f"{context.directory}/{shard}"
    try:
        with ImageReader(context) as reader, files_at(path).create(path) as file:
            writer = RecordWriter(file)
            index_rows = _write_examples(context, references, reader, writer)
    except OSError as error:
        raise RunError(f"{shard} could not be written: {error.strerror or error}") from error
    index_path = f"{context.directory}/{index}"
    make_folder(index_path.rpartition("/")[0])
    write_file(index_path, encode_index(index_rows))
    info = ShardInfo(shard, len(references), writer.num_bytes, writer.crc32c, index)
    return WrittenShard(address, info, LabelSequence.of(references.rows["label"]))


def _write_examples(
    context: WriteContext, references: References, reader: "ImageReader", writer: "RecordWriter"
) -> list[tuple[int, int, int, int]]:
    """Writes the records and returns their index rows."""
    encode_around = context.encoder.encode_around
    index_rows = []
    columns = references.rows[["label", "num_bytes", "height", "width"]].tolist()
    for position, (image, (label, num_bytes, height, width)) in enumerate(zip(reader.read_all(references), columns)):
        values = {"height": height, "key": references.keys[position], "label": label, "width": width}
        before, after = encode_around(num_bytes, values)
        record_offset = writer.write(before, image, after)
        index_rows.append((record_offset, record_offset + RecordWriter.HEADER_BYTES + len(before), num_bytes, label))
    writer.flush()
    return index_rows


# Neighbours in the spool are read together, where each reading is a request over a network.
_STRETCH_BYTES = 4 << 20


class ImageReader:
    """Follows pointers, and notices where a file is not what was checked."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context
        self._files = files_at(context.root)
        self._spool = SpoolReader(context.spool_directory)

    def __enter__(self) -> "ImageReader":
        return self

    def __exit__(self, *unused: object) -> None:
        self._spool.close()

    def read_all(self, references: References) -> Iterator[bytes]:
        """The bytes of each image.

        Raises:
            RunError: They cannot be read, or differ from what was checked.
        """
        rows = references.rows[["num_bytes", "crc32c", "spool", "offset"]].tolist()
        if is_remote(self._context.root) or is_remote(self._context.spool_directory):
            images = self._read_stretches(references)
        else:
            images = (self._read(references.path(i), row[0], *row[2:]) for i, row in enumerate(rows))
        has_checksums = self._context.has_checksums
        for index, (data, (num_bytes, crc32c, _, _)) in enumerate(zip(images, rows)):
            if len(data) != num_bytes or (has_checksums and google_crc32c.value(data) != crc32c):
                raise RunError(
                    f"{printable(references.path(index))} changed between its check and its write: "
                    f"it had {num_bytes} bytes, and these {len(data)} differ"
                )
            yield data

    def _read(self, path: str, num_bytes: int, spool: int, offset: int) -> bytes:
        try:
            return self._spool.read(spool, offset, num_bytes) if spool else self._files.read(f"{self._context.root}/{path}")
        except OSError as error:
            raise RunError(f"{printable(path)} could not be read again to be written: {error.strerror or error}") from error

    def _read_stretches(self, references: References) -> Iterator[bytes]:
        """Ahead of the need, and in one piece what lies in one piece."""
        rows = references.rows

        def read(stretch: tuple[int, int]) -> list[bytes]:
            first, last = stretch
            ends = np.cumsum(rows["num_bytes"][first:last], dtype=np.int64).tolist()
            spool, offset = rows["spool"][first].item(), rows["offset"][first].item()
            data = self._read(references.path(first), ends[-1], spool, offset)
            return [data] if last == first + 1 else [data[start:end] for start, end in zip([0, *ends], ends)]

        sizes = ((stretch, int(rows["num_bytes"][slice(*stretch)].sum(dtype=np.int64))) for stretch in _stretches(rows))
        for images in read_ahead(read, sizes):
            yield from images


def _stretches(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of the references that point to one place after the other in one spool, up to a size."""
    ends = rows["offset"] + rows["num_bytes"]
    follows = (rows["spool"][1:] != 0) & (rows["spool"][1:] == rows["spool"][:-1]) & (rows["offset"][1:] == ends[:-1])
    first, num_bytes = 0, 0
    for index, (size, joins) in enumerate(zip(rows["num_bytes"].tolist(), [False, *follows.tolist()])):
        if index and not (joins and num_bytes + size <= _STRETCH_BYTES):
            yield first, index
            first, num_bytes = index, 0
        num_bytes += size
    if len(rows):
        yield first, len(rows)


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
