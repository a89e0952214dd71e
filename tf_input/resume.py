"""Trainings that go on where they were interrupted, batch for batch: BackupAndRestore."""

import json
import os
import pathlib
import re
import warnings
import zipfile
from numbers import Integral
from typing import Any, Mapping

import keras
import numpy as np

_NAME = re.compile(r"backup-\d{8}-\d{8}\.npz")  # epoch and step, so that names sort by age
_STATE = "state"
_RAN_OUT = "Your input ran out of data"


class BackupAndRestore(keras.callbacks.Callback):
    """Saves a training while it runs; the same script, started again, goes on with the same batches and the same weights.

        train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
        model.fit(train, epochs=90, callbacks=[tf_input.BackupAndRestore("backups", train, save_freq=1000)])

    Where Keras' own callback repeats the epoch in which a training was killed, this one goes on in the middle of it: the batches
    that are left are read, and none before them. Saved are all variables of the model and its optimizer, the random states of its
    layers among them, and the position: in one file, which takes the place of the one before as a whole. The model must be built.
    Not saved are what other callbacks remember, such as the patience of EarlyStopping, and metrics: what is logged of an epoch
    that was interrupted is of the batches that were left. On torch, Dropout draws from torch's own generator, which is not saved.

    Args:
        directory: A local directory for the backups, and for nothing else; it need not exist. On many hosts one for each.
        train: What `fit` is given: of `batches`, or a `Sequence` (and then `shuffle=False`), with a `seed`. `fit` may also be given
            what is made of it by its `map`.
        save_freq: "epoch": at the end of each; an integer: also after so many batches, which a Sequence can't go on after.
        keep: How many backups are kept.
        delete_checkpoint: Whether they are deleted at the end of the training.

    Raises:
        ValueError: An option has a wrong value, or `train` can't be read again as it was. When training begins: the last backup is
            damaged, or of another data set, other options or another model; or an epoch is not a pass over `train`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        train: Any,
        save_freq: int | str = "epoch",
        keep: int = 1,
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        self._position = _position_of(train)
        for name, value in (("save_freq", save_freq), ("keep", keep)):
            is_count = isinstance(value, Integral) and not isinstance(value, bool) and value > 0
            if not is_count and (name, value) != ("save_freq", "epoch"):
                raise ValueError(f"{name}={value!r}: expected {'`epoch`, or ' * (name == 'save_freq')}an integer above 0")
        if save_freq != "epoch" and isinstance(train, keras.utils.PyDataset):
            raise ValueError(f"save_freq={save_freq}: expected 'epoch' with a Sequence, which begins with whole epochs")
        if "://" in os.fspath(directory):
            raise ValueError(f"directory={os.fspath(directory)!r}: expected a local directory")
        self._directory = pathlib.Path(directory)
        self._save_freq = save_freq
        self._keep = keep
        self._deletes = delete_checkpoint
        self._num_batches = self._position.num_batches
        self._epoch, self._first_step = 0, 0  # the current epoch, and its first step in this process
        self._resumed: tuple[int, int] | None = None  # where to go on
        self._last_saved = 0  # step of the epoch
        self._quiet: warnings.catch_warnings | None = None
        self._at_end: list[np.ndarray] | None = None  # the variables after the last batch of an epoch that was resumed

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        steps = self.params.get("steps")
        if steps != self._num_batches:
            raise ValueError(f"steps_per_epoch={steps}: expected None, or {self._num_batches}, the batches in an epoch")
        if not self.model.built:
            raise ValueError("the model is not built; expected one whose weights exist, as after model.build(...)")
        paths = self._paths()
        self._resumed = None
        if paths:
            state, arrays = _load(paths[-1])
            self._check(paths[-1], state["identity"])
            _assign(paths[-1], _variables(self.model), arrays)
            self._resumed = state["epoch"], state["step"]
            self.model._initial_epoch = state["epoch"]  # as Keras' own callback does

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epoch, self._first_step = epoch, 0
        if self._resumed is not None and self._resumed[0] == epoch:
            self._first_step = self._resumed[1]
        self._resumed = None
        self._position.go_to(epoch, self._first_step)
        self._last_saved = self._first_step
        if self._first_step:
            self._quiet = warnings.catch_warnings()
            self._quiet.__enter__()
            warnings.filterwarnings("ignore", message=_RAN_OUT)  # the epoch has fewer steps than Keras knows

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if getattr(self._position, "is_shuffled", False):
            raise ValueError("fit(shuffle=True): expected shuffle=False with a Sequence; Keras keeps no record of its order")
        step = self._first_step + batch + 1
        if step >= self._num_batches and self._first_step:
            self._at_end = _values(self.model)
        if step >= self._num_batches or self._save_freq == "epoch":
            return
        if step - self._last_saved >= self._save_freq:
            self._save(self._epoch, step)
            self._last_saved = step

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._undo_step()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._undo_step()
        self._speak()
        self._save(epoch + 1, 0)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._speak()
        for path in self._paths() if self._deletes else ():
            path.unlink()

    def _undo_step(self) -> None:
        """Where an epoch was shorter than Keras knew, TensorFlow began a step without a batch: random states have moved on."""
        if self._at_end is not None:
            for variable, value in zip(_variables(self.model), self._at_end):
                variable.assign(value)
            self._at_end = None

    def _speak(self) -> None:
        if self._quiet is not None:
            self._quiet.__exit__(None, None, None)
            self._quiet = None

    def _paths(self) -> list[pathlib.Path]:
        """The backups, the last one last."""
        found = self._directory.iterdir() if self._directory.is_dir() else ()
        return sorted(path for path in found if _NAME.fullmatch(path.name))

    def _check(self, path: pathlib.Path, identity: Mapping[str, Any]) -> None:
        differing = [
            f"{name}={value!r} (there {identity.get(name)!r})"
            for name, value in self._position.identity.items()
            if identity.get(name) != value
        ]
        if differing:
            raise ValueError(f"{path} is the backup of another training: here {', '.join(differing)}; expected another directory")

    def _save(self, epoch: int, step: int) -> None:
        """Under another name first: a run that is killed leaves the one before."""
        state = {"epoch": epoch, "step": step, "identity": self._position.identity}
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"backup-{epoch:08d}-{step:08d}.npz"
        unfinished = path.with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            values = {str(index): _storable(one) for index, one in enumerate(_values(self.model))}
            np.savez(file, **{_STATE: json.dumps(state)}, **values)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        for old in self._paths()[: -self._keep]:
            old.unlink()


def _position_of(train: Any) -> Any:
    position = getattr(train, "position", None)
    if not hasattr(position, "go_to"):
        raise ValueError(f"train={train!r}: expected what `batches` returns (without a service), or a Sequence")
    if position.identity is None:
        raise ValueError("seed=None: expected a seed; without one no epoch can be read again")
    return position


def _variables(model: keras.Model) -> list[Any]:
    """All that a training changes, but metrics, which begin anew in each epoch, and may not exist before the first batch."""
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    metrics = {id(one) for one in model.metrics_variables}
    found = {id(one): one for one in (*model.variables, *optimizer.variables) if id(one) not in metrics}
    return list(found.values())


def _values(model: keras.Model) -> list[np.ndarray]:
    return [np.array(keras.ops.convert_to_numpy(one)) for one in _variables(model)]  # copies


def _storable(value: np.ndarray) -> np.ndarray:
    """Without bfloat16 and its like, which files of NumPy have no name for; float32 holds each of their values."""
    return value if value.dtype.kind in "biufc" else value.astype(np.float32)


def _load(path: pathlib.Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    try:
        with np.load(path) as file:
            return json.loads(str(file[_STATE])), [file[str(index)] for index in range(len(file.files) - 1)]
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise ValueError(f"{path}: a damaged backup: {error}; delete it to go on from the one before, if any") from error


def _assign(path: pathlib.Path, variables: list[Any], values: list[np.ndarray]) -> None:
    if len(variables) != len(values):
        raise ValueError(f"{path} is the backup of another model: it has {len(values)} variables; here are {len(variables)}")
    for variable, value in zip(variables, values):
        if tuple(variable.shape) != value.shape:
            raise ValueError(f"{path} is the backup of another model: {variable.path} has {value.shape}; here {variable.shape}")
    for variable, value in zip(variables, values):
        variable.assign(value)
