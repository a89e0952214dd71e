"""Finds near-duplicate images: images with equal bytes or similar perceptual hashes. One image may be flipped.

The hashes of near-duplicates are similar in both low and high frequencies. High frequencies distinguish small pictures
of similar objects on a plain background.

Images with equal perceptual hashes are grouped first, and only the groups are compared with each other. Such a group is
called a visual group. Blank images, which have no perceptual hash, are grouped by their bytes. For example, a million
identical blank pages form a single visual group.
"""

import hashlib
from typing import Iterable, NamedTuple, Sequence

import numpy as np

from beam_pipelines.errors import UserError
from beam_pipelines.images.near_hashes import FLIPPED_BITS, SearchPart, hash_distance, near_pairs, order_by_band
from beam_pipelines.images.perceptual_hash import HASH_WORDS, perceptual_hashes

# The maximum number of pairs in memory. Typical datasets have far fewer pairs, but ten thousand similar images form 50
# million pairs.
_MAX_EDGES = 1 << 24
# The maximum number of comparisons of high frequencies in a part of a search. So many comparisons take a few minutes.
_MAX_COMPARED = 1 << 32
# If there are too many pairs, one visual group represents each crowd of at least this many similar visual groups. Large
# crowds are tried first.
_CROWDS = (None, 1024, 64, 4)
# The maximum number of representative visual groups in one band.
_MAX_LEADERS = 1024

# The maximum number of differing high-frequency bits, of 192. Random images differ in half of them, and rarely (1 in
# 400,000) in 64 or fewer.
_MAX_FINE_BITS = 64
_FINE_FLIPPED_BITS = np.array([0, FLIPPED_BITS, 2**64 - 1], np.uint64)

# A hash of an image's bytes, and its perceptual hash unless the image is blank.
HASH_ROW = np.dtype([("content", "<u8", (2,)), ("visual_hash", "<u8", (HASH_WORDS,)), ("has_visual_hash", "?")])


class Edges(NamedTuple):
    """Pairs of similar visual groups.

    Attributes:
        pairs: The pairs in ascending order, uint64 [num_edges]. The upper 32 bits contain the smaller index of a visual
            group, and the lower 32 bits the larger index.
        are_all: Whether the pairs are complete. If too many visual groups are similar, each of them is paired only with
            a representative.
    """

    pairs: np.ndarray
    are_all: bool


class VisualHashes(NamedTuple):
    """The visual groups of images.

    Attributes:
        hashes: The hashes of the first `num_hashed` visual groups in ascending order, uint64 [num_hashed, HASH_WORDS].
            All other visual groups have no hash.
        of_images: The index of each image's visual group, int64 [num_images].
        num: The number of visual groups, including groups without a hash.
    """

    hashes: np.ndarray
    of_images: np.ndarray
    num: int


def digest_content(data: bytes) -> bytes:
    """Returns the first 16 bytes of the SHA-256 of an image's bytes.

    SHA-256 is two to three times as fast as BLAKE2b, because processors have instructions for it.
    """
    return hashlib.sha256(data).digest()[:16]


def hash_rows(contents: Sequence[bytes], images: Sequence[np.ndarray | None]) -> np.ndarray:
    """Returns the hashes of images, `HASH_ROW` [num_images].

    Args:
        contents: The digest of each image's bytes, from `digest_content`.
        images: The gray version of each image, from `load_for_hash`. None if the image was not decoded.
    """
    rows = np.zeros(len(contents), HASH_ROW)
    rows["content"] = np.frombuffer(b"".join(contents), "<u8").reshape(-1, 2)
    seen = np.array([image is not None for image in images], bool)
    visual_hashes, has_visual_hash = perceptual_hashes([image for image in images if image is not None])
    rows["visual_hash"][seen] = visual_hashes * has_visual_hash[:, None]
    rows["has_visual_hash"][seen] = has_visual_hash
    return rows


def group_by_hash(rows: np.ndarray) -> VisualHashes:
    """Groups images by their perceptual hash. Groups images without a perceptual hash by their bytes."""
    has_visual_hash = rows["has_visual_hash"]
    hashes, of_hashed = _unique(rows["visual_hash"][has_visual_hash])
    contents, of_others = _unique(rows["content"][~has_visual_hash])
    of_images = np.empty(len(rows), np.int64)
    of_images[has_visual_hash] = of_hashed
    of_images[~has_visual_hash] = of_others + len(hashes)
    return VisualHashes(hashes, of_images, len(hashes) + len(contents))


def _unique(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct rows in ascending order, uint64 [num, num_words], and the index of each row among them."""
    order = np.argsort(rows[:, 0])
    first = rows[order, 0]
    is_tied = np.zeros(len(rows) + 1, bool)
    is_tied[1:-1] = first[1:] == first[:-1]
    # Usually, there are few ties. Sorting all rows by all words would take many times as long.
    tied = np.flatnonzero(is_tied[1:] | is_tied[:-1])
    order[tied] = order[tied[np.lexsort(rows[order[tied]].T[::-1])]]
    ordered = rows[order]
    is_new = np.ones(len(rows), bool)
    is_new[tied[1:]] = (ordered[tied[1:]] != ordered[tied[1:] - 1]).any(axis=1)
    indices = np.empty(len(rows), np.int64)
    indices[order] = np.cumsum(is_new) - 1
    return ordered[is_new], indices


def find_edges(hashes: np.ndarray, distance: int, part: SearchPart) -> Edges:
    """Performs a part of the search for near-duplicates and returns the pairs that it finds.

    If the pairs do not fit into memory, for example the pairs of similar video frames, only some pairs are returned.
    The result depends only on the hashes.

    Args:
        hashes: The hashes of the visual groups, uint64 [num_hashed, HASH_WORDS], from `VisualHashes`.
        distance: The maximum number of differing bits in the first word.
        part: The part of the search, from `search_parts(len(hashes))`.

    Raises:
        UserError: There are too many pairs, even with representatives.
    """
    # A pair is found only in the first band in which it is similar, which is the first band of all for most pairs.
    # Therefore, the limit is not divided by the number of bands.
    limit = _MAX_EDGES // part.num_parts
    for crowd in _CROWDS:
        stands, of_crowds = np.ones(len(hashes), bool), [np.zeros(0, np.uint64)]
        if crowd is not None:
            stands, of_crowds = _gather_crowds(hashes, distance, part, crowd)
        packed_edges, num_edges, num_compared = of_crowds, 0, 0
        standing = np.flatnonzero(stands)
        for ones, others in near_pairs(hashes[standing, 0], distance, part):
            ones, others = standing[ones], standing[others]
            keep = _stays_near(hashes[ones] ^ hashes[others])
            packed_edges.append(_pack(ones[keep], others[keep]))
            num_edges, num_compared = num_edges + len(packed_edges[-1]), num_compared + len(ones)
            if num_edges > limit or num_compared > _MAX_COMPARED:
                break
        else:
            return Edges(_distinct(packed_edges), crowd is None)
        if num_compared > _MAX_COMPARED:
            break
    raise UserError(
        "--duplicates: the images look too similar for this hash: too many pairs are near-duplicates. Use --exact_only."
    )


def _gather_crowds(hashes: np.ndarray, distance: int, part: SearchPart, crowd: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Replaces each large group of similar hashes with a representative hash.

    Returns:
        Whether each visual group remains, bool [num_groups], and the packed pairs of the removed groups in this part.
    """
    stands, packed_edges = np.ones(len(hashes), bool), [np.zeros(0, np.uint64)]
    band = order_by_band(hashes[:, 0], part)
    values, starts, sizes = np.unique(band.values, return_index=True, return_counts=True)
    for index in np.flatnonzero(sizes > crowd).tolist():
        rest = band.indices[starts[index] : starts[index] + sizes[index]]
        for _ in range(_MAX_LEADERS):
            if len(rest) <= crowd:
                break
            leader, rest = rest[0], rest[1:]
            is_near = hash_distance(hashes[rest, 0] ^ hashes[leader, 0]) <= distance
            is_near[is_near] = _stays_near(hashes[rest[is_near]] ^ hashes[leader])
            if np.count_nonzero(is_near) >= crowd:
                followers, rest = rest[is_near], rest[~is_near]
                stands[followers] = False
                if values[index] % part.num_parts == part.part:
                    packed_edges.append(_pack(np.minimum(leader, followers), np.maximum(leader, followers)))
    return stands, packed_edges


def _distinct(packed: Sequence[np.ndarray]) -> np.ndarray:
    """Sorts packed pairs and removes duplicates."""
    ordered = np.sort(np.concatenate(packed))
    return ordered[np.diff(ordered, prepend=~ordered[:1]) != 0]


def _pack(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    return (ones << 32 | others).astype(np.uint64)


def _stays_near(differing: np.ndarray) -> np.ndarray:
    """Returns whether the high-frequency bits of each pair are similar, bool [num_pairs]."""
    is_flipped = np.bitwise_count(differing[:, 0] & np.uint64(FLIPPED_BITS)) > 16
    fine = differing[:, 1:] ^ is_flipped[:, None] * _FINE_FLIPPED_BITS
    return np.bitwise_count(fine).sum(axis=1) <= _MAX_FINE_BITS


def join_edges(parts: Iterable[Edges]) -> tuple[np.ndarray, bool]:
    """Returns the distinct pairs from all parts of a search, int64 [num_edges, 2], and whether they are complete."""
    parts = list(parts)
    edges = _distinct([np.zeros(0, np.uint64), *(part.pairs for part in parts)])
    return np.stack([edges >> np.uint64(32), edges & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64), all(part.are_all for part in parts)


def components(num: int, edges: np.ndarray) -> np.ndarray:
    """Returns the smallest node index in the connected component of each node, int64 [num]."""
    labels = np.arange(num)
    while len(edges):
        ends = labels[edges]
        lower = ends.min(axis=1)
        # Updates the label node in addition to the ends of the edge, so that long chains need few iterations.
        np.minimum.at(labels, ends.max(axis=1), lower)
        while (labels[labels] != labels).any():
            labels = labels[labels]
        ends = labels[edges]
        edges = edges[ends[:, 0] != ends[:, 1]]
    return labels


def num_differing_bits(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the number of low-frequency bits in which hashes differ. If flipping one of the two images gives a
    smaller number, that number is returned.

    Args:
        ones: The hashes of some visual groups, uint64 [n, HASH_WORDS].
        others: The hashes of other visual groups, uint64 [m, HASH_WORDS].

    Returns:
        The distances, uint8 [n, m].
    """
    return hash_distance(ones[:, None, 0] ^ others[:, 0])
