"""CheckKeys: no two inputs have one key, in one split or in two. It reads no image, so that a run that can't be right ends early."""

from typing import Any, Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsSingleton
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines.config import PrepareConfig
from beam_pipelines.keys import (
    Collisions,
    Repeated,
    choose_num_buckets,
    find_repeated,
    hash_batch,
    merge_repeated,
    name_repeated,
    refuse_collisions,
    route_keys,
)
from beam_pipelines.sources import Listing

# Keys that are routed at once: the more, the fewer elements go through the shuffle.
ROUTE_KEYS = 1 << 16


class CheckKeys(beam.PTransform):
    """Packed batches of `LabeledImage` -> nothing. It fails where two of them have one key, and has to be waited for."""

    def __init__(self, config: PrepareConfig, listing: AsSingleton) -> None:
        super().__init__()
        self._config = config
        self._listing = listing

    def expand(self, images: beam.PCollection) -> beam.PCollection:
        repeated = (
            images
            | "RouteKeys" >> beam.ParDo(_RouteKeys(self._config.seed), self._listing)  # (bucket, shuffle keys)
            | "GroupKeys" >> beam.GroupByKey()
            | "FindRepeated" >> beam.Map(find_in_group)
            | "MergeRepeated" >> beam.CombineGlobally(merge_repeated).without_defaults()
        )
        return (
            images
            | "NameRepeated" >> beam.FlatMap(name_in_batch, AsSingleton(repeated), self._config.seed)  # Collisions
            | "MergeNames" >> beam.CombineGlobally(Collisions.merge).without_defaults()
            | "Refuse" >> beam.Map(refuse_collisions, AsSingleton(repeated), self._config, self._listing)
        )


@beam.typehints.with_output_types(tuple[int, bytes])
class _RouteKeys(beam.DoFn):
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def start_bundle(self) -> None:
        self._waiting: list[np.ndarray] = []
        self._num_buckets = 0

    def process(self, images: bytes, listing: Listing) -> Iterator[tuple[int, bytes]]:
        self._num_buckets = choose_num_buckets(listing.num_inputs)
        self._waiting.append(hash_batch(images, self._seed))
        if sum(map(len, self._waiting)) >= ROUTE_KEYS:
            yield from self._route()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._waiting:
            for element in self._route():
                yield WindowedValue(element, 0, [GlobalWindow()])

    def _route(self) -> Iterator[tuple[int, bytes]]:
        keys, self._waiting = np.concatenate(self._waiting), []
        return route_keys(keys, self._num_buckets)


def find_in_group(element: tuple[int, Iterable[bytes]]) -> Repeated:
    return find_repeated(element[1])


def name_in_batch(images: bytes, repeated: Repeated, seed: int) -> Iterator[Any]:
    if repeated.num:
        found = name_repeated(images, repeated, seed)
        if found.counts:
            yield found
