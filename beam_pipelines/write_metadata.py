"""WriteMetadata: the data set's metadata files, the manifest last, and its publishing."""

from typing import Any, Mapping

import apache_beam as beam

from beam_pipelines import metadata
from beam_pipelines.accounting import check_counts
from beam_pipelines.config import PrepareConfig
from beam_pipelines.dead_letters import DeadLetter, to_json_lines
from beam_pipelines.publish import publish_files
from beam_pipelines.shard_writer import WrittenShard
from beam_pipelines.sources import Listing
from beam_pipelines.statistics import ImageStatistics


class WriteMetadata(beam.PTransform):
    """`WrittenShard`s -> the name of the data set, once it is in place.

    Everything else comes as side inputs: there is one data set, and it is written by one worker.
    """

    def __init__(self, config: PrepareConfig, run_info: Mapping[str, Any], **side_inputs: Any) -> None:
        super().__init__()
        self._config = config
        self._run_info = run_info
        self._side_inputs = side_inputs

    def expand(self, shards: beam.PCollection) -> beam.PCollection:
        return (
            shards.pipeline
            | "Finish" >> beam.Impulse()
            | "Publish"
            >> beam.Map(
                write_metadata, self._config, self._run_info, shards=beam.pvalue.AsList(shards), **self._side_inputs
            )
        )


def write_metadata(
    unused: bytes,
    config: PrepareConfig,
    run_info: Mapping[str, Any],
    shards: list[WrittenShard],
    listing: Listing,
    images: ImageStatistics,
    dead_letters: list[DeadLetter],
) -> str:
    """Writes the metadata of a data set whose shards are there, and publishes it."""
    check_counts([shard.info.num_examples for shard in shards], len(dead_letters), listing)
    by_split = {
        split: sorted((shard for shard in shards if shard.address.split == split), key=lambda s: s.address.shard_index)
        for split in listing.splits
    }
    manifest = metadata.make_manifest(config, listing, by_split, len(dead_letters))
    statistics = metadata.statistics(images, listing, by_split)
    publish_files(config, manifest, metadata.metadata_files(manifest, statistics, run_info, to_json_lines(dead_letters)))
    return config.name
