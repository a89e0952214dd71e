"""A Beam stage that assigns the final split to each input after all inputs have been listed.

Beam transfers only counts, locations in temporary files, and the few inputs at the boundaries between splits.
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
from beam_pipelines.splits.split_bounds import Candidates, ResolvedBounds, find_bound_candidates, assign_split, resolve_bounds
from beam_pipelines.splits.split_plan import SplitPlan, check_names, plan_splits, resolved_listing


class Assigned(NamedTuple):
    """The outputs of `AssignSplits`: runs of references, histograms of shuffle keys, and the listing."""

    runs: beam.PCollection
    counts: beam.PCollection
    listing: beam.PCollection


@dataclasses.dataclass
class AssignSplits(beam.PTransform):
    """Assigns a split to each reference.

    Attributes:
        config: The configuration of the job.
        listed: The result of the listing stage.
    """

    config: PrepareJob
    listed: Listed

    @no_annotations  # Beam does not support a tuple of PCollections as an output type.
    def expand(self, runs: beam.PCollection) -> Assigned:
        config, root = self.config, runs.pipeline
        marked = runs | "MarkRuns" >> beam.ParDo(Mark(config)).with_outputs("facts", main="runs")
        plan = AsSingleton(
            root
            | "AfterMarking" >> beam.Impulse()
            | "PlanSplits" >> beam.Map(make_split_plan, AsIter(marked.facts), AsSingleton(self.listed.listing), config)
        )
        candidates = marked.runs | "FindBounds" >> beam.FlatMap(find, plan, config)
        bounds = AsSingleton(
            root | "AfterCandidates" >> beam.Impulse() | "SettleBounds" >> beam.Map(resolve_all_bounds, AsIter(candidates), plan)
        )
        assigned = marked.runs | "AssignRuns" >> beam.FlatMap(assign, plan, bounds, config).with_outputs("counts", main="runs")
        listing = self.listed.listing | "SettleListing" >> beam.Map(resolved_listing, plan)
        return Assigned(assigned.runs, assigned.counts, listing)


class Mark(beam.DoFn):
    """Reads splits from the source or an earlier dataset, and counts the references by stratum, split and group."""

    def __init__(self, config: PrepareJob) -> None:
        self._config, self._earlier = config, None

    def process(self, run: Run) -> Iterator[Any]:
        stopwatch = Stopwatch("split")
        if self._earlier is None:
            self._earlier = load_earlier_splits(self._config.splits_from)
        marked, facts = mark_run(run, self._config, self._earlier)
        count_in_beam(stopwatch.lap())
        yield marked
        yield TaggedOutput("facts", facts)


def make_split_plan(unused: bytes, parts: Iterable[SplitFacts], listing: Listing, config: PrepareJob) -> SplitPlan:
    """Creates the split plan and checks the names of its splits."""
    plan = plan_splits(merge_facts(parts), config)
    check_names(plan, listing, config)
    return plan


def find(run: MarkedRun, plan: SplitPlan, config: PrepareJob) -> Iterator[Candidates]:
    """Yields the inputs that may be the first input of a split."""
    if plan.bounds:
        yield find_bound_candidates(read_marked(run, config), plan)


def resolve_all_bounds(unused: bytes, parts: Iterable[Candidates], plan: SplitPlan) -> ResolvedBounds:
    """Returns the boundaries of all splits."""
    return resolve_bounds(parts, plan)


def assign(run: MarkedRun, plan: SplitPlan, bounds: ResolvedBounds, config: PrepareJob) -> Iterator[Any]:
    """Yields sorted references with their final splits, and the histogram of their shuffle keys."""
    stopwatch = Stopwatch("split")
    references = assign_split(read_marked(run, config), plan, bounds)
    counts = KeyCounts()
    counts.add_references([references])
    yield write_run([references], config.spool_directory)
    yield TaggedOutput("counts", counts.pack())
    count_in_beam(stopwatch.lap())
