"""Where a training stands: weights and optimizer after a step, and what is needed to go on from there."""

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

import keras

_WEIGHTS = "model.weights.h5"
_POSITION = "position.json"
_UNFINISHED = f"{_POSITION}.part"
_NAME = re.compile(r"step-\d{10}")


@dataclasses.dataclass(frozen=True)
class Position:
    """How far a training has come.

    Attributes:
        epoch: Epochs that are done.
        step: Training steps that are done, those of the epoch that has begun too.
        settings: What a run has to share to go on from here.
        history: Results of each epoch that is done.
    """

    epoch: int
    step: int
    settings: dict[str, Any]
    history: list[dict[str, Any]]


def save(folder: pathlib.Path, model: keras.Model, position: Position) -> None:
    """Writes a checkpoint and removes older ones. It counts once its position is there, which is written last."""
    checkpoint = _folder(folder, position)
    _remove(checkpoint)
    checkpoint.mkdir(parents=True, exist_ok=True)
    model.save_weights(checkpoint / _WEIGHTS)  # with the optimizer's
    unfinished = checkpoint / _UNFINISHED
    unfinished.write_text(json.dumps(dataclasses.asdict(position), indent=2))
    os.replace(unfinished, checkpoint / _POSITION)
    for other in folder.iterdir():
        if other != checkpoint and _NAME.fullmatch(other.name):
            _remove(other)


def _remove(checkpoint: pathlib.Path) -> None:
    """The files of a checkpoint, its position first; the folder with them, unless somebody has put more there."""
    for name in (_POSITION, _UNFINISHED, _WEIGHTS):
        (checkpoint / name).unlink(missing_ok=True)
    if checkpoint.is_dir() and not os.listdir(checkpoint):
        checkpoint.rmdir()


def latest(folder: pathlib.Path) -> Position | None:
    """The last checkpoint that is whole; None if there is none.

    Raises:
        ValueError: It is damaged.
    """
    paths = sorted(folder.glob(f"step-*/{_POSITION}"))
    if not paths:
        return None
    try:
        return Position(**json.loads(paths[-1].read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{paths[-1]}: {error}") from error


def restore(folder: pathlib.Path, model: keras.Model, position: Position) -> None:
    """Loads the weights and the optimizer's state of a checkpoint."""
    model.load_weights(_folder(folder, position) / _WEIGHTS)


def _folder(folder: pathlib.Path, position: Position) -> pathlib.Path:
    return folder / f"step-{position.step:010d}"
