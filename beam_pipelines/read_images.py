"""Reads and checks a batch of images: `LabeledImage`s in, references and dead letters out. Plain, for light processes."""

import contextlib
import dataclasses
import functools
from fractions import Fraction
from typing import Iterator, Mapping, NamedTuple, Sequence

import google_crc32c
import numpy as np

from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.files import MAX_FILE_BYTES, Files, files_at, is_remote
from beam_pipelines.images import BadImageError, check_image
from beam_pipelines.light_processes import shared
from beam_pipelines.ranks import shuffle_orders
from beam_pipelines.read_ahead import read_ahead
from beam_pipelines.references import ROW, LabeledImages, References, unpack_images
from beam_pipelines.splits import split_positions
from beam_pipelines.spool import batch_spool, own_spool
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
        spools_all: The images of a batch come in the order in which they will be written, and so they are all spooled.
    """

    root: str
    check: str
    seed: int
    splits: tuple[str, ...]
    fractions: Mapping[str, Fraction] | None
    label_names: tuple[str, ...]
    num_inputs: int
    spool_directory: str
    spools_all: bool = False

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
    """One image that is fit: its bytes where they are to be spooled, what the statistics want, then columns of its row."""

    data: bytes | None
    format: str
    reencoded: str
    pixels: PixelSums | None
    num_bytes: int
    crc32c: int
    height: int
    width: int


_ROW_COLUMNS = _Image._fields[4:]
_NOT_SPOOLED = (0, 0)


def read_batch(shared_context: bytes, packed_images: bytes) -> ReadBatch:
    """Reads, checks and, where needed, re-encodes a batch of images."""
    context: ReadContext = shared(shared_context)
    inputs = unpack_images(packed_images)
    keys = [key.encode() for key in inputs.keys]
    orders = shuffle_orders(context.seed, keys)
    sampled = (orders < np.uint64(context.sample_below)).tolist()
    images, pointers, kept, dead_letters = _spool(context, _read_images(context, inputs, sampled))
    rows = np.zeros(len(kept), ROW)
    rows["order"] = orders[kept]
    kept_keys = [keys[index] for index in kept]
    rows["split"] = split_positions(kept_keys, [inputs.splits[index] for index in kept], context.splits, context.fractions)
    rows["label"] = [context.labels[inputs.labels[index]] for index in kept]
    for name, column in zip(_ROW_COLUMNS, list(zip(*images))[4:]):
        rows[name] = column
    for name, column in zip(("spool", "offset"), zip(*pointers)):
        rows[name] = column
    own_paths = [b"" if inputs.paths[index] == inputs.keys[index] else inputs.paths[index].encode() for index in kept]
    references = References(rows, kept_keys, own_paths)
    return ReadBatch(references.pack(), _count(images, rows, dead_letters), dead_letters)


def _read_images(context: ReadContext, inputs: LabeledImages, sampled: Sequence[bool]) -> Iterator[_Image | DeadLetter]:
    """What becomes of each input of a batch, in order; ahead of the need where a read is a request over a network."""
    files = files_at(context.root)
    if context.check == "none" and not context.spools_all:
        for path, num_bytes in zip(inputs.paths, inputs.num_bytes):
            yield _stat_image(context, files, path, num_bytes)
    elif is_remote(context.root):
        items = zip(zip(inputs.paths, sampled), inputs.num_bytes)
        yield from read_ahead(lambda item: _read_image(context, files, *item), items)
    else:
        for path, is_sampled in zip(inputs.paths, sampled):
            yield _read_image(context, files, path, is_sampled)


def _spool(
    context: ReadContext, found: Iterator[_Image | DeadLetter]
) -> tuple[list[_Image], list[tuple[int, int]], list[int], list[DeadLetter]]:
    """The images that are fit, without their bytes; where these are spooled; their positions in the batch; and the others."""
    images, pointers, kept, dead_letters = [], [], [], []
    spooling = own_spool if context.spools_all else batch_spool if context.check != "none" else contextlib.nullcontext
    with spooling(context.spool_directory) as spool:
        for index, image in enumerate(found):
            if isinstance(image, DeadLetter):
                dead_letters.append(image)
                continue
            kept.append(index)
            if image.data is None:
                images.append(image)
                pointers.append(_NOT_SPOOLED)
            else:
                images.append(image._replace(data=None))
                pointers.append((spool.spool, spool.append(image.data)))
    return images, pointers, kept, dead_letters


def _read_image(context: ReadContext, files: Files, path: str, sampled: bool) -> _Image | DeadLetter:
    try:
        data = files.read(f"{context.root}/{path}")
    except OSError as error:
        return _unreadable(path, error.strerror or str(error))
    if context.check == "none":
        return _Image(data, "", "", None, len(data), 0, 0, 0) if data else _unreadable(path, _EMPTY)
    try:
        checked = check_image(data, context.check, full_scale=sampled)
    except BadImageError as error:
        return DeadLetter(path, "check", "bad_image", str(error))
    is_spooled = context.spools_all or checked.encoded is not None or len(data) < SPOOL_BELOW_BYTES
    data = data if checked.encoded is None else checked.encoded
    return _Image(
        data if is_spooled else None,
        checked.format,
        checked.reencoded,
        # Summed here and now: the pixels of a batch of photographs would be gigabytes.
        None if checked.pixels is None else PixelSums.of(checked.pixels),
        len(data),
        google_crc32c.value(data),
        checked.height,
        checked.width,
    )


def _stat_image(context: ReadContext, files: Files, path: str, listed_bytes: int) -> _Image | DeadLetter:
    """Without a check nothing is known of an image but its size."""
    try:
        size = listed_bytes or files.size(f"{context.root}/{path}")
    except OSError as error:
        return _unreadable(path, error.strerror or str(error))
    if size > MAX_FILE_BYTES:
        return _unreadable(path, f"{size} bytes; expected at most {MAX_FILE_BYTES}")
    return _Image(None, "", "", None, size, 0, 0, 0) if size else _unreadable(path, _EMPTY)


_EMPTY = "the file is empty"


def _unreadable(path: str, message: str) -> DeadLetter:
    return DeadLetter(path, "read", "unreadable", message)


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
