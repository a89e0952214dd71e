"""Defines the options of `recordmill leaks` and converts them to a configuration."""

import argparse

from beam_pipelines.config.leaks_config import LeaksConfig
from beam_pipelines.config.prepare_config import MAX_DUPLICATE_DISTANCE
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.input_arguments import add_follow_links, add_split_folders, has_split_folders
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
examples:
  recordmill leaks out/flowers
  recordmill leaks out/mine out/benchmark --json
  recordmill leaks 'records/train-*' records/test

The exit code is 0 if there are no leaks, and 1 if there are leaks. The output counts the pairs and names the first few.
"""


def add_leaks(commands: argparse._SubParsersAction) -> None:
    """Adds the command `leaks` and its options to the parser."""
    parser = add_command(
        commands,
        "leaks",
        help="Find near-duplicate images and groups that span splits or datasets.",
        description="Finds near-duplicate images and groups that are in several splits, and near-duplicates with "
        "different labels.\n"
        "Near-duplicates include recompressed, resized, recolored and flipped copies. If the dataset was prepared with\n"
        "--duplicates and without --exact_only, the command reads perceptual hashes from the catalogs. Otherwise it "
        "reads the\n"
        "images. The data does not change.\n"
        "The command also reads TFRecord files from other tools: a file, a folder or a pattern. Files whose names "
        "differ only in\n"
        "the shard number (NAME-00000-of-00002) form one split. Labels are read from the layouts that `prepare` "
        "detects.\n"
        "Options that are not listed here are passed to Apache Beam, such as --s3_endpoint_url for an object store.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add(
        "datasets",
        nargs="+",
        metavar="OUT",
        help="Path or URL of a dataset, or path, pattern or URL of TFRecord files. Several datasets are also compared "
        "with each other.",
    )
    add_duplicate_distance(parser)
    parser.set_defaults(duplicate_distance=MAX_DUPLICATE_DISTANCE)
    add_follow_links(parser, "OUT", "are skipped with a warning")
    add_split_folders(
        parser,
        "Whether the names of TFRecord files from other tools contain the split, such as fold0-00000. Default: yes if "
        "all names contain the usual name of a split, such as train or test.",
    )
    add("--json", action="store_true", help="Print the result as JSON.")


def add_duplicate_distance(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--duplicate_distance`. The option has no default, so that code can detect if it was given."""
    parser.add_argument(
        "--duplicate_distance",
        type=int,
        metavar="BITS",
        help=f"Largest number of bits, from 0 to {MAX_DUPLICATE_DISTANCE}, in which the perceptual hashes of two "
        "near-duplicates can differ. Only the 64 bits for the lowest frequencies of the images are counted. Up to a third "
        f"of the other 192 bits may differ in addition. Default: {MAX_DUPLICATE_DISTANCE}.",
    )


def make_leaks_config(arguments: argparse.Namespace) -> LeaksConfig:
    """Converts the arguments of `recordmill leaks` to its configuration. Raises `UserError` if a value is invalid."""
    return LeaksConfig(
        datasets=tuple(parse_directory("OUT", path) for path in arguments.datasets),
        distance=arguments.duplicate_distance,
        follow_links=arguments.follow_links,
        split_folders=has_split_folders(arguments),
    )
