"""Trains Keras models on a prepared dataset with the backend that KERAS_BACKEND names. A process has one backend.

    KERAS_BACKEND=jax python keras_backend_training.py DATASET FOLDER IMAGES [ANALYSED_DATASET]
"""

from __future__ import annotations  # annotations would import TensorFlow

import os
import pathlib
import sys

import keras
import numpy as np

import tf_input

SIZE, NUM_BATCHES, NUM_VALID = (12, 16), 12, 17
OPTIONS = {"batch_size": 8, "image_size": SIZE, "seed": 0}


def check_layers(images: np.ndarray, path: pathlib.Path) -> None:
    """Checks that preprocessing layers work without TensorFlow, and that models with these layers can be saved."""
    from tf_input.dataset_format import Feature
    from tf_input.decoding.layers import augmentation_layer, normalization_layer

    statistics = {"splits": {"train": {"pixels": {"mean": [120.0, 110.0, 100.0], "variance": [4000.0, 4100.0, 4200.0]}}}}
    augment = augmentation_layer(tf_input.Augmentation(brightness=0.4, contrast=0.3, saturation=0.6, hue=0.1), seed=5)
    normalize = normalization_layer(statistics, Feature("image", "image"))
    assert "tensorflow" not in sys.modules
    model = keras.Sequential([keras.Input(images.shape[1:], dtype="uint8"), augment, normalize])
    normalized = model.predict(images, verbose=0)
    np.testing.assert_allclose(normalized, (images - [120, 110, 100]) / np.sqrt([4000, 4100, 4200]), atol=1e-4)
    varied = keras.ops.convert_to_numpy(augment(images, training=True))
    assert varied.shape == images.shape and varied.dtype == "float32" and (varied != images).any(axis=(1, 2, 3)).all()
    assert varied.min() >= 0 and varied.max() <= 255
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dense(1))
    model.compile(loss="mse", jit_compile=keras.backend.backend() == "jax")
    losses = model.fit(images, np.zeros(len(images)), batch_size=4, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    model.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_allclose(loaded.predict(images, verbose=0), model.predict(images, verbose=0), atol=1e-5)


class Interrupt(keras.callbacks.Callback):
    """Raises KeyboardInterrupt in the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (1, 6):
            raise KeyboardInterrupt


def make_model(flowers: tf_input.PreparedDataset) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((*SIZE, 3), dtype="uint8"),
        tf_input.augmentation_layer(tf_input.Augmentation(brightness=0.1), seed=1),
        flowers.normalization_layer(),
        keras.layers.AveragePooling2D(4),
        keras.layers.Flatten(),
        # On torch, dropout uses a global generator, whose state is not part of a checkpoint.
        *[keras.layers.Dropout(0.2)] * (keras.backend.backend() != "torch"),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    # Compilation is only the default for JAX here; torch would compile for minutes.
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=keras.backend.backend() == "jax")
    return model


class Batches(keras.callbacks.Callback):
    """Counts the batches of all epochs of `fit`."""

    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


def num_optimizer_steps(model: keras.Model) -> int:
    """Returns the number of optimizer steps."""
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


def check_fit_from_the_middle_of_an_epoch(flowers: tf_input.PreparedDataset) -> None:
    """Checks that `fit` makes one optimizer step per batch, and that all iterations are equally long."""
    model, batches = make_model(flowers), Batches()
    for step in (0, 5):
        train = flowers.batches("train", augment=True, **OPTIONS)
        train.iterator_state.go_to(0, step)
        batches.count, before = 0, num_optimizer_steps(model)
        model.fit(train, epochs=2, callbacks=[batches], verbose=0)
        assert batches.count == num_optimizer_steps(model) - before == 2 * NUM_BATCHES
        assert train.iterator_state.next == (2, step)


def fit(flowers: tf_input.PreparedDataset, folder: pathlib.Path, *callbacks: keras.callbacks.Callback) -> keras.Model:
    model, train = make_model(flowers), flowers.batches("train", augment=True, **OPTIONS)
    checkpoint = tf_input.BackupAndRestore(folder, train, save_freq=4)
    try:
        model.fit(train, epochs=2, callbacks=[checkpoint, *callbacks], verbose=0)
    except KeyboardInterrupt:
        pass
    return model


def check_mix(flowers: tf_input.PreparedDataset) -> None:
    """Checks that training on the same mixture from `tf_input.mix` and from `tf_input.Sequence` gives equal weights."""
    parts = {kind: (flowers, "train", share, {"select": f"label {kind} 'cow'"}) for kind, share in (("==", 1), ("!=", 2))}
    options, trained = {"augment": True, **OPTIONS}, []
    for data in (tf_input.mix(parts, stop=6, **options), tf_input.Sequence(tf_input.Mixture(parts, stop=6), workers=1, **options)):
        model = make_model(flowers)
        model.fit(data, epochs=1, shuffle=False, verbose=0)
        assert num_optimizer_steps(model) == len(data) == 6
        trained.append(model.get_weights())
    for item, other in zip(*trained, strict=True):
        np.testing.assert_allclose(item, other, rtol=1e-5, atol=1e-6)


def loop_in_jax(flowers: tf_input.PreparedDataset, folder: pathlib.Path, stop_at: tuple[int, int] | None = None) -> list[np.ndarray]:
    """Trains a model in a custom JAX loop until the end or until `stop_at`, and returns the weights."""
    import jax

    model, optimizer = make_model(flowers), keras.optimizers.Adam()
    train, variables = flowers.batches("train", augment=True, **OPTIONS), (model.trainable_variables, model.non_trainable_variables)

    def copy_state_to_variables() -> None:
        for variable, value in zip((*variables[0], *variables[1], *optimizer.variables), jax.tree.leaves(state), strict=True):
            variable.assign(value)

    def compute_loss(trainable, others, images, labels):
        predicted, others = model.stateless_call(trainable, others, images, training=True)
        return keras.losses.sparse_categorical_crossentropy(labels, predicted).mean(), others

    @jax.jit
    def step(state, images, labels):
        trainable, others, of_optimizer = state
        gradients, others = jax.grad(compute_loss, has_aux=True)(trainable, others, images, labels)
        trainable, of_optimizer = optimizer.stateless_apply(of_optimizer, gradients, trainable)
        return trainable, others, of_optimizer

    checkpoint = tf_input.Checkpoint(folder, model, train, optimizer=optimizer, save_freq=4, before_save=copy_state_to_variables)
    state = tuple([item.value for item in group] for group in (*variables, optimizer.variables))
    for epoch in checkpoint.epochs(2):
        for images, labels in checkpoint.batches(train.as_numpy_iterator()):
            if (epoch, checkpoint.step) == stop_at:
                return []
            state = step(state, images, labels)
    return model.get_weights()


def export_transformed(directory: str, path: pathlib.Path) -> None:
    """Trains a model on transformed features and exports the model for serving without TensorFlow Transform."""
    flowers = tf_input.open(directory)
    train = flowers.batches("train", batch_size=16, transform=True, seed=0)
    layers = [keras.Input(train.element_spec[0].shape[1:]), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(train, epochs=2, verbose=0).history
    assert history["loss"][-1] < history["loss"][0], history
    tf_input.export_serving(model, train, path)
    assert keras.__version__.startswith("3.") and "TF_USE_LEGACY_KERAS" not in os.environ
    names = {name.partition(".")[0] for name in sys.modules}
    assert not names & {"tensorflow_transform", "tfx_bsl", "apache_beam", "beam_pipelines", "tf_keras"}


def main(directory: str, folder: pathlib.Path, images: str, analysed: str = "") -> None:
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    check_layers(np.load(images), folder / "layers.keras")
    flowers = tf_input.open(directory)
    valid = flowers.batches("validation", **OPTIONS)
    complete = fit(flowers, folder / "whole")
    assert num_optimizer_steps(complete) == 2 * NUM_BATCHES
    loss, accuracy = complete.evaluate(valid, verbose=0)
    predicted = complete.predict(valid, verbose=0)
    labels = np.concatenate([y for _, y in flowers.as_numpy("validation", **OPTIONS)])
    assert predicted.shape == (NUM_VALID, 3) and np.isfinite(loss)
    assert abs((predicted.argmax(axis=1) == labels).mean() - accuracy) < 1e-6
    actual = flowers.predict(complete, "validation", batch_size=8, image_size=SIZE)
    np.testing.assert_allclose(actual["output"], predicted, rtol=1e-5, atol=1e-6)
    assert abs((actual["predicted"] == actual["label"]).mean() - accuracy) < 1e-6

    check_fit_from_the_middle_of_an_epoch(flowers)
    check_mix(flowers)
    fit(flowers, folder / "parts", Interrupt())
    assert [path.name for path in (folder / "parts").iterdir()] == ["checkpoint-00000001-00000004.npz"]
    resumed = fit(flowers, folder / "parts")
    assert num_optimizer_steps(resumed) == 2 * NUM_BATCHES
    for item, other in zip(resumed.get_weights(), complete.get_weights()):
        np.testing.assert_allclose(item, other, rtol=1e-5, atol=1e-6)

    train = tf_input.Sequence(flowers, "train", augment=True, workers=2, **OPTIONS)
    model = make_model(flowers)
    history = model.fit(train, validation_data=valid, epochs=2, shuffle=False, verbose=0).history
    assert len(history["val_loss"]) == 2 and train.epoch == 2 and num_optimizer_steps(model) == 2 * NUM_BATCHES
    # The sequence has the same batches in the same epochs.
    for item, other in zip(model.get_weights(), complete.get_weights()):
        np.testing.assert_allclose(item, other, rtol=1e-5, atol=1e-6)
    if keras.backend.backend() == "jax":
        expected = loop_in_jax(flowers, folder / "complete loop")
        loop_in_jax(flowers, folder / "loop", stop_at=(1, 6))
        assert [path.name for path in (folder / "loop").iterdir()] == ["checkpoint-00000001-00000004.npz"]
        for item, other in zip(loop_in_jax(flowers, folder / "loop"), expected, strict=True):
            np.testing.assert_array_equal(item, other)
    rows = model.predict(tf_input.Sequence(flowers, "validation", **OPTIONS), verbose=0)
    assert rows.shape == (NUM_VALID, 3)
    if analysed:
        export_transformed(analysed, folder / "served/1")
    print("trained on", keras.backend.backend())


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), *sys.argv[3:])
