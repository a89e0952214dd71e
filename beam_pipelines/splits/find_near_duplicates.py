"""Beam stage that finds near-duplicates and either puts them into one group or drops all but one.

The runner transfers only pointers to runs in the spool and descriptions of search tasks. The worker of a search task
reads the hashes from the spool, 33 bytes per image. One worker merges the results. The worker needs memory for the
hashes of all images and for the keys of near-duplicates.
"""

import contextlib
import dataclasses
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsIter, AsSingleton, TaggedOutput
from apache_beam.typehints.decorators import no_annotations

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.image_hashes import HashedRun
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import Run, SpoolStretch, read_references, read_stretch, write_run
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import KeyCounts
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.errors import DataError, UserError
from beam_pipelines.images.look_alikes import HASH_ROW, Edges, find_edges, find_looks, join_edges
from beam_pipelines.images.near_hashes import SearchPart, search_parts
from beam_pipelines.images.perceptual_hash import HASH_WORDS
from beam_pipelines.parallel.progress import Stopwatch, count_in_beam
from beam_pipelines.splits.earlier_splits import find_earlier_splits
from beam_pipelines.splits.resolve_near_duplicates import Changes, SettledNearDuplicates, apply_changes, key_ranks
from beam_pipelines.splits.near_duplicate_clusters import cluster_candidates, find_alike
from beam_pipelines.storage.spool import SpoolReader, own_spool


class WrittenLooks(NamedTuple):
    """Distinct image hashes in the spool.

    Attributes:
        stretch: The byte range of the spool that contains `Looks.hashes`, uint64 [num, HASH_WORDS].
        num: The number of hashes.
    """

    stretch: SpoolStretch
    num: int


class WrittenEdges(NamedTuple):
    """The pairs of similar hashes that `find_edges` found and wrote to the spool.

    Attributes:
        stretch: The byte range of the spool that contains `Edges.pairs`, uint64 [num_edges].
        are_all: Whether the pairs are complete. See `Edges.are_all`.
    """

    stretch: SpoolStretch
    are_all: bool


class ChangedRun(NamedTuple):
    """A sorted run of references and the changes to its images."""

    run: Run
    changes: Changes


@dataclasses.dataclass
class FindNearDuplicates(beam.PTransform):
    """Finds near-duplicates in `HashedRun`s and returns `Listed` with the remaining references.

    Attributes:
        config: The job of the run.
        listed: The runs, counts and dead letters of the listing.
        dead_letters: The dead letters of the hashing stage, in the same form as in `Listed`.
    """

    config: PrepareJob
    listed: Listed
    dead_letters: beam.PCollection

    @no_annotations  # Beam does not support a tuple of PCollections as an output type.
    def expand(self, runs: beam.PCollection) -> Listed:
        config, root = self.config, runs.pipeline
        looks = root | "AfterHashing" >> beam.Impulse() | "FindLooks" >> beam.Map(write_looks, AsIter(runs), config)
        edges = (
            looks
            | "CutSearch" >> beam.FlatMap(cut_search)  # ((band, part), (SearchPart, WrittenLooks))
            | "SpreadSearch" >> beam.GroupByKey()
            | "FindAlike" >> beam.Map(search, config)  # WrittenEdges
        )
        settled = (
            root
            | "AfterTheSearch" >> beam.Impulse()
            | "SettleNearDuplicates"
            >> beam.FlatMap(resolve_found, AsIter(runs), AsIter(edges), AsSingleton(self.listed.listing), config).with_outputs(
                "near_duplicates", "renames", "moved", main="runs"
            )
        )
        changed = (
            settled.runs
            # The key is a string because Beam's integers have 64 bits with a sign.
            | "KeyChanges" >> beam.Map(lambda changed: (f"{changed.run.spool:016x}", changed))
            | "SpreadChanges" >> beam.GroupByKey()
            | "ApplyChanges" >> beam.FlatMap(apply, AsSingleton(settled.renames), config).with_outputs("counts", main="runs")
        )
        listing = self.listed.listing | "TakeNearDuplicates" >> beam.Map(take_near_duplicates, AsSingleton(settled.near_duplicates))
        dead_letters = (self.listed.dead_letters, self.dead_letters) | "JoinDeadLetters" >> beam.Flatten()
        return Listed(changed.runs, changed.counts, listing, dead_letters, settled.moved)


def _read_rows(runs: Sequence[HashedRun], spool: SpoolReader) -> np.ndarray:
    """Returns the `HASH_ROW` of each image, in the order of the runs."""
    return np.frombuffer(b"".join(read_stretch(run.rows, spool) for run in runs), HASH_ROW)


def write_looks(unused: bytes, runs: Iterable[HashedRun], config: PrepareJob) -> WrittenLooks:
    """Writes the distinct image hashes to the spool."""
    stopwatch = Stopwatch("near_duplicates")
    with contextlib.closing(SpoolReader(config.spool_directory)) as spool:
        looks = find_looks(_read_rows(list(runs), spool))
    data = looks.hashes.tobytes()
    with own_spool(config.spool_directory) as writer:
        stretch = SpoolStretch(writer.spool, writer.append(data), len(data))
    count_in_beam(stopwatch.lap())
    return WrittenLooks(stretch, len(looks.hashes))


def cut_search(looks: WrittenLooks) -> Iterator[tuple[tuple[int, int], tuple[SearchPart, WrittenLooks]]]:
    """Yields the search tasks, which together find all pairs of similar hashes."""
    for part in search_parts(looks.num) if looks.num else ():
        yield (part.band, part.part), (part, looks)


def search(element: tuple[tuple[int, int], Iterable[tuple[SearchPart, WrittenLooks]]], config: PrepareJob) -> WrittenEdges:
    """Runs one search task and writes the pairs that it finds to the spool."""
    _, ((part, looks),) = element
    stopwatch = Stopwatch("near_duplicates")
    with contextlib.closing(SpoolReader(config.spool_directory)) as spool:
        hashes = np.frombuffer(read_stretch(looks.stretch, spool), np.uint64).reshape(-1, HASH_WORDS)
    edges = find_edges(hashes, config.duplicate_distance, part)
    with own_spool(config.spool_directory) as writer:
        stretch = SpoolStretch(writer.spool, writer.append(edges.pairs.tobytes()), edges.pairs.nbytes)
    count_in_beam(stopwatch.lap())
    return WrittenEdges(stretch, edges.are_all)


def resolve_found(
    unused: bytes, runs: Iterable[HashedRun], edges: Iterable[WrittenEdges], listing: Listing, config: PrepareJob
) -> Iterator[Any]:
    """Decides what happens to each near-duplicate.

    Yields a `ChangedRun` for each run, and tagged outputs: the `NearDuplicates`, the renamed groups, and the moved groups.

    Raises:
        UserError: No image is readable, or near-duplicates already belong to different splits.
        DataError: Too many images are unreadable.
    """
    stopwatch = Stopwatch("near_duplicates")
    # Sorted only to compute image indices. The result does not depend on the order of the runs.
    runs = sorted(runs, key=lambda run: run.run.spool)
    dead_letters = DeadLetterCount()
    for run in runs:
        dead_letters.merge(run.dead_letters)
    _check_dead_letters(dead_letters, listing, config)
    with contextlib.closing(SpoolReader(config.spool_directory)) as spool:
        rows = _read_rows(runs, spool)
        looks = find_looks(rows)
        joined, are_all = join_edges(Edges(np.frombuffer(read_stretch(one.stretch, spool), np.uint64), one.are_all) for one in edges)
        places = find_alike(looks, joined)
        starts = np.cumsum([0, *(run.run.num_references for run in runs)])
        bounds = np.searchsorted(places, starts)
        candidates = References.concatenate(
            [_read_some(run.run, places[low:high] - start, spool) for run, start, low, high in zip(runs, starts, bounds, bounds[1:])]
        )
    clusters = cluster_candidates(looks, joined, config.duplicate_distance, places, key_ranks(candidates.keys), rows["content"][places])
    settled = SettledNearDuplicates(candidates, clusters, config, listing, find_earlier_splits(config.splits_from, candidates.keys))
    members = places[settled.members]
    for run, start, stop in zip(runs, starts.tolist(), starts[1:].tolist()):
        if start < stop:
            yield ChangedRun(run.run, _changes_of(settled, members, start, stop))
    yield TaggedOutput("renames", settled.renames)
    yield TaggedOutput("moved", settled.moved)
    near = np.flatnonzero(np.bincount(joined.ravel(), minlength=1))
    with own_spool(config.spool_directory) as writer:
        data = looks.hashes[near].tobytes(), np.searchsorted(near, joined).tobytes()
        of_near = [SpoolStretch(writer.spool, writer.append(one), len(one)) for one in data]
    yield TaggedOutput("near_duplicates", (settled.describe(*of_near, are_all), dead_letters))
    count_in_beam(stopwatch.lap())


def _check_dead_letters(found: DeadLetterCount, listing: Listing, config: PrepareJob) -> None:
    num = listing.dead_letters.num + found.num
    described = found.describe(listing.image_root(config.source))
    if num == listing.num_inputs:
        raise UserError(f"no input {listing.makes_example}; among the dead letters:{described}")
    if num > config.max_bad_fraction * listing.num_inputs:
        raise DataError(
            f"{num} of {listing.num_inputs} inputs are dead letters, more than --max_bad_fraction={config.max_bad_fraction:g} allows:{described}"
        )


def _read_some(run: Run, places: np.ndarray, spool: SpoolReader) -> References:
    if not len(places):
        return References.concatenate([])
    return read_references(run.smallest(run.num_references), spool).take(places)


def _changes_of(settled: SettledNearDuplicates, members: np.ndarray, start: int, stop: int) -> Changes:
    """Returns the changes to the run that contains the images from index `start` to `stop`."""
    mine = np.flatnonzero((members >= start) & (members < stop))
    mine = mine[np.argsort(members[mine])]
    dropped = mine[settled.is_dropped[mine]]
    grouped = mine if settled.groups else mine[:0]
    return Changes(members[dropped] - start, members[grouped] - start, BinaryColumn.of([settled.groups[place] for place in grouped.tolist()]))


def apply(element: tuple[str, Iterable[ChangedRun]], renames: Mapping[bytes, bytes], config: PrepareJob) -> Iterator[Any]:
    """Applies the changes to a run of references, and yields the changed run and the tagged counts of its keys."""
    _, (changed,) = element
    with contextlib.closing(SpoolReader(config.spool_directory)) as spool:
        references = read_references(changed.run.smallest(changed.run.num_references), spool)
    changes = changed.changes
    is_changed = bool(len(changes.dropped) or len(changes.grouped) or renames)
    if is_changed:
        references = apply_changes(references, changes, renames)
    counts = KeyCounts()
    counts.add_references([references])
    if len(references):
        yield write_run([references], config.spool_directory) if is_changed else changed.run
    yield TaggedOutput("counts", counts.pack())


def take_near_duplicates(listing: Listing, found: tuple[NearDuplicates, DeadLetterCount]) -> Listing:
    """Returns the listing with the near-duplicates and the dead letters of the hashing stage."""
    near_duplicates, refused = found
    dead_letters = DeadLetterCount()
    dead_letters.merge(listing.dead_letters)
    dead_letters.merge(refused)
    return dataclasses.replace(listing, dead_letters=dead_letters, near_duplicates=near_duplicates)
