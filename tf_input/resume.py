"""Trainings that go on where they were interrupted, batch for batch: BackupAndRestore."""

import json
import os
import pathlib
import re
import zipfile
from numbers import Integral
from typing import Any, Mapping

import keras
import numpy as np

_NAME = re.compile(r"backup-\d{8}-\d{8}\.npz")  # epoch and step, so that names sort by age
_STATE = "state"
# What `stop_training` is where an epoch that was resumed has had the batches that were left. Keras knows one number of batches for
# all epochs, and would begin a step for which there is none, which TensorFlow counts. Another value than True: others may set that.
_EPOCH_IS_OVER = "the epoch is over"


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
        self._has_whole_epochs = isinstance(train, keras.utils.PyDataset)
        self._epoch, self._first_step = 0, 0  # the current epoch, and its first step in this process
        self._step = 0  # of the epoch, that comes next
        self._resumed: tuple[int, int] | None = None  # where to go on
        self._last_saved = 0  # step of the epoch

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
            _check_identity(paths[-1], state["identity"], self._position.identity)
            _assign(paths[-1], _variables(self.model), arrays)
            self._resumed = state["epoch"], state["step"]
            self.model._initial_epoch = state["epoch"]  # as Keras' own callback does
            # Counted from 1, as Keras shows them.
            print(f"resumed at epoch {state['epoch'] + 1}, batch {state['step'] + 1}, from {paths[-1]}", flush=True)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._first_step = 0
        if self._resumed is not None and self._resumed[0] == epoch:
            self._first_step = self._resumed[1]
        self._resumed = None
        self._epoch, self._step = epoch, self._first_step
        self._position.go_to(epoch, self._first_step)
        self._last_saved = self._first_step

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if getattr(self._position, "is_shuffled", False):
            raise ValueError("fit(shuffle=True): expected shuffle=False with a Sequence; Keras keeps no record of its order")
        self._step = min(self._first_step + batch + 1, self._num_batches)
        if self._step == self._num_batches:
            if self._first_step and not self.model.stop_training:
                self.model.stop_training = _EPOCH_IS_OVER
        elif self._save_freq != "epoch" and self._step - self._last_saved >= self._save_freq:
            self._save(self._epoch, self._step)
            self._last_saved = self._step

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self.model.stop_training is _EPOCH_IS_OVER:  # not if another callback wants to stop
            self.model.stop_training = False
        if self._step == self._num_batches:
            self._save(epoch + 1, 0)
        elif not self.model.stop_training:
            raise ValueError(
                f"epoch {epoch + 1} ended after {self._step} of {self._num_batches} batches: expected what `train` gives, and no "
                "steps_per_epoch, with which Keras does not begin anew after an epoch that was resumed in its middle"
            )
        elif not self._has_whole_epochs:
            self._save(epoch, self._step)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        for path in self._paths() if self._deletes else ():
            path.unlink()

    def _paths(self) -> list[pathlib.Path]:
        """The backups, the last one last."""
        found = self._directory.iterdir() if self._directory.is_dir() else ()
        return sorted(path for path in found if _NAME.fullmatch(path.name))

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
    if start_step := getattr(position, "start_step", 0):
        raise ValueError(f"start_step={start_step}: expected 0; the callback itself finds where to go on")
    return position


def _check_identity(path: pathlib.Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises ValueError where a backup is of other batches than those of `train`."""
    if there.get("manifest") != here["manifest"]:
        before, now = there.get("dataset") or {}, here["dataset"]
        changes = [f"{name} was {before.get(name)!r} and is {value!r}" for name, value in now.items() if before.get(name) != value]
        what = "; ".join(changes) or "as many examples of the same features, but others or in another order"
        raise ValueError(
            f"{path}: the data set has changed since this backup was made: {what}; expected the data set as it was, or another "
            "directory for the backups of a new training"
        )
    if (there.get("transform") is None) == (here.get("transform") is None) and there.get("transform") != here.get("transform"):
        raise ValueError(
            f"{path}: the transform of the data set has changed since this backup was made, as `recordmill analyze` has run again; "
            "expected the transform as it was, or another directory for the backups of a new training"
        )
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    differing = [f"{name}={here.get(name)!r} (there {there.get(name)!r})" for name in names]
    if differing:
        raise ValueError(f"{path} is the backup of another training: here {', '.join(differing)}; expected another directory")


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
