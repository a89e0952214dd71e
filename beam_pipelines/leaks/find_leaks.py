"""Finds what lies apart and should not: images that are alike, and groups, in two parts; and labels that disagree."""

import itertools
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipelines.images.look_alikes import Looks, components
from beam_pipelines.leaks.image_table import ImageTable

_NUM_SHOWN = 5

_BLOCK_EDGES = 1 << 16


def find_leaks(table: ImageTable, looks: Looks, edges: np.ndarray, counts_all_pairs: bool) -> dict[str, Any]:
    """Finds what is apart, as `leaks.json` has it under `now`.

    Args:
        table: The table of all images, in their splits.
        looks: The looks of these images.
        edges: Pairs of looks that are alike, int64 [num_edges, 2].
        counts_all_pairs: Whether the edges are all that there are: see `Edges`.
    """
    counts = _Counts(table, looks, edges)
    sizes = table.sizes.tolist()
    total = max(sum(sizes), 1)
    return {
        "parts": dict(zip(table.parts, sizes)),
        "counts_all_pairs": counts_all_pairs,
        "num_by_bytes": int(np.count_nonzero(~table.hashes["has_look"])),  # which are alike only if their bytes are the same
        "num_pairs": counts.num_pairs,
        "num_pairs_apart": int(np.triu(counts.pairs, 1).sum()),
        # A pair comes apart unless both of it fall into one part.
        "num_pairs_apart_at_random": round(counts.num_pairs * (1 - sum((size / total) ** 2 for size in sizes)), 1),
        "apart": list(counts.describe()),
        "groups": _find_groups(table),
        "labels": _find_conflicts(table, looks, edges),
    }


class _Counts:
    """Pairs of images that are alike, by the parts that they are in.

    Attributes:
        pairs: The number of pairs of each two parts, int64 [num_parts, num_parts], above the diagonal those that are apart.
        num_pairs: The number of all pairs.
    """

    def __init__(self, table: ImageTable, looks: Looks, edges: np.ndarray) -> None:
        self._table, num_parts = table, len(table.parts)
        sizes = np.bincount(looks.of_images, minlength=looks.num)
        known = np.flatnonzero((sizes > 1) | np.isin(np.arange(looks.num), edges))  # the others are like nothing
        places = np.full(looks.num, -1)
        places[known] = np.arange(len(known))
        of_images = places[looks.of_images]
        self._images = np.flatnonzero(of_images >= 0)
        self._looks = of_images[self._images]
        self._parts = table.of_images[self._images]
        self._edges = places[edges]
        self._of_looks = np.bincount(self._looks * num_parts + self._parts, minlength=len(known) * num_parts).reshape(-1, num_parts)
        found = self._of_looks.T @ self._of_looks
        found[np.diag_indices(num_parts)] = (found.diagonal() - self._of_looks.sum(axis=0)) // 2
        for start in range(0, len(edges), _BLOCK_EDGES):
            one, other = self._of_looks[self._edges[start : start + _BLOCK_EDGES].T]
            across = one.T @ other
            found += across + across.T - np.diag(across.diagonal())
        self.pairs = found
        self.num_pairs = int(np.triu(found).sum())

    def describe(self) -> Iterator[dict[str, Any]]:
        """A description of each two parts that have images which are alike."""
        reached = self._of_looks > 0
        near = reached.copy()
        for one, other in ((0, 1), (1, 0)):
            np.logical_or.at(near, self._edges[:, one], reached[self._edges[:, other]])
        for one, other in itertools.combinations(range(len(self._table.parts)), 2):
            if not self.pairs[one, other]:
                continue
            ours, theirs = (np.flatnonzero((self._parts == part) & near[self._looks, at]) for part, at in ((one, other), (other, one)))
            yield {
                "parts": [self._table.parts[one], self._table.parts[other]],
                "num_pairs": int(self.pairs[one, other]),
                "num_images": [len(ours), len(theirs)],
                "first": [self._name_pair(place, theirs) for place in self._first(ours)[:_NUM_SHOWN]],
            }

    def _keys(self, places: np.ndarray) -> list[str]:
        return self._table.keys.take(pa.array(self._images[places])).to_pylist()

    def _first(self, places: np.ndarray) -> list[int]:
        """Puts places into the order of their keys."""
        keys = self._table.keys.take(pa.array(self._images[places]))
        return places[pc.sort_indices(keys).to_numpy()].tolist()

    def _name_pair(self, place: int, theirs: np.ndarray) -> list[str]:
        """The key of an image, and the first of those that are like it."""
        look = self._looks[place]
        edges = self._edges[(self._edges == look).any(axis=1)]
        alike = theirs[np.isin(self._looks[theirs], np.append(edges, look))]
        return [*self._keys(np.array([place])), min(self._keys(alike))]


def _find_groups(table: ImageTable) -> dict[str, Any]:
    """Counts groups, and those that lie in several parts."""
    encoded = table.groups.combine_chunks().dictionary_encode()
    has_group = encoded.is_valid().to_numpy(zero_copy_only=False)
    codes = pc.fill_null(encoded.indices, 0).to_numpy()[has_group].astype(np.int64)
    apart = _with_several(codes, table.of_images[has_group])
    names = sorted(encoded.dictionary.take(pa.array(apart)).to_pylist())
    return {"num": len(encoded.dictionary), "num_apart": len(names), "first": names[:_NUM_SHOWN]}


def _with_several(places: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The places that have several codes, ascending."""
    step = int(codes.max(initial=0)) + 1
    found = np.sort(places * step + codes)  # many times as fast as NumPy's own `unique`, which hashes
    found = found[np.diff(found, prepend=-1) != 0] // step
    found = found[1:][found[1:] == found[:-1]]
    return found[np.diff(found, prepend=-1) != 0]


def _find_conflicts(table: ImageTable, looks: Looks, edges: np.ndarray) -> dict[str, Any]:
    """Counts clusters of images that are alike and have different labels."""
    encoded = table.labels.combine_chunks().dictionary_encode()
    has_label = np.flatnonzero(encoded.is_valid().to_numpy(zero_copy_only=False))
    codes = pc.fill_null(encoded.indices, 0).to_numpy()[has_label].astype(np.int64)
    clusters = components(looks.num, edges)[looks.of_images[has_label]]
    torn = _with_several(clusters, codes)
    is_torn = np.isin(clusters, torn)
    places, clusters = has_label[is_torn], clusters[is_torn]
    order = pc.sort_indices(table.keys.take(pa.array(places))).to_numpy()
    shown: dict[int, dict[str, str]] = {}  # cluster -> label -> the first key
    for place, cluster in zip(places[order].tolist(), clusters[order].tolist()):
        if cluster in shown or len(shown) < _NUM_SHOWN:
            shown.setdefault(cluster, {}).setdefault(table.labels[place].as_py(), table.keys[place].as_py())
    first = [[{"key": key, "label": label} for label, key in images.items()] for images in shown.values()]
    return {"num_conflicts": len(torn), "first": first}
