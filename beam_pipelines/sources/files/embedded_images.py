"""Copies images that tables and annotations contain to temporary files (the spool), from which they are read later."""

import itertools
from typing import Iterator, Mapping, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.storage.spool import SpoolWriter
from tf_input.dataset_format import IMAGE

# Inputs that wait until their spool is complete, so that all listed images can be read.
_SPOOL_IMAGES = 16_384


class Embedded(NamedTuple):
    """An input whose images are embedded in a table or an annotation file.

    Attributes:
        record: The input, without the locations of these images.
        data: The bytes of the images: the image of the example under the name `image`, and other images by feature.
    """

    record: InputRecord
    data: Mapping[str, bytes]


def spool_images(
    listed: Iterator[InputRecord | DeadLetter | Embedded], directory: str | None
) -> Iterator[InputRecord | DeadLetter]:
    """Copies embedded images to a temporary file and yields the inputs with the new image locations.

    Args:
        listed: The inputs.
        directory: The directory of the spool. If it is None, the images will not be read, and are not copied.
    """
    if directory is None:
        yield from (item.record if isinstance(item, Embedded) else item for item in listed)
        return
    for first in listed:
        if not isinstance(first, Embedded):
            yield first
            continue
        with SpoolWriter(directory) as writer:
            batch = itertools.chain([first], itertools.islice(listed, _SPOOL_IMAGES - 1))
            spooled = [_append(item, writer) if isinstance(item, Embedded) else item for item in batch]
        yield from spooled


def _append(embedded: Embedded, writer: SpoolWriter) -> InputRecord:
    record = embedded.record
    for name, data in embedded.data.items():
        byte_range = {"spool": writer.spool, "offset": writer.append(data)}
        if name == IMAGE:
            record = record._replace(**byte_range)
        else:
            record = record._replace(values={**record.values, name: record.values[name]._replace(**byte_range)})
    return record
