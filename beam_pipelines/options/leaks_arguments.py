"""The options of `recordmill leaks` and their conversion to a configuration."""

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

The exit code is 0 if there are no leaks, and 1 if there are. The output counts the pairs and names the first few.
"""


def add_leaks(commands: argparse._SubParsersAction) -> None:
    """Adds the command `leaks` and its options to the parser."""
    parser = add_command(
        commands,
        "leaks",
        help="Find near-duplicate images and groups that span splits or datasets.",
        description="Finds near-duplicate images (including recompressed, resized, recolored and flipped copies) and "
        "groups that are in several\n"
        "splits, and near-duplicates with different labels. Perceptual hashes come from the catalogs if the dataset "
        "was prepared\n"
        "with --duplicates and without --exact_only. Otherwise the images are read from the shards. TFRecord files "
        "from other\n"
        "tools also work: a file, a folder or a pattern. Files whose names differ only in the shard number\n"
        "(NAME-00000-of-00002) are then one split, and the label comes from a layout that `prepare` knows.\n"
        "The data does not change. Options that are not listed here are passed to Apache Beam, such as "
        "--s3_endpoint_url\n"
        "for an object store.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    of_datasets = "Path or URL of a dataset, or path, pattern or URL of TFRecord files. Several datasets are also "
    "compared with each other."
    add("datasets", nargs="+", metavar="OUT", help=of_datasets)
    add_duplicate_distance(parser)
    parser.set_defaults(duplicate_distance=MAX_DUPLICATE_DISTANCE)
    add_follow_links(parser, "OUT", "skipped with a warning")
    add_split_folders(
        parser,
        "Whether the files of other tools are named like splits, such as fold0-00000. Default: yes if all names "
        "contain the name of a split, such as train and test.",
    )
    add("--json", action="store_true", help="Print the result as JSON.")


def add_duplicate_distance(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--duplicate_distance` with no default, so that the code can detect whether the user gave it."""
    parser.add_argument(
        "--duplicate_distance",
        type=int,
        metavar="BITS",
        help="Largest number of different bits in the perceptual hashes of near-duplicates, 0 to "
        f"{MAX_DUPLICATE_DISTANCE}. It applies to the 64 bits of the lowest frequencies. Up to a third of the other "
        f"192 bits can differ in any case. Default: {MAX_DUPLICATE_DISTANCE}.",
    )


def make_leaks_config(arguments: argparse.Namespace) -> LeaksConfig:
    """Converts the arguments of `recordmill leaks` to its configuration. Raises `UserError` if a value is invalid."""
    return LeaksConfig(
        datasets=tuple(parse_directory("OUT", path) for path in arguments.datasets),
        distance=arguments.duplicate_distance,
        follow_links=arguments.follow_links,
        split_folders=has_split_folders(arguments),
    )
