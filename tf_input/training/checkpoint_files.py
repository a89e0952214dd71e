"""Names, reads and checks checkpoint files. The functions in this module require neither a model nor Keras."""

import json
import os
import pathlib
import re
import zipfile
from typing import Any, Mapping

import numpy as np

STATE = "state"  # the name of the entry with JSON; all other entries are arrays
_NAME = re.compile(r"checkpoint-\d{8}-\d{8}\.npz")


def file_name(epoch: int, step: int) -> str:
    """Returns the file name of a checkpoint. Names sort by age."""
    return f"checkpoint-{epoch:08d}-{step:08d}.npz"


def find_checkpoints(directory: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Returns the checkpoints in a directory, oldest first."""
    folder = pathlib.Path(directory)
    return sorted(path for path in (folder.iterdir() if folder.is_dir() else ()) if _NAME.fullmatch(path.name))


def read_checkpoint(path: pathlib.Path, with_arrays: bool = True) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the state in a checkpoint, and the values of variables by name.

    Args:
        path: The path of the checkpoint.
        with_arrays: Whether to read the values. Default: True.

    Raises:
        OSError: The checkpoint can't be read.
        ValueError: The file is corrupt, or not a checkpoint.
    """
    try:
        with zipfile.ZipFile(path):  # rejects other kinds of files that NumPy can read
            pass
        with np.load(path) as file:
            state = json.loads(str(file[STATE]))
            if not isinstance(state, dict) or not isinstance(state["fingerprint"], dict):
                raise ValueError("it does not name its training")
            if not with_arrays:
                return state, {}
            if "variables" not in state:
                raise ValueError("an earlier version wrote it, without the names of variables")
            return state, {name: file[str(index)] for index, name in enumerate(state["variables"])}
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise ValueError(
            f"{path}: the checkpoint is corrupt: {error}. Delete it to resume from the previous checkpoint, if there "
            "is one."
        ) from error


def check_fingerprint(path: pathlib.Path, stored: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises ValueError if a checkpoint was saved with batches that differ from the batches of `train`."""
    if stored.get("manifest") != here["manifest"]:
        before, now = stored.get("dataset") or {}, here["dataset"]
        changes = [f"{name} was {before.get(name)!r} and is {value!r}" for name, value in now.items() if before.get(name) != value]
        description = "; ".join(changes) or "the examples or their order differ"
        raise ValueError(
            f"{path}: the dataset has changed since this checkpoint: {description}. Restore the dataset, or use another "
            "directory "
            "for a new training."
        )
    if (stored.get("transform") is None) == (here.get("transform") is None) and stored.get("transform") != here.get("transform"):
        raise ValueError(
            f"{path}: the transform of the dataset has changed since this checkpoint, because `recordmill analyze` ran "
            "again. Restore the transform, or use another directory for a new training."
        )
    names = [name for name in {**here, **stored} if stored.get(name) != here.get(name)]
    differing = [f"{name}={here.get(name)!r} (in the checkpoint {stored.get(name)!r})" for name in names]
    if differing:
        raise ValueError(
            f"{path} is the checkpoint of another training. This training has {', '.join(differing)}. Use "
            "another directory, or the same options."
        )
