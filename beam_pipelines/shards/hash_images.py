"""Defines a Beam transform that reads, checks and hashes all images before the shards are planned."""

import dataclasses
import itertools
from collections import Counter
from typing import Any, Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import TaggedOutput

from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.image_hashes import HashedRun, pack_hashes
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import SortedRun, SpoolRange, read_run, write_dead_letters, write_range, write_run
from beam_pipelines.errors import RunError
from beam_pipelines.images.visual_groups import HASH_ROW
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.worker_processes import share
from beam_pipelines.parallel.parallel_map import ParallelMap
from beam_pipelines.shards.hash_some import HashedPart, hash_some
from beam_pipelines.shards.write_context import WriteContext, WriteSpec

# The number of images in a task of a worker process. It equals the minimum number of inputs in a part of a shard.
_TASK_INPUTS = 256


@dataclasses.dataclass
class HashImages(beam.PTransform):
    """A Beam transform from `SortedRun`s to `HashedRun`s. The output `dead_letters` contains sorted dead letters.

    Attributes:
        spec: The options and the run.
        listing: The `Listing`, as a side input.
    """

    spec: WriteSpec
    listing: beam.pvalue.AsSingleton

    def expand(self, runs: beam.PCollection) -> Any:
        by_spool = runs | "KeyRuns" >> beam.Map(lambda run: (_name(run.spool), run))
        parts = (
            runs
            | "CutRuns" >> beam.FlatMap(cut_run)  # ((spool, first), (byte range, number of references))
            | "SpreadHashing" >> beam.GroupByKey()
            | "Hash" >> beam.ParDo(_Hash(self.spec), self.listing)  # (spool, HashedPart)
        )
        return (
            {"runs": by_spool, "parts": parts}
            | "GroupByRun" >> beam.CoGroupByKey()
            | "JoinHashes" >> beam.FlatMap(join_hashes, self.spec.run.spool_directory).with_outputs("dead_letters", main="runs")
        )


def _name(spool: int) -> str:
    """Formats the number of a temporary file as a string. Some numbers are too large for Beam's integer coder."""
    return f"{spool:016x}"


def cut_run(run: SortedRun) -> Iterator[tuple[tuple[str, int], tuple[SpoolRange, int]]]:
    """Divides sorted references into chunks that are processed in parallel."""
    for first, num, spool_range in run.chunks():
        yield (_name(run.spool), first), (spool_range, num)


class _Hash(ParallelMap):
    def __init__(self, spec: WriteSpec) -> None:
        super().__init__(spec.run.num_processes, spec.run.id)
        self._spec = spec

    def start_bundle(self) -> None:
        super().start_bundle()
        self._context: bytes | None = None
        self._stopwatch = progress.Stopwatch("hash")

    def process(
        self, element: tuple[tuple[str, int], Iterable[tuple[SpoolRange, int]]], listing: Listing
    ) -> Iterator[tuple[str, HashedPart]]:
        (_, first), ((spool_range, num),) = element
        self._context = self._context or share(WriteContext(self._spec, listing))
        for start in range(0, num, _TASK_INPUTS):
            yield from self.run(hash_some, self._context, spool_range, first, start, min(start + _TASK_INPUTS, num))

    def take(self, result: HashedPart) -> Iterator[tuple[str, HashedPart]]:
        reasons = Counter(f"dead_letters_{letter.reason}" for letter in result.dead_letters)
        details = {**reasons, **self._stopwatch.lap()}
        num_refused = len(result.dead_letters)
        progress.count(self._spec.run.progress_directory, details, hashed=result.num_inputs, dead_letters=num_refused)
        yield _name(result.spool), result


def join_hashes(element: tuple[str, dict[str, Iterable[Any]]], spool_directory: str) -> Iterator[Any]:
    """Adds image hashes to sorted references and removes references to rejected images.

    Raises:
        RunError: The runner lost or repeated hashes.
    """
    (run,), parts = (list(element[1][name]) for name in ("runs", "parts"))
    parts.sort(key=lambda part: part.first)
    num_hashed = sum(part.num_inputs for part in parts)
    if num_hashed != run.num_references or any(item.first + item.num_inputs != other.first for item, other in itertools.pairwise(parts)):
        raise RunError(
            f"The runner lost or repeated images: {num_hashed} of {run.num_references} were hashed. Rerun with "
            "--resume."
        )
    rows = np.frombuffer(b"".join(part.rows for part in parts), HASH_ROW)
    rejected = [letter for part in parts for letter in part.dead_letters]
    references = read_run(run, spool_directory)
    if rejected:
        references = references.take(
            np.setdiff1d(np.arange(len(references)), [part.first + index for part in parts for index in part.rejected])
        )
    references = dataclasses.replace(references, hashes=pack_hashes(rows))
    count = DeadLetterCount()
    count.add(rejected)
    yield HashedRun(write_run([references], spool_directory), write_range(rows.tobytes(), spool_directory), count)
    if rejected:
        yield TaggedOutput("dead_letters", write_dead_letters(rejected, spool_directory))
