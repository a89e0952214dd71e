"""Which of many images are alike: by their bytes, or by perceptual hashes of which few bits differ, also mirrored.

Images whose lowest frequencies are near are looked at a second time: those above them have to be near too. It costs nothing, and tells
small pictures of one kind of thing before a plain ground from each other.

Images are first put together to *looks*: those with the same hash, and of those without one (nobody decoded them, or they show nothing)
those with the same bytes. What is near is then looked for among looks, of which there are fewer; a million blank pages are one look.
"""

from typing import Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from beam_pipelines.errors import UserError
from beam_pipelines.images.near_hashes import MIRROR, SearchPart, hash_distance, near_pairs
from beam_pipelines.images.perceptual_hash import HASH_WORDS, perceptual_hashes

# Far more than a data set has that is fit to train with, and few enough to hold: where ten thousand images look like each other, each pair is one.
_MAX_EDGES = 1 << 25
# What is compared a second time, in one part of a search: some minutes.
_MAX_COMPARED = 1 << 32

# Of the 192 bits above the lowest so many may differ: at random it would be half of them, and 64 or less once in 400,000 times.
_MAX_FINE_BITS = 64
_FINE_MIRROR = np.array([0, MIRROR, 2**64 - 1], np.uint64)

# What is known of one image: a hash of its bytes, and its perceptual hash where it shows something.
HASH_ROW = np.dtype([("content", "<u8", (2,)), ("look", "<u8", (HASH_WORDS,)), ("has_look", "?")])


class Looks(NamedTuple):
    """The looks of many images.

    Attributes:
        hashes: uint64 [num_hashed, HASH_WORDS]: of those that have one, which come first; ascending.
        of_images: int64 [num_images]: the look of each image.
        num: Of all looks.
    """

    hashes: np.ndarray
    of_images: np.ndarray
    num: int


def hash_rows(contents: Sequence[bytes], images: Sequence[np.ndarray | None]) -> np.ndarray:
    """`HASH_ROW`s, from a digest of 16 bytes of each image's bytes and what `look_at` gives of it; None: nobody looked."""
    rows = np.zeros(len(contents), HASH_ROW)
    rows["content"] = np.frombuffer(b"".join(contents), "<u8").reshape(-1, 2)
    seen = np.array([image is not None for image in images], bool)
    looks, has_look = perceptual_hashes([image for image in images if image is not None])
    rows["look"][seen] = looks * has_look[:, None]
    rows["has_look"][seen] = has_look
    return rows


def find_looks(rows: np.ndarray) -> Looks:
    """Puts images together that have the same hash or, where they have none, the same bytes; from `HASH_ROW` [num_images]."""
    has_look = rows["has_look"]
    hashes, of_hashed = _unique(rows["look"][has_look])
    contents, of_others = _unique(rows["content"][~has_look])
    of_images = np.empty(len(rows), np.int64)
    of_images[has_look] = of_hashed
    of_images[~has_look] = of_others + len(hashes)
    return Looks(hashes, of_images, len(hashes) + len(contents))


def _unique(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that occur, uint64 [num, num_words], ascending, and the place of each among them."""
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    places = np.empty(len(rows), np.int64)
    places[order] = np.cumsum(is_new) - 1
    return ordered[is_new], places


def find_edges(hashes: np.ndarray, distance: int, part: SearchPart) -> np.ndarray:
    """Pairs of looks that are near, as they are or one of them mirrored, as far as one part of the search finds them.

    Args:
        hashes: See `Looks`.
        distance: Bits of the first word that may differ.
        part: One of `search_parts(len(hashes))`.

    Returns:
        uint64 [num_edges], ascending: the smaller look in the upper 32 bits, the larger one in the lower.

    Raises:
        UserError: There are too many to hold.
    """
    found, num_edges, num_compared = [np.zeros(0, np.uint64)], 0, 0
    order = np.argsort(hashes[:, 0], kind="stable")
    for one, other in _candidates(hashes[order, 0], distance, part):
        one, other = np.minimum(order[one], order[other]), np.maximum(order[one], order[other])
        keep = _stays_near(hashes[one] ^ hashes[other])
        found.append((one[keep] << 32 | other[keep]).astype(np.uint64))
        num_edges, num_compared = num_edges + len(found[-1]), num_compared + len(one)
        _check_number(num_edges, num_compared)
    return np.sort(np.concatenate(found))


def _candidates(words: np.ndarray, distance: int, part: SearchPart) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Looks whose first words are near, the smaller first, some at a time. Frames of one camera may all have one first word: it is looked for once.

    Args:
        words: uint64 [num_looks], ascending.
        distance, part: See `find_edges`.
    """
    unique, starts, sizes = np.unique(words, return_index=True, return_counts=True)
    for one, other in near_pairs(unique, distance, part):
        is_single = (sizes[one] == 1) & (sizes[other] == 1)
        yield starts[one[is_single]], starts[other[is_single]]
        for first, second in zip(one[~is_single].tolist(), other[~is_single].tolist()):
            seconds = np.arange(starts[second], starts[second] + sizes[second])
            for look in range(starts[first], starts[first] + sizes[first]):
                yield np.full(len(seconds), look), seconds
    if (part.band, part.part) == (0, 0):
        for word in np.flatnonzero(sizes > 1).tolist():
            end = starts[word] + sizes[word]
            for look in range(starts[word], end - 1):
                yield np.full(end - look - 1, look), np.arange(look + 1, end)


def _stays_near(differing: np.ndarray) -> np.ndarray:
    """Which pairs are near in the other words too, of those whose first words are, from their exclusive or: bool [num_pairs]."""
    is_mirrored = np.bitwise_count(differing[:, 0] & np.uint64(MIRROR)) > 16
    fine = differing[:, 1:] ^ is_mirrored[:, None] * _FINE_MIRROR
    return np.bitwise_count(fine).sum(axis=1) <= _MAX_FINE_BITS


def join_edges(packed: Iterable[np.ndarray]) -> np.ndarray:
    """Edges that `find_edges` has found in several parts, each once, in ascending order: int64 [num_edges, 2]; UserError as there."""
    parts = [np.zeros(0, np.uint64), *packed]
    _check_number(sum(map(len, parts)))
    edges = np.unique(np.concatenate(parts))
    return np.stack([edges >> np.uint64(32), edges & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)


def _check_number(num_edges: int, num_compared: int = 0) -> None:
    if num_edges > _MAX_EDGES or num_compared > _MAX_COMPARED:
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


def look_distance(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Bits of the first word in which looks differ, as they are or one of them mirrored: uint8 [n, m], from uint64 [n or m, HASH_WORDS]."""
    return hash_distance(ones[:, None, 0] ^ others[:, 0])
