"""Defines the options of `recordmill analyze` and converts them to a configuration."""

import argparse
import re

from beam_pipelines.config.analyze_config import FITS, AnalyzeConfig
from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
examples:
  recordmill analyze out/flowers
  recordmill analyze out/flowers --preprocessing_module my.py

my.py defines preprocessing_fn(inputs), as TensorFlow Transform expects it: a function from a dict of parsed features to
a dict of transformed features. To train with the transformed features:
  tf_input.open("out/flowers").batches("train", batch_size=128, transform=True)
"""


def add_analyze(commands: argparse._SubParsersAction) -> None:
    """Adds the command `analyze` and its options to the parser."""
    parser = add_command(
        commands,
        "analyze",
        help="Compute a preprocessing graph from the examples of a dataset.",
        description="Runs the analyzers of TensorFlow Transform over a dataset, and writes a graph for training and "
        "serving to\n"
        "OUT/transform_fn. Options that are not listed here are passed to Apache Beam.\n"
        "--job_timeout SECONDS stops a Beam job that takes longer.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="Path of the dataset.")
    add(
        "--splits",
        metavar="NAME,...",
        help="Splits to analyze. Default: only the training split, so that the graph contains no information from the "
        "other splits.",
    )
    add(
        "--preprocessing_module",
        metavar="FILE",
        help="Python file that defines preprocessing_fn(inputs). Modules that it imports from its own folder must be "
        "installed on the workers of a cluster. Default: a built-in function that decodes, resizes and normalizes "
        "images.",
    )
    add(
        "--image_size",
        metavar="SIZE",
        help="Size to which the built-in function resizes images: PIXELS for squares, or HEIGHTxWIDTH. Default: the "
        "stored size if all images have the same size; otherwise 224.",
    )
    add(
        "--fit",
        choices=FITS,
        help="How the built-in function resizes images. crop: cut out the center. stretch: distort the image to the "
        "size. pad: keep the aspect ratio and add a border. Default: pad if there are boxes, masks or dense targets, "
        "because a crop removes parts of them; otherwise crop.",
    )
    add("--overwrite", action="store_true", help="Replace an earlier analysis when the new analysis is complete.")
    add(
        "--shared_filesystem",
        action="store_true",
        help="Declare that all workers of a cluster can access the local paths, such as paths on NFS, Lustre or "
        "Filestore.",
    )


def make_analyze_config(arguments: argparse.Namespace) -> AnalyzeConfig:
    """Converts the arguments of `recordmill analyze` to its configuration.

    Raises:
        UserError: A value is invalid, or two options exclude each other.
    """
    for name in ("image_size", "fit"):
        value = getattr(arguments, name)
        if arguments.preprocessing_module is not None and value is not None:
            raise UserError(
                f"--{name}={value} applies only to the built-in function. Omit it, or omit --preprocessing_module."
            )
    splits = None if arguments.splits is None else tuple(arguments.splits.split(","))
    if splits and (not all(splits) or len(set(splits)) < len(splits)):
        raise UserError(f"--splits={arguments.splits}: invalid value. Give names of splits, each only once, such as train.")
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
    """Parses `--image_size` into (height, width) in pixels: `224` becomes (224, 224), `240x320` becomes (240, 320)."""
    if not re.fullmatch(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3})?", text):
        raise UserError(f"--image_size={text}: invalid value. Give PIXELS or HEIGHTxWIDTH, such as 224.")
    height, _, width = text.partition("x")
    return int(height), int(width or height)
