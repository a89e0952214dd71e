"""Defines the options of `recordmill quality` and converts them to a configuration."""

import argparse

from beam_pipelines.config.quality_config import QualityConfig
from beam_pipelines.errors import UserError, printable
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.input_arguments import add_follow_links, add_split_folders, has_split_folders
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
examples:
  recordmill quality out/flowers
  recordmill quality 'old/train-*.tfrecord' --label image/class/label --plot quality.png

The exit code is 0 if all splits are shuffled, or if the test is not conclusive. The exit code is 1 if a split is not
shuffled, or only partly shuffled.
"""


def add_quality(commands: argparse._SubParsersAction) -> None:
    """Adds the command `quality` and its options to the parser."""
    parser = add_command(
        commands,
        "quality",
        help="Test whether the records of a dataset, or of other TFRecord files, are shuffled.",
        description="Compares the order of the labels with random orders. The command measures the lengths of "
        "sequences of equal labels, the\n"
        "number of different labels in a window of records, the labels of each shard, and the correlation with the "
        "order of the\n"
        "source. For datasets from Recordmill, the command reads only indexes and catalogs. It reads other TFRecord "
        "files once.\n"
        "The data does not change.\n"
        "Options that are not listed here are passed to Apache Beam, such as --s3_endpoint_url for an object store.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="+", help="Path or URL of a dataset, or path, pattern or URL of TFRecord files.")
    add(
        "--label",
        metavar="FEATURE",
        help="Feature whose order is tested. Default: the label, if it is known; otherwise the length of the records.",
    )
    add(
        "--plot",
        metavar="FILE.png",
        help="Write a plot of the result to FILE.png. The option needs the package extra recordmill[demo].",
    )
    add_follow_links(parser, "PATH", "are skipped with a warning")
    add_split_folders(
        parser,
        "Whether the names of TFRecord files from other tools contain the split, such as fold0-00000. Default: yes if "
        "all names contain the usual name of a split, such as train or test.",
    )
    add("--json", action="store_true", help="Print the result as JSON.")


def make_quality_config(arguments: argparse.Namespace) -> QualityConfig:
    """Converts the arguments of `recordmill quality` to its configuration.

    Raises:
        UserError: A path is empty, or the plot is not a PNG file.
    """
    if arguments.plot is not None and not arguments.plot.lower().endswith(".png"):
        raise UserError(f"--plot={printable(arguments.plot)}: not a PNG file. Give a path that ends with .png.")
    return QualityConfig(
        paths=tuple(parse_directory("PATH", path) for path in arguments.paths),
        label=arguments.label,
        plot=arguments.plot or "",
        follow_links=arguments.follow_links,
        split_folders=has_split_folders(arguments),
    )
