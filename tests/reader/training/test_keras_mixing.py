"""Tests Keras augmentation layers in the input pipeline and in the model, including layers that mix examples."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("reset_tensorflow_seed")]

OPTIONS = {"batch_size": 16, "seed": 0}


def make_model(*layers: keras.layers.Layer, loss: str = "categorical_crossentropy") -> keras.Model:
    pooling = [keras.layers.Rescaling(1 / 255), keras.layers.AveragePooling2D(8), keras.layers.Flatten()]
    dense = keras.layers.Dense(3, activation="softmax", kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    model = keras.Sequential([keras.Input((24, 32, 3)), *layers, *pooling, dense])
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # Otherwise the first step would be traced twice.
    return model


@functools.cache
def make_plain(uniform: tf_input.PreparedDataset) -> tuple[dict[str, np.ndarray], tf.data.Dataset, keras.Model, list[np.ndarray]]:
    """Returns a batch without augmentation, the validation batches, a model and the initial weights of the model."""
    images, labels = next(uniform.batches("train", one_hot=True, **OPTIONS).as_numpy_iterator())
    model = make_model()
    return {"images": images, "labels": labels}, uniform.batches("validation", one_hot=True, **OPTIONS), model, model.get_weights()


@pytest.mark.parametrize("location", ["map", "map_batch"])
def test_mixing_layers_can_be_mapped_over_batches(uniform, location):
    mix_up, cut_mix = keras.layers.MixUp(alpha=0.2, seed=1), keras.layers.CutMix(seed=2)
    erase = keras.layers.RandomErasing(factor=1.0, value_range=(0, 255), seed=3)
    vary = keras.layers.RandAugment(value_range=(0, 255), seed=4) if location == "map_batch" else keras.layers.RandomFlip(seed=4)

    def mix(images, labels):
        mixed = cut_mix(mix_up({"images": vary(images), "labels": labels}))
        return erase(mixed["images"]), mixed["labels"]

    if location == "map":
        train = uniform.batches("train", one_hot=True, **OPTIONS).map(mix)
    else:
        train = uniform.batches("train", one_hot=True, map_batch=mix, **OPTIONS)
    assert train.element_spec == (tf.TensorSpec((None, 24, 32, 3), tf.float32), tf.TensorSpec((None, 3), tf.float32))
    plain, validation, model, weights = make_plain(uniform)
    images, labels = next(train.as_numpy_iterator())
    assert (np.abs(images - plain["images"]).mean(axis=(1, 2, 3)) > 0).all() and -0.01 < images.min() and images.max() < 255.01
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-5)
    assert ((labels > 0.01).sum(axis=1) > 1).any() and not np.array_equal(labels, plain["labels"]), "some labels are mixed from two classes"
    model.set_weights(weights)
    history = model.fit(train, validation_data=validation, epochs=1, verbose=0).history
    assert np.isfinite([*history["loss"], *history["val_loss"]]).all()


class Mixing(keras.Model):
    """A model whose training step mixes the examples of each batch with MixUp and CutMix layers."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.model, self.mix_up, self.cut_mix = model, keras.layers.MixUp(alpha=0.2, seed=1), keras.layers.CutMix(seed=2)
        self.build((None, 24, 32, 3))

    def build(self, input_shape):
        self.built = True

    def call(self, images, training=None):
        return self.model(images, training=training)

    def train_step(self, data):
        mixed = self.cut_mix(self.mix_up(dict(zip(("images", "labels"), data))))
        return super().train_step((mixed["images"], mixed["labels"]))


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 9:  # Step 9 is in the middle of the second epoch of six batches.
            raise KeyboardInterrupt


def test_checkpoint_restores_random_state_of_the_model(uniform, tmp_path):
    """Resumed training reaches the same weights as uninterrupted training. Other random draws give other weights."""

    vary = [keras.layers.RandomFlip(seed=3), keras.layers.RandomErasing(value_range=(0, 255), seed=4)]
    model = Mixing(make_model(keras.layers.Pipeline(vary)))
    model.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    data = uniform.batches("train", one_hot=True, augment=True, **OPTIONS)
    variables = [*model.variables, *model.optimizer.variables]
    untrained = [variable.numpy() for variable in variables]

    def train(folder: str, *callbacks: keras.callbacks.Callback) -> list[np.ndarray]:
        """Trains the model from its initial weights and returns the final weights."""
        for variable, value in zip(variables, untrained, strict=True):
            variable.assign(value)
        data.iterator_state.go_to(0)
        checkpoint = tf_input.BackupAndRestore(tmp_path / folder, data, save_freq=1, delete_checkpoint=False)
        try:
            model.fit(data, epochs=2, callbacks=[checkpoint, *callbacks], verbose=0)
        except KeyboardInterrupt:
            pass
        return [variable.numpy() for variable in model.model.trainable_variables]

    complete = train("complete")
    stopped = train("parts", Interrupt())
    assert not all(map(np.array_equal, stopped, complete))
    for weight, expected in zip(train("parts"), complete, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)
