"""The options of `recordmill analyze` and their conversion to a configuration."""

import argparse
import re

from beam_pipelines.config.analyze_config import FITS, AnalyzeConfig
from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
example:
  recordmill analyze out/flowers
  recordmill analyze out/flowers --preprocessing_module my.py

  my.py defines preprocessing_fn(inputs): parsed features by name -> transformed ones, with TensorFlow Transform's analyzers.
  Train with:  tf_input.open("out/flowers").batches("train", batch_size=128, transform=True)
"""


def add_analyze(commands: argparse._SubParsersAction) -> None:
    """Adds the command `analyze` and its options to the parser."""
    parser = add_command(
        commands,
        "analyze",
        help="numbers of a full pass over a data set, and the graph that applies them",
        description="Runs TensorFlow Transform's analyzers over a data set that `recordmill prepare` wrote, and writes the graph "
        "that training\nand serving apply: OUT/transform_fn. Every other option goes to Apache Beam.\n"
        "--job_timeout SECONDS stops a job that takes longer.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="the data set")
    add("--splits", metavar="NAME,...", help="what is analysed (default: the training split: nothing of the others leaks)")
    add(
        "--preprocessing_module",
        metavar="FILE",
        help="a Python file that defines preprocessing_fn(inputs); what it imports from its own folder must be installed on a "
        "cluster's workers (default: images are decoded, resized and normalised)",
    )
    add(
        "--image_size",
        metavar="SIZE",
        help="PIXELS or HEIGHTxWIDTH of the default's images (default: as stored if all have one size, else 224)",
    )
    add(
        "--fit",
        choices=FITS,
        help="what the default shows of an image: its centre, all of it, or all of it undistorted (default: pad where there "
        "are boxes, masks or maps, of which a crop leaves some out; else crop)",
    )
    add("--overwrite", action="store_true", help="replace an earlier analysis, once the new one is whole")
    add("--shared_filesystem", action="store_true", help="a cluster's workers see the local paths that are given")


def make_analyze_config(arguments: argparse.Namespace) -> AnalyzeConfig:
    """Converts the arguments of `recordmill analyze` to its configuration.

    Raises:
        UserError: A value is invalid, or two options exclude each other.
    """
    for name in ("image_size", "fit"):
        value = getattr(arguments, name)
        if arguments.preprocessing_module is not None and value is not None:
            raise UserError(f"--{name}={value} is of the default preprocessing; expected it without --preprocessing_module")
    splits = None if arguments.splits is None else tuple(arguments.splits.split(","))
    if splits and (not all(splits) or len(set(splits)) < len(splits)):
        raise UserError(f"--splits={arguments.splits}: expected names of splits, each once, such as train")
    return AnalyzeConfig(
        directory=parse_directory("OUT", arguments.directory),
        splits=splits,
        preprocessing_module=arguments.preprocessing_module,
        image_size=None if arguments.image_size is None else _parse_size(arguments.image_size),
        fit=arguments.fit,
        overwrite=arguments.overwrite,
        shared_filesystem=arguments.shared_filesystem,
    )


def _parse_size(text: str) -> tuple[int, int]:
    """Parses `--image_size` to (height, width) in pixels: `224` becomes (224, 224), `240x320` becomes (240, 320)."""
    if not re.fullmatch(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3})?", text):
        raise UserError(f"--image_size={text}: expected PIXELS or HEIGHTxWIDTH, such as 224")
    height, _, width = text.partition("x")
    return int(height), int(width or height)
