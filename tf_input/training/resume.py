"""Trainings by `fit` that go on where they were interrupted, batch for batch: BackupAndRestore."""

import math
import os
from typing import Any, Mapping

import keras

from tf_input.options import named_options
from tf_input.training.backup import Backup, check_options

# What `stop_training` is where an epoch that was resumed has had the batches that were left. Keras knows one number of batches for
# all epochs, and would go on into the next one. Another value than True: others may set that.
_EPOCH_IS_OVER = "the epoch is over"


@named_options()
class BackupAndRestore(keras.callbacks.Callback):
    """Saves a training while it runs; the same script, started again, goes on with the same batches and the same weights.

        train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
        model.fit(train, epochs=90, callbacks=[tf_input.BackupAndRestore("backups", train, save_freq=1000)])

    Where Keras' own callback repeats the epoch in which a training was killed, this one goes on in the middle of it: the batches
    that are left are read, and none before them. What a backup is, `Backup` says, which does the same for loops. The model must be
    built. Not saved are what other callbacks remember, such as the patience of EarlyStopping, and metrics: what is logged of an epoch
    that was interrupted is of the batches that were left. A training that was stopped as its loss is not finite, by TerminateOnNaN,
    leaves the backup before that.

    Args:
        directory: A local directory for the backups, and for nothing else; it need not exist.
        train: What `fit` is given: of `batches`, or a `Sequence` (and then `shuffle=False`: Keras keeps no record of its own order), with a
            `seed`. `fit` may also be given what is made of it by its `map`, or its `repeat`; `steps_per_execution` must then divide the
            batches in an epoch.
        save_freq: "epoch": at the end of each; an integer: also after so many batches, which Keras can't go on after with a Sequence. A
            model's `steps_per_execution` must then divide the batches in an epoch.
        keep: The number of backups that are kept.
        delete_checkpoint: Whether they are deleted at the end of the training.
        writes: Whether this process writes backups, or only restores them: of several processes that train one model and share the
            directory, one writes.

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
        writes: bool = True,
    ) -> None:
        super().__init__()
        check_options(directory, train, save_freq, keep)
        self._has_whole_epochs = isinstance(train, keras.utils.PyDataset)
        if save_freq != "epoch" and self._has_whole_epochs:
            raise ValueError(f"save_freq={save_freq}: expected 'epoch' with a Sequence, of which Keras begins with whole epochs")
        self._directory, self._train = directory, train
        self._options = {"save_freq": save_freq, "keep": keep, "writes": writes}
        self._deletes = delete_checkpoint

    def set_model(self, model: Any) -> None:
        if not isinstance(model, keras.Model):
            what = f"{type(model).__module__}.{type(model).__name__}"
            raise ValueError(f"model={what}: expected a model of Keras 3 (`import keras`), not of Keras 2 (`tf_keras`)")
        super().set_model(model)

    def _implements_train_batch_hooks(self) -> bool:
        """Asked by Keras 2 before it calls `set_model`, which then tells that this callback is for Keras 3."""
        return True

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        steps, num_batches = self.params.get("steps"), self._train.position.num_batches
        if steps is None:
            raise ValueError(
                f"`fit` knows of no number of batches: expected steps_per_epoch={num_batches}, and train.repeat() before other steps"
            )
        if steps != num_batches:
            raise ValueError(f"steps_per_epoch={steps}: expected None, or {num_batches}, the batches in an epoch")
        # On JAX, `fit` keeps the variables elsewhere, and puts them back when a callback asks for its model.
        self._backup = backup = Backup(self._directory, self.model, self._train, **self._options, before_save=lambda: self.model)
        # Keras makes so many steps at a time, and the last of them would be made with batches of the epoch after.
        if (backup.step or self._options["save_freq"] != "epoch") and not self._ends_with_epoch(backup.step):
            raise ValueError(
                f"steps_per_execution={self.model.steps_per_execution}: expected a divisor of {num_batches - backup.step}, the batches "
                f"from batch {backup.step + 1} on, as an epoch is gone on with in its middle"
            )
        if backup.step and self._has_whole_epochs:
            raise ValueError(
                f"{backup.restored_from} is of the middle of an epoch: expected what `batches` returns, as Keras begins a Sequence anew"
            )
        if backup.restored_from is not None:
            self.model._initial_epoch = backup.epoch  # as Keras' own callback does
        self._first_epoch, self._is_lost = backup.epoch, False

    def _ends_with_epoch(self, step: int) -> bool:
        """Whether executions from that step on end where the epoch does."""
        return (self._backup.num_steps - step) % self.model.steps_per_execution == 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.model._initial_epoch = None  # `fit` has read it, and another one of this model would leave out as many epochs
        if epoch < self._first_epoch:
            raise ValueError(f"initial_epoch={epoch}: expected {self._first_epoch}, with which `train` begins")
        self._backup.begin(epoch)
        self._first_step = self._backup.step

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        backup = self._backup
        done = min(self._first_step + batch + 1, backup.num_steps)  # with steps_per_execution, Keras counts beyond the last one
        backup.advance(done - backup.step)
        if self._first_step and done == backup.num_steps and not self.model.stop_training:
            self.model.stop_training = _EPOCH_IS_OVER

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        backup = self._backup
        if self.model.stop_training is _EPOCH_IS_OVER:  # not if another callback wants to stop
            self.model.stop_training = False
        self._is_lost = bool(self.model.stop_training) and not math.isfinite((logs or {}).get("loss", 0.0))
        if self._is_lost:
            return
        if backup.step == backup.num_steps:
            if not self._first_step and self._train.position.next == (epoch, 0):
                raise ValueError(
                    f"epoch {epoch + 1} was not read from `train`: expected `fit` to be given the same, or what its `map` or `repeat` makes of it"
                )
            backup.end()
        elif not self.model.stop_training:
            raise ValueError(
                f"epoch {epoch + 1} ended after {backup.step} of {backup.num_steps} batches: expected what `train` gives, and no "
                "steps_per_epoch, with which Keras does not begin anew after an epoch that was resumed in its middle"
            )
        elif not self._has_whole_epochs and self._ends_with_epoch(backup.step):
            backup.save()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self.model._initial_epoch = None  # where no epoch was left
        if self._deletes and not self._is_lost:
            self._backup.delete()
