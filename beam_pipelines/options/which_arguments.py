"""Defines the options of `recordmill which`."""

import argparse
import re

from beam_pipelines.errors import UserError
from beam_pipelines.options.benchmark_arguments import parse_height_and_width, parse_num_bytes, parse_order
from beam_pipelines.options.command_parser import add_command

# The options of `batches` that determine the examples in a batch. They include image options: `augment` implies a
# shuffle, and the size of the images determines whether a split is cached in memory, which changes the order.
TRAINING_OPTIONS = (
    *("batch_size", "seed", "shuffle", "drop_remainder", "inputs", "targets", "where", "fold", "subset", "take", "balance", "channels"),
    *("transform", "on_error", "memory_budget", "read_buffer", "image_size", "fit", "augment", "antialias", "encoded"),
)
_EXAMPLE = """\
examples:
  recordmill which out/flowers --epoch 3 --step 9000 --batch_size 128 --seed 0
  recordmill which out/flowers --epoch 3 --step 9000 --checkpoint checkpoints --json
"""


def add_which(commands: argparse._SubParsersAction) -> None:
    """Adds the command `which` and its options to the parser."""
    parser = add_command(
        commands,
        "which",
        help="Show the keys and paths of the examples in any batch of a training.",
        description="Prints the keys, paths and class names of the examples in a batch, in the order of the batch. A "
        "batch depends only on\n"
        "the seed, the epoch and the step, so no log of the training is needed. Pass the options of the training, or "
        "its\n"
        "checkpoint.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="Path or URL of the dataset.")
    add(
        "--epoch",
        type=_count,
        required=True,
        metavar="N",
        help="Index of the epoch, from 0. Keras shows epochs from 1.",
    )
    add("--step", type=_count, required=True, metavar="N", help="Index of the batch in the epoch, from 0.")
    add(
        "--checkpoint",
        metavar="PATH",
        help="Checkpoint file of the training, or the directory with its checkpoints. A checkpoint contains all "
        "options below except --hosts.",
    )
    add("--split", help="Split that the training read. Default: the training split.")
    add("--batch_size", type=int, metavar="N", help="Number of examples per batch, for all hosts together.")
    add("--seed", type=int, metavar="N", help="Seed of the training.")
    add(
        "--shuffle",
        type=parse_order,
        metavar="ORDER",
        help="Order of the examples: window, exact, key or none. Default: window for the training split or with "
        "--augment; otherwise none.",
    )
    add(
        "--drop_remainder",
        action="store_true",
        default=None,
        help="Declare that the training dropped an incomplete last batch.",
    )
    add("--inputs", type=_names, metavar="NAME,...", help="Features that were the inputs of the model. Default: image.")
    add(
        "--targets",
        type=_names,
        metavar="NAME,...",
        help="Features that the model predicted. Default: the targets of the dataset.",
    )
    add(
        "--where",
        metavar="CONDITION",
        help="Condition that selected the examples of the training, such as \"label == 'rose' and width >= 64\".",
    )
    add(
        "--fold",
        type=_fold,
        metavar="NUMBER,FOLD,...",
        help="Folds that the training read. 5,0 stands for the first of five folds.",
    )
    add(
        "--open_fold",
        type=_pair,
        metavar="NUMBER,FOLD",
        help="Fold with which the training opened the dataset. 5,0 stands for open(fold=(5, 0)).",
    )
    add("--subset", type=_number, metavar="SHARE", help="Fraction of the examples that the training read.")
    add("--take", type=int, metavar="N", help="Number of examples that the training read in each epoch.")
    add(
        "--balance",
        type=_balance,
        metavar="BALANCE",
        help="Class balancing of the training: oversample, undersample, or fractions such as rose=0.5,tulip=0.5.",
    )
    add(
        "--image_size",
        type=_image_size,
        metavar="SIZE",
        help="Image size of the training: PIXELS, HEIGHTxWIDTH or largest.",
    )
    add("--fit", choices=("crop", "stretch", "pad", "unscaled"), help="How the training resized images.")
    add(
        "--augment",
        action="store_true",
        default=None,
        help="Declare that the training cropped and flipped images at random.",
    )
    add(
        "--antialias",
        action="store_true",
        default=None,
        help="Declare that the training shrank images with antialiasing.",
    )
    add("--encoded", action="store_true", default=None, help="Declare that the training read images as encoded bytes.")
    add(
        "--transform",
        action="store_true",
        default=None,
        help="Declare that the training applied the graph from `recordmill analyze`.",
    )
    add(
        "--channels",
        type=int,
        metavar="N",
        help="Number of image channels, 1, 3 or 4, if the training set it. The number of channels affects whether "
        "the split was cached in memory, which changes the order.",
    )
    add("--on_error", choices=("raise", "skip"), help="How the training handled corrupt records. Default: raise.")
    add(
        "--memory_budget",
        type=parse_num_bytes,
        metavar="SIZE",
        help="Memory for cached splits in the training. Default: 1GiB.",
    )
    add(
        "--read_buffer",
        type=parse_num_bytes,
        metavar="SIZE",
        help="Memory for records that the training read ahead. Default: 256MiB.",
    )
    add(
        "--hosts",
        type=_pair,
        metavar="NUMBER,INDEX",
        help="Number of hosts and index of a host, to show only the part of the batch that this host read. 4,2 stands "
        "for the third of four hosts. Default: the whole batch.",
    )
    add("--json", action="store_true", help="Print the result as JSON.")


def training_options(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the options of the training run that were given, as keyword arguments of `ReadConfig`.

    Raises:
        UserError: Options are given together with a checkpoint, or both the checkpoint and the batch size are missing.
    """
    given = {name: value for name in ("split", "open_fold", *TRAINING_OPTIONS) if (value := getattr(arguments, name)) is not None}
    if arguments.checkpoint is not None and given:
        raise UserError(f"--{next(iter(given))}: the checkpoint contains this option. Omit it, or omit --checkpoint.")
    if arguments.checkpoint is None and arguments.batch_size is None:
        raise UserError("--batch_size is missing. Give the batch size of the training, or --checkpoint.")
    for name in ("split", "open_fold"):  # Options of the dataset, not of `batches`.
        given.pop(name, None)
    return given if arguments.hosts is None else {**given, "hosts": arguments.hosts}


def _image_size(text: str) -> int | tuple[int, int] | str:
    """Parses an image size as `recordmill benchmark` does and returns `largest` unchanged."""
    return text if text == "largest" else parse_height_and_width(text)


def _count(text: str) -> int:
    """Parses a non-negative integer."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or more")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    """Parses comma-separated feature names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _fold(text: str) -> tuple[int, tuple[int, ...]]:
    """Parses `--fold`: `5,0` becomes (5, (0,)), and `5,1,2` becomes (5, (1, 2))."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of folds with indices of folds, such as 5,0")
    number, *folds = map(int, text.split(","))
    return number, tuple(folds)


def _number(text: str) -> float:
    """Parses the value of `--subset`, or a fraction in `--balance`, to a float."""
    if not re.fullmatch(r"\d{0,9}(\.\d{1,17})?", text) or not text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and at most 1")
    return float(text)


def _balance(text: str) -> str | dict[str, float]:
    """Parses `--balance`: `rose=0.5,tulip=0.5` becomes fractions by class, and other values are unchanged."""
    if "=" not in text:
        return text
    pairs = [pair.rpartition("=") for pair in text.split(",")]
    return {name.strip(): _number(share.strip()) for name, _, share in pairs}


def _pair(text: str) -> tuple[int, int]:
    """Parses two integers, as in `--hosts` and `--open_fold`: `4,2` becomes (4, 2)."""
    if not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count and an index, such as 4,2")
    number, index = map(int, text.split(","))
    return number, index
