"""Hashes of images on their way: into the plan beside each reference, and in runs to where images that are alike are looked for."""

from typing import NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.reference_runs import Run, Stretch
from beam_pipelines.elements.texts import Texts


class HashedRun(NamedTuple):
    """A run whose images were hashed, without those that were refused then.

    Attributes:
        run: The references, with their hashes.
        rows: Of `HASH_ROW`, in their order.
        dead_letters: Of those that were refused.
    """

    run: Run
    rows: Stretch
    dead_letters: DeadLetterCount


class ImageHashes(NamedTuple):
    """What the catalog has of some images.

    Attributes:
        contents: uint64 [num_images], of the bytes at the source.
        values: uint64 [num_images], perceptual.
        mirrored: uint64 [num_images], of the same images mirrored.
        has_look: Which of them have the last two: bool [num_images].
    """

    contents: np.ndarray
    values: np.ndarray
    mirrored: np.ndarray
    has_look: np.ndarray


def pack_hashes(rows: np.ndarray) -> Texts:
    """Of `HASH_ROW`s, as references have them: 8 bytes of each, and 16 more where it has a perceptual hash."""
    words = np.stack([rows["content"][:, 0], rows["value"], rows["mirrored"]], axis=1)
    has_look = rows["has_look"]
    kept = np.stack([np.ones(len(rows), bool), has_look, has_look], axis=1)
    return Texts(np.where(has_look, 24, 8).astype(np.uint32), words[kept].astype("<u8").tobytes())


def unpack_hashes(texts: Texts) -> ImageHashes | None:
    """The hashes of references; None where these have none."""
    if not texts.blob:
        return None
    words, sizes = np.frombuffer(texts.blob, "<u8"), texts.lengths // 8
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    has_look = sizes == 3
    values, mirrored = np.zeros((2, len(texts)), np.uint64)
    values[has_look], mirrored[has_look] = words[starts[has_look] + 1], words[starts[has_look] + 2]
    return ImageHashes(words[starts], values, mirrored, has_look)
