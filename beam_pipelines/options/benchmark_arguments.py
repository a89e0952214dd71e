"""The options of `recordmill benchmark`."""

import argparse
import re

from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_size

_EXAMPLE = """\
example:
  recordmill benchmark out/flowers --batch_size 128 --image_size 224 --augment
"""


def add_benchmark(commands: argparse._SubParsersAction) -> None:
    """Adds the command `benchmark` and its options to the parser."""
    parser = add_command(
        commands,
        "benchmark",
        help="how fast a data set is read, and what would make it faster",
        description="Reads a data set as a training would, ever further down the pipeline, and says how many images a "
        "second each stage leaves,\nwhich is the bottleneck, and what to change.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="the data set: a path, or a gs:// URL")
    add("--split", help="which of its splits (default: the one for training)")
    add("--batch_size", type=int, default=128, metavar="N", help="images in a batch (default: 128)")
    add(
        "--image_size",
        type=parse_height_and_width,
        metavar="SIZE",
        help="PIXELS or HEIGHTxWIDTH of the images in a batch (default: as stored if all have one size, else 224)",
    )
    add("--augment", action="store_true", help="crop and flip at random")
    add("--seconds", type=_seconds, default=5.0, metavar="S", help="how long to read for each stage (default: 5)")
    add(
        "--shuffle",
        type=parse_order,
        metavar="ORDER",
        help="window, exact, key or none (default: window for training or with --augment, else none)",
    )
    add(
        "--memory_budget",
        type=parse_num_bytes,
        metavar="SIZE",
        help="a split whose decoded images take no more is held in memory; 0: never (default: 1GiB)",
    )


def parse_height_and_width(text: str) -> int | tuple[int, int]:
    """Parses `--image_size` in pixels: `224` becomes 224 (a square), and `240x320` becomes (240, 320)."""
    if not re.fullmatch(r"[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected PIXELS or HEIGHTxWIDTH, such as 224")
    height, _, width = text.partition("x")
    return (int(height), int(width)) if width else int(height)


def _seconds(text: str) -> float:
    """Parses `--seconds`, a number above 0."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) or not float(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return float(text)


def parse_order(text: str) -> str | bool:
    """Parses `--shuffle`: returns `window`, `exact` and `key` unchanged, and False for `none`."""
    if text not in ("window", "exact", "key", "none"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected window, exact, key or none")
    return False if text == "none" else text


def parse_num_bytes(text: str) -> int:
    """Parses a size such as the value of `--memory_budget` to bytes: `512MiB` becomes 536870912."""
    try:
        return parse_size(text)
    except UserError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 512MiB (units: KB, MB, GB, KiB, MiB, GiB)") from None
