"""Which of many images are alike: by their bytes, or by perceptual hashes of which few bits differ, also mirrored.

Images are first put together to *looks*: those with the same hash, and of those without one (nobody decoded them, or they show nothing)
those with the same bytes. What is near is then looked for among looks, of which there are fewer; a million blank pages are one look.
"""

from typing import Iterable, NamedTuple

import numpy as np

from beam_pipelines.errors import UserError
from beam_pipelines.images.near_hashes import SearchPart, band_entries, near_pairs

# Far more than a data set has that is fit to train with, and few enough to hold: where ten thousand images look like each other, each pair is one.
_MAX_EDGES = 1 << 25

# What is known of one image: a hash of its bytes, and its `PerceptualHash` where it has one.
HASH_ROW = np.dtype([("content", "<u8", (2,)), ("value", "<u8"), ("mirrored", "<u8"), ("has_look", "?")])


class Looks(NamedTuple):
    """The looks of many images.

    Attributes:
        values: uint64 [num_hashed]: hashes of those that have one, which come first; ascending.
        mirrored: uint64 [num_hashed]: what they have mirrored.
        of_images: int64 [num_images]: the look of each image.
        num: Of all looks.
    """

    values: np.ndarray
    mirrored: np.ndarray
    of_images: np.ndarray
    num: int


def find_looks(rows: np.ndarray) -> Looks:
    """Puts images together that have the same hash or, where they have none, the same bytes; from `HASH_ROW` [num_images]."""
    has_look = rows["has_look"]
    hashes, of_hashed = _unique(rows["value"][has_look], rows["mirrored"][has_look])
    contents, of_others = _unique(*rows["content"][~has_look].T)
    of_images = np.empty(len(rows), np.int64)
    of_images[has_look] = of_hashed
    of_images[~has_look] = of_others + len(hashes)
    return Looks(hashes[:, 0], hashes[:, 1], of_images, len(hashes) + len(contents))


def _unique(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs that occur, uint64 [num, 2], ascending, and the place of each among them."""
    order = np.lexsort((other, one))
    pairs = np.stack([one[order], other[order]], axis=1)
    is_new = np.ones(len(pairs), bool)
    is_new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    places = np.empty(len(pairs), np.int64)
    places[order] = np.cumsum(is_new) - 1
    return pairs[is_new], places


def find_edges(values: np.ndarray, mirrored: np.ndarray, distance: int, part: SearchPart) -> np.ndarray:
    """Pairs of looks that are near, as they are or one of them mirrored, as far as one part of the search finds them.

    Args:
        values: See `Looks`.
        mirrored: See `Looks`.
        distance: Bits that may differ.
        part: One of `search_parts(2 * len(values))`.

    Returns:
        uint64 [num_edges], ascending: the smaller look in the upper 32 bits, the larger one in the lower.

    Raises:
        UserError: There are too many to hold.
    """
    found, num_edges = [np.zeros(0, np.uint64)], 0
    entries = band_entries(values, part)
    for others in (entries, band_entries(mirrored, part)):
        for one, other in near_pairs(entries, others, distance):
            low, high = np.minimum(one, other), np.maximum(one, other)
            found.append((low << 32 | high)[low != high].astype(np.uint64))
            num_edges += len(found[-1])
            _check_number(num_edges)
    return np.unique(np.concatenate(found))


def join_edges(packed: Iterable[np.ndarray]) -> np.ndarray:
    """Edges that `find_edges` has found in several parts, each once, in ascending order: int64 [num_edges, 2]; UserError as there."""
    parts = [np.zeros(0, np.uint64), *packed]
    _check_number(sum(map(len, parts)))
    edges = np.unique(np.concatenate(parts))
    return np.stack([edges >> np.uint64(32), edges & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)


def _check_number(num_edges: int) -> None:
    if num_edges > _MAX_EDGES:
        raise UserError(
            f"duplicates: more than {_MAX_EDGES:,} pairs of images have hashes that are near; expected a lower --duplicate_distance, or --exact_only: "
            "they look too much alike for this hash"
        )


def components(num: int, edges: np.ndarray) -> np.ndarray:
    """Of each of so many places the smallest place that edges connect it with: int64 [num]."""
    labels = np.arange(num)
    while len(edges):
        ends = labels[edges]
        lower = ends.min(axis=1)
        np.minimum.at(labels, ends.max(axis=1), lower)  # the label, not only the place, so that a long chain takes few rounds
        while (labels[labels] != labels).any():
            labels = labels[labels]
        ends = labels[edges]
        edges = edges[ends[:, 0] != ends[:, 1]]
    return labels


def look_distance(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Bits in which looks differ, as they are or one of them mirrored: uint8 [n, m].

    Args:
        one: (hashes, those mirrored), uint64 [n] each.
        other: The same of others, uint64 [m] each.
    """
    direct = np.bitwise_count(one[0][:, None] ^ other[0])
    return np.minimum(direct, np.minimum(np.bitwise_count(one[0][:, None] ^ other[1]), np.bitwise_count(one[1][:, None] ^ other[0])))
