"""Rebuilds corrupt shards from their sources.

The bytes of a shard depend only on the sources and on the plan, which lists the inputs of each shard. The plan is
deleted after a run, but the keys of the examples can be read from the catalog or the records.
"""

import collections
import os
from typing import Iterator, Mapping, NamedTuple, Sequence

import google_crc32c

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.plan import PlannedShard
from beam_pipelines.elements.plan_files import write_planned_shard
from beam_pipelines.errors import printable
from beam_pipelines.parallel.worker_processes import TaskWindow, share
from beam_pipelines.repair.duplicates_again import NearDuplicateGroups, hash_again
from beam_pipelines.repair.record_index import index_of_records
from beam_pipelines.repair.source_changes import (
    ExampleName,
    catalog_changes,
    describe_missing,
    describe_unknown_classes,
    record_changes,
    record_key,
)
from beam_pipelines.repair.wanted_inputs import Wanted, list_wanted
from beam_pipelines.shards.catalog import read_catalog
from beam_pipelines.shards.shard_files import finish_shard
from beam_pipelines.shards.shard_writer import ShardPart, WrittenPart, write_part
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import make_folder, make_parent_folders, open_file, write_file
from beam_pipelines.storage.pinned_files import check_versions
from beam_pipelines.tfrecord.record_reader import Record, read_records
from tf_input.dataset_format import Manifest, ShardInfo


class CorruptShard(NamedTuple):
    """A shard with at least one corrupt or missing file.

    Attributes:
        planned: The address of the shard and its number of inputs.
        info: The entry of the shard in the manifest.
        corruption: A mapping from the name of each corrupt file to its error.
        has_keys: Whether records contain the keys of the examples.
    """

    planned: PlannedShard
    info: ShardInfo
    corruption: Mapping[str, str]
    has_keys: bool = True

    @property
    def is_lost(self) -> bool:
        """Whether the keys of the examples are lost, because the catalog is corrupt and the records do not have them."""
        return self.info.catalog in self.corruption and (self.info.name in self.corruption or not self.has_keys)


def rebuild(
    directory: str, manifest: Manifest, config: PrepareJob, shards: Sequence[CorruptShard]
) -> Iterator[tuple[CorruptShard, list[str]]]:
    """Rebuilds shards in the working directory.

    Args:
        directory: The directory of the dataset.
        manifest: The manifest of the dataset.
        config: The configuration of the job that made the dataset, with another working directory.
        shards: The corrupt shards. The keys of their examples must not be lost.

    Yields:
        Each shard, and one line for each reason why its bytes cannot be rebuilt. Without a reason, the rebuilt
        files are in the working directory, and match the sizes and checksums in the manifest.

    Raises:
        RunError: The sources cannot be listed, a disk or a store fails, or a file cannot be written.
    """
    others = []
    for shard in shards:
        if _index_again(directory, manifest, config, shard):
            yield shard, []
        else:
            others.append(shard)
    if others:
        yield from _from_sources(directory, manifest, config, others)


def _index_again(directory: str, manifest: Manifest, config: PrepareJob, shard: CorruptShard) -> bool:
    """Rebuilds the index of a shard from its records, if only the index is corrupt. Returns whether it was rebuilt."""
    if set(shard.corruption) != {shard.info.index}:
        return False
    data = index_of_records(f"{directory}/{shard.info.name}", manifest.schema, shard.info.fingerprint)
    if (len(data), google_crc32c.value(data)) != (shard.info.index_bytes, shard.info.index_crc32c):
        return False
    write_file(make_parent_folders(config.working_directory, shard.info.index), data)
    return True


def _from_sources(
    directory: str, manifest: Manifest, config: PrepareJob, shards: Sequence[CorruptShard]
) -> Iterator[tuple[CorruptShard, list[str]]]:
    make_folder(config.done_directory)
    wanted = list_wanted(config, manifest, (read_names(directory, shard) for shard in shards))
    context = WriteContext(config, _make_listing(config, manifest, wanted))
    groups = NearDuplicateGroups.read(directory) if config.duplicates == "group" else None
    tasks, shared = TaskWindow(config.num_processes), share(context)
    waiting: collections.deque[CorruptShard] = collections.deque()

    def finish(part: WrittenPart) -> tuple[CorruptShard, list[str]]:
        shard = waiting.popleft()  # Parts arrive in order.
        return shard, _finish(directory, context, shard, part)

    for shard in shards:
        inputs = wanted.of(read_names(directory, shard))
        changes = describe_missing(inputs.missing, wanted.dead_letters())
        changes += [f"{printable(key.decode())}: two inputs now have this key" for key in inputs.repeated]
        changes += describe_unknown_classes(inputs.references, wanted.source, manifest.schema, config.spool_directory)
        references = groups.regroup(inputs.references) if groups else inputs.references
        if config.duplicates and not changes:
            references, changes = hash_again(context, references)
        if changes:
            yield shard, changes
            continue
        write_planned_shard(config, shard.planned, b"".join(references.chunks()))
        waiting.append(shard)
        for part in tasks.run(write_part, shared, shard.planned, ShardPart()):
            yield finish(part)
    for part in tasks.drain():
        yield finish(part)
    check_versions(wanted.versions)


def read_names(directory: str, shard: CorruptShard) -> list[ExampleName]:
    """Reads the keys of a shard's examples from the catalog or, if it is corrupt, from the records."""
    if shard.info.catalog not in shard.corruption:
        catalog = read_catalog(f"{directory}/{shard.info.catalog}")
        names = zip(catalog.column("key").to_pylist(), catalog.column("path").to_pylist())
        return [ExampleName(key.encode(), path) for key, path in names]
    with open_file(f"{directory}/{shard.info.name}") as file:
        return [ExampleName(record_key(record.data), "") for record in read_records(file) if isinstance(record, Record)]


def _make_listing(config: PrepareJob, manifest: Manifest, wanted: Wanted) -> Listing:
    """Returns a listing with only the values that determine the bytes of a shard."""
    return Listing(
        source=config.source.kind.name,
        root=wanted.source.root,
        schema=manifest.schema,
        targets=manifest.targets,
        listed_labels={},
        splits=tuple(manifest.splits),
        fractions=None,
        num_inputs=manifest.num_inputs,  # Determines which images are sampled for the statistics.
        num_bytes=0,
        reference_bytes=0,
        num_ignored=0,
        dead_letters=DeadLetterCount(),
        versions=wanted.versions,
    )


def _finish(directory: str, context: WriteContext, shard: CorruptShard, part: WrittenPart) -> list[str]:
    """Completes a rebuilt shard. If it differs from the original, returns the reasons."""
    rebuilt = finish_shard(context, shard.planned, [part]).info
    sums = {name: tuple(of_file) for name, *of_file in rebuilt.files()}
    if all(sums[name] == tuple(of_file) for name, *of_file in shard.info.files() if name in shard.corruption):
        return []
    working = context.config.working_directory
    changes = [f"{printable(letter.path)}: {letter.message} ({letter.stage})" for letter in part.dead_letters]
    if context.listing.has_images or context.config.source.is_verbatim:
        changes += _compare_catalogs(directory, working, shard, rebuilt)
        changes = changes or _compare_records(directory, working, shard)
    else:  # Without images, the records show the differing values more precisely.
        changes += _compare_records(directory, working, shard) or _compare_catalogs(directory, working, shard, rebuilt)
    return changes or [_describe_sums(shard, sums)]


def _compare_catalogs(directory: str, working: str, shard: CorruptShard, rebuilt: ShardInfo) -> list[str]:
    if shard.info.catalog in shard.corruption:
        return []
    return catalog_changes(read_catalog(f"{directory}/{shard.info.catalog}"), read_catalog(f"{working}/{rebuilt.catalog}"))


def _compare_records(directory: str, working: str, shard: CorruptShard) -> list[str]:
    path = f"{directory}/{shard.info.name}"
    return record_changes(path, f"{working}/{shard.info.name}") if os.path.isfile(path) else []


def _describe_sums(shard: CorruptShard, sums: Mapping[str, tuple[int, int]]) -> str:
    """Describes how the size or checksum of a rebuilt file differs from the manifest."""
    differing = (file for file in shard.info.files() if file[0] in shard.corruption and sums[file[0]] != file[1:])
    name, num_bytes, crc = next(differing)
    return (
        f"the rebuilt {printable(name)} has {sums[name][0]} bytes with CRC-32C {sums[name][1]:08x}, but the manifest "
        "states "
        f"{num_bytes} bytes with {crc:08x}. Images and labels are unchanged. Another feature, a path or a package "
        "version differs."
    )
