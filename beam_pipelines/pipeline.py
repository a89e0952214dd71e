"""The whole graph on one page."""

from typing import Any, Mapping

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton

from beam_pipelines.accounting import plan_num_shards
from beam_pipelines.check_keys import CheckKeys
from beam_pipelines.config import PrepareConfig
from beam_pipelines.list_images import ListImages
from beam_pipelines.prepare_images import PrepareImages
from beam_pipelines.shuffle import GlobalShuffle
from beam_pipelines.write_metadata import WriteMetadata
from beam_pipelines.write_shards import WriteShards


def prepare(root: beam.Pipeline, config: PrepareConfig, run_info: Mapping[str, Any]) -> beam.PCollection:
    """A folder of images -> a globally shuffled data set.

    Args:
        root: The pipeline to add the graph to.
        config: What to do. Its working directory exists and is this run's alone (see `launch`).
        run_info: What `run.json` is to say of the run.

    Returns:
        The name of the data set, as the one element, once it is in place.
    """
    # packed batches of LabeledImage; Listing; DeadLetter
    images, listing, not_listed = root | "ListImages" >> ListImages(config)
    listing = AsSingleton(listing)

    # nothing: here the run fails, before it reads an image, if two inputs have one key
    checked = images | "CheckKeys" >> CheckKeys(config, listing)

    # packed References; ImageStatistics; DeadLetter
    references, statistics, refused = images | "PrepareImages" >> PrepareImages(config, listing, AsList(checked))

    # {split: number of shards}: here the run fails, before it writes, if the images do not make a data set
    num_shards = statistics | "PlanNumShards" >> beam.Map(plan_num_shards, listing, config)

    # ((split, shard index, number of shards), packed References in rank order)
    shards = references | "GlobalShuffle" >> GlobalShuffle(config.seed, AsSingleton(num_shards))

    # WrittenShard
    written = shards | "WriteShards" >> WriteShards(config, listing)

    dead_letters = (not_listed, refused) | "AllDeadLetters" >> beam.Flatten()
    return written | "WriteMetadata" >> WriteMetadata(
        config, run_info, listing=listing, images=AsSingleton(statistics), dead_letters=AsList(dead_letters)
    )
