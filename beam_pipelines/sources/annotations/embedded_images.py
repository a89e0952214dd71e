"""Copies images that annotation files contain to temporary files (the spool), from which the images are read later."""

import itertools
from typing import Iterator, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.storage.spool import open_spool

_BATCH = 4096  # inputs that wait until their spool is complete


class Embedded(NamedTuple):
    """An input whose image is in an annotation file.

    Attributes:
        record: The input, without the location of the image.
        data: The bytes of the image.
    """

    record: InputRecord
    data: bytes


def spool_images(
    listed: Iterator[InputRecord | DeadLetter | Embedded], directory: str | None
) -> Iterator[InputRecord | DeadLetter]:
    """Copies embedded images to the spool, and yields all inputs with the locations of their images.

    Args:
        listed: The inputs.
        directory: The directory of the spool. If it is None, no image will be read, and no image is copied.
    """
    if directory is None:
        yield from (item.record if isinstance(item, Embedded) else item for item in listed)
        return
    for first in listed:
        if not isinstance(first, Embedded):
            yield first
            continue
        with open_spool(directory) as writer:
            batch = []
            for item in itertools.chain([first], itertools.islice(listed, _BATCH - 1)):
                if isinstance(item, Embedded):
                    item = item.record._replace(spool=writer.spool, offset=writer.append(item.data))
                batch.append(item)
        yield from batch
