"""Hashes of images on their way: into the plan beside each reference, and in runs to where images that are alike are looked for."""

from typing import NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.reference_runs import Run, SpoolStretch
from beam_pipelines.elements.texts import Texts
from beam_pipelines.images.perceptual_hash import HASH_WORDS


class HashedRun(NamedTuple):
    """A run whose images were hashed, without those that were refused then.

    Attributes:
        run: The references, with their hashes.
        rows: The hashes of the run's images, `HASH_ROW`s in the order of the references.
        dead_letters: The dead letters of the images that were refused.
    """

    run: Run
    rows: SpoolStretch
    dead_letters: DeadLetterCount


class ImageHashes(NamedTuple):
    """The hashes of some images, as the catalog has them.

    Attributes:
        contents: Hashes of the bytes at the source, uint64 [num_images].
        looks: Perceptual hashes, uint64 [num_images, HASH_WORDS]; 0 where an image has none.
        has_look: Whether each image has a perceptual hash, bool [num_images].
    """

    contents: np.ndarray
    looks: np.ndarray
    has_look: np.ndarray


def pack_hashes(rows: np.ndarray) -> Texts:
    """Packs `HASH_ROW`s as references have them: 8 bytes of each content, and the perceptual hash where there is one."""
    words = np.concatenate([rows["content"][:, :1], rows["look"]], axis=1)
    has_look = rows["has_look"]
    if not has_look.all():  # as a rule all have one
        kept = np.ones(words.shape, bool)
        kept[:, 1:] = has_look[:, None]
        words = words[kept]
    return Texts(np.where(has_look, 8 * (1 + HASH_WORDS), 8).astype(np.uint32), words.astype("<u8", copy=False).tobytes())


def unpack_hashes(texts: Texts) -> ImageHashes | None:
    """Unpacks the hashes of references; None where these have none."""
    if not texts.blob:
        return None
    words, sizes = np.frombuffer(texts.blob, "<u8"), texts.lengths // 8
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    has_look = sizes > 1
    looks = np.zeros((len(texts), HASH_WORDS), np.uint64)
    looks[has_look] = words[starts[has_look, None] + np.arange(1, 1 + HASH_WORDS)]
    return ImageHashes(words[starts], looks, has_look)
