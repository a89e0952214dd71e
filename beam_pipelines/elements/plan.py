"""Defines the plan of a run. The plan lists the shards to write and the inputs of each shard."""

import dataclasses
from typing import Iterator, Mapping, NamedTuple

from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.quality import LabelSequence
from beam_pipelines.elements.reference_runs import SpoolRange
from beam_pipelines.elements.statistics import ImageStatistics
from tf_input.dataset_format import FORMAT_VERSION, ShardInfo, shard_suffix


class ShardAddress(NamedTuple):
    """Identifies a shard by its split, its index within the split, and the number of shards in the split."""

    split: str
    shard_index: int
    num_shards: int

    def __str__(self) -> str:
        return f"{self.split}-{shard_suffix(self.shard_index, self.num_shards)}"


class PlannedShard(NamedTuple):
    """A shard to write.

    Attributes:
        address: The address of the shard.
        num_inputs: The number of inputs of the shard.
    """

    address: ShardAddress
    num_inputs: int


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """A completed shard.

    Attributes:
        address: The address of the shard.
        info: The entry of the shard in the manifest, which also names its index file and its catalog file.
        labels: A mapping from class feature to the summary of its labels, for the shuffle quality.
        statistics: The statistics of the shard's examples and dead letters.
    """

    address: ShardAddress
    info: ShardInfo
    labels: Mapping[str, LabelSequence]
    statistics: ImageStatistics


@dataclasses.dataclass(frozen=True)
class SplitShards:
    """The number of inputs and shards of a split. Shard sizes differ by at most one input."""

    num_inputs: int
    num_shards: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a run.

    Attributes:
        options: The options of the command, from `Options.texts`.
        is_output_new: See `RunPaths`. A resumed run in an object store writes to the same directory.
        listing: The properties of the job's inputs.
        splits: A mapping from split name to its numbers of inputs and shards.
        dead_letters: The locations of the listing's dead letters in temporary files, as sorted lines.
        version: The version of Recordmill that started the run, from `recordmill_version`.
    """

    options: Mapping[str, str]
    is_output_new: bool
    listing: Listing
    splits: Mapping[str, SplitShards]
    dead_letters: tuple[SpoolRange, ...]
    version: str

    def shards(self) -> Iterator[PlannedShard]:
        """Yields the shards of all splits, in order."""
        for name, split in self.splits.items():
            for index in range(split.num_shards):
                num_inputs = (index + 1) * split.num_inputs // split.num_shards - index * split.num_inputs // split.num_shards
                yield PlannedShard(ShardAddress(name, index, split.num_shards), num_inputs)


def recordmill_version() -> str:
    """Returns the versions of Recordmill and of the data format, which together determine the bytes of a dataset."""
    import importlib.metadata  # Imported here, because the import is slow and the shard writers do not need it.

    try:
        package = importlib.metadata.version("recordmill")
    except importlib.metadata.PackageNotFoundError:
        package = "(not installed)"
    return f"recordmill {package}, format {FORMAT_VERSION}"
