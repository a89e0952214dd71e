"""Defines the options of `recordmill repair` and converts them to a configuration."""

import argparse

from beam_pipelines.config.repair_config import RepairConfig
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory, parse_patterns

_EXAMPLE = """\
examples:
  recordmill repair out/flowers --dry_run
  recordmill repair out/flowers
  recordmill repair out/flowers --shard flowers-train.tfrecord-00003-of-00016

The images and labels must be at the paths from which `recordmill prepare` read them. Inputs that were added later are
ignored.
The exit code is 0 if all files are intact or repaired. The exit code is 1 if a file is still corrupt or missing, also
with --dry_run.
"""


def add_repair(commands: argparse._SubParsersAction) -> None:
    """Adds the command `repair` and its options to the parser."""
    parser = add_command(
        commands,
        "repair",
        help="Rebuild corrupt and missing shards, indexes and catalogs of a dataset.",
        description="Compares every shard, index and catalog of a dataset with its size and checksum, and rebuilds "
        "corrupt and missing\n"
        "files from the images and labels. A rebuilt file replaces the corrupt file only if its checksum matches the "
        "manifest.\n"
        "Otherwise the command prints the inputs that have changed.\n"
        "Options that are not listed here are passed to Apache Beam, such as --s3_endpoint_url for images in an object "
        "store.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="Path of the dataset.")
    add(
        "--shard",
        action="append",
        default=[],
        metavar="NAME",
        help="TFRecord file to repair, with its index and catalog. Repeat the option for several files. Default: all "
        "files.",
    )
    add(
        "--ignore",
        action="append",
        default=[],
        metavar="GLOB",
        help="Ignore files that were added after the dataset was prepared, if their name or path matches GLOB, such as "
        "'*.txt'. Repeat the option for several patterns.",
    )
    add("--dry_run", action="store_true", help="Print which files are corrupt or missing, and change nothing.")


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
