"""Parses the command line of the trainer, without importing TensorFlow or Keras."""

import argparse
import dataclasses
import json
import re
from typing import Any, NoReturn

# The keys of `models.NETWORKS`, by size. A test compares the two lists.
MODELS = (
    "mobilenetv3small",
    "resnet50",
    "resnet101",
    "efficientnetb0",
    "efficientnetb3",
    "efficientnetv2s",
    "convnexttiny",
)
_LEARNING_RATES = {"sgd": 0.1, "adamw": 0.001}
_MIN_IMAGE_SIZE = 32  # The smallest size that all these networks support.

_EXAMPLES = """\
examples:
  train.py --data out/flowers --output runs/1 --model resnet50 --mixed_precision bfloat16 --jit_compile
  train.py --data gs://bucket/flowers --output runs/2 --strategy mirrored --batch_size 1024 --resume
  train.py --data /shared/flowers --output /shared/runs/4 --strategy multi_worker \\
      --workers a:2222,b:2222 --worker_index 0      (with --worker_index 1 on machine b)
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. See --help.")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="train.py",
        description="Trains an image classifier on a dataset from `recordmill prepare`, and evaluates it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    data = parser.add_argument_group("data").add_argument
    data("--data", required=True, metavar="DIR|URL", help="Directory or URL of the dataset.")
    data("--output", required=True, metavar="DIR", help="Directory for checkpoints/, logs/, model.keras and results.json.")
    data("--cache_directory", metavar="DIR", help="Local directory in which the first epoch stores the shards of a remote dataset. Default: no cache.")
    data("--cache_bytes", type=_count, metavar="N", help="Maximum size of the cache in bytes. Default: the free space of the disk.")
    data("--train_split", metavar="NAME", help="Split for training. Default: the split with a usual name, such as train.")
    data("--eval_split", default="validation", metavar="NAME", help="Split to evaluate after each epoch, or none. Default: validation.")

    model = parser.add_argument_group("model").add_argument
    model("--model", choices=MODELS, default="resnet50", help="Network to train. Default: resnet50.")
    model("--weights", choices=("none", "imagenet"), default="none", help="Initial weights. none: random weights. imagenet: pretrained weights, which are downloaded. Default: none.")
    model("--image_size", type=_count, metavar="N", help="Height and width of the images in pixels. Default: the usual size of the network.")
    model("--dropout", type=_share, default=0.2, metavar="F", help="Dropout rate before the last layer. Default: 0.2.")

    add = parser.add_argument_group("training").add_argument
    add("--epochs", type=_count, default=10, metavar="N", help="Total number of epochs, including epochs that an interrupted run completed. Default: 10.")
    add("--batch_size", type=_count, default=128, metavar="N", help="Batch size over all replicas. Default: 128.")
    add("--optimizer", choices=tuple(_LEARNING_RATES), default="sgd", help="Optimizer. sgd uses Nesterov momentum 0.9. Default: sgd.")
    rates = ", ".join(f"{rate:g} for {name}" for name, rate in _LEARNING_RATES.items())
    add("--learning_rate", type=_positive, metavar="F", help=f"Peak learning rate for a batch size of 256, scaled to --batch_size. Default: {rates}.")
    add("--warmup_epochs", type=_not_negative, metavar="F", help="Number of epochs in which the learning rate rises to its peak. Default: a tenth of --epochs.")
    add("--weight_decay", type=_not_negative, default=1e-4, metavar="F", help="Weight decay. Default: 0.0001.")
    add("--class_weight", action="store_true", help="Give all classes the same total weight in the loss.")
    yes_or_no = argparse.BooleanOptionalAction
    add("--augment", action=yes_or_no, default=True, help="Crop and flip images at random. Default: yes.")
    add("--min_area", type=_share, default=0.25, metavar="F", help="Smallest fraction of an image's area that a random crop keeps. Default: 0.25.")
    add("--flip", action=yes_or_no, default=True, help="Flip images horizontally with probability 0.5. Not suitable for digits. Default: yes.")
    add("--seed", type=int, default=0, metavar="N", help="Seed of the initial weights, the order and the augmentation. Default: 0.")
    add(
        "--resume",
        action="store_true",
        help="Resume from the last checkpoint in --output, if one exists. The batches are the same as without the "
        "interruption.",
    )
    add("--save_steps", type=_count, metavar="N", help="Also save a checkpoint after every N steps. Default: only after each epoch.")
    add("--limit_steps", type=_count, metavar="N", help="Limit each epoch and each evaluation to N steps, for a trial run. Default: no limit.")

    machine = parser.add_argument_group("machine").add_argument
    machine("--mixed_precision", choices=("none", "float16", "bfloat16"), default="none", help="Data type for mixed precision. none: train in float32. Default: none.")
    machine("--jit_compile", action="store_true", help="Compile the training step with XLA. Only for one replica.")
    machine("--steps_per_execution", type=_count, default=10, metavar="N", help="Number of training steps per call from Python. Default: 10.")
    machine(
        "--strategy",
        choices=("none", "mirrored", "multi_worker"),
        default="none",
        help="none: one device; mirrored: all GPUs of this machine; multi_worker: the GPUs of all workers. Default: none.",
    )
    machine("--workers", type=_addresses, metavar="HOST:PORT,...", help="Addresses of all workers. Default: TF_CONFIG.")
    machine("--worker_index", type=int, metavar="N", help="Index of this worker in --workers. Worker 0 writes the output.")
    return parser


@dataclasses.dataclass(frozen=True)
class Options:
    """The validated options of `train.py`. See `train.py --help` for their meaning."""

    data: str
    output: str
    cache_directory: str | None
    cache_bytes: int | None
    train_split: str | None
    eval_split: str
    model: str
    weights: str
    image_size: int | None
    dropout: float
    epochs: int
    batch_size: int
    optimizer: str
    learning_rate: float
    warmup_epochs: float
    weight_decay: float
    class_weight: bool
    augment: bool
    min_area: float
    flip: bool
    seed: int
    resume: bool
    save_steps: int | None
    limit_steps: int | None
    mixed_precision: str
    jit_compile: bool
    steps_per_execution: int
    strategy: str
    workers: tuple[str, ...] | None
    worker_index: int | None

    def __post_init__(self) -> None:
        if (size := self.image_size) is not None and size < _MIN_IMAGE_SIZE:
            raise ValueError(f"--image_size={size} is too small. Give {_MIN_IMAGE_SIZE} or more.")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"--warmup_epochs={self.warmup_epochs:g} must be less than --epochs={self.epochs}.")
        if not -(2**62) <= self.seed < 2**62:
            raise ValueError(f"--seed={self.seed} is too large. Give an integer from -2^62 to 2^62 - 1.")
        if (self.workers is None) != (self.worker_index is None):
            raise ValueError("--workers and --worker_index must be used together. Pass both or neither.")
        if self.workers is not None:
            if self.strategy != "multi_worker":
                raise ValueError(f"--workers needs --strategy=multi_worker, but --strategy={self.strategy} is given.")
            if not 0 <= self.worker_index < len(self.workers):
                raise ValueError(
                    f"--worker_index={self.worker_index} is out of range. Give 0 to {len(self.workers) - 1}."
                )


def parse(argv: list[str] | None = None) -> Options:
    """Parses the command line.

    Raises:
        ValueError: An option is invalid.
    """
    values = vars(make_parser().parse_args(argv))
    values["learning_rate"] = values["learning_rate"] or _LEARNING_RATES[values["optimizer"]]
    if values["warmup_epochs"] is None:
        values["warmup_epochs"] = values["epochs"] / 10
    return Options(**values)


def tf_config(workers: tuple[str, ...], worker_index: int) -> str:
    """Returns the value of TF_CONFIG for one of the workers."""
    task = {"type": "worker", "index": worker_index}
    return json.dumps({"cluster": {"worker": list(workers)}, "task": task})


def check_tf_config(text: str | None) -> None:
    """Raises ValueError with a clear message if TF_CONFIG is missing or invalid."""
    if not text:
        raise ValueError(
            "--strategy=multi_worker needs --workers and --worker_index, or the environment variable TF_CONFIG."
        )
    try:
        config: dict[str, Any] = json.loads(text)
        task = config["task"]
        config["cluster"][task["type"]][int(task["index"])]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        advice = "Give JSON with a cluster, and with a task of this cluster."
        raise ValueError(f"TF_CONFIG={text} is invalid ({type(error).__name__} {error}). {advice}") from None


def _number(text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}") from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer above 0")
    return int(text)


def _positive(text: str) -> float:
    value = _number(text, "a number above 0")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _not_negative(text: str) -> float:
    value = _number(text, "a number of 0 or more")
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def _share(text: str) -> float:
    value = _number(text, "a number from 0 to 1")
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def _addresses(text: str) -> tuple[str, ...]:
    workers = tuple(text.split(","))
    if not all(re.fullmatch(r"[^:/]+:[0-9]+", worker) for worker in workers):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of the form HOST:PORT,HOST:PORT,...")
    return workers
