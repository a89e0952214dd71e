"""The options of `recordmill transform` and their conversion to a configuration."""

import argparse

from beam_pipelines.config.prepare_config import check_name
from beam_pipelines.config.transform_config import TransformConfig
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import default_name, parse_directory

_EXAMPLE = """\
example:
  recordmill analyze out/flowers
  recordmill transform out/flowers out/flowers_transformed
"""


def add_transform(commands: argparse._SubParsersAction) -> None:
    """Adds the command `transform` and its options to the parser."""
    parser = add_command(
        commands,
        "transform",
        help="a data set of transformed examples, in the same order and shards",
        description="Applies the graph that `recordmill analyze` wrote to every example, and writes what comes out as a data set.\n"
        "Every other option goes to Apache Beam.\n--job_timeout SECONDS stops a job that takes longer.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="the data set, analysed")
    add("output", metavar="OUT2", help="the directory that becomes the data set of transformed examples")
    add("--name", help="of the data set at OUT2; its shards begin with it (default: from OUT2)")
    add("--overwrite", action="store_true", help="replace a data set at OUT2, once the new one is whole")
    add("--shared_filesystem", action="store_true", help="a cluster's workers see the local paths that are given")


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
