"""What a plan is made of, and what comes of it: plain values."""

import dataclasses
from typing import Iterator, Mapping, NamedTuple

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.quality import LabelSequence
from beam_pipelines.elements.reference_runs import SpoolStretch
from beam_pipelines.elements.statistics import ImageStatistics
from tf_input.dataset_format import FORMAT_VERSION, ShardInfo, shard_place


class ShardAddress(NamedTuple):
    """The place of a shard: its split, its index in that, and how many shards the split has."""

    split: str
    shard_index: int
    num_shards: int

    def __str__(self) -> str:
        return f"{self.split}-{shard_place(self.shard_index, self.num_shards)}"


class PlannedShard(NamedTuple):
    """A shard whose references lie in the plan, in rank order.

    Attributes:
        address: The place of the shard.
        num_inputs: The number of references of the shard.
    """

    address: ShardAddress
    num_inputs: int


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """A shard that is in place, with its index and its catalog.

    Attributes:
        address: The place of the shard.
        info: The entry of the shard in the manifest.
        labels: Feature with class names -> what is kept of them for the shuffle quality.
        statistics: Statistics of the shard's examples and of its dead letters, which lie beside its `done` file.
    """

    address: ShardAddress
    info: ShardInfo
    labels: Mapping[str, LabelSequence]
    statistics: ImageStatistics


@dataclasses.dataclass(frozen=True)
class SplitShards:
    """How one split is cut: shards of equal numbers of inputs, give or take one."""

    num_inputs: int
    num_shards: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run is to write.

    Attributes:
        config: The job that the plan is of.
        listing: What is known of the job's inputs.
        splits: Split name -> how the split is cut into shards.
        dead_letters: Sorted runs of the dead letters of the listing, in the spool.
        version: The version of what began the run, as `own_version` gives it.
    """

    config: PrepareJob
    listing: Listing
    splits: Mapping[str, SplitShards]
    dead_letters: tuple[SpoolStretch, ...]
    version: str

    def shards(self) -> Iterator[PlannedShard]:
        """The shards of all splits, in order."""
        for name, split in self.splits.items():
            for index in range(split.num_shards):
                num_inputs = (index + 1) * split.num_inputs // split.num_shards - index * split.num_inputs // split.num_shards
                yield PlannedShard(ShardAddress(name, index, split.num_shards), num_inputs)


def own_version() -> str:
    """The version of this package and of the data sets that it writes: another one may give other bytes for the same plan."""
    import importlib.metadata  # with all that reads mails: not where shards are only written

    try:
        package = importlib.metadata.version("recordmill")
    except importlib.metadata.PackageNotFoundError:
        package = "(not installed)"
    return f"recordmill {package}, format {FORMAT_VERSION}"
