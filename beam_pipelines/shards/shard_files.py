"""Completes a shard: joins the parts of the TFRecord file, and writes the index, the catalog and the `done` file."""

import os
from typing import BinaryIO, Sequence

import google_crc32c
import numpy as np

from beam_pipelines.elements.plan import PlannedShard, WrittenShard
from beam_pipelines.elements.plan_files import find_problems, read_done, write_done
from beam_pipelines.elements.quality import LabelSequence
from beam_pipelines.elements.statistics import merge_statistics
from beam_pipelines.errors import StorageError
from beam_pipelines.shards.catalog import encode_catalog
from beam_pipelines.shards.written_part import ShardPart, WrittenPart, part_path
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import files_at, make_parent_folders, write_file
from tf_input.dataset_format import ShardInfo, catalog_name, index_name, shard_name, wrap_index

_COPY_BYTES = 1 << 20


def finished(context: WriteContext, shard: PlannedShard) -> WrittenShard | None:
    """Returns the contents of the `done` file of a completed shard.

    Returns None if the shard is not complete, or if one of its files is missing or has changed.
    """
    done = read_done(context.spec.run, shard.address)
    return None if done is None or find_problems(context.spec.run.working_directory, done.info) else done


def finish_shard(context: WriteContext, shard: PlannedShard, parts: Sequence[WrittenPart]) -> WrittenShard:
    """Completes a shard after all its parts have been written. Returns the contents of its `done` file."""
    spec, address = context.spec, shard.address
    name = shard_name(spec.name, *address)
    crc32c = parts[0].crc32c if len(parts) == 1 else _join(context, shard, parts)
    starts = np.cumsum([0, *(part.num_bytes for part in parts)])
    for part, start in zip(parts, starts.tolist()):
        part.index["record"] += np.uint64(start)
        part.index["image"] += np.uint64(start)
    rows = np.concatenate([part.index for part in parts])
    fingerprints = [part.fingerprint for part in parts if part.num_bytes] or [(0, 0)]
    fingerprint = fingerprints[0][0], fingerprints[-1][-1]
    index = _write(context, index_name(spec.name, *address), wrap_index(rows.tobytes(), fingerprint))
    catalog = _write(context, catalog_name(spec.name, *address), encode_catalog(parts, name, context.listing.columns or context.listing.schema))
    info = ShardInfo(name, len(rows), int(starts[-1]), crc32c, *index, *catalog, *fingerprint)
    labels = {feature: [label for part in parts for label in part.labels[feature]] for feature in parts[0].labels}
    written = WrittenShard(
        address,
        info,
        {feature: LabelSequence.of_examples(values) for feature, values in labels.items()},
        merge_statistics(part.statistics for part in parts),
    )
    write_done(spec.run, written, [letter for part in parts for letter in part.dead_letters])
    return written


def _write(context: WriteContext, name: str, data: bytes) -> tuple[str, int, int]:
    write_file(make_parent_folders(context.spec.run.working_directory, name), data)
    return name, len(data), google_crc32c.value(data)


def _join(context: WriteContext, shard: PlannedShard, parts: Sequence[WrittenPart]) -> int:
    """Concatenates the parts of a shard into a TFRecord file. Returns the CRC-32C of the file."""
    path = part_path(context, shard.address, ShardPart())
    crc = 0
    try:
        with files_at(path).create(path) as joined:
            for part in parts:
                with open(part.path, "rb", buffering=0) as file:
                    crc = _copy(file, joined, crc)
        for part in parts:
            os.unlink(part.path)
    except OSError as error:
        raise StorageError(f"shard {shard.address} could not be written: {error.strerror or error}") from error
    return crc


def _copy(source: BinaryIO, target: BinaryIO, crc: int) -> int:
    while data := source.read(_COPY_BYTES):
        crc = google_crc32c.extend(crc, data)
        target.write(data)
    return crc
