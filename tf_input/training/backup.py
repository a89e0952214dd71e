"""Trainings that go on where they were interrupted, batch for batch: Backup, for loops. `resume` has the callback for `fit`."""

import itertools
import json
import os
import pathlib
from numbers import Integral
from typing import Any, Callable, Iterable, Iterator, Mapping

import keras
import numpy as np

from tf_input.options import named_options
from tf_input.training.backup_files import STATE, check_identity, file_name, find_backups, read_backup
from tf_input.training.variable_names import stable_names


@named_options()
class Backup:
    """Saves a training while it runs; the same script, started again, goes on with the same batches and the same weights.

        train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
        backup = tf_input.Backup("backups", model, train, optimizer=optimizer, save_freq=1000)
        for epoch in backup.epochs(90):
            for images, labels in backup.batches():
                train_step(images, labels)
            backup.state[f"accuracy of epoch {epoch}"] = evaluate(model)

    Where a backup is found, the variables have its values once the object is made, and `epochs` and `batches` give what is left.
    Values are matched by the names of layers and variables. A backup has all variables of the model and its optimizer, the random states of layers among them, the position, and `state`: in
    one file, which takes the place of the one before as a whole. Metrics are not saved: they begin anew where the training goes on.

    It works on TensorFlow, JAX and torch. A loop in JAX that keeps its variables in a tuple makes the tuple after this object, and puts
    its values back into them in `before_save`. On torch, Dropout draws from torch's own generator, which is not saved.

    Where several processes train one model, each makes this object, and restores the same backup; one of them `writes`.

    Args:
        directory: A local directory for the backups, and for nothing else; it need not exist.
        model: A Keras model that is built.
        train: What `PreparedDataset.batches` returns, or a `Sequence`, with a `seed`. Or what has, like these, a `position`: where it
            is read from, how many batches an epoch has, and what these depend on.
        optimizer: The one that trains the model, which is built if it is not; None: the one that the model was compiled with.
        settings: Values by name, as JSON has them, that a training must share to go on with a backup, beside those that `train` was
            made with.
        save_freq: "epoch": a backup at the end of each; an integer: also after so many steps.
        keep: The number of backups that are kept.
        writes: Whether this process writes backups, or only restores them.
        before_save: A function that is called before the variables are read.

    Attributes:
        epoch: The number of the epoch, from 0; at first the `start_epoch` of `train`.
        step: The number of the epoch's steps that are done.
        state: What the loop wants to remember, as JSON has it: {} at first.
        restored_from: The backup that was found; None: the training begins.

    Raises:
        ValueError: An option has a wrong value, or `train` can't be read again as it was; or the last backup is damaged, or of another
            data set, other options or another model.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        model: keras.Model,
        train: Any,
        *,
        optimizer: keras.optimizers.Optimizer | None = None,
        settings: Mapping[str, Any] | None = None,
        save_freq: int | str = "epoch",
        keep: int = 1,
        writes: bool = True,
        before_save: Callable[[], object] | None = None,
    ) -> None:
        check_options(directory, train, save_freq, keep)
        self._directory, self._train, self._position = pathlib.Path(directory), train, train.position
        self._model, self._optimizer = model, getattr(model, "optimizer", None) if optimizer is None else optimizer
        for name, value, kind in (("model", model, keras.layers.Layer), ("optimizer", optimizer, keras.optimizers.Optimizer | None)):
            if not isinstance(value, kind):
                module = type(value).__module__
                of_keras_2 = " of Keras 2 (tf_keras)" * module.startswith("tf_keras")
                raise ValueError(
                    f"{name}={module}.{type(value).__name__}{of_keras_2}: Backup saves models and optimizers of Keras 3. Save other states "
                    "yourself, such as with orbax, together with (epoch, step), and call train.position.go_to(epoch, step) after a restart"
                )
        if not model.built:
            raise ValueError("the model is not built; expected one whose weights exist, as after model.build(...)")
        if self._optimizer is None:
            raise ValueError("optimizer=None: expected the one that trains the model, which is not compiled")
        if not self._optimizer.built:
            self._optimizer.build(model.trainable_variables)
        self._identity = json.loads(json.dumps({**self._position.identity, **(settings or {})}))
        self._save_freq, self._keep, self._writes, self._before_save = save_freq, keep, writes, before_save
        self.num_steps: int = self._position.num_batches
        self.state: dict[str, Any] = {}
        self.epoch, self.step = self._position.start_epoch, 0
        self.restored_from = next(reversed(find_backups(directory)), None)
        if self.restored_from is not None:
            self._restore(self.restored_from)
        self._last_saved = self.step

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The epochs that are left of so many, each the one of `train`. When the next one is asked for, a backup is written.

        Raises:
            ValueError: Not all steps of one were made.
        """
        for epoch in range(self.epoch, num_epochs):
            self.begin(epoch)
            yield epoch
            if self.step != self.num_steps:
                raise ValueError(f"epoch {epoch + 1} ended after {self.step} of {self.num_steps} steps: expected all of them")
            self.end()

    def batches(self, data: Iterable[Any] | None = None) -> Iterator[Any]:
        """The batches that are left of this epoch. When the next one is asked for, the step with the one before counts as made.

        Args:
            data: What is made of `train`, such as `train.map(...)`, `train.as_numpy_iterator()`, or what `tf.distribute` makes of it;
                it is read from where the epoch goes on. None: `train`.
        """
        for batch in itertools.islice(self._train if data is None else data, self.num_steps - self.step):
            yield batch
            self.advance()

    def begin(self, epoch: int) -> None:
        """Begins an epoch, or goes on with it if its first steps are done: `train` is read from there. `epochs` calls it."""
        if epoch != self.epoch:
            self.epoch, self.step = epoch, 0
        self._position.go_to(epoch, self.step)
        self._last_saved = self.step

    def advance(self, num_steps: int = 1) -> None:
        """So many more steps of the epoch are made, of which a backup may be due. `batches` calls it; so does who reads otherwise."""
        self.step += num_steps
        if self._save_freq != "epoch" and self._save_freq <= self.step - self._last_saved and self.step < self.num_steps:
            self.save()

    def end(self) -> None:
        """All steps of the epoch are made: the next is read from its beginning, also after one that was gone on with. `epochs` calls it."""
        self.epoch, self.step = self.epoch + 1, 0
        self._position.go_to(self.epoch)
        self.save()

    def save(self) -> None:
        """Writes a backup of how things stand. Under another name first: a run that is killed leaves the one before."""
        self._last_saved = self.step
        if not self._writes:
            return
        if self._before_save is not None:
            self._before_save()
        variables = self._variables()
        where = {"epoch": self.epoch, "step": self.step, "variables": [*variables]}
        text = json.dumps({**where, "identity": self._identity, "state": self.state})
        values = {str(index): _storable(np.array(keras.ops.convert_to_numpy(one))) for index, one in enumerate(variables.values())}
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / file_name(self.epoch, self.step)
        unfinished = path.with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            np.savez(file, **{STATE: text}, **values)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        for old in find_backups(self._directory)[: -self._keep]:
            old.unlink()

    def delete(self) -> None:
        """Deletes all backups, of a training that has come to its end."""
        for path in find_backups(self._directory) if self._writes else ():
            path.unlink()

    def _restore(self, path: pathlib.Path) -> None:
        found, arrays = read_backup(path)
        check_identity(path, found["identity"], self._identity)
        _assign(path, self._variables(), arrays)
        self.epoch, self.step, self.state = found["epoch"], found["step"], found["state"]
        self._position.go_to(self.epoch, self.step)
        print(f"resumed at epoch {self.epoch + 1}, batch {self.step + 1}, from {path}", flush=True)  # from 1, as Keras shows them

    def _variables(self) -> dict[str, Any]:
        """Returns the variables of a training by name, without metrics, which start over in each epoch and may not exist yet."""
        metrics = {id(one) for one in self._model.metrics_variables}
        found = {id(one): one for one in (*self._model.variables, *self._optimizer.variables) if id(one) not in metrics}
        return dict(zip(stable_names(self._model, [*found.values()]), found.values()))


def check_options(directory: str | os.PathLike[str], train: Any, save_freq: int | str, keep: int) -> None:
    """Raises ValueError where one has a wrong value."""
    position = getattr(train, "position", None)
    if not hasattr(position, "go_to"):
        expected = "expected what `batches` returns for a prepared dataset (without a service), or a Sequence"
        raise ValueError(f"train={train!r}: {expected}; `fit` may also be given what `map` makes of it")
    if position.identity is None:
        raise ValueError("seed=None: expected a seed; without one no epoch can be read again")
    if start_step := position.start_step:
        raise ValueError(f"start_step={start_step}: expected 0; a backup itself says where to go on")
    for name, value in (("save_freq", save_freq), ("keep", keep)):
        is_count = isinstance(value, Integral) and not isinstance(value, bool) and value > 0
        if not is_count and (name, value) != ("save_freq", "epoch"):
            raise ValueError(f"{name}={value!r}: expected {'`epoch`, or ' * (name == 'save_freq')}an integer above 0")
    if "://" in os.fspath(directory):
        raise ValueError(f"directory={os.fspath(directory)!r}: expected a local directory")


def _storable(value: np.ndarray) -> np.ndarray:
    """Without bfloat16 and its like, which files of NumPy have no name for; float32 holds each of their values."""
    return value if value.dtype.kind in "biufc" else value.astype(np.float32)


def _assign(path: pathlib.Path, variables: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
    """Assigns values to the variables of the same names.

    Raises:
        ValueError: Names or shapes differ. Nothing is assigned then.
    """
    lists = {"is missing from it": (variables, values), "is missing from the model": (values, variables)}
    if missing := [f"{name!r} {what}" for what, (one, other) in lists.items() for name in [*(name for name in one if name not in other)][:1]]:
        raise ValueError(
            f"{path} is the backup of another model: {' and '.join(missing)}; it has {len(values)} variables, the model has {len(variables)}. "
            "Use the model of the backup, with the same names of layers, or another directory"
        )
    for name, variable in variables.items():
        if tuple(variable.shape) != values[name].shape:
            raise ValueError(f"{path} is the backup of another model: {name} has {values[name].shape}; here {variable.shape}")
    for name, variable in variables.items():
        variable.assign(values[name])
