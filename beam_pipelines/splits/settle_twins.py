"""What becomes of images that are alike: which are left out, and which group they come into."""

import dataclasses
import functools
import itertools
from json.encoder import encode_basestring
from typing import Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import pyarrow.compute as pc

from beam_pipelines.config.prepare_config import MAX_SPLITS, REST
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import SpoolStretch
from beam_pipelines.elements.references import References
from beam_pipelines.elements.texts import Texts
from beam_pipelines.elements.twins import Twins
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.images.look_alikes import components
from beam_pipelines.splits.run_facts import codes_of
from beam_pipelines.splits.twin_clusters import Clusters
from beam_pipelines.storage.spool import own_spool

_NUM_SHOWN = 10  # clusters whose labels are in conflict
_NUM_IMAGES_SHOWN = 3  # of each


class Renames(NamedTuple):
    """What happens to groups, wherever they are.

    Attributes:
        groups: Name -> that of the group that it becomes part of.
        moved: Groups whose images come to the split that was asked for.
    """

    groups: Mapping[bytes, bytes]
    moved: frozenset[bytes]


class Changes(NamedTuple):
    """What happens to the images of one run.

    Attributes:
        dropped: Places of those that are left out, ascending, int64.
        grouped: Places of those that come into a group, ascending, int64.
        groups: The group of each of these.
    """

    dropped: np.ndarray
    grouped: np.ndarray
    groups: Texts


def apply_changes(references: References, changes: Changes, renames: Renames, move_to: str | None) -> tuple[References, int]:
    """A run's references as they go on, and how many of them are in another split now."""
    num_moved = 0
    if not references.groups.blob and len(changes.grouped):  # only those that come into a group have one
        lengths = np.zeros(len(references), np.uint32)
        lengths[changes.grouped] = changes.groups.lengths
        references = dataclasses.replace(references, groups=Texts(lengths, changes.groups.blob))
    elif len(changes.grouped) or renames.groups:
        groups = [renames.groups.get(group, group) for group in references.groups]
        for place, group in zip(changes.grouped.tolist(), changes.groups):
            groups[place] = group
        references = dataclasses.replace(references, groups=Texts.of(groups))
    if renames.moved:
        splits = references.splits if move_to in references.splits else (*references.splits, move_to)
        rows, place = references.rows.copy(), splits.index(move_to)
        moves = np.array([group in renames.moved for group in references.groups]) & (rows["split"] != place)
        rows["split"][moves], num_moved = place, int(np.count_nonzero(moves))
        references = dataclasses.replace(references, rows=rows, splits=splits)
    if len(changes.dropped):
        references = references.take(np.setdiff1d(np.arange(len(references)), changes.dropped))
    return references, num_moved


class SettledTwins:
    """Settles what becomes of the images of clusters.

    Args:
        candidates: The references of the images that may be in a cluster.
        clusters: The clusters of these images.
        config: The job of the run.
        listing: The listing of all inputs.

    Attributes:
        members: Places among the candidates of those that are in a cluster with another one, cluster after cluster, by their keys.
        is_dropped: Whether each member is left out, bool [num_members].
        groups: The group of each member; none where they are not grouped.
        renames: The groups that become part of others, and those that move to a split.

    Raises:
        UserError: Some are in different splits already.
    """

    def __init__(self, candidates: References, clusters: Clusters, config: PrepareJob, listing: Listing) -> None:
        self._candidates, self._clusters, self._config = candidates, clusters, config
        ranks = key_ranks(candidates.keys)
        _, numbers, sizes = np.unique(clusters.of_images, return_inverse=True, return_counts=True)
        # Clusters in the order of their first keys, and so in one order whatever their numbers are.
        first = np.full(len(sizes), len(ranks))
        np.minimum.at(first, numbers, ranks)
        members = np.flatnonzero(sizes[numbers] > 1)
        self.members = members[np.lexsort((ranks[members], first[numbers[members]]))]
        self._starts = np.flatnonzero(np.diff(clusters.of_images[self.members], prepend=-1))
        self._numbers = np.repeat(np.arange(len(self._starts)), np.diff(np.append(self._starts, len(self.members))))
        self._keys = list(candidates.keys.take(self.members))
        is_first = np.isin(np.arange(len(self.members)), self._starts)
        self.is_dropped = ~is_first if config.duplicates == "drop" else np.zeros(len(self.members), bool)
        self.groups: list[bytes] = []
        self.renames = Renames({}, frozenset())
        if config.duplicates == "group":
            names, renamed = self._unite()
            self.groups = [names[number] for number in self._numbers.tolist()]
            self.renames = Renames(renamed, self._find_moved(names, listing))

    @property
    def _names(self) -> list[bytes]:
        """The smallest key of each cluster."""
        return [self._keys[start] for start in self._starts.tolist()]

    @functools.cached_property
    def _labels(self) -> list[bytes]:
        return list(self._candidates.labels.take(self.members))

    def _unite(self) -> tuple[list[bytes], dict[bytes, bytes]]:
        """The group of each cluster, and what groups become part of others: whatever a cluster connects is one."""
        names, codes = codes_of(self._candidates.groups.take(self.members))
        num = len(self._starts)
        has_group = np.array([bool(name) for name in names], bool)[codes]
        labels = components(num + len(names), np.stack([self._numbers, num + codes], axis=1)[has_group])
        united: dict[int, bytes] = {}
        for label, name in zip(labels[num:].tolist(), names):
            if name:
                united[label] = min(united.get(label, name), name)
        renamed = {name: united[label] for label, name in zip(labels[num:].tolist(), names) if name and united[label] != name}
        return [united.get(label, name) for label, name in zip(labels[:num].tolist(), self._names)], renamed

    def _find_moved(self, names: Sequence[bytes], listing: Listing) -> frozenset[bytes]:
        """Groups whose images the source has in different splits, of which one at least is not divided."""
        config, candidates = self._config, self._candidates
        if config.move_to is not None:
            known = sorted({*listing.splits, *config.source.divide} - {REST})
            if listing.fractions is not None:
                raise UserError(f"--move_to={config.move_to}: the inputs name no splits; expected no --move_to, since each cluster comes into one anyway")
            if config.move_to not in known:
                raise UserError(f"--move_to={config.move_to}: there is no such split; expected one of {', '.join(known)}{did_you_mean(config.move_to, known)}")
        splits = candidates.rows["split"][self.members].astype(np.int64)
        found = np.unique(self._numbers * MAX_SPLITS + splits)
        torn = []
        for number, theirs in itertools.groupby(found.tolist(), lambda one: one // MAX_SPLITS):
            theirs = {candidates.splits[one % MAX_SPLITS] for one in theirs} - {""}
            settled = theirs.difference(config.source.divide)
            if len(settled) > 1 or (settled < theirs and not settled <= set(config.shares)):
                torn.append(number)
        if torn and config.move_to is None:
            raise UserError(self._describe_torn(torn))
        return frozenset(names[number] for number in torn)

    def _describe_torn(self, torn: Sequence[int]) -> str:
        places = np.flatnonzero(self._numbers == torn[0]).tolist()
        of_splits = {self._split_of(place): printable(self._keys[place].decode()) for place in reversed(places)}
        shown = " and ".join(f"{key!r} in {split}" for split, key in sorted(of_splits.items(), key=lambda item: item[1])[:2])
        clusters = "1 cluster of images that are alike is" if len(torn) == 1 else f"{len(torn):,} clusters of images that are alike are"
        return (
            f"--duplicates=group: {clusters} in different splits already, such as {shown}; expected --move_to SPLIT, which brings each of them "
            "there, --duplicates=drop, or keep, which counts them"
        )

    def _split_of(self, place: int) -> str:
        return self._candidates.splits[int(self._candidates.rows["split"][self.members[place]])] or "none"

    def describe(self, looks: SpoolStretch, edges: SpoolStretch, counts_all_pairs: bool) -> Twins:
        """What there is to tell of them; each one's line is in the spool from now on. The arguments are `Twins`'."""
        config, clusters = self._config, self._clusters
        with own_spool(config.spool_directory) as spool:
            data = b"".join(self._lines())
            lines = SpoolStretch(spool.spool, spool.append(data), len(data))
        conflicting = self._find_conflicts()
        keys = self._candidates.keys
        return Twins(
            config.duplicates,
            None if config.exact_only else config.duplicate_distance,
            lines,
            looks,
            edges,
            counts_all_pairs=counts_all_pairs,
            num_pairs=clusters.num_pairs,
            num_clusters=len(self._starts),
            num_images=len(self.members),
            num_dropped=int(np.count_nonzero(self.is_dropped)),
            num_joined=len(self.renames.groups),
            num_cut=len(clusters.cut),
            largest_cut=list(keys.take(np.array(clusters.cut[:1], np.int64)))[0].decode() if clusters.cut else "",
            num_pairs_cut=clusters.num_pairs_cut,
            num_conflicts=len(conflicting),
            conflicts=tuple(map(self._show_conflict, conflicting[:_NUM_SHOWN])),
        )

    def _lines(self) -> Iterator[bytes]:
        """The lines of JSON, put together by hand: one for each image in a cluster, of which there may be as many as images."""
        own, names = self._candidates.groups.take(self.members), list(map(_to_json, self._names))
        rows = zip(self._numbers.tolist(), self._keys, self._labels, self.is_dropped.tolist(), self.groups or itertools.repeat(b""), own)
        for number, key, label, is_dropped, group, own_group in rows:
            of_group = f', "group": {_to_json(group)}, "own_group": {_to_json(own_group) if own_group else "null"}' if self.groups else ""
            dropped = "true" if is_dropped else "false"
            yield f'{{"cluster": {names[number]}, "key": {_to_json(key)}, "label": {_to_json(label) if label else "null"}, "dropped": {dropped}{of_group}}}\n'.encode()

    def _find_conflicts(self) -> list[int]:
        if not len(self.members):
            return []
        _, codes = codes_of(self._candidates.labels.take(self.members))
        return np.flatnonzero(np.minimum.reduceat(codes, self._starts) != np.maximum.reduceat(codes, self._starts)).tolist()

    def _show_conflict(self, number: int) -> tuple[tuple[str, str], ...]:
        """The first image of each of the first few labels."""
        first: dict[bytes, bytes] = {}
        for place in np.flatnonzero(self._numbers == number).tolist():
            first.setdefault(self._labels[place], self._keys[place])
        return tuple((key.decode(), label.decode()) for label, key in list(first.items())[:_NUM_IMAGES_SHOWN])


def _to_json(text: bytes) -> str:
    return encode_basestring(text.decode())


def key_ranks(keys: Texts) -> np.ndarray:
    """The place of each key in their order, int64."""
    return pc.rank(keys.to_arrow(), tiebreaker="first").to_numpy().astype(np.int64) - 1
