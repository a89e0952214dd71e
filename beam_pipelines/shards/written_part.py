"""Describes a completed part of a shard."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.plan import PlannedShard, ShardAddress
from beam_pipelines.elements.references import References
from beam_pipelines.elements.statistics import ImageStatistics
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import make_parent_folders
from beam_pipelines.storage.local_files import TEMPORARY
from tf_input.dataset_format import INDEX_ROW, shard_name


INDEX = np.dtype([("record", "<u8"), ("image", "<u8"), ("length", "<u4"), ("label", "<i4")])
assert INDEX.itemsize == INDEX_ROW.size


class ShardPart(NamedTuple):
    """A part of a shard. The inputs of the shard are divided into `num_parts` parts of about equal size."""

    number: int = 0
    num_parts: int = 1


@dataclasses.dataclass
class WrittenPart:
    """A completed part of a shard, and information about its records.

    Attributes:
        shard: The shard that contains the part.
        part: The part.
        path: The path of the file.
        references: The references to all inputs of the part.
        labels: A mapping from class feature to the label, or list of labels, of each example.
        values: A mapping from each other feature in the catalog to its number, or UTF-8 string, in each example. A
            verbatim record that lacks the value has None.
        paths: A mapping from additional image to its source file in each example.
        num_bytes: The size of the file, in bytes.
        crc32c: The CRC-32C of the file.
        fingerprint: The data checksums of the first and the last record. (0, 0) without records.
        index: The index rows of the records, [num_records].
        crcs: The CRC-32C of each stored image, or of each serialized example without an image, uint32 [num_records].
        sizes: The height and width of each image in pixels, int32 [num_records, 2]. 0 if unknown.
        formats: The format of each source image.
        reencoded: The reason why each stored image differs from its source. Empty if they are equal.
        kept: The indices in `references` of inputs that became examples, in ascending order.
        weights: The weight of each example. None if examples have no weights.
        statistics: The statistics of all examples and dead letters.
        dead_letters: The dead letters of the rejected inputs.
    """

    shard: PlannedShard
    part: ShardPart
    path: str
    references: References
    labels: dict[str, list[Any]]
    values: dict[str, list[Any]]
    paths: dict[str, list[str]]
    num_bytes: int = 0
    crc32c: int = 0
    fingerprint: tuple[int, int] = (0, 0)
    index: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, INDEX))
    crcs: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint32))
    sizes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2), np.int32))
    formats: list[str] = dataclasses.field(default_factory=list)
    reencoded: list[str] = dataclasses.field(default_factory=list)
    kept: list[int] = dataclasses.field(default_factory=list)
    weights: list[float] | None = None
    statistics: ImageStatistics = dataclasses.field(default_factory=ImageStatistics)
    dead_letters: list[DeadLetter] = dataclasses.field(default_factory=list)


def part_path(context: WriteContext, address: ShardAddress, part: ShardPart) -> str:
    """Returns the path of a part's file.

    A single part is written to the final path of the shard. Several parts are written to temporary files in the same
    folder.
    """
    spec = context.spec
    name = shard_name(spec.name, *address)
    path = make_parent_folders(spec.run.working_directory, name)
    if part.num_parts == 1:
        return path
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{part.number}{TEMPORARY}"
