"""A small training that logs each batch which its model is fed with; as a script, so that it can be killed.

    python resumable_training.py DATASET FOLDER ORDER
"""

import hashlib
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tf_input

SIZE, BATCH_SIZE, EPOCHS, SAVE_FREQ = (12, 16), 8, 3, 4


class LoggedModel(keras.Sequential):
    """Writes a line for each batch that it is trained with."""

    log: pathlib.Path

    def train_step(self, data):
        tf.numpy_function(self._write, list(data), [])
        return super().train_step(data)

    def _write(self, *arrays: np.ndarray) -> None:
        with open(self.log, "a") as log:
            log.write(hashlib.md5(b"".join(one.tobytes() for one in arrays)).hexdigest() + "\n")


def make_model(log: pathlib.Path) -> LoggedModel:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((*SIZE, 3), dtype="uint8"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.AveragePooling2D(4),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = LoggedModel(layers)
    log.parent.mkdir(exist_ok=True)
    model.log = log
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def train(directory: str, folder: pathlib.Path, order: str, pause: float = 0.0, **options) -> tuple[list[np.ndarray], dict]:
    """Trains, or goes on; returns weights and the history of the epochs."""
    data = tf_input.open(directory).batches(
        "train", batch_size=BATCH_SIZE, image_size=SIZE, augment=True, shuffle=order, seed=0
    )
    model = make_model(folder / "log")
    wait = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(pause))
    backup = tf_input.BackupAndRestore(folder / "backups", data, **{"save_freq": SAVE_FREQ, **options})
    history = model.fit(data, epochs=EPOCHS, callbacks=[wait, backup], verbose=0)
    return model.get_weights(), history.history


if __name__ == "__main__":
    train(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], pause=0.05)
