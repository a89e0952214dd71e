"""Implements `recordmill which`, which prints the keys of the examples in an earlier batch."""

import dataclasses
import json
import pathlib
from typing import TYPE_CHECKING, Any, Mapping

from tf_input.dataset_format import IMAGE, training_split
from tf_input.overview import printable
from tf_input.read_config import ReadConfig
from tf_input.training.checkpoint_files import check_fingerprint, find_checkpoints, read_checkpoint

if TYPE_CHECKING:
    from tf_input.dataset import PreparedDataset

# Options that change the contents of batches, but not the choice of their examples.
_OF_CONTENTS = (
    *("image_size", "interpolation", "augment", "fit", "padding", "class_weight", "one_hot"),
    *("parse", "map_example", "map_batch"),
)


def run(
    directory: str,
    split: str | None,
    epoch: int,
    step: int,
    options: Mapping[str, Any],
    checkpoint: str | None,
    *,
    open_fold: tuple[int, int] | None = None,
    as_json: bool = False,
) -> None:
    """Prints the keys and catalog columns of the examples in a batch as tab-separated values, with a header line.

    Args:
        directory: The directory of a dataset, or its URL.
        split: The split of the batch. None stands for the training split.
        epoch, step: The number of the epoch and of the batch in it, from 0.
        options: The options of the training run, by their names in `ReadConfig`.
        checkpoint: The path of a checkpoint, or of a directory of checkpoints. A checkpoint contains the split and all
            options except `hosts`. None uses the arguments `split` and `options`.
        open_fold: The argument `fold` that the training run passed to `open`. A checkpoint also contains the fold.
            Default: None.
        as_json: Whether to print one JSON object instead of tab-separated values. Default: False.

    Raises:
        OSError, ImportError: The dataset or the checkpoint can't be read.
        ValueError: A file is corrupt or belongs to another dataset, an option has a wrong value, or the batch does not
            exist.
    """
    import tf_input

    if checkpoint is None:
        dataset = tf_input.open(directory, fold=open_fold)
        split, config = training_split(dataset.splits) if split is None else split, ReadConfig(**options)
    else:
        path, fingerprint = _read_fingerprint(pathlib.Path(checkpoint))
        dataset = tf_input.open(directory, fold=_fold_of(fingerprint))
        split, config = _find_training(dataset, path, fingerprint)
        config = dataclasses.replace(config, **options)
    columns = dataset.which(split, config, epoch=epoch, step=step)
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    if as_json:
        print(json.dumps({"split": split, "epoch": epoch, "step": step, "examples": rows}, indent=1))
        return
    for row in (columns, *(row.values() for row in rows)):
        print(*(printable(value or "") for value in row), sep="\t")


def _read_fingerprint(path: pathlib.Path) -> tuple[pathlib.Path, dict[str, Any]]:
    """Returns the path of the newest checkpoint, and the stored fingerprint of the training batches."""
    if path.is_dir():
        checkpoints = find_checkpoints(path)
        if not checkpoints:
            raise ValueError(f"--checkpoint={path}: no checkpoint found. A finished training deletes its checkpoints, unless delete_checkpoint=False.")
        path = checkpoints[-1]
    fingerprint = read_checkpoint(path, with_arrays=False)[0]["fingerprint"]
    if isinstance(fingerprint.get("split"), dict):
        raise ValueError(
            f"{path} is the checkpoint of a mixture. Pass a checkpoint of a training on one split, or use "
            "Mixture.which(...)."
        )
    if any(name in str(fingerprint.get("select")) for name in ("<lambda>", "<locals>")):
        raise ValueError(
            f"{path}: the option `select` was a function, of which only the name is stored. Use "
            "PreparedDataset.which(..., select=function)."
        )
    return path, fingerprint


def _fold_of(fingerprint: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns the argument `fold` that was passed to `open`, or None if no fold was selected."""
    dataset = fingerprint.get("dataset")
    fold = dataset.get("fold") if isinstance(dataset, dict) else None
    return tuple(fold) if isinstance(fold, list) else None


def _find_training(dataset: "PreparedDataset", path: pathlib.Path, fingerprint: dict[str, Any]) -> tuple[str, ReadConfig]:
    """Returns the split and the reading options of a training run, from the fingerprint in its checkpoint."""
    fields = {field.name for field in dataclasses.fields(ReadConfig)} - {*_OF_CONTENTS}
    options = {name: value for name, value in fingerprint.items() if name in fields}
    try:
        split, kind = fingerprint["split"], options["shuffle"]
        options |= {"shuffle": kind or False, "transform": "transform" in options}
        options |= {"cache_in_memory": 0} if kind == "window" else {}  # cached splits have an exact order
        options |= {"inputs": None} if options["inputs"] == [IMAGE] else {}  # the default, which also works without images
        config = ReadConfig(**options)
        reader = dataset.split_reader(split)
        here = reader.fingerprint(config, reader.plan(config, holds=False))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not store how its training read a split: {error}") from None
    # A checkpoint also contains the user's `settings`.
    check_fingerprint(path, fingerprint, {**fingerprint, **{name: value for name, value in here.items() if name not in _OF_CONTENTS}})
    return split, config
