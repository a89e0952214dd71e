"""Packs image hashes into bytes, for the plan and for the near-duplicate search."""

from typing import NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.reference_runs import SortedRun, SpoolRange
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.images.perceptual_hash import HASH_WORDS


class HashedRun(NamedTuple):
    """The references in one run whose images are valid, sorted by shuffle key, and the hash of each image.

    Attributes:
        run: The location of the references in a temporary file.
        rows: The location of the hashes, which are `HASH_ROW`s in the order of the references.
        dead_letters: The rejected images.
    """

    run: SortedRun
    rows: SpoolRange
    dead_letters: DeadLetterCount


class ImageHashes(NamedTuple):
    """Image hashes in the format of the catalog.

    Attributes:
        contents: The hashes of the source bytes, uint64 [num_images].
        visual_hashes: The perceptual hashes, uint64 [num_images, HASH_WORDS]. 0 for images without a perceptual hash.
        has_visual_hash: Whether each image has a perceptual hash, bool [num_images].
    """

    contents: np.ndarray
    visual_hashes: np.ndarray
    has_visual_hash: np.ndarray


def pack_hashes(rows: np.ndarray) -> BinaryColumn:
    """Packs the content hash (8 bytes) and the perceptual hash, if any, of each image into a byte string."""
    words = np.concatenate([rows["content"][:, :1], rows["visual_hash"]], axis=1)
    has_visual_hash = rows["has_visual_hash"]
    if not has_visual_hash.all():  # Usually, all images have a perceptual hash.
        kept = np.ones(words.shape, bool)
        kept[:, 1:] = has_visual_hash[:, None]
        words = words[kept]
    return BinaryColumn(np.where(has_visual_hash, 8 * (1 + HASH_WORDS), 8).astype(np.uint32), words.astype("<u8", copy=False).tobytes())


def unpack_hashes(texts: BinaryColumn) -> ImageHashes | None:
    """Unpacks hashes from `pack_hashes`. Returns None if there are no hashes."""
    if not texts.blob:
        return None
    words, sizes = np.frombuffer(texts.blob, "<u8"), texts.lengths // 8
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    has_visual_hash = sizes > 1
    visual_hashes = np.zeros((len(texts), HASH_WORDS), np.uint64)
    visual_hashes[has_visual_hash] = words[starts[has_visual_hash, None] + np.arange(1, 1 + HASH_WORDS)]
    return ImageHashes(words[starts], visual_hashes, has_visual_hash)
