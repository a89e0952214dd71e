"""Defines the options of `recordmill transform` and converts them to a configuration."""

import argparse

from beam_pipelines.config.prepare_config import check_name
from beam_pipelines.config.transform_config import TransformConfig
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import default_name, parse_directory

_EXAMPLE = """\
examples:
  recordmill analyze out/flowers
  recordmill transform out/flowers out/flowers_transformed
"""


def add_transform(commands: argparse._SubParsersAction) -> None:
    """Adds the command `transform` and its options to the parser."""
    parser = add_command(
        commands,
        "transform",
        help="Write a dataset of transformed examples, in the same order and shards.",
        description="Applies the graph from `recordmill analyze` to every example, and writes the transformed examples "
        "as a new dataset.\n"
        "Options that are not listed here are passed to Apache Beam.\n"
        "--job_timeout SECONDS stops a Beam job that takes longer.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="Path of a dataset that `recordmill analyze` has analyzed.")
    add("output", metavar="OUT2", help="Path of the directory for the transformed dataset.")
    add(
        "--name",
        help="Name of the transformed dataset, which is also the prefix of the shard names. Default: derived from the "
        "last part of OUT2.",
    )
    add(
        "--overwrite",
        action="store_true",
        help="Replace an existing dataset at OUT2 when the new dataset is complete.",
    )
    add(
        "--shared_filesystem",
        action="store_true",
        help="Declare that all workers of a cluster can access the local paths, such as paths on NFS, Lustre or "
        "Filestore.",
    )


def make_transform_config(arguments: argparse.Namespace) -> TransformConfig:
    """Converts the arguments of `recordmill transform` to its configuration.

    Raises:
        UserError: A path is empty, or the dataset's name is invalid.
    """
    output = parse_directory("OUT2", arguments.output)
    name = default_name(output) if arguments.name is None else arguments.name
    check_name("--name", name, "letters, digits and '_', a letter first")
    return TransformConfig(
        directory=parse_directory("OUT", arguments.directory),
        output=output,
        name=name,
        overwrite=arguments.overwrite,
        shared_filesystem=arguments.shared_filesystem,
    )
