"""Lists one part of a source and writes references to its inputs."""

import dataclasses
import functools
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Iterator, Sequence

import numpy as np

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.listed_values import ValueWriter, value_writer
from beam_pipelines.elements.references import ROW, References
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.elements.split_hashes import SplitByGroup
from beam_pipelines.elements.binary_column import BinaryColumn, no_texts
from beam_pipelines.errors import printable
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.worker_processes import shared
from beam_pipelines.sources.listing.groups_and_strata import GroupReader, StrataReader
from beam_pipelines.sources.listing.list_part import list_part
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.listing.listed_runs import ListedRuns
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.input_errors import listing_error
from beam_pipelines.storage.versions import noting_versions
from tf_input.dataset_format import Feature

_Listed = list[InputRecord] | DeadLetter

# With n worker processes, the runs that each process writes have 1/n of the full size, but at least 1/4.
_MAX_SHARES = 4

# The number of parts of an object store to list in parallel. The store spends a dozen times longer on a listing request
# than this process.
_NUM_THREADS = 8


class ReferenceMaker:
    """Converts listed inputs to references and computes the shuffle key and the split of each input."""

    def __init__(self, options: PrepareOptions, features: Sequence[Feature] = ()) -> None:
        self._seed = options.seed
        self._by_group = None if options.resolves_splits else SplitByGroup(options.shares)
        self._groups = GroupReader(options)
        self._strata = StrataReader(features, options)

    def make(self, images: Sequence[InputRecord], values: ValueWriter, facts: ListedFacts) -> References:
        """Returns references to listed inputs.

        Args:
            images: The listed inputs.
            values: The writer of values that are too large for a reference.
            facts: The facts about all listed inputs, which this method updates.
        """
        listed = list(zip(*images))
        keys, paths, labels, splits, num_bytes, _, offsets, raws, spools, others = listed
        encoded = [key.encode() for key in keys]
        rows = np.zeros(len(keys), ROW)
        rows["order"] = shuffle_orders(self._seed, encoded)
        for name, column in (("num_bytes", num_bytes), ("spool", spools), ("offset", offsets)):
            rows[name] = column[0] if len(set(column)) == 1 else column  # usually the same value for all
        layouts = tuple(dict.fromkeys(raw for raw in raws if raw is not None))
        if layouts:
            indices = {None: 0, **{raw: number for number, raw in enumerate(layouts, 1)}}
            rows["raw"] = [indices[raw] for raw in raws]
        paths_unlike_keys = () if paths == keys else [b"" if path == key else path.encode() for path, key in zip(paths, keys)]
        groups = self._groups.read(images, encoded, facts)
        rows["split"], names = self._splits(splits, [group or key for group, key in zip(groups, encoded)] if groups else encoded)
        strata = self._strata.read(images, facts)
        references = References(
            rows,
            names,
            layouts,
            BinaryColumn.of(encoded),
            BinaryColumn.of(paths_unlike_keys) if paths_unlike_keys else no_texts(len(keys)),
            _encode_names(labels),
            BinaryColumn.of(groups) if groups else no_texts(len(keys)),
            BinaryColumn.of(list(map(values.encode, others))) if any(others) else no_texts(len(keys)),
            _encode_names(strata) if strata else no_texts(len(keys)),
            no_texts(len(keys)),
        )
        facts.counts.reference_bytes += references.num_bytes
        return references

    def _splits(self, given: Sequence[str | None], groups: Sequence[bytes]) -> tuple[np.ndarray, tuple[str, ...]]:
        """Returns the index of each input's split, and the split names that these indices refer to. The split name of
        inputs without a split is ""."""
        if given[0] is None and self._by_group:
            return self._by_group(groups), self._by_group.names
        names = tuple(dict.fromkeys(name or "" for name in given))
        indices = {name: number for number, name in enumerate(names)}
        return np.array([indices[name or ""] for name in given]), names


def _encode_names(names: Sequence[str]) -> BinaryColumn:
    return BinaryColumn.of(list(map({name: name.encode() for name in set(names)}.__getitem__, names)))


def _with_named_errors(listed: Iterator[_Listed], path: str) -> Iterator[_Listed]:
    """Yields the items of `listed` and adds the path to the message of each `OSError`."""
    try:
        yield from listed
    except OSError as error:
        raise listing_error(error, path, f"{printable(path)} could not be listed: {error.strerror or error}") from error


@dataclasses.dataclass(frozen=True)
class PartContext:
    """The state that all parts of a bundle share."""

    options: PrepareOptions
    run: RunPaths

    @functools.cached_property
    def source(self) -> Source:
        """The source, which is opened only once per process to save time."""
        return open_source(self.options, spool_directory=self.run.spool_directory)


def list_shared_part(context: bytes, part: str) -> ListedRuns:
    """Lists one part of the source in a worker process."""
    return list_entire_part(shared(context), part)


def list_side_by_side(options: PrepareOptions, run: RunPaths, parts: Sequence[str]) -> Iterator[ListedRuns]:
    """Lists parts of the source in parallel threads and yields each result as soon as it is available. If one part
    fails, the listing of all other parts stops."""
    is_over, pool = threading.Event(), ThreadPoolExecutor(_NUM_THREADS)
    try:  # one source per thread, because a source lists one part at a time
        for done in as_completed([pool.submit(list_entire_part, PartContext(options, run), part, is_over) for part in parts]):
            yield done.result()
    finally:
        is_over.set()
        pool.shutdown(cancel_futures=True)


def list_entire_part(context: PartContext, part: str, is_over: threading.Event | None = None) -> ListedRuns:
    """Lists one part of the source, until the event `is_over` is set, and writes sorted files of references. The
    returned value contains the remaining references, which are too few to fill a file."""
    options, run, stopwatch = context.options, context.run, progress.Stopwatch("list")
    num_shares = _NUM_THREADS if is_over else min(max(run.num_processes, 1), _MAX_SHARES)
    listed = ListedRuns(run.spool_directory, 1 / num_shares)
    with noting_versions(listed.facts.versions), value_writer(run.spool_directory) as values:
        source = context.source  # opened here, so that the versions of its files are noted
        maker = ReferenceMaker(options, source.features)
        # For class folders, the name of a part is not a path.
        path = f"{source.root}/{'' if options.source.kind.has_class_folders else part}"
        for item in _with_named_errors(list_part(source, part, listed.facts), path):
            if is_over and is_over.is_set():
                break
            if isinstance(item, DeadLetter):
                progress.count_in_beam({"dead_letters": 1, f"dead_letters_{item.reason}": 1})
                listed.add(item)
            else:
                references = maker.make(item, values, listed.facts)
                progress.count(run.progress_directory, stopwatch.lap(), listed=len(references))
                listed.add(references)
    listed.write()
    return listed
