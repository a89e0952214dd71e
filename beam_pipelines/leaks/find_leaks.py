"""Finds near-duplicates across splits or datasets, groups that span splits, and conflicting labels."""

import itertools
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipelines.elements.label_conflicts import Label, as_label, find_conflicts, order_clusters
from beam_pipelines.images.visual_groups import VisualHashes, components
from beam_pipelines.leaks.image_table import ImageTable

_NUM_SHOWN = 5

_BLOCK_CELLS = 1 << 20


def find_leaks(
    table: ImageTable, visual_hashes: VisualHashes, edges: np.ndarray, counts_all_pairs: bool, num_pairs_before: int | None = None
) -> dict[str, Any]:
    """Returns the leaks, in the format of the field `remaining` of `leaks.json`.

    Args:
        table: The table of all images and their splits.
        visual_hashes: The distinct hashes of the images.
        edges: The pairs of similar hashes, int64 [num_edges, 2].
        counts_all_pairs: Whether the pairs are complete. See `Edges`.
        num_pairs_before: The number of near-duplicate pairs before images were dropped, from which the number of leaks
            for random splits is estimated. None uses the current number.
    """
    counts = _Counts(table, visual_hashes, edges)
    sizes = table.sizes.tolist()
    total = max(sum(sizes), 1)
    num_pairs = counts.num_pairs if num_pairs_before is None else num_pairs_before
    return {
        "parts": dict(zip(table.parts, sizes)),
        "counts_all_pairs": counts_all_pairs,
        # Images without a perceptual hash match only if their bytes are equal.
        "num_by_bytes": int(np.count_nonzero(~table.hashes["has_visual_hash"])),
        "num_pairs": counts.num_pairs,
        "num_pairs_across_splits": int(np.triu(counts.pairs, 1).sum()),
        # The images of a random pair are in different parts unless both images are in the same part.
        "num_pairs_across_random_splits": round(num_pairs * (1 - sum((size / total) ** 2 for size in sizes)), 1),
        "across_splits": list(counts.describe()),
        "groups": _find_groups(table),
        "labels": _find_conflicts(table, visual_hashes, edges),
    }


class _Counts:
    """Counts near-duplicate pairs within each split and between splits.

    In this module, a cell is a set of images in one split that have the same hash. For speed, the search compares
    cells.

    Attributes:
        pairs: The number of pairs for each two splits, int64 [num_parts, num_parts]. Pairs above the diagonal are
            leaks.
        num_pairs: The number of all pairs.
    """

    def __init__(self, table: ImageTable, visual_hashes: VisualHashes, edges: np.ndarray) -> None:
        self._table, num_parts = table, len(table.parts)
        sizes = np.bincount(visual_hashes.of_images, minlength=visual_hashes.num)
        # All other images have no near-duplicate.
        known = np.flatnonzero((sizes > 1) | np.isin(np.arange(visual_hashes.num), edges))
        numbers = np.full(visual_hashes.num, -1)
        numbers[known] = np.arange(len(known))
        of_images = numbers[visual_hashes.of_images]
        self._images = np.flatnonzero(of_images >= 0)
        self._visual_hashes, self._num_visual_hashes = of_images[self._images], len(known)
        self._parts = table.of_images[self._images]
        both = numbers[edges].astype(np.int32)  # int32 saves memory, because there can be millions of pairs.
        itself = np.arange(len(known), dtype=np.int32)[:, None].repeat(2, axis=1)
        both = np.concatenate([both, both[:, ::-1], itself])
        self._edges = both[np.argsort(both[:, 0], kind="stable")]
        self._first_edges = np.concatenate([[0], np.cumsum(np.bincount(both[:, 0], minlength=len(known)))])
        cells, self._cell_sizes = np.unique(self._visual_hashes * num_parts + self._parts, return_counts=True)
        self._cell_parts = cells % max(num_parts, 1)
        self._first_cells = np.searchsorted(cells, np.arange(len(known) + 1) * num_parts)
        self.pairs = self._count()
        self.num_pairs = int(np.triu(self.pairs).sum())

    def _count(self) -> np.ndarray:
        num_parts = len(self._table.parts)
        part_pairs = np.zeros(num_parts**2, np.int64)
        for ones, others in self._near_cells():
            products = self._cell_sizes[ones] * self._cell_sizes[others]
            np.add.at(part_pairs, self._cell_parts[ones] * num_parts + self._cell_parts[others], products)
        part_pairs = part_pairs.reshape(num_parts, num_parts)
        diagonal = np.diag_indices(num_parts)
        # The diagonal counts each pair twice, and each image once with itself.
        part_pairs[diagonal] = (part_pairs[diagonal] - np.bincount(self._parts, minlength=num_parts)) // 2
        return part_pairs

    def _near_cells(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields pairs of cells whose hashes are equal or similar. Each pair is yielded in both orders."""
        nums = np.diff(self._first_cells)
        ends = np.cumsum(nums[self._edges].prod(axis=1))
        starts = np.unique(np.searchsorted(ends, np.arange(0, ends[-1:].sum(), _BLOCK_CELLS), side="right"))
        for start, stop in itertools.pairwise([*starts.tolist(), len(self._edges)]):
            firsts, seconds = self._edges[start:stop].T
            sizes = nums[firsts] * nums[seconds]
            edge = np.repeat(np.arange(len(firsts)), sizes)
            pair_number = np.arange(len(edge)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            row, column = np.divmod(pair_number, nums[seconds][edge])
            yield self._first_cells[firsts][edge] + row, self._first_cells[seconds][edge] + column

    def describe(self) -> Iterator[dict[str, Any]]:
        """Yields a description of each pair of splits with near-duplicates."""
        num_parts = len(self._table.parts)
        spanning = np.argwhere(np.triu(self.pairs, 1)).tolist()
        if not spanning:
            return
        describe_cell = np.repeat(np.arange(self._num_visual_hashes), np.diff(self._first_cells))
        near = [np.unique(describe_cell[ones] * num_parts + self._cell_parts[others]) for ones, others in self._near_cells()]
        # Encodes hash * num_parts + part for each part that contains a near-duplicate of the hash.
        reaches = np.unique(np.concatenate(near))
        ranks = _ranks(self._table.keys.take(pa.array(self._images)))
        by_part = np.split(np.argsort(self._parts, kind="stable"), np.cumsum(np.bincount(self._parts, minlength=num_parts))[:-1])
        for first_part, second_part in spanning:
            first_images, second_images = (
                by_part[at][_is_among(self._visual_hashes[by_part[at]] * num_parts + part, reaches)]
                for at, part in ((first_part, second_part), (second_part, first_part))
            )
            yield {
                "parts": [self._table.parts[first_part], self._table.parts[second_part]],
                "num_pairs": int(self.pairs[first_part, second_part]),
                "num_images": [len(first_images), len(second_images)],
                "first": [
                    self._name_pair(image, second_images, ranks)
                    for image in first_images[np.argsort(ranks[first_images])][:_NUM_SHOWN].tolist()
                ],
            }

    def _name_pair(self, image: int, other_images: np.ndarray, ranks: np.ndarray) -> list[str]:
        """Returns the key of an image, and the key of its first near-duplicate in another split."""
        start, stop = self._first_edges[[self._visual_hashes[image], self._visual_hashes[image] + 1]].tolist()
        near_duplicates = other_images[np.isin(self._visual_hashes[other_images], self._edges[start:stop, 1])]
        return [self._table.keys[int(self._images[item])].as_py() for item in (image, near_duplicates[np.argmin(ranks[near_duplicates])])]


def _ranks(keys: pa.ChunkedArray) -> np.ndarray:
    """Returns the rank of each key in sorted order, int64 [num_keys]."""
    return pc.rank(keys, tiebreaker="first").to_numpy().astype(np.int64) - 1


def _is_among(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Returns, for each value, whether a sorted array contains the value, bool [num_values]."""
    return ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values


def _find_groups(table: ImageTable) -> dict[str, Any]:
    """Counts all groups, and the groups that span splits."""
    encoded = table.groups.combine_chunks().dictionary_encode()
    has_group = encoded.is_valid().to_numpy(zero_copy_only=False)
    codes = pc.fill_null(encoded.indices, 0).to_numpy()[has_group].astype(np.int64)
    apart = _with_several(codes, table.of_images[has_group])
    names = sorted(encoded.dictionary.take(pa.array(apart)).to_pylist())
    return {"num": len(encoded.dictionary), "num_across_splits": len(names), "first": names[:_NUM_SHOWN]}


def _with_several(numbers: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns the numbers with more than one code, in ascending order. The code of `numbers[i]` is `codes[i]`."""
    step = int(codes.max(initial=0)) + 1
    unique = np.sort(numbers * step + codes)  # Much faster than `numpy.unique`, which hashes.
    unique = unique[np.diff(unique, prepend=-1) != 0] // step
    unique = unique[1:][unique[1:] == unique[:-1]]
    return unique[np.diff(unique, prepend=-1) != 0]


def _find_conflicts(table: ImageTable, visual_hashes: VisualHashes, edges: np.ndarray) -> dict[str, Any]:
    """Finds near-duplicates with different labels."""
    clusters = components(visual_hashes.num, edges)[visual_hashes.of_images]
    candidates = np.flatnonzero(np.bincount(clusters, minlength=1)[clusters] > 1)
    keys = table.keys.take(pa.array(candidates)).combine_chunks()
    members, numbers = order_clusters(clusters[candidates], _ranks(keys))
    indices = pa.array(candidates[members])
    labels = {name: list(map(_to_label, column.take(indices).to_pylist())) for name, column in table.labels.items()}
    return find_conflicts(numbers, lambda index: keys[int(members[index])].as_py(), labels).to_json()


def _to_label(value: str | list[str] | None) -> Label | None:
    return as_label(value) if isinstance(value, list) else value
