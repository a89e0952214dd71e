"""A Beam stage that finds near-duplicate images, and either groups them or keeps only one image per cluster.

Beam transfers only locations in temporary files and descriptions of search tasks. For each search task, a worker reads
the hashes of all images (33 bytes per image) from a temporary file. One worker merges the results. A worker needs
memory for the hashes of all images and for the keys of near-duplicates.
"""

import dataclasses
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsIter, AsSingleton, TaggedOutput
from apache_beam.typehints.decorators import no_annotations

from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.image_hashes import HashedRun
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import SortedRun, SpoolRange, read_references, read_range, read_run, write_range, write_run
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import KeyCounts
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.images.visual_groups import HASH_ROW, Edges, find_edges, group_by_hash, join_edges
from beam_pipelines.images.near_hashes import SearchPart, search_parts
from beam_pipelines.images.perceptual_hash import HASH_WORDS
from beam_pipelines.parallel.progress import Stopwatch, count_in_beam
from beam_pipelines.splits.earlier_splits import find_earlier_splits
from beam_pipelines.splits.resolve_near_duplicates import Changes, DuplicateSpec, ResolvedNearDuplicates, apply_changes, key_ranks
from beam_pipelines.splits.near_duplicate_clusters import cluster_candidates, find_clustered
from beam_pipelines.storage.spool import SpoolReader


class WrittenHashes(NamedTuple):
    """Distinct image hashes in a temporary file.

    Attributes:
        spool_range: The byte range with `VisualHashes.hashes`, uint64 [num, HASH_WORDS].
        num: The number of hashes.
    """

    spool_range: SpoolRange
    num: int


class WrittenEdges(NamedTuple):
    """The pairs of similar hashes from one search task, in a temporary file.

    Attributes:
        spool_range: The byte range with `Edges.pairs`, uint64 [num_edges].
        are_all: Whether the pairs are complete. See `Edges.are_all`.
    """

    spool_range: SpoolRange
    are_all: bool


class ChangedRun(NamedTuple):
    """Sorted references, and changes to their groups."""

    run: SortedRun
    changes: Changes


@dataclasses.dataclass
class FindNearDuplicates(beam.PTransform):
    """Finds near-duplicates among hashed images and returns the remaining references as `Listed`.

    Attributes:
        spec: The options and the run.
        listed: The result of the listing stage.
        dead_letters: The dead letters of the hashing stage, in the format of `Listed.dead_letters`.
    """

    spec: DuplicateSpec
    listed: Listed
    dead_letters: beam.PCollection

    @no_annotations  # Beam does not support a tuple of PCollections as an output type.
    def expand(self, runs: beam.PCollection) -> Listed:
        spec, root = self.spec, runs.pipeline
        visual_hashes = root | "AfterHashing" >> beam.Impulse() | "FindLooks" >> beam.Map(write_hashes, AsIter(runs), spec.run.spool_directory)
        edges = (
            visual_hashes
            | "CutSearch" >> beam.FlatMap(cut_search)  # ((band, part), (SearchPart, WrittenHashes))
            | "SpreadSearch" >> beam.GroupByKey()
            | "FindAlike" >> beam.Map(search, spec)  # WrittenEdges
        )
        resolved = (
            root
            | "AfterTheSearch" >> beam.Impulse()
            | "ResolveNearDuplicates"
            >> beam.FlatMap(resolve_near_duplicates_found, AsIter(runs), AsIter(edges), AsSingleton(self.listed.listing), spec).with_outputs(
                "near_duplicates", "renames", main="runs"
            )
        )
        changed = (
            resolved.runs
            # The key is a string because Beam's integers are signed 64-bit numbers.
            | "KeyChanges" >> beam.Map(lambda changed: (f"{changed.run.spool:016x}", changed))
            | "SpreadChanges" >> beam.GroupByKey()
            | "ApplyChanges" >> beam.FlatMap(apply, AsSingleton(resolved.renames), spec.run.spool_directory).with_outputs("counts", main="runs")
        )
        listing = self.listed.listing | "TakeNearDuplicates" >> beam.Map(take_near_duplicates, AsSingleton(resolved.near_duplicates))
        dead_letters = (self.listed.dead_letters, self.dead_letters) | "JoinDeadLetters" >> beam.Flatten()
        return Listed(changed.runs, changed.counts, listing, dead_letters)


def _read_rows(runs: Sequence[HashedRun], spool: SpoolReader) -> np.ndarray:
    """Returns the hashes of all images, in the order of the references."""
    return np.frombuffer(b"".join(read_range(run.rows, spool) for run in runs), HASH_ROW)


def write_hashes(unused: bytes, runs: Iterable[HashedRun], spool_directory: str) -> WrittenHashes:
    """Writes all distinct image hashes to a temporary file."""
    stopwatch = Stopwatch("near_duplicates")
    with SpoolReader(spool_directory) as spool:
        visual_hashes = group_by_hash(_read_rows(list(runs), spool))
    spool_range = write_range(visual_hashes.hashes.tobytes(), spool_directory)
    count_in_beam(stopwatch.lap())
    return WrittenHashes(spool_range, len(visual_hashes.hashes))


def cut_search(visual_hashes: WrittenHashes) -> Iterator[tuple[tuple[int, int], tuple[SearchPart, WrittenHashes]]]:
    """Yields the tasks into which the search for similar hashes is divided."""
    for part in search_parts(visual_hashes.num) if visual_hashes.num else ():
        yield (part.band, part.part), (part, visual_hashes)


def search(element: tuple[tuple[int, int], Iterable[tuple[SearchPart, WrittenHashes]]], spec: DuplicateSpec) -> WrittenEdges:
    """Runs a search task and writes the pairs of similar hashes to a temporary file."""
    _, ((part, visual_hashes),) = element
    stopwatch = Stopwatch("near_duplicates")
    with SpoolReader(spec.run.spool_directory) as spool:
        hashes = np.frombuffer(read_range(visual_hashes.spool_range, spool), np.uint64).reshape(-1, HASH_WORDS)
    edges = find_edges(hashes, spec.max_distance, part)
    spool_range = write_range(edges.pairs.tobytes(), spec.run.spool_directory)
    count_in_beam(stopwatch.lap())
    return WrittenEdges(spool_range, edges.are_all)


def resolve_near_duplicates_found(
    unused: bytes, runs: Iterable[HashedRun], edges: Iterable[WrittenEdges], listing: Listing, spec: DuplicateSpec
) -> Iterator[Any]:
    """Decides whether each near-duplicate is grouped or dropped, and yields the changes to the references of each run.

    Raises:
        UserError: No image is readable, or near-duplicates already belong to different splits.
        DataError: Too many images are unreadable.
    """
    stopwatch = Stopwatch("near_duplicates")
    # Sorting makes image indices consistent. The result does not depend on the order of the runs.
    runs = sorted(runs, key=lambda run: run.run.spool)
    dead_letters = DeadLetterCount()
    for run in runs:
        dead_letters.merge(run.dead_letters)
    listing.check_dead_letters(listing.dead_letters + dead_letters, spec.max_bad_fraction, ", or pass")
    with SpoolReader(spec.run.spool_directory) as spool:
        rows = _read_rows(runs, spool)
        visual_hashes = group_by_hash(rows)
        joined, are_all = join_edges(Edges(np.frombuffer(read_range(edge.spool_range, spool), np.uint64), edge.are_all) for edge in edges)
        indices = find_clustered(visual_hashes, joined)
        starts = np.cumsum([0, *(run.run.num_references for run in runs)])
        bounds = np.searchsorted(indices, starts)
        candidates = References.concatenate(
            [_read_some(run.run, indices[low:high] - start, spool) for run, start, low, high in zip(runs, starts, bounds, bounds[1:])]
        )
    clusters = cluster_candidates(visual_hashes, joined, spec.max_distance, indices, key_ranks(candidates.keys), rows["content"][indices])
    resolved = ResolvedNearDuplicates(candidates, clusters, spec, listing, find_earlier_splits(spec.splits_from, candidates.keys))
    members = indices[resolved.members]
    for run, start, stop in zip(runs, starts.tolist(), starts[1:].tolist()):
        if start < stop:
            yield ChangedRun(run.run, _changes_of(resolved, members, start, stop))
    yield TaggedOutput("renames", resolved.renames)
    near = np.flatnonzero(np.bincount(joined.ravel(), minlength=1))
    data = visual_hashes.hashes[near].tobytes(), np.searchsorted(near, joined).tobytes()
    of_near = [write_range(item, spec.run.spool_directory) for item in data]
    yield TaggedOutput("near_duplicates", (resolved.describe(*of_near, are_all), dead_letters))
    count_in_beam(stopwatch.lap())


def _read_some(run: SortedRun, indices: np.ndarray, spool: SpoolReader) -> References:
    if not len(indices):
        return References.concatenate([])
    return read_references(run.smallest(run.num_references), spool).take(indices)


def _changes_of(resolved: ResolvedNearDuplicates, members: np.ndarray, start: int, stop: int) -> Changes:
    """Returns the changes to one run. The images of the run have indices from `start` to `stop - 1`."""
    mine = np.flatnonzero((members >= start) & (members < stop))
    mine = mine[np.argsort(members[mine])]
    dropped = mine[resolved.is_dropped[mine]]
    grouped = mine if resolved.groups else mine[:0]
    return Changes(
        members[dropped] - start,
        members[grouped] - start,
        BinaryColumn.of([resolved.groups[index] for index in grouped.tolist()]),
    )


def apply(element: tuple[str, Iterable[ChangedRun]], renames: Mapping[bytes, bytes], spool_directory: str) -> Iterator[Any]:
    """Applies changes to references. Yields the changed references, and the histogram of their shuffle keys."""
    _, (changed,) = element
    references = read_run(changed.run, spool_directory)
    changes = changed.changes
    is_changed = bool(len(changes.dropped) or len(changes.grouped) or renames)
    if is_changed:
        references = apply_changes(references, changes, renames)
    counts = KeyCounts()
    counts.add_references([references])
    if len(references):
        yield write_run([references], spool_directory) if is_changed else changed.run
    yield TaggedOutput("counts", counts.pack())


def take_near_duplicates(listing: Listing, results: tuple[NearDuplicates, DeadLetterCount]) -> Listing:
    """Adds the near-duplicates, and the dead letters of images that were rejected during hashing, to the listing."""
    near_duplicates, rejected = results
    return dataclasses.replace(listing, dead_letters=listing.dead_letters + rejected, near_duplicates=near_duplicates)
