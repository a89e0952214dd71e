"""Turns a heap of images and labels into a globally shuffled, sharded TFRecord data set, with Apache Beam.

The modules, in the order in which data meets them:

    __main__           the command line: our flags -> a PrepareConfig, the rest -> Beam's PipelineOptions
    config             PrepareConfig and its parts
    launch             one run from outside: the output's lock, the runner, errors, the summary
    pipeline           prepare(root, config): the whole graph on one page
    sources            what lists the inputs, one module per source
    prepare_images     PrepareImages: reads and checks images (read_images, images, splits, spool: plain)
    shuffle            GlobalShuffle: gives each example its exact rank (ranks: plain)
    write_shards       WriteShards: writes each shard in rank order (shard_writer, examples: plain)
    write_metadata     WriteMetadata: statistics, dead letters, and the manifest last

`references` is what travels between them, `light_processes` runs the plain parts on every core.
"""
