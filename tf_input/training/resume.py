"""Implements `BackupAndRestore`, a callback for `fit` that saves checkpoints and resumes at the exact batch."""

import math
import os
import pathlib
from typing import Any, Mapping

import keras

from tf_input.options import named_options
from tf_input.training.checkpoint import Checkpoint, check_options

# Value of `stop_training` that ends a resumed epoch after its remaining batches. Keras uses one number of batches for
# all epochs, and would continue into the next epoch. The value True is reserved for other callbacks.
_EPOCH_IS_OVER = "the epoch is over"


@named_options()
class BackupAndRestore(keras.callbacks.Callback):
    """Keras callback that saves checkpoints. When the script restarts, `fit` resumes with the same batches and weights.

    Keras's own callback repeats the interrupted epoch. This callback resumes in the middle of the epoch and reads only
    the remaining batches. The documentation of `Checkpoint` describes the contents of a checkpoint. Use `Checkpoint`
    for training loops without `fit`. The model must be built. The state of other callbacks, such as the patience of
    EarlyStopping, is not saved. Metrics are not saved either, so the logs of a resumed epoch cover only the remaining
    batches. If the callback TerminateOnNaN stops training, the previous checkpoint is kept.

    Examples:
        ```python
        train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
        model.fit(train, epochs=90, callbacks=[tf_input.BackupAndRestore("checkpoints", train, save_freq=1000)])
        ```

    Args:
        directory: A local directory for checkpoints only. It is created if necessary.
        train: The training data that `fit` receives: the return value of `batches`, or a `Sequence`, with a `seed`. A
            `Sequence` requires `shuffle=False`, because Keras does not store its own order. `fit` may also receive
            `train.map(...)` or `train.repeat()`, if `steps_per_execution` divides the number of batches in an epoch.
        save_freq: The number of batches between checkpoints. Checkpoints are also saved at the end of each epoch. An
            integer requires `batches` instead of a `Sequence`, and a `steps_per_execution` that divides the number of
            batches in an epoch. Default: "epoch", only at the end of each epoch.
        keep: The number of checkpoints to keep. Default: 1.
        delete_checkpoint: Whether to delete all checkpoints at the end of the training run. Default: True.
        writes: Whether this process writes checkpoints, or only restores them. If several processes train one model and
            share the directory, only one may write. Default: True.

    Raises:
        ValueError: An option has a wrong value, or `train` is not reproducible. `fit` raises the error if the last
            checkpoint is corrupt or belongs to another dataset, model or set of options, or if an epoch of `fit` is not
            one iteration over `train`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        train: Any,
        save_freq: int | str = "epoch",
        keep: int = 1,
        delete_checkpoint: bool = True,
        writes: bool = True,
    ) -> None:
        super().__init__()
        check_options(directory, train, save_freq, keep)
        self._saves_at_epoch_ends = isinstance(train, keras.utils.PyDataset)
        if save_freq != "epoch" and self._saves_at_epoch_ends:
            raise ValueError(
                f"save_freq={save_freq}: Keras can't start a Sequence in the middle of an epoch. Use save_freq='epoch'."
            )
        self._directory, self._train = directory, train
        self._options = {"save_freq": save_freq, "keep": keep, "writes": writes}
        self._deletes = delete_checkpoint

    def set_model(self, model: Any) -> None:
        if not isinstance(model, keras.Model):
            class_name = f"{type(model).__module__}.{type(model).__name__}"
            raise ValueError(f"model={class_name} is not a Keras 3 model (`import keras`), but one of Keras 2 (`tf_keras`).")
        super().set_model(model)

    def _implements_train_batch_hooks(self) -> bool:
        """Returns True. Keras 2 calls this method before `set_model`, which reports that Keras 3 is required."""
        return True

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        steps, num_batches = self.params.get("steps"), self._train.iterator_state.num_batches
        if steps is None:
            raise ValueError(
                f"`fit` does not know the number of batches. Pass steps_per_epoch={num_batches}, or train.repeat() "
                "for other steps."
            )
        if steps != num_batches:
            raise ValueError(
                f"An epoch of `fit` has {steps} batches, and an epoch of `train` has {num_batches}. Leave out steps_per_epoch and "
                "`train.take(...)`. To train on fewer examples, use a slice such as \"train[:1000]\"."
            )
        # On JAX, `fit` copies the current values to the variables when a callback accesses its model.
        self._checkpoint = checkpoint = Checkpoint(self._directory, self.model, self._train, **self._options, before_save=lambda: self.model)
        # Keras executes several steps at a time. The last execution would include batches of the next epoch.
        if (checkpoint.step or self._options["save_freq"] != "epoch") and not self._ends_with_epoch(checkpoint.step):
            raise ValueError(
                f"steps_per_execution={self.model.steps_per_execution} does not divide the "
                f"{num_batches - checkpoint.step} batches "
                f"of the epoch from batch {checkpoint.step + 1} on. Use a divisor of that number."
            )
        if checkpoint.step and self._saves_at_epoch_ends:
            raise ValueError(
                f"{checkpoint.restored_from} was saved in the middle of an epoch, where Keras can't start a Sequence. "
                "Pass the result of `batches`."
            )
        if checkpoint.restored_from is not None:
            self.model._initial_epoch = checkpoint.epoch  # Keras's own callback does the same
            kept_in = None if self._deletes else pathlib.Path(self._directory)
            checkpoint.report_completion(self.params["epochs"], kept_in, "epochs")
        self._first_epoch, self._is_lost = checkpoint.epoch, False

    def _ends_with_epoch(self, step: int) -> bool:
        """Returns whether the remaining steps of the epoch are a multiple of the steps per execution."""
        return (self._checkpoint.num_steps - step) % self.model.steps_per_execution == 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.model._initial_epoch = None  # `fit` has read the value; the next `fit` must not skip epochs
        if epoch < self._first_epoch:
            raise ValueError(
                f"initial_epoch={epoch} does not match `train`, which starts at epoch {self._first_epoch}. "
                f"Pass initial_epoch={self._first_epoch}."
            )
        self._checkpoint.begin(epoch)
        self._first_step = self._checkpoint.step

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        checkpoint = self._checkpoint
        done = min(self._first_step + batch + 1, checkpoint.num_steps)  # Keras may count past the last batch
        checkpoint.advance(done - checkpoint.step)
        if self._first_step and done == checkpoint.num_steps and not self.model.stop_training:
            self.model.stop_training = _EPOCH_IS_OVER

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        checkpoint = self._checkpoint
        if self.model.stop_training is _EPOCH_IS_OVER:  # other callbacks set True
            self.model.stop_training = False
        self._is_lost = bool(self.model.stop_training) and not math.isfinite((logs or {}).get("loss", 0.0))
        if self._is_lost:
            return
        if checkpoint.step == checkpoint.num_steps:
            if not self._first_step and self._train.iterator_state.next == (epoch, 0):
                raise ValueError(
                    f"Epoch {epoch + 1} was not read from `train`. Pass the same `train` to `fit`, or the result of "
                    "its `map` or `repeat`."
                )
            checkpoint.end()
        elif not self.model.stop_training:
            raise ValueError(
                f"Epoch {epoch + 1} ended after {checkpoint.step} of {checkpoint.num_steps} batches. Pass all batches of "
                "`train` to `fit`, without steps_per_epoch: with it, Keras does not start a whole epoch after a "
                "resumed one."
            )
        elif not self._saves_at_epoch_ends and self._ends_with_epoch(checkpoint.step):
            checkpoint.save()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self.model._initial_epoch = None  # not reset yet if no epoch was left
        if self._deletes and not self._is_lost:
            self._checkpoint.delete()
