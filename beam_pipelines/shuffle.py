"""GlobalShuffle: gives every reference its exact rank in its split, and so its shard and its place in it.

Beam's Reshuffle and a GroupByKey on random keys shuffle nothing on the local runner. Here the order comes from the shuffle keys
alone (`ranks`); the runner's shuffle only brings together what belongs together.
"""

from typing import Iterable, Iterator, Mapping

import apache_beam as beam
import numpy as np
import zstandard
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines.ranks import NUM_BUCKETS, SplitPlan, buckets, plan_split
from beam_pipelines.references import References

# References that are routed at once: the more, the larger the pieces, and the fewer elements go through the shuffle.
ROUTE_REFERENCES = 1 << 16

# Split, as a position -> examples by bucket, int64 [NUM_BUCKETS], compressed: there is one a bundle, and it is nearly empty.
Histograms = dict[int, bytes]


class GlobalShuffle(beam.PTransform):
    """Packed `References` -> ((split, shard index, number of shards), packed `References` in rank order), one a shard.

    Attributes:
        seed: Of the shuffle.
        num_shards: Split name -> shards; references hold a position among these splits.
    """

    def __init__(self, seed: int, num_shards: beam.pvalue.AsSingleton) -> None:
        super().__init__()
        self._seed = seed
        self._num_shards = num_shards

    def expand(self, references: beam.PCollection) -> beam.PCollection:
        plans = beam.pvalue.AsSingleton(
            references
            | "CountKeys" >> beam.ParDo(_CountKeys())  # Histograms
            | "AddCounts" >> beam.CombineGlobally(add_histograms).without_defaults()
            | "PlanShards" >> beam.Map(plan_shards, self._num_shards)  # [SplitPlan]
        )
        return (
            references
            | "RouteToBlocks" >> beam.ParDo(_RouteToBlocks(), plans)  # ((split, block), packed References)
            | "GroupByBlock" >> beam.GroupByKey()
            | "CutShards" >> beam.FlatMap(cut_shards, self._seed, plans)
        )


class _CountKeys(beam.DoFn):
    """One histogram a split and a bundle."""

    def start_bundle(self) -> None:
        self._histograms: dict[int, np.ndarray] = {}

    def process(self, packed: bytes) -> None:
        rows = References.unpack_rows(packed)
        for split in np.unique(rows["split"]).tolist():
            counts = np.bincount(buckets(rows["order"][rows["split"] == split]), minlength=NUM_BUCKETS)
            self._histograms[split] = self._histograms.get(split, 0) + counts

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._histograms:
            yield WindowedValue(pack_histograms(self._histograms), 0, [GlobalWindow()])


def add_histograms(parts: Iterable[Histograms]) -> Histograms:
    total: dict[int, np.ndarray] = {}
    for part in parts:
        for split, packed in part.items():
            total[split] = total.get(split, 0) + unpack_histogram(packed)
    return pack_histograms(total)


def pack_histograms(histograms: Mapping[int, np.ndarray]) -> Histograms:
    return {split: zstandard.compress(histogram.tobytes(), 1) for split, histogram in histograms.items()}


def unpack_histogram(packed: bytes) -> np.ndarray:
    return np.frombuffer(zstandard.decompress(packed), np.int64)


def plan_shards(histograms: Histograms, num_shards: Mapping[str, int]) -> list[SplitPlan]:
    return [
        plan_split(split, unpack_histogram(histograms[position]), count) for position, (split, count) in enumerate(num_shards.items())
    ]


@beam.typehints.with_output_types(tuple[tuple[int, int], bytes])
class _RouteToBlocks(beam.DoFn):
    def start_bundle(self) -> None:
        self._waiting: list[References] = []
        self._plans: list[SplitPlan] = []

    def process(self, packed: bytes, plans: list[SplitPlan]) -> Iterator[tuple[tuple[int, int], bytes]]:
        self._plans = plans
        self._waiting.append(References.unpack(packed))
        if sum(map(len, self._waiting)) >= ROUTE_REFERENCES:
            yield from self._route()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for element in self._route():
            yield WindowedValue(element, 0, [GlobalWindow()])

    def _route(self) -> Iterator[tuple[tuple[int, int], bytes]]:
        references, self._waiting = References.concatenate(self._waiting), []
        for position, plan in enumerate(self._plans):
            in_split = np.flatnonzero(references.rows["split"] == position)
            for block, members in group_by_block(plan, references.rows["order"][in_split]):
                yield (position, block), references.take(in_split[members]).pack()


def group_by_block(plan: SplitPlan, orders: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(block, positions in `orders` of the keys that may belong to it). A key may belong to several."""
    first, last = plan.blocks(orders)
    repeats = last - first + 1
    positions = np.repeat(np.arange(len(orders)), repeats)
    starts = np.cumsum(repeats) - repeats
    blocks = np.arange(len(positions)) - np.repeat(starts - first, repeats)
    by_block = np.argsort(blocks, kind="stable")
    found, begins = np.unique(blocks[by_block], return_index=True)
    for block, members in zip(found.tolist(), np.split(positions[by_block], begins[1:])):
        yield block, members


def cut_shards(
    element: tuple[tuple[int, int], Iterable[bytes]], seed: int, plans: list[SplitPlan]
) -> Iterator[tuple[tuple[str, int, int], bytes]]:
    """One block's references -> its shards, each in rank order."""
    (position, block), pieces = element
    plan = plans[position]
    references = References.concatenate([References.unpack(piece) for piece in pieces])
    for shard_index, ordered in plan.cut_block(block, references, seed):
        yield (plan.split, shard_index, plan.num_shards), ordered.pack()
