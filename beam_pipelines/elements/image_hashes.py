"""Packs image hashes for the plan, and for the search for near-duplicates."""

from typing import NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.reference_runs import Run, SpoolStretch
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.images.perceptual_hash import HASH_WORDS


class HashedRun(NamedTuple):
    """A sorted run of references to valid images, with the hashes of these images.

    Attributes:
        run: The references, with their hashes.
        rows: The hashes of the images as `HASH_ROW`s, in the order of the references.
        dead_letters: The dead letters of the rejected images.
    """

    run: Run
    rows: SpoolStretch
    dead_letters: DeadLetterCount


class ImageHashes(NamedTuple):
    """Image hashes in the format of the catalog.

    Attributes:
        contents: The hashes of the source bytes, uint64 [num_images].
        looks: The perceptual hashes, uint64 [num_images, HASH_WORDS]. 0 without a hash.
        has_look: Whether each image has a perceptual hash, bool [num_images].
    """

    contents: np.ndarray
    looks: np.ndarray
    has_look: np.ndarray


def pack_hashes(rows: np.ndarray) -> BinaryColumn:
    """Packs the `HASH_ROW` of each reference into bytes: 8 bytes of the content hash, and the perceptual hash if it
    exists."""
    words = np.concatenate([rows["content"][:, :1], rows["look"]], axis=1)
    has_look = rows["has_look"]
    if not has_look.all():  # Usually, all images have a perceptual hash.
        kept = np.ones(words.shape, bool)
        kept[:, 1:] = has_look[:, None]
        words = words[kept]
    return BinaryColumn(np.where(has_look, 8 * (1 + HASH_WORDS), 8).astype(np.uint32), words.astype("<u8", copy=False).tobytes())


def unpack_hashes(texts: BinaryColumn) -> ImageHashes | None:
    """Unpacks the hashes of references. Returns None if the references have no hashes."""
    if not texts.blob:
        return None
    words, sizes = np.frombuffer(texts.blob, "<u8"), texts.lengths // 8
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    has_look = sizes > 1
    looks = np.zeros((len(texts), HASH_WORDS), np.uint64)
    looks[has_look] = words[starts[has_look, None] + np.arange(1, 1 + HASH_WORDS)]
    return ImageHashes(words[starts], looks, has_look)
