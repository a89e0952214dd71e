"""Defines the options of `recordmill benchmark`."""

import argparse
import re

from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_size

_EXAMPLE = """\
examples:
  recordmill benchmark out/flowers --batch_size 128 --image_size 224 --augment
  recordmill benchmark gs://data/flowers --split validation --seconds 10
"""


def add_benchmark(commands: argparse._SubParsersAction) -> None:
    """Adds the command `benchmark` and its options to the parser."""
    parser = add_command(
        commands,
        "benchmark",
        help="Measure the read speed of a dataset, and suggest improvements.",
        description="Runs the input pipeline with one more stage at a time. Prints the images per second with each "
        "added stage, the\n"
        "bottleneck, and suggestions.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="Path or URL of the dataset.")
    add("--split", help="Split to read. Default: the training split.")
    add("--batch_size", type=int, default=128, metavar="N", help="Number of images per batch. Default: 128.")
    add(
        "--image_size",
        type=parse_height_and_width,
        metavar="SIZE",
        help="Size of the images in a batch: PIXELS for squares, or HEIGHTxWIDTH. Default: the stored size if all "
        "images have the same size; otherwise 224.",
    )
    add("--augment", action="store_true", help="Crop and flip images at random.")
    add(
        "--seconds",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="Duration of the measurement of each stage in seconds. Default: 5.",
    )
    add(
        "--shuffle",
        type=parse_order,
        metavar="ORDER",
        help="Order of the examples: window, exact, key or none. Default: window for the training split or with "
        "--augment; otherwise none.",
    )
    add(
        "--memory_budget",
        type=parse_num_bytes,
        metavar="SIZE",
        help="Memory for decoded splits. If the decoded examples of a split fit, they are cached. 0 disables the "
        "cache. Default: 1GiB.",
    )


def parse_height_and_width(text: str) -> int | tuple[int, int]:
    """Parses an image size in pixels: `224` becomes 224 (a square), and `240x320` becomes (240, 320)."""
    if not re.fullmatch(r"[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not PIXELS or HEIGHTxWIDTH, such as 224")
    height, _, width = text.partition("x")
    return (int(height), int(width)) if width else int(height)


def _seconds(text: str) -> float:
    """Parses `--seconds`, a number above 0."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) or not float(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return float(text)


def parse_order(text: str) -> str | bool:
    """Parses `--shuffle`: returns `window`, `exact` and `key` unchanged, and False for `none`."""
    if text not in ("window", "exact", "key", "none"):
        raise argparse.ArgumentTypeError(f"{text!r} is not window, exact, key or none")
    return False if text == "none" else text


def parse_num_bytes(text: str) -> int:
    """Parses a size, such as the value of `--memory_budget`, to bytes: `512MiB` becomes 536870912."""
    try:
        return parse_size(text)
    except UserError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512MiB (units: KB, MB, GB, KiB, MiB, GiB)") from None
