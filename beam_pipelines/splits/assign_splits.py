"""AssignSplits: settles the split of each input, once all of them are listed.

What goes through the runner are pointers to runs in the spool, counts, and the few inputs that lie near a bound.
"""

import dataclasses
from typing import Any, Iterable, Iterator, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsSingleton, TaggedOutput
from apache_beam.typehints.decorators import no_annotations

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import Run, write_run
from beam_pipelines.elements.shuffle_keys import KeyCounts
from beam_pipelines.parallel.progress import Stopwatch, count_in_beam
from beam_pipelines.splits.earlier_splits import load_earlier_splits
from beam_pipelines.splits.run_facts import MarkedRun, SplitFacts, mark_run, merge_facts, read_marked
from beam_pipelines.splits.split_bounds import Candidates, SettledBounds, find_bound_candidates, place, settle_bounds
from beam_pipelines.splits.split_plan import SplitPlan, check_names, plan_splits, settled_listing


class Assigned(NamedTuple):
    """The outputs that take the place of their namesakes in `Listed`: runs of references with their splits, the counts of these, and one
    `Listing`.
    """

    runs: beam.PCollection
    counts: beam.PCollection
    listing: beam.PCollection


@dataclasses.dataclass
class AssignSplits(beam.PTransform):
    """`Run`s -> `Assigned`: the same references, each with its split.

    Attributes:
        config: The job of the run.
        listed: The runs' counts and the listing, as they come with the runs.
    """

    config: PrepareJob
    listed: Listed

    @no_annotations  # Beam takes no tuple of PCollections for an output type
    def expand(self, runs: beam.PCollection) -> Assigned:
        config, root = self.config, runs.pipeline
        moved = frozenset() if self.listed.moved is None else AsSingleton(self.listed.moved)
        marked = runs | "MarkRuns" >> beam.ParDo(Mark(config), moved).with_outputs("facts", main="runs")
        plan = AsSingleton(
            root
            | "AfterMarking" >> beam.Impulse()
            | "PlanSplits" >> beam.Map(make_split_plan, AsIter(marked.facts), AsSingleton(self.listed.listing), config)
        )
        candidates = marked.runs | "FindBounds" >> beam.FlatMap(find, plan, config)
        bounds = AsSingleton(
            root | "AfterCandidates" >> beam.Impulse() | "SettleBounds" >> beam.Map(settle_found_bounds, AsIter(candidates), plan)
        )
        assigned = marked.runs | "AssignRuns" >> beam.FlatMap(assign, plan, bounds, config).with_outputs("counts", main="runs")
        listing = self.listed.listing | "SettleListing" >> beam.Map(settled_listing, plan)
        return Assigned(assigned.runs, assigned.counts, listing)


class Mark(beam.DoFn):
    """A run -> the same, marked; and what the plan has to know of it. Earlier splits are read once, not for each run."""

    def __init__(self, config: PrepareJob) -> None:
        self._config, self._earlier = config, None

    def process(self, run: Run, moved: frozenset[bytes] = frozenset()) -> Iterator[Any]:
        stopwatch = Stopwatch("split")
        if self._earlier is None:
            self._earlier = load_earlier_splits(self._config.splits_from)
        marked, facts = mark_run(run, self._config, self._earlier, moved)
        count_in_beam(stopwatch.lap())
        yield marked
        yield TaggedOutput("facts", facts)


def make_split_plan(unused: bytes, parts: Iterable[SplitFacts], listing: Listing, config: PrepareJob) -> SplitPlan:
    """The one plan; the listing comes first, since what is wrong with it is told before."""
    plan = plan_splits(merge_facts(parts), config)
    check_names(plan, listing, config)
    return plan


def find(run: MarkedRun, plan: SplitPlan, config: PrepareJob) -> Iterator[Candidates]:
    """A run -> those of its inputs that a bound may be."""
    if plan.bounds:
        yield find_bound_candidates(read_marked(run, config), plan)


def settle_found_bounds(unused: bytes, parts: Iterable[Candidates], plan: SplitPlan) -> SettledBounds:
    """The bounds of all splits."""
    return settle_bounds(parts, plan)


def assign(run: MarkedRun, plan: SplitPlan, bounds: SettledBounds, config: PrepareJob) -> Iterator[Any]:
    """A run -> the same with settled splits; and the counts of its keys."""
    stopwatch = Stopwatch("split")
    references = place(read_marked(run, config), plan, bounds)
    counts = KeyCounts()
    counts.add_references([references])
    yield write_run([references], config.spool_directory)
    yield TaggedOutput("counts", counts.pack())
    count_in_beam(stopwatch.lap())
