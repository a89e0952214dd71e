"""Lists one part of a source, in batches. Plain, for light processes."""

import functools
from typing import Iterator, NamedTuple

from beam_pipelines.config import PrepareConfig
from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.errors import printable
from beam_pipelines.input_errors import listing_error
from beam_pipelines.light_processes import shared
from beam_pipelines.listing import ListedPart, list_part
from beam_pipelines.references import LabeledImage, pack_images
from beam_pipelines.sources import Source
from beam_pipelines.sources.open_source import open_source

# Enough images to make the cost of an element nothing, few enough that every worker gets some.
BATCH_IMAGES = 256


class PackedBatch(NamedTuple):
    """Some inputs.

    Attributes:
        images: Packed `LabeledImage`s.
        num_images: How many.
    """

    images: bytes
    num_images: int


def open_to_list(config: PrepareConfig) -> Source:
    return open_source(config, with_sizes=config.is_inline, spool_directory=config.spool_directory)


def list_in_batches(source: Source, part: str) -> Iterator[PackedBatch | DeadLetter | ListedPart]:
    """The inputs of a part while they are found, and at last what was found of it."""
    found = ListedPart()
    batch: list[LabeledImage] = []
    held: list[PackedBatch] = []  # until the source has closed its spool, which nobody can read before
    for listed in _with_trouble_told(list_part(source, part, found), f"{source.root}/{part}"):
        if isinstance(listed, DeadLetter):
            yield listed
            continue
        batch.append(listed)
        if len(batch) == BATCH_IMAGES:
            packed = PackedBatch(pack_images(batch), len(batch))
            if any(image.spool for image in batch):
                held.append(packed)
            else:
                yield packed
            batch = []
    yield from held
    if batch:
        yield PackedBatch(pack_images(batch), len(batch))
    yield found


def _with_trouble_told(listed: Iterator[LabeledImage | DeadLetter], path: str) -> Iterator[LabeledImage | DeadLetter]:
    """What no source took for a fact about an input fails the bundle, by name."""
    try:
        yield from listed
    except OSError as error:
        raise listing_error(error, path, f"{printable(path)} could not be listed: {error.strerror or error}") from error


class PartContext(NamedTuple):
    """What the parts of one bundle share.

    Attributes:
        config: Which source they belong to.
        bundle: Another one for each bundle: what was looked at for one need not hold for the next.
    """

    config: PrepareConfig
    bundle: str


@functools.lru_cache(maxsize=1)
def _open_once(context: bytes) -> Source:
    """Looking at the same files again for each part would take the square of their number."""
    return open_to_list(shared(context).config)


def list_whole_part(context: bytes, part: str) -> tuple[list[PackedBatch], list[DeadLetter], ListedPart]:
    """The same at once, of a shared `PartContext`."""
    listed = list(list_in_batches(_open_once(context), part))
    batches = [one for one in listed if isinstance(one, PackedBatch)]
    return batches, [one for one in listed if isinstance(one, DeadLetter)], listed[-1]
