"""Reads and checks a batch of images: `LabeledImage`s in, references and dead letters out. Plain, for light processes."""

import dataclasses
import functools
import os
from fractions import Fraction
from typing import Mapping, NamedTuple, Sequence

import google_crc32c
import numpy as np

from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.files import MAX_FILE_BYTES, read_file
from beam_pipelines.images import BadImageError, check_image
from beam_pipelines.light_processes import shared
from beam_pipelines.ranks import shuffle_orders
from beam_pipelines.references import ROW, References, unpack_images
from beam_pipelines.splits import SplitByKey
from beam_pipelines.spool import SpoolWriter, spool_writer
from beam_pipelines.statistics import NUM_PIXEL_SAMPLES, ImageStatistics, PixelSums, SplitStatistics

# Reading a tiny file a second time, to write it, costs more than keeping its bytes; of a larger one, less.
SPOOL_BELOW_BYTES = 16 << 10


@dataclasses.dataclass(frozen=True)
class ReadContext:
    """What every batch of a run shares.

    Attributes:
        root: The source's root.
        check: One of `config.CHECKS`.
        seed: Of the global shuffle.
        splits: Split names; a reference holds a position in them.
        fractions: Their shares, where a key decides; None where the source does.
        label_names: Class names; a reference holds a position in them.
        num_inputs: Of the whole run.
        spool_directory: Where bytes go that are not read from the source again.
    """

    root: str
    check: str
    seed: int
    splits: tuple[str, ...]
    fractions: Mapping[str, Fraction] | None
    label_names: tuple[str, ...]
    num_inputs: int
    spool_directory: str

    @functools.cached_property
    def labels(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.label_names)}

    @functools.cached_property
    def sample_below(self) -> int:
        """Images with a smaller order lend their pixels to the statistics: a sample, and always the same one."""
        return min(2**64 - 1, NUM_PIXEL_SAMPLES * 2**64 // max(self.num_inputs, 1))


class ReadBatch(NamedTuple):
    """Attributes:
    references: Packed `References` of the images that are fit.
    statistics: Of the same images.
    dead_letters: The others.
    """

    references: bytes
    statistics: ImageStatistics
    dead_letters: list[DeadLetter]


class _Image(NamedTuple):
    """One image that is fit: what the statistics want, then the columns of its row."""

    format: str
    reencoded: str
    pixels: PixelSums | None
    num_bytes: int
    crc32c: int
    height: int
    width: int
    spool: int
    offset: int


_ROW_COLUMNS = _Image._fields[3:]


def read_batch(shared_context: bytes, packed_images: bytes) -> ReadBatch:
    """Reads, checks and, where needed, re-encodes a batch of images."""
    context: ReadContext = shared(shared_context)
    keys, paths, labels, splits = unpack_images(packed_images)
    key_bytes = [key.encode() for key in keys]
    orders = shuffle_orders(context.seed, key_bytes)
    sampled = (orders < np.uint64(context.sample_below)).tolist()
    images, kept, dead_letters = _measure(context, paths, sampled)
    rows = np.zeros(len(kept), ROW)
    rows["order"] = orders[kept]
    rows["split"] = _split_positions(context, [key_bytes[index] for index in kept], [splits[index] for index in kept])
    rows["label"] = [context.labels[labels[index]] for index in kept]
    for name, column in zip(_ROW_COLUMNS, list(zip(*images))[3:]):
        rows[name] = column
    own_paths = [b"" if paths[index] == keys[index] else paths[index].encode() for index in kept]
    references = References(rows, [key_bytes[index] for index in kept], own_paths)
    return ReadBatch(references.pack(), _count(images, rows, dead_letters), dead_letters)


def _measure(
    context: ReadContext, paths: Sequence[str], sampled: Sequence[bool]
) -> tuple[list[_Image], list[int], list[DeadLetter]]:
    """The images that are fit, their positions in `paths`, and the others."""
    if context.check == "none":
        measure = functools.partial(_stat_image, context)
    else:
        spool = spool_writer(context.spool_directory)
        measure = functools.partial(_read_image, context, spool)
    images, kept, dead_letters = [], [], []
    for index, path in enumerate(paths):
        image = measure(path, sampled[index])
        if isinstance(image, DeadLetter):
            dead_letters.append(image)
        else:
            images.append(image)
            kept.append(index)
    if context.check != "none":
        spool.flush()
    return images, kept, dead_letters


def _read_image(context: ReadContext, writer: SpoolWriter, path: str, sampled: bool) -> _Image | DeadLetter:
    try:
        data = read_file(f"{context.root}/{path}")
    except OSError as error:
        return DeadLetter(path, "read", "unreadable", error.strerror or str(error))
    try:
        checked = check_image(data, context.check, full_scale=sampled)
    except BadImageError as error:
        return DeadLetter(path, "check", "bad_image", str(error))
    spool = offset = 0
    if checked.encoded is not None or len(data) < SPOOL_BELOW_BYTES:
        data = data if checked.encoded is None else checked.encoded
        spool, offset = writer.spool, writer.append(data)
    # Summed here and now: the pixels of a batch of photographs would be gigabytes.
    pixels = None if checked.pixels is None else PixelSums.of(checked.pixels)
    crc32c = google_crc32c.value(data)
    return _Image(
        checked.format, checked.reencoded, pixels, len(data), crc32c, checked.height, checked.width, spool, offset
    )


def _stat_image(context: ReadContext, path: str, sampled: bool) -> _Image | DeadLetter:
    """Without a check nothing is known of an image but its size."""
    del sampled
    try:
        size = os.stat(f"{context.root}/{path}").st_size
    except OSError as error:
        return DeadLetter(path, "read", "unreadable", error.strerror or str(error))
    if not 0 < size <= MAX_FILE_BYTES:
        return DeadLetter(path, "read", "unreadable", f"{size} bytes; expected 1 to {MAX_FILE_BYTES}")
    return _Image("", "", None, size, 0, 0, 0, 0, 0)


def _split_positions(context: ReadContext, keys: list[bytes], splits: list[str | None]) -> list[int]:
    if context.fractions is not None:
        return list(map(SplitByKey(context.fractions), keys))
    return list(map(context.splits.index, splits))


def _count(images: list[_Image], rows: np.ndarray, dead_letters: list[DeadLetter]) -> ImageStatistics:
    statistics = ImageStatistics()
    statistics.dead_letters.add(dead_letters)
    statistics.image_bytes.add(rows["num_bytes"].tolist())
    statistics.formats.update(image.format for image in images if image.format)
    statistics.reencoded.update(image.reencoded for image in images if image.reencoded)
    if statistics.formats:
        statistics.heights.add(rows["height"].tolist())
        statistics.widths.add(rows["width"].tolist())
    for position in np.unique(rows["split"]).tolist():
        in_split = rows["split"] == position
        labels, counts = np.unique(rows["label"][in_split], return_counts=True)
        split = statistics.splits[position] = SplitStatistics(int(rows["num_bytes"][in_split].sum(dtype=np.int64)))
        split.labels.update(dict(zip(labels.tolist(), counts.tolist())))
    for image, position in zip(images, rows["split"].tolist()):
        if image.pixels is not None:
            statistics.splits[position].pixels.merge(image.pixels)
    return statistics
