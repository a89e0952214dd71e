"""Lists the sources again to find the inputs of the examples in corrupt shards.

As in `recordmill prepare`, sorted references to the inputs are stored in temporary files. The references of only one
shard are in memory at a time. A task that lists a part of the source needs 8 bytes of memory per wanted key.
"""

import contextlib
import dataclasses
import functools
import json
from typing import Collection, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.reference_runs import read_references, read_range
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.errors import RunError, UserError, printable
from beam_pipelines.parallel.worker_processes import TaskWindow, share, shared
from beam_pipelines.repair.source_changes import ExampleName
from beam_pipelines.sources.listing.listed_runs import ListedRuns
from beam_pipelines.sources.listing.part_listing import PartContext, list_in_batches, open_to_list
from beam_pipelines.sources.source import Source
from beam_pipelines.sources.source import other_images
from beam_pipelines.storage.files import make_folder, write_file
from beam_pipelines.storage.spool import SpoolReader
from beam_pipelines.storage.versions import noting_versions
from tf_input.dataset_format import IMAGE, KEY, Feature, Manifest

_OF_IMAGE = (IMAGE, "height", "width")
_LAST = np.uint64(2**64 - 1)  # Greater than all shuffle keys.


class WantedInputs(NamedTuple):
    """The inputs of a corrupt shard.

    Attributes:
        references: The references of the inputs, in record order.
        missing: The examples whose input is missing in the sources.
        repeated: The keys of several inputs.
    """

    references: References
    missing: list[ExampleName]
    repeated: list[bytes]


class Wanted:
    """Finds the inputs of each corrupt shard, after the sources have been listed.

    Args:
        config: The configuration of the job.
        source: The source that was listed.
        listed: The references to the wanted inputs, and all dead letters.

    Attributes:
        source: The source that was listed.
        versions: A mapping from the path of each opened file to its version.
    """

    def __init__(self, config: PrepareJob, source: Source, listed: ListedRuns) -> None:
        self.source, self.versions = source, listed.facts.versions
        self._config, self._listed = config, listed

    def of(self, names: Sequence[ExampleName]) -> WantedInputs:
        """Returns the inputs of a corrupt shard.

        Args:
            names: The names of the shard's examples, in record order.
        """
        records_by_key = {name.key: record for record, name in enumerate(names)}
        references = self._read(shuffle_orders(self._config.seed, list(records_by_key)))
        records = np.array([records_by_key.get(key, -1) for key in references.keys], np.int64)
        order = np.argsort(records, kind="stable")
        order = order[np.searchsorted(records[order], 0) :]
        counts = np.bincount(records[order], minlength=len(names))
        missing, repeated = (np.flatnonzero(which).tolist() for which in (counts == 0, counts > 1))
        return WantedInputs(references.take(order), [names[record] for record in missing], [names[record].key for record in repeated])

    def _read(self, orders: np.ndarray) -> References:
        """Returns the references of all splits with shuffle keys from the smallest to the largest given key."""
        if not len(orders):
            return References.concatenate([])
        first, last = orders.min(), orders.max()
        bounds = np.array([first, last + np.uint64(1)] if last < _LAST else [first], np.uint64)
        with contextlib.closing(SpoolReader(self._config.spool_directory)) as spool:
            chunks = [spool_range for run in self._listed.runs for block, spool_range in run.cut(bounds) if block == 0]
            return References.concatenate([_between(read_references(spool_range, spool), first, last) for spool_range in chunks])

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yields all dead letters of the listing."""
        with contextlib.closing(SpoolReader(self._config.spool_directory)) as spool:
            for spool_range in self._listed.dead_letter_runs:
                yield from (DeadLetter(**json.loads(line)) for line in read_range(spool_range, spool).split(b"\n")[:-1])


def _between(references: References, first: np.uint64, last: np.uint64) -> References:
    begin, end = np.searchsorted(references.rows["order"], first), np.searchsorted(references.rows["order"], last, side="right")
    return references.slice(int(begin), int(end))


@dataclasses.dataclass(frozen=True)
class _WantedContext(PartContext):
    """Data that all listing tasks share.

    Attributes:
        path: The path of a file with the sorted shuffle keys of all wanted inputs, uint64 [num_keys + 1]. The last
            value is a sentinel that is greater than all shuffle keys.
    """

    path: str

    @functools.cached_property
    def orders(self) -> np.ndarray:
        """The memory-mapped contents of the file at `path`, uint64 [num_keys + 1]. All processes share one copy."""
        return np.memmap(self.path, np.uint64, "r")


def _list_wanted(context: bytes, part: str) -> ListedRuns:
    """Lists a part of the source and keeps only the inputs of corrupt shards."""
    of_all: _WantedContext = shared(context)
    listed = ListedRuns(of_all.config.spool_directory, 1.0)
    with noting_versions(listed.facts.versions):
        for batch in list_in_batches(of_all.source, part, of_all.config):
            if isinstance(batch, References):
                orders = batch.rows["order"]
                batch = batch.take(np.flatnonzero(of_all.orders[np.searchsorted(of_all.orders, orders)] == orders))
            if not isinstance(batch, References) or len(batch):
                listed.add(batch)
    listed.write()
    return listed


def list_wanted(config: PrepareJob, manifest: Manifest, shards: Iterable[Sequence[ExampleName]]) -> Wanted:
    """Lists the whole source once for all corrupt shards.

    Args:
        config: The configuration of the job, with another working directory.
        manifest: The manifest of the dataset.
        shards: The examples of each shard.

    Raises:
        RunError: The source cannot be listed.
    """
    make_folder(config.spool_directory)
    context = _WantedContext(config, f"{config.spool_directory}/wanted")
    orders = [shuffle_orders(config.seed, [name.key for name in names]) for names in shards]
    write_file(context.path, np.append(np.sort(np.concatenate(orders)), _LAST).tobytes())
    listed_runs = ListedRuns(config.spool_directory)
    try:
        source = open_to_list(config)
        tasks, packed = TaskWindow(config.num_processes), share(context)
        for part in source.parts():
            for listed in tasks.run(_list_wanted, packed, part, memory_bytes=source.memory_bytes(part)):
                listed_runs.merge(listed)
        for listed in tasks.drain():
            listed_runs.merge(listed)
        _check_features(source, listed_runs.facts.schema.found_features, manifest)
        listed_runs.facts.problems.reject_unexpected_files(source.root)
    except UserError as error:
        raise RunError(f"the inputs of the dataset cannot be listed again: {error}") from error
    listed_runs.write_rest()
    return Wanted(config, source, listed_runs)


def _check_features(source: Source, found: Mapping[str, Collection[Feature]], manifest: Manifest) -> None:
    """Raises `UserError` unless the source has the features of the dataset.

    Args:
        source: The source.
        found: The features that the source found while it was listed, by name.
        manifest: The manifest of the dataset.
    """
    own = {KEY, *(_OF_IMAGE if IMAGE in manifest.features else ())}
    own |= {f"{name}/{side}" for name in other_images(source) for side in ("height", "width")}
    expected = {_as_listed(item) for item in manifest.schema if item.name not in own}
    features = [*source.features, *(feature for several in found.values() for feature in several)]
    found_features = {(feature.name, feature.kind, feature.shape) for feature in features}
    if found_features != expected:
        now, then = (_describe_features(others) for others in (found_features - expected, expected - found_features))
        raise UserError(
            f"the features of {printable(source.root)} have changed: it now has {now}, but the dataset has {then}. "
            "Restore the inputs, or prepare a new dataset."
        )


def _as_listed(feature: Feature) -> tuple[str, str, tuple]:
    """Returns the name, kind and shape of a feature as a source lists it. Sources list `pixels` as `image`."""
    return (feature.name, "image", ()) if feature.is_image else (feature.name, feature.kind, feature.shape)


def _describe_features(features: Iterable[tuple[str, str, tuple]]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind, _ in sorted(features, key=str)) or "none"
