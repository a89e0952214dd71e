"""A Beam stage that assigns the final split to each input after all inputs have been listed.

The references are in temporary files, which are called runs. For each run, a worker writes a few numbers per input to
another file. One worker reads these files, and determines all splits. Then all workers write the splits into the
references.
"""

import dataclasses
from typing import Any, Iterable, Iterator, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsIter, AsSingleton, TaggedOutput
from apache_beam.typehints.decorators import no_annotations

from beam_pipelines.elements.binary_column import no_texts
from beam_pipelines.elements.division import Division
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import SortedRun, SpoolRange, read_range, read_references, write_run
from beam_pipelines.elements.shuffle_keys import KeyCounts
from beam_pipelines.parallel.progress import Stopwatch, count_in_beam
from beam_pipelines.splits.earlier_splits import load_earlier_splits
from beam_pipelines.splits.split_facts import RunFacts, SplitSpec, join_facts, read_facts
from beam_pipelines.splits.split_plan import check_names, plan_splits
from beam_pipelines.storage.spool import SpoolReader, SpoolWriter


class Assigned(NamedTuple):
    """The outputs of `AssignSplits`: runs of references, histograms of shuffle keys, and the listing."""

    runs: beam.PCollection
    counts: beam.PCollection
    listing: beam.PCollection


class RunSplits(NamedTuple):
    """The splits of the references in a run.

    Attributes:
        run: The references.
        splits: The byte range of a temporary file with the index of each reference's split in `names`, uint8.
        names: The names of all splits.
    """

    run: SortedRun
    splits: SpoolRange
    names: tuple[str, ...]


@dataclasses.dataclass
class AssignSplits(beam.PTransform):
    """Assigns a split to each reference.

    Attributes:
        spec: The options and the run.
        listed: The result of the listing stage.
    """

    spec: SplitSpec
    listed: Listed

    @no_annotations  # Beam does not support a tuple of PCollections as an output type.
    def expand(self, runs: beam.PCollection) -> Assigned:
        spec, listing = self.spec, AsSingleton(self.listed.listing)
        facts = runs | "ReadSplitFacts" >> beam.ParDo(ReadSplitFacts(spec))
        resolved = (
            runs.pipeline
            | "AfterFacts" >> beam.Impulse()
            | "ResolveSplits" >> beam.FlatMap(resolve, AsIter(facts), listing, spec).with_outputs("division", main="runs")
        )
        assigned = (
            resolved.runs
            # The key is a string because Beam's integers are signed 64-bit numbers.
            | "KeySplits" >> beam.Map(lambda of_run: (f"{of_run.run.spool:016x}", of_run))
            | "SpreadSplits" >> beam.GroupByKey()
            | "AssignRuns" >> beam.FlatMap(assign, spec.run.spool_directory).with_outputs("counts", main="runs")
        )
        divided = self.listed.listing | "AddDivision" >> beam.Map(add_division, AsSingleton(resolved.division))
        return Assigned(assigned.runs, assigned.counts, divided)


class ReadSplitFacts(beam.DoFn):
    """Reads the facts that determine the splits of the inputs in each run."""

    def __init__(self, spec: SplitSpec) -> None:
        self._spec, self._earlier = spec, None

    def process(self, run: SortedRun) -> Iterator[RunFacts]:
        stopwatch = Stopwatch("split")
        if self._earlier is None:
            self._earlier = load_earlier_splits(self._spec.splits_from)
        facts = read_facts(run, self._spec, self._earlier)
        count_in_beam(stopwatch.lap())
        yield facts


def resolve(unused: bytes, runs: Iterable[RunFacts], listing: Listing, spec: SplitSpec) -> Iterator[Any]:
    """Determines the splits of all inputs. Yields the splits of each run, and a summary.

    Raises:
        UserError: The inputs cannot be divided as requested.
    """
    stopwatch = Stopwatch("split")
    runs = list(runs)
    with SpoolReader(spec.run.spool_directory) as spool:
        plan = plan_splits(join_facts(runs, spool), spec, spool)
    check_names(plan, listing, spec)
    bounds = np.cumsum([0, *(part.run.num_references for part in runs)]).tolist()
    ranges = []
    with SpoolWriter(spec.run.spool_directory) as writer:
        for start, stop in zip(bounds, bounds[1:]):
            ranges.append(SpoolRange(writer.spool, writer.append(plan.splits[start:stop].tobytes()), stop - start))
    for part, spool_range in zip(runs, ranges):
        yield RunSplits(part.run, spool_range, plan.names)
    yield TaggedOutput("division", plan.division)
    count_in_beam(stopwatch.lap())


def assign(element: tuple[str, Iterable[RunSplits]], spool_directory: str) -> Iterator[Any]:
    """Yields sorted references with their final splits, and the histogram of their shuffle keys."""
    _, ((run, spool_range, names),) = element
    stopwatch = Stopwatch("split")
    with SpoolReader(spool_directory) as spool:
        references = read_references(run.smallest(run.num_references), spool)
        references.rows["split"] = np.frombuffer(read_range(spool_range, spool), np.uint8)
    references = dataclasses.replace(references, splits=names, strata=no_texts(len(references)))
    counts = KeyCounts()
    counts.add_references([references])
    yield write_run([references], spool_directory)
    yield TaggedOutput("counts", counts.pack())
    count_in_beam(stopwatch.lap())


def add_division(listing: Listing, division: Division) -> Listing:
    """Adds the summary of the resulting splits to the listing."""
    return dataclasses.replace(listing, division=division)
