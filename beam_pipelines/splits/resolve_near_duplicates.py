"""Decides which group each near-duplicate image gets, or whether the image is dropped."""

import dataclasses
import itertools
import json
from fractions import Fraction
from json.encoder import encode_basestring
from typing import Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import pyarrow.compute as pc

from beam_pipelines.config.stage_spec import StageSpec
from beam_pipelines.elements.label_conflicts import Label, find_conflicts, order_clusters, read_labels, to_plain
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import SpoolRange, write_range
from beam_pipelines.elements.references import References
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.visual_groups import components
from beam_pipelines.splits.split_facts import codes_of
from beam_pipelines.splits.near_duplicate_clusters import Clusters
from beam_pipelines.storage.spool import SpoolReader


class Changes(NamedTuple):
    """Changes to the images of one run of references.

    Attributes:
        dropped: The ascending indices of the dropped images, int64.
        grouped: The ascending indices of the images that get a new group, int64.
        groups: The new group of each image in `grouped`.
    """

    dropped: np.ndarray
    grouped: np.ndarray
    groups: BinaryColumn


class _Split(NamedTuple):
    """The split of an image before near-duplicates are resolved.

    Attributes:
        name: The name of the split, or an empty string.
        is_resolved: Whether the split is final. False if `--divide` divides the split.
        is_earlier: Whether the split comes from an earlier dataset. If False, it comes from the source.
    """

    name: str
    is_resolved: bool
    is_earlier: bool


def apply_changes(references: References, changes: Changes, renames: Mapping[bytes, bytes]) -> References:
    """Applies changes to references: sets groups, drops duplicates, and renames merged groups.

    A merged group gets the name of one of its parts.
    """
    # Without earlier groups, only the changed references have a group.
    if not references.groups.blob and len(changes.grouped):
        lengths = np.zeros(len(references), np.uint32)
        lengths[changes.grouped] = changes.groups.lengths
        references = dataclasses.replace(references, groups=BinaryColumn(lengths, changes.groups.blob))
    elif len(changes.grouped) or renames:
        groups = [renames.get(group, group) for group in references.groups]
        for index, group in zip(changes.grouped.tolist(), changes.groups):
            groups[index] = group
        references = dataclasses.replace(references, groups=BinaryColumn.of(groups))
    if len(changes.dropped):
        references = references.take(np.setdiff1d(np.arange(len(references)), changes.dropped))
    return references


@dataclasses.dataclass(frozen=True)
class DuplicateSpec(StageSpec):
    """The options that the workers need that find near-duplicates. See `PrepareOptions`."""

    duplicates: str
    exact_only: bool
    max_distance: int
    shares: Mapping[str, Fraction]
    splits_from: str | None
    divide: tuple[str, ...]
    max_bad_fraction: float


class ResolvedNearDuplicates:
    """The decisions about near-duplicate images.

    Args:
        candidates: The references to images that have a near-duplicate.
        clusters: The clusters of these images.
        spec: The options and the run.
        listing: The listing of all inputs.
        earlier: The earlier split of each candidate, or an empty string.

    Attributes:
        members: The indices of the candidates that share a cluster with other images, ordered by cluster and key.
        is_dropped: Whether each member is dropped, bool [num_members]. Each cluster keeps its first image that has an
            earlier split. Otherwise, it keeps its first image.
        groups: The group of each member. Empty unless near-duplicates are grouped.
        renames: A mapping from each merged group to its new name.

    Raises:
        UserError: Images of one cluster already belong to different splits.
    """

    def __init__(self, candidates: References, clusters: Clusters, spec: DuplicateSpec, listing: Listing, earlier: Sequence[str]) -> None:
        self._candidates, self._clusters, self._spec, self._schema = candidates, clusters, spec, listing.schema
        self.members, self._numbers = order_clusters(clusters.of_images, key_ranks(candidates.keys))
        self._starts = np.flatnonzero(np.diff(self._numbers, prepend=-1))
        self._keys = list(candidates.keys.take(self.members))
        self._earlier = [earlier[index] for index in self.members.tolist()]
        self.is_dropped = np.zeros(len(self.members), bool)
        self.groups: list[bytes] = []
        self.renames: Mapping[bytes, bytes] = {}
        if spec.duplicates == "drop":
            is_new = [not split for split in self._earlier]
            self.is_dropped[:] = True
            # The sort is stable, so ties keep their order.
            self.is_dropped[np.lexsort((is_new, self._numbers))[self._starts]] = False
        if spec.duplicates == "group":
            names, self.renames = self._unite()
            self.groups = [names[number] for number in self._numbers.tolist()]
            self._reject_spanning()

    @property
    def _names(self) -> list[bytes]:
        """Returns the smallest key of each cluster."""
        return [self._keys[start] for start in self._starts.tolist()]

    def _unite(self) -> tuple[list[bytes], dict[bytes, bytes]]:
        """Returns the group of each cluster, and the renamed groups. Groups that share a cluster are merged."""
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

    def _reject_spanning(self) -> None:
        """Raises `UserError` if a cluster spans several splits, and at least one of these splits is predefined."""
        splits, indices = self._splits()
        spanning = []
        number_and_split = np.unique(self._numbers * len(splits) + indices)
        for number, theirs in itertools.groupby(number_and_split.tolist(), lambda item: item // len(splits)):
            theirs = [splits[their % len(splits)] for their in theirs]
            fixed_splits = {split.name for split in theirs if split.is_resolved}
            is_divided = any(split.name and not split.is_resolved for split in theirs)
            if len(fixed_splits) > 1 or (is_divided and not fixed_splits <= set(self._spec.shares)):
                spanning.append(number)
        if spanning:
            raise UserError(self._describe_spanning(spanning, [splits[index] for index in indices[self._numbers == spanning[0]].tolist()]))

    def _splits(self) -> tuple[list[_Split], np.ndarray]:
        """Returns the splits that occur, and the index of each image's split among them, int64 [num_members]."""
        earlier = sorted({*self._earlier} - {""})
        of_source = [_Split(name, bool(name) and name not in self._spec.divide, False) for name in self._candidates.splits]
        indices = self._candidates.rows["split"][self.members].astype(np.int64)
        if earlier:
            positions = {name: index for index, name in enumerate(earlier, len(of_source))}
            indices = np.array([positions.get(name, index) for name, index in zip(self._earlier, indices.tolist())])
        return [*of_source, *(_Split(name, True, True) for name in earlier)], indices

    def _describe_spanning(self, spanning: Sequence[int], splits: Sequence[_Split]) -> str:
        """Returns an error message about near-duplicates in different splits."""
        of_splits: dict[str, str] = {}
        for split, index in zip(splits, np.flatnonzero(self._numbers == spanning[0]).tolist()):
            if split.name:
                of_splits.setdefault(split.name, printable(self._keys[index].decode()))
        shown = " and ".join(f"{key!r} in {split}" for split, key in list(of_splits.items())[:2])
        are_earlier = all(split.is_earlier for split in splits if split.name)
        origin = f" of --splits_from={printable(self._spec.splits_from)}" if are_earlier else ""
        return (
            f"--duplicates=group: near-duplicates are in different splits{origin}: {shown} (clusters: {len(spanning):,}). "
            "Pass --duplicates=drop to keep one image of each cluster, or --duplicates=keep to only count them."
        )

    def describe(self, visual_hashes: SpoolRange, edges: SpoolRange, counts_all_pairs: bool) -> NearDuplicates:
        """Writes a line for each near-duplicate image to a temporary file and returns a summary.

        For the arguments, see the attributes of `NearDuplicates`.
        """
        spec, clusters = self._spec, self._clusters
        members = self._candidates.take(self.members)
        with SpoolReader(spec.run.spool_directory) as reader:
            labels = read_labels(self._schema, list(members.labels), list(members.values), reader)
        lines = write_range(b"".join(self._lines(members.groups, labels)), spec.run.spool_directory)
        keys = self._candidates.keys
        return NearDuplicates(
            spec.duplicates,
            None if spec.exact_only else spec.max_distance,
            lines,
            visual_hashes,
            edges,
            counts_all_pairs=counts_all_pairs,
            num_pairs=clusters.num_pairs,
            num_clusters=len(self._starts),
            num_images=len(self.members),
            num_dropped=int(np.count_nonzero(self.is_dropped)),
            num_joined=len(self.renames),
            num_cut=len(clusters.cut),
            largest_cut=list(keys.take(np.array(clusters.cut[:1], np.int64)))[0].decode() if clusters.cut else "",
            num_pairs_cut=clusters.num_pairs_cut,
            conflicts=find_conflicts(self._numbers, lambda index: self._keys[index].decode(), labels),
        )

    def _lines(self, own: BinaryColumn, labels: Mapping[str, Sequence[Label]]) -> Iterator[bytes]:
        """Yields one JSON line for each near-duplicate image."""
        names, shown = list(map(_to_json, self._names)), zip(*labels.values()) if labels else itertools.repeat(())
        rows = zip(self._numbers.tolist(), self._keys, shown, self.is_dropped.tolist(), self.groups or itertools.repeat(b""), own)
        for number, key, of_features, is_dropped, group, original_group in rows:
            texts = json.dumps(dict(zip(labels, map(to_plain, of_features))), ensure_ascii=False)
            of_group = f', "group": {_to_json(group)}, "original_group": {_to_json(original_group) if original_group else "null"}' if self.groups else ""
            dropped = "true" if is_dropped else "false"
            yield f'{{"cluster": {names[number]}, "key": {_to_json(key)}, "labels": {texts}, "dropped": {dropped}{of_group}}}\n'.encode()


def _to_json(text: bytes) -> str:
    return encode_basestring(text.decode())


def key_ranks(keys: BinaryColumn) -> np.ndarray:
    """Returns the rank of each key in sorted order, int64 [num_keys]."""
    return pc.rank(keys.to_arrow(), tiebreaker="first").to_numpy().astype(np.int64) - 1
