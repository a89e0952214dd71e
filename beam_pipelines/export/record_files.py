"""Implements the export formats `tfrecord` and `array_record`, which contain the unchanged records."""

import pathlib
import tempfile
import zlib
from typing import Iterable, Iterator

from beam_pipelines.export.examples import ExportedExample
from beam_pipelines.tfrecord.array_record_reader import check_array_record
from beam_pipelines.tfrecord.record_writer import frame
from tf_input.dataset_format import shard_suffix

ARRAY_RECORD = "array_record"
ARRAY_RECORD_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"  # File name template of TensorFlow Datasets.

_GZIP = zlib.MAX_WBITS | 16
_READ_BYTES = 1 << 20


def gzip_file(split: str, shard_index: int, num_shards: int) -> str:
    """Returns the name of the TFRecord file for a shard."""
    return f"{split}-{shard_suffix(shard_index, num_shards)}.tfrecord.gz"


def gzip_chunks(examples: Iterable[ExportedExample]) -> Iterator[bytes]:
    """Yields the bytes of a GZIP-compressed TFRecord file, in chunks. The GZIP header has no timestamp."""
    compressor = zlib.compressobj(wbits=_GZIP)
    for example in examples:
        for chunk in frame(example.data):
            yield compressor.compress(chunk)
    yield compressor.flush()


def array_record_file(name: str, split: str, shard_index: int, num_shards: int) -> str:
    """Returns the name of the ArrayRecord file for a shard."""
    return f"{name}-{split}.array_record-{shard_suffix(shard_index, num_shards)}"


def array_record_chunks(examples: Iterable[ExportedExample]) -> Iterator[bytes]:
    """Yields the bytes of an ArrayRecord file, in chunks. The library `array_record` requires a temporary file."""
    check_array_record(f"--to={ARRAY_RECORD}")
    from array_record.python.array_record_module import ArrayRecordWriter

    with tempfile.TemporaryDirectory(prefix="recordmill-") as folder:
        path = pathlib.Path(folder, "records")
        writer = ArrayRecordWriter(str(path), "group_size:1")  # Single records can then be read efficiently.
        try:
            for example in examples:
                writer.write(example.data)
        finally:
            writer.close()
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                yield block
