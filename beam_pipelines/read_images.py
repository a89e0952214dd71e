"""Reads and checks a batch of images: `LabeledImage`s in, references and dead letters out. Plain, for light processes."""

import contextlib
from typing import Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.files import files_at, is_remote
from beam_pipelines.input_reader import InputReader, ReadContext, ReadImage
from beam_pipelines.light_processes import shared
from beam_pipelines.ranks import shuffle_orders
from beam_pipelines.read_ahead import read_ahead
from beam_pipelines.references import (
    EXTRAS,
    ROW,
    SOURCE_FILE,
    SOURCE_PART,
    WHOLE_FILE,
    LabeledImage,
    References,
    unpack_images,
)
from beam_pipelines.splits import split_positions
from beam_pipelines.spool import SpoolReader, batch_spool, own_spool
from beam_pipelines.statistics import ImageStatistics, SplitStatistics


class ReadBatch(NamedTuple):
    """Attributes:
    references: Packed `References` of the images that are fit.
    statistics: Of the same images.
    dead_letters: The others.
    """

    references: bytes
    statistics: ImageStatistics
    dead_letters: list[DeadLetter]


_ROW_COLUMNS = ReadImage._fields[5:]


class _Places(NamedTuple):
    """Where the bytes of one image, and its extras, are: columns of its row, and its row of extras."""

    image: tuple[int, int]
    extras: tuple[int, int, int]


def read_batch(shared_context: bytes, packed_images: bytes) -> ReadBatch:
    """Reads, checks and, where needed, re-encodes a batch of images."""
    context: ReadContext = shared(shared_context)
    inputs = unpack_images(packed_images)
    keys = [key.encode() for key in inputs.keys]
    orders = shuffle_orders(context.seed, keys)
    sampled = (orders < np.uint64(context.sample_below)).tolist()
    listed = list(map(LabeledImage, *inputs))
    images, places, kept, dead_letters = _spool(context, listed, _read_images(context, listed, sampled))
    rows = np.zeros(len(kept), ROW)
    rows["order"] = orders[kept]
    kept_keys = [keys[index] for index in kept]
    groups = [inputs.groups[index].encode() or keys[index] for index in kept]
    rows["split"] = split_positions(groups, [inputs.splits[index] for index in kept], context.splits, context.fractions)
    rows["label"] = [context.labels[inputs.labels[index]] for index in kept]
    for name, column in zip(_ROW_COLUMNS, list(zip(*images))[5:]):
        rows[name] = column
    for name, column in zip(("spool", "offset"), zip(*(place.image for place in places))):
        rows[name] = column
    extras = np.array([place.extras for place in places], EXTRAS) if context.extras.features else None
    own_paths = [b"" if inputs.paths[index] == inputs.keys[index] else inputs.paths[index].encode() for index in kept]
    references = References(rows, kept_keys, own_paths, extras)
    return ReadBatch(references.pack(), _count(context, images, rows, dead_letters), dead_letters)


def _read_images(
    context: ReadContext, listed: Sequence[LabeledImage], sampled: Sequence[bool]
) -> Iterator[ReadImage | DeadLetter]:
    """What becomes of each input of a batch, in order; ahead of the need where a read is a request over a network."""
    files = files_at(context.root)
    with contextlib.closing(SpoolReader(context.spool_directory)) as spool:
        reader = InputReader(context, files, spool)
        if context.check == "none" and not context.spools_all:
            yield from map(reader.stat, listed)
        elif is_remote(context.root):
            items = ((pair, pair[0].num_bytes) for pair in zip(listed, sampled))
            yield from read_ahead(lambda pair: reader.read(*pair), items)
        else:
            yield from map(reader.read, listed, sampled)


def _spool(
    context: ReadContext, listed: Sequence[LabeledImage], found: Iterable[ReadImage | DeadLetter]
) -> tuple[list[ReadImage], list[_Places], list[int], list[DeadLetter]]:
    """The images that are fit, without their bytes; where these are; their positions in the batch; and the others."""
    images, places, kept, dead_letters = [], [], [], []
    uses_spool = context.check != "none" or context.extras.features
    spooling = own_spool if context.spools_all else batch_spool if uses_spool else contextlib.nullcontext
    with spooling(context.spool_directory) as spool:
        for index, image in enumerate(found):
            if isinstance(image, DeadLetter):
                dead_letters.append(image)
                continue
            kept.append(index)
            extras = image.extras.entries if image.extras else b""
            place = _source_place(listed[index])
            extras_place = (0, 0, 0)
            if extras or image.data is not None:  # side by side, so that one read gets both
                offset = spool.append(extras if image.data is None else extras + image.data)
                extras_place = (len(extras), spool.spool, offset)
                place = place if image.data is None else (spool.spool, offset + len(extras))
            images.append(image._replace(data=None))
            places.append(_Places(place, extras_place))
    return images, places, kept, dead_letters


def _source_place(image: LabeledImage) -> tuple[int, int]:
    if image.spool:
        return image.spool, image.offset
    return (SOURCE_FILE, 0) if image.offset == WHOLE_FILE else (SOURCE_PART, image.offset)


def _count(
    context: ReadContext, images: list[ReadImage], rows: np.ndarray, dead_letters: list[DeadLetter]
) -> ImageStatistics:
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
        num_bytes = int(rows["num_bytes"][in_split].sum(dtype=np.int64))
        split = statistics.splits[position] = SplitStatistics(int(in_split.sum()), num_bytes)
        if context.has_labels:
            split.labels.update(dict(zip(labels.tolist(), counts.tolist())))
    for image, position in zip(images, rows["split"].tolist()):
        if image.pixels is not None:
            statistics.splits[position].pixels.merge(image.pixels)
        if image.extras is not None:
            statistics.add_extras(position, image.extras)
    return statistics
