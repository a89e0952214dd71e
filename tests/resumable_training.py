"""Trains a small model, and logs a hash of each training batch to compare interrupted and uninterrupted runs. When run
as a script, it prints `held` at a given batch and waits until a test kills the process.

    python resumable_training.py DATASET FOLDER ORDER HELD_AT_BATCH
    python resumable_training.py DATASET FOLDER ORDER HELD_AT_BATCH NUM_HOSTS HOST  # of a mix, on one of several hosts
"""

import hashlib
import itertools
import pathlib
import sys
from typing import Callable

import keras
import numpy as np
import tensorflow as tf

import tf_input

SIZE, BATCH_SIZE, EPOCHS, SAVE_FREQ = (12, 16), 8, 3, 4


class LoggedModel(keras.Sequential):
    """A model that logs a hash of each training batch."""

    log: pathlib.Path

    def train_step(self, data):
        tf.numpy_function(self._write, list(data), [])
        return super().train_step(data)

    def _write(self, *arrays: np.ndarray) -> None:
        with open(self.log, "a") as log:
            log.write(hashlib.md5(b"".join(array.tobytes() for array in arrays)).hexdigest() + "\n")


def make_model(log: pathlib.Path) -> LoggedModel:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((*SIZE, 3), dtype="uint8"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.AveragePooling2D(4),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(center=False, scale=False),  # has no trainable parameters
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = LoggedModel(layers)
    log.parent.mkdir(exist_ok=True)
    model.log = log
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def read(directory: str, order: str, host: tuple[int, int] | None) -> tf.data.Dataset:
    """Returns the batches of `train`. If `host` is given, returns the batches that this host reads from a mixture."""
    dataset, options = tf_input.open(directory), {"batch_size": BATCH_SIZE, "image_size": SIZE, "augment": True, "shuffle": order, "seed": 0}
    if host is None:
        return dataset.batches("train", **options)
    parts = {kind: (dataset, "train", share, {"select": f"label {kind} 'cow'"}) for kind, share in (("==", 1), ("!=", 2))}
    return tf_input.mix(parts, stop=8, hosts=host, read_buffer=48_000, **options)


def train(
    directory: str,
    folder: pathlib.Path,
    order: str,
    after_batch: Callable[[], object] = list,
    host: tuple[int, int] | None = None,
    **options,
) -> tuple[list[np.ndarray], dict]:
    """Trains a model, or resumes an interrupted training run. Returns the weights and the history of the epochs."""
    data = read(directory, order, host)
    model = make_model(folder / "log")
    wait = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: after_batch())
    checkpoint = tf_input.BackupAndRestore(folder / "backups", data, **{"save_freq": SAVE_FREQ, **options})
    history = model.fit(data, epochs=EPOCHS, callbacks=[wait, checkpoint], verbose=0)
    return model.get_weights(), history.history


if __name__ == "__main__":
    directory, folder, order, held_at, *host = sys.argv[1:]
    num_batches = itertools.count(1)

    def hold() -> None:
        if next(num_batches) == int(held_at):
            print("held", flush=True)
            sys.stdin.read()

    train(directory, pathlib.Path(folder), order, hold, tuple(map(int, host)) or None)
