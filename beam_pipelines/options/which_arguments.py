"""The options of `recordmill which`."""

import argparse
import re

from beam_pipelines.errors import UserError
from beam_pipelines.options.benchmark_arguments import parse_height_and_width, parse_num_bytes, parse_order
from beam_pipelines.options.command_parser import add_command

# The options of `batches` that affect the examples of a batch. Image options matter too: `augment` implies a shuffle,
# and the size of the images decides whether a split is cached in memory, which changes the order.
TRAINING_OPTIONS = (
    *("batch_size", "seed", "shuffle", "drop_remainder", "inputs", "targets", "where", "fold", "subset", "take", "balance", "channels"),
    *("transform", "on_error", "memory_budget", "read_buffer", "image_size", "fit", "augment", "antialias", "encoded"),
)
_EXAMPLE = """\
example:
  recordmill which out/flowers --epoch 3 --step 9000 --batch_size 128 --seed 0
  recordmill which out/flowers --epoch 3 --step 9000 --backup backups --json
"""


def add_which(commands: argparse._SubParsersAction) -> None:
    """Adds the command `which` and its options to the parser."""
    parser = add_command(
        commands,
        "which",
        help="the keys and paths of any past batch of a training",
        description="Says which examples a batch was made of: their keys, paths and class names, in the order of the batch. "
        "No log of it is\n"
        "needed, as a batch depends on the seed, the epoch and the step alone: "
        "give the options that the training was given, or its backup.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="the data set: a path or URL")
    add("--epoch", type=_count, required=True, metavar="N", help="which epoch, from 0 (Keras shows them from 1)")
    add("--step", type=_count, required=True, metavar="N", help="which batch of the epoch, from 0")
    add(
        "--backup",
        metavar="PATH",
        help="a backup of the training, or the directory of its backups, which says the options below, but for --hosts",
    )
    add("--split", help="which split (default: the one for training)")
    add("--batch_size", type=int, metavar="N", help="examples in a batch, of all hosts together")
    add("--seed", type=int, metavar="N", help="of the order")
    add("--shuffle", type=parse_order, metavar="ORDER", help="window, exact, key or none (default: window for training or with --augment, else none)")
    add("--drop_remainder", action="store_true", default=None, help="a last batch that is not full was left out")
    add("--inputs", type=_names, metavar="NAME,...", help="what the model was fed with (default: image)")
    add("--targets", type=_names, metavar="NAME,...", help="what it was to predict (default: what the data set says)")
    add("--where", metavar="CONDITION", help="which examples were read, such as \"label == 'rose' and width >= 64\"")
    add("--fold", type=_fold, metavar="NUMBER,FOLD,...", help="which folds were read: 5,0 is the first of five")
    add("--open_fold", type=_pair, metavar="NUMBER,FOLD", help="with which fold the data set was open, as open(fold=(5, 0)) does: 5,0")
    add("--subset", type=_number, metavar="SHARE", help="the share of the examples that was read")
    add("--take", type=int, metavar="N", help="how many of the examples were read")
    add("--balance", type=_balance, metavar="BALANCE", help="oversample, undersample, or shares of classes: rose=0.5,tulip=0.5")
    add("--image_size", type=_image_size, metavar="SIZE", help="PIXELS, HEIGHTxWIDTH or largest: as the training had it")
    add("--fit", choices=("crop", "stretch", "pad", "unscaled"), help="as the training had it")
    add("--augment", action="store_true", default=None, help="images were cropped and flipped at random")
    add("--antialias", action="store_true", default=None, help="images were averaged when they were made smaller")
    add("--encoded", action="store_true", default=None, help="images were read as the bytes of their files")
    add("--transform", action="store_true", default=None, help="examples passed through the graph of `recordmill analyze`")
    add(
        "--channels",
        type=int,
        metavar="N",
        help="1, 3 or 4 of the images, where the training said it: a split that is small enough was held in memory",
    )
    add("--on_error", choices=("raise", "skip"), help="what became of damaged records (default: raise)")
    add("--memory_budget", type=parse_num_bytes, metavar="SIZE", help="as the training had it (default: 1GiB)")
    add("--read_buffer", type=parse_num_bytes, metavar="SIZE", help="as the training had it (default: 256MiB)")
    add("--hosts", type=_pair, metavar="NUMBER,INDEX", help="what one host had of the batch: 4,2 is the third of four (default: all of it)")
    add("--json", action="store_true", help="the same for programs")


def training_options(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the given options of the training, by their names in `ReadConfig`.

    Raises:
        UserError: Options are given together with a checkpoint, or neither a checkpoint nor the batch size is given.
    """
    given = {name: value for name in ("split", "open_fold", *TRAINING_OPTIONS) if (value := getattr(arguments, name)) is not None}
    if arguments.backup is not None and given:
        raise UserError(f"--{next(iter(given))}: expected without --backup, which says it itself")
    if arguments.backup is None and arguments.batch_size is None:
        raise UserError("--batch_size is missing: expected the training's, or --backup")
    for name in ("split", "open_fold"):  # options of the dataset, not of `batches`
        given.pop(name, None)
    return given if arguments.hosts is None else {**given, "hosts": arguments.hosts}


def _image_size(text: str) -> int | tuple[int, int] | str:
    """Parses `--image_size`: returns `largest` unchanged, and parses a size like `recordmill benchmark`."""
    return text if text == "largest" else parse_height_and_width(text)


def _count(text: str) -> int:
    """Parses an integer of 0 or more."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected 0 or more")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    """Parses names of features that are separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _fold(text: str) -> tuple[int, tuple[int, ...]]:
    """Parses `--fold`: `5,0` becomes (5, (0,)), and `5,1,2` becomes (5, (1, 2))."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})+", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected the number of folds and some of them, such as 5,0")
    number, *folds = map(int, text.split(","))
    return number, tuple(folds)


def _number(text: str) -> float:
    """Parses the value of `--subset`, or a share in `--balance`, to a float."""
    if not re.fullmatch(r"\d{0,9}(\.\d{1,17})?", text) or not text:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share above 0, at most 1")
    return float(text)


def _balance(text: str) -> str | dict[str, float]:
    """Parses `--balance`: returns a word unchanged, and parses `rose=0.5,tulip=0.5` to shares by class name."""
    if "=" not in text:
        return text
    pairs = [pair.rpartition("=") for pair in text.split(",")]
    return {name.strip(): _number(share.strip()) for name, _, share in pairs}


def _pair(text: str) -> tuple[int, int]:
    """Parses the values of `--hosts` and `--open_fold`: `4,2` becomes (4, 2)."""
    if not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected how many there are and the index of one, such as 4,2")
    number, index = map(int, text.split(","))
    return number, index
