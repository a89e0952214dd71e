"""Implements the export format `dali_index`: one text file per shard with the offset and size of each record.

NVIDIA DALI's `readers.tfrecord` needs these files:

    fn.readers.tfrecord(
        path=["out/flowers/flowers-train.tfrecord-00000-of-00001"],
        index_path=["DIR/flowers-train.tfrecord-00000-of-00001.idx"],
        …,
    )
"""

import itertools
from typing import Iterator

from beam_pipelines.errors import DataError, StorageError, printable
from beam_pipelines.storage.files import files_at
from tf_input.dataset_format import ShardInfo, decode_index


def index_lines(directory: str, info: ShardInfo) -> Iterator[bytes]:
    """Yields the lines of a shard's DALI index. Offsets are read from the shard's own index, not from its records.

    Raises:
        DataError: The index is corrupt.
        StorageError: The index cannot be read.
    """
    path = f"{directory}/{info.index}"
    try:
        offsets = [row.record_offset for row in decode_index(files_at(path).read(path))]
    except OSError as error:
        raise StorageError(f"{printable(path)}: {error.strerror or error}", path) from None
    except ValueError as error:
        raise DataError(f"{printable(path)}: {error}") from None
    sizes = [end - start for start, end in itertools.pairwise([*offsets, info.num_bytes])]
    if len(sizes) != info.num_examples or any(size <= 0 for size in sizes):
        raise DataError(
            f"{printable(path)} has {len(sizes)} rows that do not fit the {info.num_examples} records of its shard. "
            "Run `recordmill repair`."
        )
    yield from (f"{offset} {size}\n".encode() for offset, size in zip(offsets, sizes))
