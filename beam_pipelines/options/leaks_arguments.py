"""The options of `recordmill leaks` and their conversion to a configuration."""

import argparse

from beam_pipelines.config.leaks_config import LeaksConfig
from beam_pipelines.config.prepare_config import MAX_DUPLICATE_DISTANCE
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
example:
  recordmill leaks out/flowers
  recordmill leaks out/mine out/benchmark --json
  recordmill leaks 'records/train-*' records/test

It ends with 0 where nothing lies apart that belongs together; with 1 where something does: how many pairs, and the first few by name.
"""


def add_leaks(commands: argparse._SubParsersAction) -> None:
    """Adds the command `leaks` and its options to the parser."""
    parser = add_command(
        commands,
        "leaks",
        help="are images of one split in another one too, or in another data set?",
        description="Looks for images that are alike (also recompressed, resized, recoloured or mirrored) "
        "and for groups in several splits of data\n"
        "sets, and for labels of such images that disagree. Hashes come from the catalogs where `prepare --duplicates` was given without\n"
        "--exact_only, else images are read from the shards. TFRecord files that others wrote are taken too: a file, a folder,\n"
        "or a pattern. Of these, files whose names differ in the number of the shard alone (NAME-00000-of-00002) are one split, and the\n"
        "label is that of a layout that `prepare` knows. It changes nothing.\n"
        "Every other option goes to Apache Beam (of an object store, such as --s3_endpoint_url).",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    of_data_sets = "a data set, or TFRecords: a path, a pattern or a URL; of several also what is in two of them"
    add("data_sets", nargs="+", metavar="OUT", help=of_data_sets)
    add_duplicate_distance(parser)
    parser.set_defaults(duplicate_distance=MAX_DUPLICATE_DISTANCE)
    add("--json", action="store_true", help="what is found as JSON")


def add_duplicate_distance(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--duplicate_distance` without a default, so that the code can detect whether it is given."""
    parser.add_argument(
        "--duplicate_distance",
        type=int,
        metavar="BITS",
        help=f"of the 64 lowest of a perceptual hash, in which such images may differ, 0 to {MAX_DUPLICATE_DISTANCE} "
        f"(default: {MAX_DUPLICATE_DISTANCE}); whatever it is, of the 192 others, which are looked at next, a third may",
    )


def make_leaks_config(arguments: argparse.Namespace) -> LeaksConfig:
    """Converts the arguments of `recordmill leaks` to its configuration. Raises `UserError` if a value is invalid."""
    return LeaksConfig(tuple(parse_directory("OUT", one) for one in arguments.data_sets), arguments.duplicate_distance)
