"""Reads and checks a batch of images: `LabeledImage`s in, references and dead letters out. Plain, for light processes."""

import dataclasses
import functools
from fractions import Fraction
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import google_crc32c
import numpy as np

from beam_pipelines import payloads
from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.files import MAX_FILE_BYTES, Files, files_at, is_remote
from beam_pipelines.images import BadImageError, check_image
from beam_pipelines.light_processes import shared
from beam_pipelines.ranks import shuffle_orders
from beam_pipelines.read_ahead import read_ahead
from beam_pipelines.references import ROW, LabeledImages, References, unpack_images
from beam_pipelines.splits import SplitByKey
from beam_pipelines.spool import ObjectSpoolWriter, SpoolWriter, batch_spool
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
        num_buckets: Image bytes go along with their references, in this many buckets of each split; 0: pointers do.
    """

    root: str
    check: str
    seed: int
    splits: tuple[str, ...]
    fractions: Mapping[str, Fraction] | None
    label_names: tuple[str, ...]
    num_inputs: int
    spool_directory: str
    num_buckets: int = 0

    @functools.cached_property
    def labels(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.label_names)}

    @functools.cached_property
    def sample_below(self) -> int:
        """Images with a smaller order lend their pixels to the statistics: a sample, and always the same one."""
        return min(2**64 - 1, NUM_PIXEL_SAMPLES * 2**64 // max(self.num_inputs, 1))


class ReadBatch(NamedTuple):
    """Attributes:
    references: Of the images that are fit: packed `References`, or (bucket, packed payload) pairs.
    statistics: Of the same images.
    dead_letters: The others.
    """

    references: list[Any]
    statistics: ImageStatistics
    dead_letters: list[DeadLetter]


class _Image(NamedTuple):
    """One image that is fit: its bytes where they go along, what the statistics want, then the columns of its row."""

    data: bytes | None
    format: str
    reencoded: str
    pixels: PixelSums | None
    num_bytes: int
    crc32c: int
    height: int
    width: int
    spool: int
    offset: int


_ROW_COLUMNS = _Image._fields[4:]


def read_batch(shared_context: bytes, packed_images: bytes) -> ReadBatch:
    """Reads, checks and, where needed, re-encodes a batch of images."""
    context: ReadContext = shared(shared_context)
    inputs = unpack_images(packed_images)
    keys = [key.encode() for key in inputs.keys]
    orders = shuffle_orders(context.seed, keys)
    found = _read_images(context, inputs, (orders < np.uint64(context.sample_below)).tolist())
    dead_letters = [image for image in found if isinstance(image, DeadLetter)]
    kept = [index for index, image in enumerate(found) if isinstance(image, _Image)]
    images = [found[index] for index in kept]
    rows = np.zeros(len(kept), ROW)
    rows["order"] = orders[kept]
    rows["split"] = _split_positions(context, [keys[index] for index in kept], [inputs.splits[index] for index in kept])
    rows["label"] = [context.labels[inputs.labels[index]] for index in kept]
    for name, column in zip(_ROW_COLUMNS, list(zip(*images))[4:]):
        rows[name] = column
    own_paths = [b"" if inputs.paths[index] == inputs.keys[index] else inputs.paths[index].encode() for index in kept]
    references = References(rows, [keys[index] for index in kept], own_paths)
    if context.num_buckets:
        packed = list(payloads.group_by_bucket(references, [image.data for image in images], context.num_buckets))
    else:
        packed = [references.pack()]
    return ReadBatch(packed, _count(images, rows, dead_letters), dead_letters)


def _read_images(context: ReadContext, inputs: LabeledImages, sampled: Sequence[bool]) -> list[_Image | DeadLetter]:
    """What becomes of each input of a batch."""
    files = files_at(context.root)
    if context.num_buckets:
        read = functools.partial(_read_image, context, files, None)
        return _map(context, read, inputs, sampled)
    if context.check == "none":
        return [_stat_image(context, files, path, size) for path, size in zip(inputs.paths, inputs.num_bytes)]
    with batch_spool(context.spool_directory) as spool:
        return _map(context, functools.partial(_read_image, context, files, spool), inputs, sampled)


def _map(context: ReadContext, read: Callable, inputs: LabeledImages, sampled: Sequence[bool]) -> list[_Image | DeadLetter]:
    """In order; ahead of the need where a read is a request over a network."""
    if not is_remote(context.root):
        return [read(path, is_sampled) for path, is_sampled in zip(inputs.paths, sampled)]
    items = zip(zip(inputs.paths, sampled), inputs.num_bytes)
    return list(read_ahead(lambda item: read(*item), items))


def _read_image(
    context: ReadContext, files: Files, spool: SpoolWriter | ObjectSpoolWriter | None, path: str, sampled: bool
) -> _Image | DeadLetter:
    """Without a spool the bytes go along."""
    try:
        data = files.read(f"{context.root}/{path}")
    except OSError as error:
        return _unreadable(path, error.strerror or str(error))
    if context.check == "none":
        return _Image(data, "", "", None, len(data), 0, 0, 0, 0, 0) if data else _unreadable(path, _EMPTY)
    try:
        checked = check_image(data, context.check, full_scale=sampled)
    except BadImageError as error:
        return DeadLetter(path, "check", "bad_image", str(error))
    is_small = len(data) < SPOOL_BELOW_BYTES
    data = data if checked.encoded is None else checked.encoded
    number = offset = 0
    if spool is not None and (is_small or checked.encoded is not None):
        number, offset = spool.spool, spool.append(data)
    return _Image(
        data if spool is None else None,
        checked.format,
        checked.reencoded,
        # Summed here and now: the pixels of a batch of photographs would be gigabytes.
        None if checked.pixels is None else PixelSums.of(checked.pixels),
        len(data),
        google_crc32c.value(data),
        checked.height,
        checked.width,
        number,
        offset,
    )


def _stat_image(context: ReadContext, files: Files, path: str, listed_bytes: int) -> _Image | DeadLetter:
    """Without a check nothing is known of an image but its size."""
    try:
        size = listed_bytes or files.size(f"{context.root}/{path}")
    except OSError as error:
        return _unreadable(path, error.strerror or str(error))
    if size > MAX_FILE_BYTES:
        return _unreadable(path, f"{size} bytes; expected at most {MAX_FILE_BYTES}")
    return _Image(None, "", "", None, size, 0, 0, 0, 0, 0) if size else _unreadable(path, _EMPTY)


_EMPTY = "the file is empty"


def _unreadable(path: str, message: str) -> DeadLetter:
    return DeadLetter(path, "read", "unreadable", message)


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
