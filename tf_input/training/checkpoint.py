"""Implements `Checkpoint`, which saves checkpoints from which training loops resume at the exact batch. The module
`resume` contains the callback for `fit`."""

import itertools
import json
import os
import pathlib
from numbers import Integral
from typing import Any, Callable, Iterable, Iterator, Mapping

import keras
import numpy as np

from tf_input.options import named_options
from tf_input.training.checkpoint_files import STATE, check_fingerprint, file_name, find_checkpoints, read_checkpoint
from tf_input.training.variable_names import stable_names


@named_options()
class Checkpoint:
    """Saves checkpoints of a training loop. A restarted script resumes with the same batches and weights.

    If a checkpoint exists, the constructor restores the variables, and `epochs` and `batches` yield only the remaining
    epochs and batches. When a checkpoint is restored, values are assigned to variables with the same layer name and
    variable name. A checkpoint is one file, which is replaced atomically. A checkpoint contains all variables of the
    model and the optimizer (including the random states of layers), the iterator state, and `state`. Metrics are not
    saved, and start over when a training run resumes.

    TensorFlow, JAX and torch are supported. If a JAX loop keeps the values of variables in a tuple, create the tuple
    after the `Checkpoint` object. In `before_save`, copy the values back to the variables. On the torch backend, the
    state of torch's global random generator, which Dropout uses, is not saved.

    If several processes train one model, each process creates a `Checkpoint` object with the same directory. Only one
    process may write, so all other processes set `writes=False`.

    Examples:
        ```python
        train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
        checkpoint = tf_input.Checkpoint("checkpoints", model, train, optimizer=optimizer, save_freq=1000)
        for epoch in checkpoint.epochs(90):
            for images, labels in checkpoint.batches():
                train_step(images, labels)
            checkpoint.state[f"accuracy of epoch {epoch}"] = evaluate(model)
        ```

    Args:
        directory: A local directory for checkpoints only. It is created if necessary.
        model: A built Keras model.
        train: The return value of `PreparedDataset.batches`, or a `Sequence`, with a `seed`. Other objects need an
            attribute `iterator_state` like that of `batches`.
        optimizer: The optimizer that trains the model. It is built if necessary. Default: None, the optimizer that the
            model was compiled with.
        settings: JSON values by name. A checkpoint is restored only if these settings and the options of `train` are
            equal to the saved ones. Default: None.
        save_freq: The number of steps between checkpoints. Checkpoints are also saved at the end of each epoch.
            Default: "epoch", only at the end of each epoch.
        keep: The number of checkpoints to keep. Default: 1.
        writes: Whether this process writes checkpoints, or only restores them. Default: True.
        before_save: A function that is called before the variables are read. Default: None.

    Attributes:
        epoch: The number of the current epoch, from 0.
        step: The number of completed steps in the current epoch.
        num_steps: The number of steps in an epoch.
        state: JSON values that the loop can save, such as metrics. Initially {}.
        restored_from: The path of the checkpoint that was restored; None if the training run starts from the beginning.

    Raises:
        ValueError: An option has a wrong value, `train` is not reproducible, or the last checkpoint is corrupt or
            belongs to another dataset, model or set of options.
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
        self._directory, self._train, self._iterator_state = pathlib.Path(directory), train, train.iterator_state
        self._model, self._optimizer = model, getattr(model, "optimizer", None) if optimizer is None else optimizer
        for name, value, kind in (("model", model, keras.layers.Layer), ("optimizer", optimizer, keras.optimizers.Optimizer | None)):
            if not isinstance(value, kind):
                module = type(value).__module__
                of_keras_2 = " of Keras 2 (tf_keras)" * module.startswith("tf_keras")
                raise ValueError(
                    f"{name}={module}.{type(value).__name__}{of_keras_2} is not supported: Checkpoint saves Keras 3 "
                    "models and optimizers. "
                    "Save other models with train.iterator_state.state_dict(), for example with orbax."
                )
        if not model.built:
            raise ValueError("The model is not built, so it has no weights. Call model.build(...) first.")
        if self._optimizer is None:
            raise ValueError("optimizer=None: the model is not compiled. Pass the optimizer that trains it.")
        if not self._optimizer.built:
            self._optimizer.build(model.trainable_variables)
        self._fingerprint = json.loads(json.dumps({**self._iterator_state.fingerprint, **(settings or {})}))
        self._save_freq, self._keep, self._writes, self._before_save = save_freq, keep, writes, before_save
        self.num_steps: int = self._iterator_state.num_batches
        self.state: dict[str, Any] = {}
        self.epoch, self.step = 0, 0
        self.restored_from = next(reversed(find_checkpoints(directory)), None)
        if self.restored_from is not None:
            self._restore(self.restored_from)
        self._last_saved = self.step

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields the numbers of the remaining epochs, up to `num_epochs` in total, and saves a checkpoint after each
        epoch.

        Args:
            num_epochs: The total number of epochs, including completed ones.

        Raises:
            ValueError: An epoch ended before all of its steps were made.
        """
        self.report_completion(num_epochs, self._directory, "num_epochs")
        for epoch in range(self.epoch, num_epochs):
            self.begin(epoch)
            yield epoch
            if self.step != self.num_steps:
                raise ValueError(
                    f"Epoch {epoch + 1} ended after {self.step} of {self.num_steps} steps. Train on all batches of "
                    "the epoch."
                )
            self.end()

    def report_completion(self, num_epochs: int, kept_in: pathlib.Path | None, option: str) -> None:
        """Prints a message if all epochs in the checkpoint are already complete.

        Args:
            num_epochs: The total number of epochs.
            kept_in: The directory of the checkpoint; None if the checkpoint is deleted when the training run ends.
            option: The name of the option that sets the number of epochs.
        """
        if self.restored_from is None or self.epoch < num_epochs:
            return
        advice = f"Pass a larger {option} to continue, or delete {kept_in} to start over."
        if kept_in is None:
            advice = "The checkpoint is deleted now, so that the next training starts over."
        state = f"{self.restored_from} was saved after epoch {self.epoch}, and {option}={num_epochs}"
        print(f"training is already complete: {state}. {advice}", flush=True)

    def batches(self, data: Iterable[Any] | None = None) -> Iterator[Any]:
        """Yields the remaining batches of this epoch. A step is counted as completed when the next batch is requested.

        Args:
            data: A dataset derived from `train`, such as `train.map(...)`, `train.as_numpy_iterator()` or a distributed
                dataset. It is read from the current step. Default: None, `train` itself.
        """
        for batch in itertools.islice(self._train if data is None else data, self.num_steps - self.step):
            yield batch
            self.advance()

    def begin(self, epoch: int) -> None:
        """Starts an epoch, or resumes an epoch after its completed steps. `epochs` calls this method."""
        if epoch != self.epoch:
            self.epoch, self.step = epoch, 0
        self._iterator_state.go_to(epoch, self.step)
        self._last_saved = self.step

    def advance(self, num_steps: int = 1) -> None:
        """Increases the number of completed steps and saves a checkpoint after every `save_freq` steps. Call this
        method only in loops that do not use `batches`."""
        self.step += num_steps
        if self._save_freq != "epoch" and self._save_freq <= self.step - self._last_saved and self.step < self.num_steps:
            self.save()

    def end(self) -> None:
        """Completes an epoch, saves a checkpoint, and moves to the next epoch. `epochs` calls this method."""
        self.epoch, self.step = self.epoch + 1, 0
        self._iterator_state.go_to(self.epoch)
        self.save()

    def save(self) -> None:
        """Writes a checkpoint to a temporary file, which replaces the previous checkpoint when it is complete."""
        self._last_saved = self.step
        if not self._writes:
            return
        if self._before_save is not None:
            self._before_save()
        variables = self._variables()
        where = {"epoch": self.epoch, "step": self.step, "variables": [*variables]}
        text = json.dumps({**where, "fingerprint": self._fingerprint, "state": self.state})
        values = {str(index): _storable(np.array(keras.ops.convert_to_numpy(item))) for index, item in enumerate(variables.values())}
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / file_name(self.epoch, self.step)
        unfinished = path.with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            np.savez(file, **{STATE: text}, **values)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        for old in find_checkpoints(self._directory)[: -self._keep]:
            old.unlink()

    def delete(self) -> None:
        """Deletes all checkpoints. Call this method at the end of the training run."""
        for path in find_checkpoints(self._directory) if self._writes else ():
            path.unlink()

    def _restore(self, path: pathlib.Path) -> None:
        state, arrays = read_checkpoint(path)
        check_fingerprint(path, state["fingerprint"], self._fingerprint)
        _assign(path, self._variables(), arrays)
        self.epoch, self.step, self.state = state["epoch"], state["step"], state["state"]
        self._iterator_state.go_to(self.epoch, self.step)
        print(f"resumed at epoch {self.epoch + 1}, batch {self.step + 1}, from {path}", flush=True)

    def _variables(self) -> dict[str, Any]:
        """Returns the variables by name, without metrics, which start over in each epoch and may not exist yet."""
        metrics = {id(metrics_variable) for metrics_variable in self._model.metrics_variables}
        variables_by_id = {
            id(variable): variable
            for variable in (*self._model.variables, *self._optimizer.variables)
            if id(variable) not in metrics
        }
        return dict(zip(stable_names(self._model, [*variables_by_id.values()]), variables_by_id.values()))


def check_options(directory: str | os.PathLike[str], train: Any, save_freq: int | str, keep: int) -> None:
    """Raises ValueError if an option has a wrong value."""
    iterator_state = getattr(train, "iterator_state", None)
    if not hasattr(iterator_state, "go_to"):
        expected = "Pass the result of `batches` for a prepared dataset, or a Sequence"
        raise ValueError(
            f"train={train!r} has no iterator state. {expected}. `fit` also accepts the result of its `map`."
        )
    if iterator_state.fingerprint is None:
        raise ValueError("seed=None: without a seed, an epoch can't be read again. Pass a seed.")
    for name, value in (("save_freq", save_freq), ("keep", keep)):
        is_count = isinstance(value, Integral) and not isinstance(value, bool) and value > 0
        if not is_count and (name, value) != ("save_freq", "epoch"):
            raise ValueError(
                f"{name}={value!r} is invalid. Pass {'`epoch` or ' * (name == 'save_freq')}a positive integer."
            )
    if "://" in os.fspath(directory):
        raise ValueError(f"directory={os.fspath(directory)!r} is a URL. Pass a local directory.")


def _storable(value: np.ndarray) -> np.ndarray:
    """Converts dtypes that NumPy files can't store, such as bfloat16, to float32 without loss."""
    return value if value.dtype.kind in "biufc" else value.astype(np.float32)


def _assign(path: pathlib.Path, variables: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
    """Assigns saved values to the variables with the same names.

    Raises:
        ValueError: Names or shapes differ. No values are assigned in this case.
    """
    lists = {"is missing from it": (variables, values), "is missing from the model": (values, variables)}
    if missing := [f"{name!r} {subject}" for subject, (item, other) in lists.items() for name in [*(name for name in item if name not in other)][:1]]:
        raise ValueError(
            f"{path} is the checkpoint of another model: {' and '.join(missing)}; it has {len(values)} variables, the "
            "model "
            f"has {len(variables)}. Use the model of the checkpoint, with the same layer names, or another directory."
        )
    for name, variable in variables.items():
        if tuple(variable.shape) != values[name].shape:
            raise ValueError(
                f"{path} is the checkpoint of another model: {name} has shape {values[name].shape}, and here "
                f"{variable.shape}. "
                "Use the model of the checkpoint, or another directory."
            )
    for name, variable in variables.items():
        variable.assign(values[name])
