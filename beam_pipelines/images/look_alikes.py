"""Which of many images are alike: by their bytes, or by perceptual hashes of which few bits differ, also mirrored.

Images whose lowest frequencies are near are looked at a second time: those above them have to be near too. It costs nothing, and tells
small pictures of one kind of thing before a plain ground from each other.

Images are first put together to *looks*: those with the same hash, and of those without one (nobody decoded them, or they show nothing)
those with the same bytes. What is near is then looked for among looks, of which there are fewer; a million blank pages are one look.
"""

import hashlib
from typing import Iterable, NamedTuple, Sequence

import numpy as np

from beam_pipelines.errors import UserError
from beam_pipelines.images.near_hashes import MIRROR, SearchPart, hash_distance, near_pairs, order_by_band
from beam_pipelines.images.perceptual_hash import HASH_WORDS, perceptual_hashes

# Far more than a data set has that is fit to train with, and few enough to hold: where ten thousand images look like each other, each pair
# is one.
_MAX_EDGES = 1 << 24
# What is compared a second time, in one part of a search: some minutes.
_MAX_COMPARED = 1 << 32
# Where there are more edges, a look stands for those like it, if they are so many: as few as it takes. None: no look does.
_CROWDS = (None, 1024, 64, 4)
# Looks of one band that may come to stand for others.
_MAX_LEADERS = 1024

# Of the 192 bits above the lowest so many may differ: at random it would be half of them, and 64 or less once in 400,000 times.
_MAX_FINE_BITS = 64
_FINE_MIRROR = np.array([0, MIRROR, 2**64 - 1], np.uint64)

# What is known of one image: a hash of its bytes, and its perceptual hash where it shows something.
HASH_ROW = np.dtype([("content", "<u8", (2,)), ("look", "<u8", (HASH_WORDS,)), ("has_look", "?")])


class Edges(NamedTuple):
    """Pairs of looks that are near.

    Attributes:
        pairs: The pairs, uint64 [num_edges], ascending: the smaller look in the upper 32 bits, the larger one in the lower.
        are_all: Whether all pairs are there. Where too many look like each other, each is near one that stands for them, and their other
            pairs are left out.
    """

    pairs: np.ndarray
    are_all: bool


class Looks(NamedTuple):
    """The looks of many images.

    Attributes:
        hashes: The hashes of the looks that have one, which come first; ascending: uint64 [num_hashed, HASH_WORDS].
        of_images: The look of each image: int64 [num_images].
        num: The number of all looks.
    """

    hashes: np.ndarray
    of_images: np.ndarray
    num: int


def digest_content(data: bytes) -> bytes:
    """The first 16 bytes of the SHA-256 of an image's bytes, for which processors have instructions: BLAKE2b takes two to three times as long."""
    return hashlib.sha256(data).digest()[:16]


def hash_rows(contents: Sequence[bytes], images: Sequence[np.ndarray | None]) -> np.ndarray:
    """Makes the hashes of images: `HASH_ROW` [num_images].

    Args:
        contents: The digest of each image's bytes, as `digest_content` gives it.
        images: Each image in grey, as `look_at` gives it; None: nobody looked.
    """
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
    """The distinct rows, uint64 [num, num_words], ascending, and the place of each row among them."""
    order = np.argsort(rows[:, 0])
    first = rows[order, 0]
    is_tied = np.zeros(len(rows) + 1, bool)
    is_tied[1:-1] = first[1:] == first[:-1]
    tied = np.flatnonzero(is_tied[1:] | is_tied[:-1])  # few, as a rule: to look at the other words of all takes many times as long
    order[tied] = order[tied[np.lexsort(rows[order[tied]].T[::-1])]]
    ordered = rows[order]
    is_new = np.ones(len(rows), bool)
    is_new[tied[1:]] = (ordered[tied[1:]] != ordered[tied[1:] - 1]).any(axis=1)
    places = np.empty(len(rows), np.int64)
    places[order] = np.cumsum(is_new) - 1
    return ordered[is_new], places


def find_edges(hashes: np.ndarray, distance: int, part: SearchPart) -> Edges:
    """Finds pairs of looks that are near, as they are or one of them mirrored, as far as one part of the search finds them.

    Where there are more than can be held, as of frames of one camera, fewer are looked for: see `Edges`. Which ones follows from the
    hashes alone.

    Args:
        hashes: The hashes of the looks, uint64 [num_hashed, HASH_WORDS], as `Looks` has them.
        distance: The number of bits of the first word that may differ.
        part: The part of the search, one of `search_parts(len(hashes))`.

    Raises:
        UserError: There are too many pairs all the same.
    """
    limit = _MAX_EDGES // part.num_parts  # a pair is found in its first band, which is the same one for most pairs
    for crowd in _CROWDS:
        stands, of_crowds = np.ones(len(hashes), bool), [np.zeros(0, np.uint64)]
        if crowd is not None:
            stands, of_crowds = _gather_crowds(hashes, distance, part, crowd)
        found, num_edges, num_compared = of_crowds, 0, 0
        standing = np.flatnonzero(stands)
        for one, other in near_pairs(hashes[standing, 0], distance, part):
            one, other = standing[one], standing[other]
            keep = _stays_near(hashes[one] ^ hashes[other])
            found.append(_pack(one[keep], other[keep]))
            num_edges, num_compared = num_edges + len(found[-1]), num_compared + len(one)
            if num_edges > limit or num_compared > _MAX_COMPARED:
                break
        else:
            return Edges(_distinct(found), crowd is None)
        if num_compared > _MAX_COMPARED:
            break
    raise UserError(
        "duplicates: the images look too much alike for this hash: too many pairs are near; expected --exact_only, or other images"
    )


def _gather_crowds(hashes: np.ndarray, distance: int, part: SearchPart, crowd: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Leaves out looks that another one stands for: one with the same value of a band that has so many near it.

    Returns:
        Whether each look is left, bool [num_looks]; and packed edges of the others, those that are of this part.
    """
    stands, found = np.ones(len(hashes), bool), [np.zeros(0, np.uint64)]
    band = order_by_band(hashes[:, 0], part)
    values, starts, sizes = np.unique(band.values, return_index=True, return_counts=True)
    for place in np.flatnonzero(sizes > crowd).tolist():
        rest = band.places[starts[place] : starts[place] + sizes[place]]
        for _ in range(_MAX_LEADERS):
            if len(rest) <= crowd:
                break
            leader, rest = rest[0], rest[1:]
            is_near = hash_distance(hashes[rest, 0] ^ hashes[leader, 0]) <= distance
            is_near[is_near] = _stays_near(hashes[rest[is_near]] ^ hashes[leader])
            if np.count_nonzero(is_near) >= crowd:
                followers, rest = rest[is_near], rest[~is_near]
                stands[followers] = False
                if values[place] % part.num_parts == part.part:
                    found.append(_pack(np.minimum(leader, followers), np.maximum(leader, followers)))
    return stands, found


def _distinct(packed: Sequence[np.ndarray]) -> np.ndarray:
    """Sorts packed edges and leaves out repeated ones; many times as fast as NumPy's own function, which hashes."""
    ordered = np.sort(np.concatenate(packed))
    return ordered[np.diff(ordered, prepend=~ordered[:1]) != 0]


def _pack(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one << 32 | other).astype(np.uint64)


def _stays_near(differing: np.ndarray) -> np.ndarray:
    """Whether pairs whose first words are near are near in the other words too, from their exclusive or: bool [num_pairs]."""
    is_mirrored = np.bitwise_count(differing[:, 0] & np.uint64(MIRROR)) > 16
    fine = differing[:, 1:] ^ is_mirrored[:, None] * _FINE_MIRROR
    return np.bitwise_count(fine).sum(axis=1) <= _MAX_FINE_BITS


def join_edges(parts: Iterable[Edges]) -> tuple[np.ndarray, bool]:
    """Joins the edges of several parts of a search, each once, in ascending order: int64 [num_edges, 2]; and whether they are all."""
    parts = list(parts)
    edges = _distinct([np.zeros(0, np.uint64), *(part.pairs for part in parts)])
    return np.stack([edges >> np.uint64(32), edges & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64), all(part.are_all for part in parts)


def components(num: int, edges: np.ndarray) -> np.ndarray:
    """The smallest place that edges connect each place with: int64 [num]."""
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
    """The number of bits of the first word in which looks differ, as they are or one of them mirrored.

    Args:
        ones: The hashes of some looks, uint64 [n, HASH_WORDS].
        others: The hashes of other looks, uint64 [m, HASH_WORDS].

    Returns:
        The distances, uint8 [n, m].
    """
    return hash_distance(ones[:, None, 0] ^ others[:, 0])
