"""Clusters near-duplicate images.

Two images are near-duplicates if their hashes differ in few bits. Connected near-duplicates form a cluster. Without a
limit, a long chain of slightly different images could connect half of a class. Therefore, clusters that are too large
or too varied are divided. A cluster is too large if it has more than 100 images and more than 1% of all images. It is
too varied if the hashes of two of its images differ in more than twice the maximum number of bits for near-duplicates.
Each part, called a star, consists of a central image and some of its near-duplicates. If a star is too large, it is
divided into sets of images with equal hashes. If such a set is too large, it is divided into sets of images with equal
bytes. Images with equal bytes always stay in the same cluster.
"""

from typing import Iterator, NamedTuple

import numpy as np

from beam_pipelines.images.visual_groups import VisualHashes, components, num_differing_bits

_MAX_SHARE, _MIN_BOUND = 100, 100  # A cluster has at most 1/100 of all images, or 100 images if that is more.

_BLOCK_PAIRS = 1 << 22


class Clusters(NamedTuple):
    """The cluster of each candidate, which is an image that has a near-duplicate.

    Attributes:
        of_images: The cluster number of each candidate, int64 [num_candidates].
        num_pairs: The number of pairs of near-duplicates.
        num_pairs_cut: The number of near-duplicate pairs whose images are in different clusters.
        cut: The index of one candidate for each cluster that was divided, largest cluster first.
    """

    of_images: np.ndarray
    num_pairs: int
    num_pairs_cut: int
    cut: list[int]


def find_clustered(visual_hashes: VisualHashes, edges: np.ndarray) -> np.ndarray:
    """Returns the indices of all images that have a near-duplicate, in ascending order, int64 [num_candidates]."""
    sizes = np.bincount(visual_hashes.of_images, minlength=visual_hashes.num)
    is_candidate = sizes > 1
    is_candidate[edges.ravel()] = True
    return np.flatnonzero(is_candidate[visual_hashes.of_images])


def cluster_candidates(
    visual_hashes: VisualHashes, edges: np.ndarray, distance: int, candidates: np.ndarray, ranks: np.ndarray, contents: np.ndarray
) -> Clusters:
    """Clusters the images that have a near-duplicate.

    Args:
        visual_hashes: The distinct hashes of all images.
        edges: The pairs of similar hashes, int64 [num_edges, 2].
        distance: The maximum number of differing bits between near-duplicates.
        candidates: The indices of images that have a near-duplicate, from `find_clustered`.
        ranks: The rank of each candidate's key among the keys of all candidates, int64 [num_candidates].
        contents: The hash of each candidate's bytes, uint64 [num_candidates, 2].
    """
    sizes = np.bincount(visual_hashes.of_images, minlength=visual_hashes.num)
    of_images = visual_hashes.of_images[candidates]
    first_ranks = np.full(visual_hashes.num, len(ranks))
    np.minimum.at(first_ranks, of_images, ranks)
    bound = max(_MIN_BOUND, len(visual_hashes.of_images) // _MAX_SHARE)
    labels = components(visual_hashes.num, edges)
    cut_labels = []
    for label, members, cluster_edges in _suspects(labels, edges, sizes, bound):
        if sizes[members].sum() > bound or _is_wide(visual_hashes, members, 2 * distance):
            cut_labels.append((-int(sizes[members].sum()), int(first_ranks[members].min())))
            _cut_into_stars(labels, members, cluster_edges, sizes, first_ranks, bound)
    spanning = edges[labels[edges[:, 0]] != labels[edges[:, 1]]]
    num_pairs_cut = int((sizes[spanning[:, 0]] * sizes[spanning[:, 1]]).sum())
    of_clusters = labels[of_images]
    is_large = (sizes[of_images] > bound) & (of_images < len(visual_hashes.hashes))
    if is_large.any():  # Images with equal hashes but different bytes.
        rows = np.column_stack([of_images[is_large].astype(np.uint64), contents[is_large]])
        kinds, of_kinds, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        of_clusters = of_clusters.copy()
        of_clusters[is_large] = visual_hashes.num + of_kinds.ravel()
        large, num_kinds = np.unique(kinds[:, 0].astype(np.int64), return_counts=True)
        num_pairs_cut += int(_num_pairs(sizes[large]).sum() - _num_pairs(counts).sum())
        cut_labels += [(-int(sizes[look]), int(first_ranks[look])) for look in large[num_kinds > 1].tolist()]
    num_pairs = int((sizes[edges[:, 0]] * sizes[edges[:, 1]]).sum() + _num_pairs(sizes).sum())
    indices = np.argsort(ranks)
    return Clusters(of_clusters, num_pairs, num_pairs_cut, [int(indices[rank]) for _, rank in sorted(set(cut_labels))])


def _num_pairs(sizes: np.ndarray) -> np.ndarray:
    return sizes * (sizes - 1) // 2


def _suspects(labels: np.ndarray, edges: np.ndarray, sizes: np.ndarray, bound: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields the label, the hashes and the pairs of hashes of each cluster that may be too large or too varied."""
    connected = np.flatnonzero(np.bincount(edges.ravel(), minlength=1))
    connected = connected[np.argsort(labels[connected], kind="stable")]
    edges = edges[np.argsort(labels[edges[:, 0]], kind="stable")]
    cluster_labels, starts, counts = np.unique(labels[connected], return_index=True, return_counts=True)
    edge_starts = np.searchsorted(labels[edges[:, 0]], np.append(cluster_labels, len(labels)))
    num_images = np.add.reduceat(sizes[connected], starts) if len(starts) else starts
    for index in np.flatnonzero((counts > 2) | (num_images > bound)).tolist():
        members = connected[starts[index] : starts[index] + counts[index]]
        yield int(cluster_labels[index]), members, edges[edge_starts[index] : edge_starts[index + 1]]


def _is_wide(visual_hashes: VisualHashes, members: np.ndarray, limit: int) -> bool:
    hashes = visual_hashes.hashes[members]
    step = max(1, _BLOCK_PAIRS // len(members))
    return any((num_differing_bits(hashes[start : start + step], hashes) > limit).any() for start in range(0, len(members), step))


def _cut_into_stars(labels: np.ndarray, members: np.ndarray, edges: np.ndarray, sizes: np.ndarray, ranks: np.ndarray, bound: int) -> None:
    """Divides a cluster into stars and labels each star with its center.

    Hashes with many neighbors become centers before hashes with few neighbors. Ties are broken by the smallest key.
    """
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    starts = np.searchsorted(both[:, 0], members)
    stops = np.searchsorted(both[:, 0], members, side="right")
    labels[members] = -1
    for index in np.lexsort((ranks[members], starts - stops)).tolist():
        if labels[members[index]] >= 0:
            continue
        neighbours = both[starts[index] : stops[index], 1]
        star = np.append(neighbours[labels[neighbours] < 0], members[index])
        # A star that is still too large is divided into single hashes.
        labels[star] = members[index] if sizes[star].sum() <= bound else star
