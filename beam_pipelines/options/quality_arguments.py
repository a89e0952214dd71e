"""The options of `recordmill quality` and their conversion to a configuration."""

import argparse

from beam_pipelines.config.quality_config import QualityConfig
from beam_pipelines.errors import UserError, printable
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
example:
  recordmill quality out/flowers
  recordmill quality 'old/train-*.tfrecord' --label image/class/label --plot quality.png

It ends with 0 where all is shuffled, or nothing can be told; with 1 where something is not, or partly.
"""


def add_quality(commands: argparse._SubParsersAction) -> None:
    """Adds the command `quality` and its options to the parser."""
    parser = add_command(
        commands,
        "quality",
        help="are TFRecords shuffled, ours or anybody's?",
        description="Looks at how labels follow each other, and compares it with what chance gives: the lengths of runs of one label, the\n"
        "labels in windows of records, how far each shard's are from those of all, the order of the source. Of prepared data sets indexes\n"
        "and catalogs are read, and no record; others are read once. It changes nothing.\n"
        "Every other option goes to Apache Beam (of an object store, such as --s3_endpoint_url).",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="+", help="a data set, or a file, a folder or a pattern of TFRecords: paths or URLs")
    add("--label", metavar="FEATURE", help="the feature to look at (default: what is known as the label; else the records' lengths)")
    add("--plot", metavar="FILE.png", help="draw it there too (pip install 'recordmill[demo]')")
    add("--json", action="store_true", help="the same for programs")


def make_quality_config(arguments: argparse.Namespace) -> QualityConfig:
    """Converts the arguments of `recordmill quality` to its configuration.

    Raises:
        UserError: A path is empty, or the plot is not a PNG file.
    """
    if arguments.plot is not None and not arguments.plot.lower().endswith(".png"):
        raise UserError(f"--plot={printable(arguments.plot)}: expected the path of a file .png")
    return QualityConfig(
        paths=tuple(parse_directory("PATH", path) for path in arguments.paths),
        label=arguments.label,
        plot=arguments.plot or "",
    )
