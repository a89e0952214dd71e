"""The options of `recordmill which`."""

import dataclasses
import functools
import re
from typing import Any

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import SIZES, as_json, memory, order, path
from beam_pipelines.config.values import parse_height_and_width, parse_integer, parse_names
from beam_pipelines.errors import UserError

# Options of the dataset, not of `batches`.
OF_DATASET = ("directory", "epoch", "step", "checkpoint", "split", "open_fold", "as_json")


def _parse_fold(text: str) -> tuple[int, int, str]:
    """Parses `--fold`: `5,0,train` becomes (5, 0, "train")."""
    if not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9},(train|validation)", text):
        raise ValueError
    number, index, part = text.split(",")
    return int(number), int(index), part


def _parse_pair(text: str) -> tuple[int, int]:
    """Parses two integers, as in `--hosts` and `--open_fold`: `4,2` becomes (4, 2)."""
    if not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9}", text):
        raise ValueError
    number, index = map(int, text.split(","))
    return number, index


def _parse_fraction(text: str) -> float:
    """Parses a fraction in `--balance`."""
    if not re.fullmatch(r"\d{0,9}(\.\d{1,17})?", text) or not text:
        raise ValueError
    return float(text)


def _parse_balance(text: str) -> str | dict[str, float]:
    """Parses `--balance`: `rose=0.5,tulip=0.5` becomes a dictionary of fractions. Other values are unchanged."""
    if "=" not in text:
        return text
    pairs = [pair.rpartition("=") for pair in text.split(",")]
    return {name.strip(): _parse_fraction(share.strip()) for name, _, share in pairs}


_index = functools.partial(option, metavar="N", parse=parse_integer, check=lambda index: index >= 0, expected="0 or more")
_number = functools.partial(option, None, metavar="N", parse=parse_integer, expected="an integer")
_names = functools.partial(option, None, metavar="NAME,...", parse=parse_names, expected="names of features, separated by commas")
_pair = functools.partial(option, None, parse=_parse_pair, expected="a count and an index, such as 4,2")


@dataclasses.dataclass(frozen=True)
class WhichOptions(Options):
    """Prints the keys, paths and class names of the examples in a batch, in the order of the batch. A batch depends
    only on the seed, the epoch and the step, so the command does not need a log of the training. Pass the options of
    the training, or a checkpoint with these options."""

    summary = "Show the keys and paths of the examples in any batch of a training."
    examples = """\
examples:
  recordmill which out/flowers --epoch 3 --step 9000 --batch_size 128 --seed 0
  recordmill which out/flowers --epoch 3 --step 9000 --checkpoint checkpoints --json
"""

    directory: str = path(name="OUT", help="Path or URL of the dataset.")
    epoch: int = _index(help="Index of the epoch, from 0. Keras shows epochs from 1.")
    step: int = _index(help="Index of the batch in the epoch, from 0.")
    checkpoint: str | None = option(
        None, metavar="PATH",
        help="Checkpoint file of the training, or the directory with its checkpoints. A checkpoint contains all "
        "options below except --hosts.",
    )
    split: str | None = option(None, help="Split that the training read, or a slice such as train[100:200]. Default: the training split.")
    batch_size: int | None = _number(help="Number of examples per batch, for all hosts together.")
    seed: int | None = _number(help="Seed of the training.")
    shuffle: str | bool | None = order()
    drop_remainder: bool = option(False, help="Declare that the training dropped an incomplete last batch.")
    inputs: tuple[str, ...] | None = _names(help="Features that were the inputs of the model. Default: image.")
    targets: tuple[str, ...] | None = _names(help="Features that the model predicted. Default: the targets of the dataset.")
    select: str | None = option(
        None, metavar="CONDITION",
        help="Condition that selected the examples of the training, such as \"label == 'rose' and width >= 64\".",
    )
    fold: tuple[int, int, str] | None = option(
        None, metavar="NUMBER,FOLD,PART", parse=_parse_fold, expected="a number of folds, an index and a part, such as 5,0,train",
        help="Part of a cross-validation that the training read. 5,0,train stands for select=Fold(5, 0).train.",
    )
    open_fold: tuple[int, int] | None = _pair(
        metavar="NUMBER,FOLD",
        help="Fold with which the training opened the dataset. 5,0 stands for open(fold=Fold(5, 0)).",
    )
    balance: str | dict[str, float] | None = option(
        None, metavar="BALANCE", parse=_parse_balance,
        expected="oversample, undersample, or fractions such as rose=0.5,tulip=0.5",
        help="Class balancing of the training: oversample, undersample, or fractions such as rose=0.5,tulip=0.5.",
    )
    image_size: tuple[int, int] | str | None = option(
        None, metavar="SIZE", parse=lambda text: text if text == "largest" else parse_height_and_width(text),
        expected=f"{SIZES}, or largest",
        help="Image size of the training: PIXELS, HEIGHTxWIDTH or largest.",
    )
    fit: str | None = option(None, choices=("crop", "stretch", "pad", "unscaled"), help="How the training resized images.")
    augment: bool = option(False, help="Declare that the training cropped and flipped images at random.")
    interpolation: str = option(
        "bilinear", choices=("bilinear", "antialiased", "bicubic", "lanczos3"), help="How the training computed pixels. Default: bilinear."
    )
    transform: bool = option(False, help="Declare that the training applied the graph from `recordmill analyze`.")
    channels: int | None = _number(
        help="Number of image channels, 1, 3 or 4, if the training set it. The number of channels affects whether the "
        "split was cached in memory, which changes the order.",
    )
    skip_corrupt: bool = option(False, help="Declare that the training skipped corrupt records.")
    cache_in_memory: int | None = memory(help="Memory for cached splits in the training. Default: 1GiB.")
    read_buffer: int | None = memory(help="Memory for records that the training read ahead. Default: 256MiB.")
    hosts: tuple[int, int] | None = _pair(
        metavar="NUMBER,INDEX",
        help="Number of hosts and index of a host, to show only the part of the batch that this host read. 4,2 stands "
        "for the third of four hosts. Default: the whole batch.",
    )
    as_json: bool = as_json()

    def check_combination(self) -> None:
        of_training = [declared.name for declared, _ in self.given() if declared.field not in ("hosts", "directory", "epoch", "step", "checkpoint", "as_json")]
        if self.checkpoint is not None and of_training:
            raise UserError(f"--{of_training[0]}: the checkpoint contains this option. Omit it, or omit --checkpoint.")
        if self.checkpoint is None and self.batch_size is None:
            raise UserError("--batch_size is missing. Give the batch size of the training, or --checkpoint.")

    def read_options(self) -> dict[str, Any]:
        """Returns the training options that were given, as keyword arguments of `tf_input.ReadConfig`.

        Image options are included, because they can change the order of the examples: `augment` implies a shuffle, and
        the image size determines whether a split is cached in memory.
        """
        options = {declared.field: value for declared, value in self.given() if declared.field not in OF_DATASET}
        if choices := [options.pop(name) for name in ("select", "fold") if name in options]:
            options["select"] = choices
        return options
