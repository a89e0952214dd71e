"""The options of `recordmill repair` and their conversion to a configuration."""

import argparse

from beam_pipelines.config.repair_config import RepairConfig
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory, parse_patterns

_EXAMPLE = """\
example:
  recordmill repair out/flowers --dry_run
  recordmill repair out/flowers
  recordmill repair out/flowers --shard flowers-train.tfrecord-00003-of-00016

The images and labels have to lie where `recordmill prepare` read them. What has come to them since is left aside.
It ends with 0 where everything is as it was written, or is so again; with 1 where something is not (also with --dry_run).
"""


def add_repair(commands: argparse._SubParsersAction) -> None:
    """Adds the command `repair` and its options to the parser."""
    parser = add_command(
        commands,
        "repair",
        help="damaged and missing shards, indexes and catalogs -> the same bytes again",
        description="Compares every shard, index and catalog of a data set with its size and checksum, and makes what is damaged or\n"
        "gone again from the images and labels: only with the very bytes that it had, else it is left, and what has changed is named.\n"
        "Every other option goes to Apache Beam (of an object store where images lie, such as --s3_endpoint_url).",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="the data set: a path")
    add(
        "--shard",
        action="append",
        default=[],
        metavar="NAME",
        help="one TFRecord file, with its index and catalog; may come again (default: all)",
    )
    add("--ignore", action="append", default=[], metavar="GLOB", help="files that have come since and are no inputs, such as '*.txt'")
    add("--dry_run", action="store_true", help="say what is damaged, and do nothing")


def make_repair_config(arguments: argparse.Namespace) -> RepairConfig:
    """Converts the arguments of `recordmill repair` to its configuration.

    Raises:
        UserError: The path of the dataset or an `--ignore` pattern is empty.
    """
    return RepairConfig(
        directory=parse_directory("OUT", arguments.directory),
        shards=tuple(dict.fromkeys(arguments.shard)),
        ignore=parse_patterns(arguments.ignore),
        is_dry=arguments.dry_run,
    )
