"""Makes shards again that are damaged: what is left of them names their examples, and the sources list these again. Plain, but for the
catalog's pyarrow.

A shard is a pure function of its piece of the plan and the sources. The plan has gone with its run; but a shard's catalog, or else its
records, have the keys of its examples in rank order, and the sources have all the rest.
"""

import collections
import os
import uuid
from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.catalog import read_catalog
from beam_pipelines.config import PrepareConfig
from beam_pipelines.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.errors import RunError, UserError, printable
from beam_pipelines.files import make_folder, open_file
from beam_pipelines.light_processes import TaskWindow, share
from beam_pipelines.list_part import SMALL_PARTS, PartContext, list_in_batches, list_whole_part, open_to_list
from beam_pipelines.listing import ListedPart
from beam_pipelines.plan import write_planned_shard
from beam_pipelines.plan_values import PlannedShard
from beam_pipelines.references import References
from beam_pipelines.shard_files import finish_shard
from beam_pipelines.shard_writer import ShardPart, WrittenPart, write_part
from beam_pipelines.source_changes import (
    ExampleName,
    RefusedInputs,
    catalog_changes,
    describe_missing,
    describe_unknown_classes,
    record_changes,
    record_key,
)
from beam_pipelines.sources import Listing, Source
from beam_pipelines.sources.records.record_reader import Record, read_records
from beam_pipelines.write_context import WriteContext
from tf_input.dataset_format import IMAGE, Manifest, ShardInfo

_OF_EVERY_SOURCE = (IMAGE, "key", "height", "width")


class DamagedShard(NamedTuple):
    """A shard of which a file is not as it was written.

    Attributes:
        planned: Which it is.
        info: What the manifest says of it.
        damage: Name of a file -> what is the matter with it.
    """

    planned: PlannedShard
    info: ShardInfo
    damage: Mapping[str, str]

    @property
    def is_lost(self) -> bool:
        """Whether nothing is left that names its examples."""
        return self.info.name in self.damage and self.info.catalog in self.damage


def rebuild(
    directory: str, manifest: Manifest, config: PrepareConfig, shards: Sequence[DamagedShard]
) -> Iterator[tuple[DamagedShard, list[str]]]:
    """Makes shards again, in the working directory.

    Args:
        directory: The data set.
        manifest: Its own.
        config: Of the run that made it, with another working directory.
        shards: None of them is lost.

    Yields:
        A shard, and what is in the way of the bytes that it had, a line each: without any of these its files are in the working
        directory, those that are damaged with the sizes and checksums that the manifest has.

    Raises:
        RunError: The sources can't be listed, or something can't be read, for no fault of an input, or not be written.
    """
    make_folder(config.done_directory)
    wanted = Wanted([read_names(directory, shard) for shard in shards])
    source = _list_wanted(config, manifest, wanted)
    context = WriteContext(config, _make_listing(config, manifest, source))
    tasks, shared = TaskWindow(config.num_processes), share(context)
    waiting: collections.deque[DamagedShard] = collections.deque()

    def finish(part: WrittenPart) -> tuple[DamagedShard, list[str]]:
        shard = waiting.popleft()  # parts come in order
        return shard, _finish(directory, context, shard, part)

    for number, shard in enumerate(shards):
        inputs = wanted.of(number)
        changes = describe_missing(inputs.missing, wanted.refused)
        changes += [f"{printable(key.decode())}: two inputs have this key now" for key in inputs.repeated]
        changes += describe_unknown_classes(inputs.references, source, manifest.schema, config.spool_directory)
        if changes:
            yield shard, changes
            continue
        write_planned_shard(config, shard.planned, b"".join(inputs.references.pieces()))
        waiting.append(shard)
        for part in tasks.run(write_part, shared, shard.planned, ShardPart()):
            yield finish(part)
    for part in tasks.drain():
        yield finish(part)


def read_names(directory: str, shard: DamagedShard) -> list[ExampleName]:
    """Those of a shard's examples, in record order."""
    if shard.info.catalog not in shard.damage:
        catalog = read_catalog(f"{directory}/{shard.info.catalog}")
        names = zip(catalog.column("key").to_pylist(), catalog.column("path").to_pylist())
        return [ExampleName(key.encode(), path) for key, path in names]
    with open_file(f"{directory}/{shard.info.name}") as file:
        return [ExampleName(record_key(record.data), "") for record in read_records(file) if isinstance(record, Record)]


class WantedInputs(NamedTuple):
    """What the sources have for one shard.

    Attributes:
        references: In record order.
        missing: Examples that nothing is listed for.
        repeated: Keys that more than one input has.
    """

    references: References
    missing: list[ExampleName]
    repeated: list[bytes]


class Wanted:
    """The examples of some shards, which are looked for among all that is listed.

    Args:
        names: Of each shard, in record order.

    Attributes:
        refused: What became a dead letter when it was listed.
    """

    def __init__(self, names: Sequence[Sequence[ExampleName]]) -> None:
        self._names = names
        self._places = {name.key: (shard, record) for shard, of_shard in enumerate(names) for record, name in enumerate(of_shard)}
        self._found: list[tuple[np.ndarray, References]] = [(np.zeros((0, 2), np.int64), References.concatenate([]))]
        self.refused = RefusedInputs(one for of_shard in names for one in of_shard)

    def take(self, listed: Iterable[References | DeadLetter | ListedPart]) -> None:
        for one in listed:
            if isinstance(one, DeadLetter):
                self.refused.add(one)
            elif isinstance(one, References):
                places = [(position, self._places[key]) for position, key in enumerate(one.keys) if key in self._places]
                if places:
                    positions, found = zip(*places)
                    self._found.append((np.array(found, np.int64), one.take(np.array(positions, np.int64))))

    def sort(self) -> None:
        """Once all is listed."""
        places = np.concatenate([places for places, _ in self._found])
        references = References.concatenate([references for _, references in self._found])
        order = np.lexsort((places[:, 1], places[:, 0]))
        self._found = [(places[order], references.take(order))]

    def of(self, shard: int) -> WantedInputs:
        (places, references), names = self._found[0], self._names[shard]
        begin, end = np.searchsorted(places[:, 0], [shard, shard + 1]).tolist()
        counts = np.bincount(places[begin:end, 1], minlength=len(names))
        missing, repeated = (np.flatnonzero(which).tolist() for which in (counts == 0, counts > 1))
        return WantedInputs(references.slice(begin, end), [names[record] for record in missing], [names[record].key for record in repeated])


def _list_wanted(config: PrepareConfig, manifest: Manifest, wanted: Wanted) -> Source:
    """Lists the whole source, once for all shards."""
    try:
        source = open_to_list(config)
        _check_features(source, manifest)
        tasks, context = TaskWindow(config.num_processes), share(PartContext(config, uuid.uuid4().hex))
        for part in source.parts():
            if config.source.kind not in SMALL_PARTS:
                wanted.take(list_in_batches(source, part, config))
                continue
            for batches, dead_letters, _ in tasks.run(list_whole_part, context, part):
                wanted.take([*map(References.unpack, batches), *dead_letters])
        for batches, dead_letters, _ in tasks.drain():
            wanted.take([*map(References.unpack, batches), *dead_letters])
    except UserError as error:
        raise RunError(f"what the data set was made of cannot be listed again: {error}") from error
    wanted.sort()
    return source


def _check_features(source: Source, manifest: Manifest) -> None:
    expected = {(one.name, one.kind, one.shape) for one in manifest.schema if one.name not in _OF_EVERY_SOURCE}
    found = {(one.name, one.kind, one.shape) for one in source.features}
    if found != expected:
        shown = [", ".join(f"{name} ({kind})" for name, kind, _ in sorted(those, key=str)) or "none" for those in (found - expected, expected - found)]
        raise UserError(f"{printable(source.root)} has other features than it had: now {shown[0]}; then {shown[1]}")


def _make_listing(config: PrepareConfig, manifest: Manifest, source: Source) -> Listing:
    """What the run knew of its inputs, as far as a shard depends on it."""
    return Listing(
        source=config.source.kind,
        root=source.root,
        schema=manifest.schema,
        targets=manifest.targets,
        listed_labels={},
        splits=tuple(manifest.splits),
        fractions=None,
        num_inputs=manifest.num_inputs,  # which images are of the sample depends on it
        num_bytes=0,
        reference_bytes=0,
        num_ignored=0,
        dead_letters=DeadLetterCount(),
    )


def _finish(directory: str, context: WriteContext, shard: DamagedShard, part: WrittenPart) -> list[str]:
    """What is in the way of the bytes that a shard had, once its records are written."""
    rebuilt = finish_shard(context, shard.planned, [part]).info
    sums = {name: tuple(of_file) for name, *of_file in rebuilt.files()}
    if all(sums[name] == tuple(of_file) for name, *of_file in shard.info.files() if name in shard.damage):
        return []
    working = context.config.working_directory
    changes = [f"{printable(letter.path)}: {letter.message} ({letter.stage})" for letter in part.dead_letters]
    if shard.info.catalog not in shard.damage:
        changes += catalog_changes(read_catalog(f"{directory}/{shard.info.catalog}"), read_catalog(f"{working}/{rebuilt.catalog}"))
    if not changes and os.path.isfile(f"{directory}/{shard.info.name}"):
        changes = record_changes(f"{directory}/{shard.info.name}", f"{working}/{rebuilt.name}")
    return changes or [_describe_sums(shard, sums)]


def _describe_sums(shard: DamagedShard, sums: Mapping[str, tuple[int, int]]) -> str:
    """Where nothing else is known to differ."""
    name, *expected = next(one for one in shard.info.files() if one[0] in shard.damage and sums[one[0]] != one[1:])
    return (
        f"{printable(name)} would have {sums[name][0]} bytes with CRC-32C {sums[name][1]:08x}; expected {expected[0]} with "
        f"{expected[1]:08x}; every image and label is what it was, so it is another feature, or a place, or another version of a package"
    )
