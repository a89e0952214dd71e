"""The inputs of some examples, found again among all that a source lists."""

import dataclasses
from typing import Iterable, NamedTuple, Sequence

import numpy as np

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.errors import RunError, UserError, printable
from beam_pipelines.parallel.light_processes import TaskWindow, share, shared
from beam_pipelines.repair.source_changes import ExampleName, RefusedInputs
from beam_pipelines.sources.list_part import PartContext, list_in_batches, open_to_list
from beam_pipelines.sources.listed_part import ListedPart
from beam_pipelines.sources.source import Source, other_images
from tf_input.dataset_format import IMAGE, KEY, Feature, Manifest

_OF_IMAGE = (IMAGE, "height", "width")


class WantedInputs(NamedTuple):
    """What the sources have for one shard.

    Attributes:
        references: In record order.
        missing: Examples that nothing is listed for.
        repeated: Keys that more than one input has.
    """

    references: References
    missing: list[ExampleName]
    repeated: list[bytes]


class Wanted:
    """The examples of some shards, which are looked for among all that is listed.

    Args:
        names: Of each shard, in record order.

    Attributes:
        refused: What became a dead letter when it was listed.
        listed: What else was found of all that is listed.
    """

    def __init__(self, names: Sequence[Sequence[ExampleName]]) -> None:
        self._names = names
        self._places = {name.key: (shard, record) for shard, of_shard in enumerate(names) for record, name in enumerate(of_shard)}
        self._found: list[tuple[np.ndarray, References]] = [(np.zeros((0, 2), np.int64), References.concatenate([]))]
        self.refused = RefusedInputs(one for of_shard in names for one in of_shard)
        self.listed = ListedPart()

    def take(self, listed: Iterable[References | DeadLetter | ListedPart]) -> None:
        for one in listed:
            if isinstance(one, DeadLetter):
                self.refused.add(one)
            elif isinstance(one, ListedPart):
                self.listed.merge(one)
            else:
                places = [(position, self._places[key]) for position, key in enumerate(one.keys) if key in self._places]
                if places:
                    positions, found = zip(*places)
                    self._found.append((np.array(found, np.int64), one.take(np.array(positions, np.int64))))

    def orders(self, seed: int) -> np.ndarray:
        """Of all of them, sorted: see `shuffle_orders`; and one that is behind all."""
        return np.append(np.sort(shuffle_orders(seed, list(self._places))), np.uint64(2**64 - 1))

    def sort(self) -> None:
        """Once all is listed."""
        places = np.concatenate([places for places, _ in self._found])
        references = References.concatenate([references for _, references in self._found])
        order = np.lexsort((places[:, 1], places[:, 0]))
        self._found = [(places[order], references.take(order))]

    def of(self, shard: int) -> WantedInputs:
        (places, references), names = self._found[0], self._names[shard]
        begin, end = np.searchsorted(places[:, 0], [shard, shard + 1]).tolist()
        counts = np.bincount(places[begin:end, 1], minlength=len(names))
        missing, repeated = (np.flatnonzero(which).tolist() for which in (counts == 0, counts > 1))
        return WantedInputs(references.slice(begin, end), [names[record] for record in missing], [names[record].key for record in repeated])


@dataclasses.dataclass(frozen=True)
class _WantedContext(PartContext):
    """What the parts of a source share.

    Attributes:
        orders: See `Wanted.orders`: 8 bytes for each key that is looked for, which has many more.
    """

    orders: np.ndarray


def _list_wanted(context: bytes, part: str) -> list[References | DeadLetter | ListedPart]:
    """What `list_in_batches` gives of a part; of references those that are looked for, and next to no others."""
    of_all: _WantedContext = shared(context)
    listed: list[References | DeadLetter | ListedPart] = []
    for one in list_in_batches(of_all.source, part, of_all.config):
        if isinstance(one, References):
            orders = one.rows["order"]
            one = one.take(np.flatnonzero(of_all.orders[np.searchsorted(of_all.orders, orders)] == orders))
        if not isinstance(one, References) or len(one):
            listed.append(one)
    return listed


def list_wanted(config: PrepareJob, manifest: Manifest, wanted: Wanted) -> Source:
    """Lists the whole source, once for all shards."""
    try:
        source = open_to_list(config)
        _check_features(source, manifest)
        tasks, context = TaskWindow(config.num_processes), share(_WantedContext(config, wanted.orders(config.seed)))
        for part in source.parts():
            for listed in tasks.run(_list_wanted, context, part):
                wanted.take(listed)
        for listed in tasks.drain():
            wanted.take(listed)
        wanted.listed.refuse_strays(source)
    except UserError as error:
        raise RunError(f"what the data set was made of cannot be listed again: {error}") from error
    wanted.sort()
    return source


def _check_features(source: Source, manifest: Manifest) -> None:
    own = {KEY, *(_OF_IMAGE if IMAGE in manifest.features else ())}
    own |= {f"{name}/{side}" for name in other_images(source) for side in ("height", "width")}
    expected = {_as_listed(one) for one in manifest.schema if one.name not in own}
    found = {(one.name, one.kind, one.shape) for one in source.features}
    if found != expected:
        now, then = (_describe_features(those) for those in (found - expected, expected - found))
        raise UserError(f"{printable(source.root)} has other features than it had: {now}; expected {then}")


def _as_listed(feature: Feature) -> tuple[str, str, tuple]:
    """As its source has it, which knows of no pixels."""
    return (feature.name, "image", ()) if feature.kind == "pixels" else (feature.name, feature.kind, feature.shape)


def _describe_features(features: Iterable[tuple[str, str, tuple]]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind, _ in sorted(features, key=str)) or "none"
