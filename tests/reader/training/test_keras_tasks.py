"""Tests that Keras fits a model for each task directly on `batches`."""

import functools
import json
import pathlib
from typing import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("reset_tensorflow_seed")]

SIZE, COUNT, MAX_OBJECTS = 16, 48, 3
COLORS = np.array([[220, 40, 40], [40, 220, 40], [40, 40, 220]], np.uint8)
NAMES = ("red", "green", "blue")


def write_row(root: pathlib.Path, index: int) -> dict:
    """Writes a gray image with up to three colored squares, and returns a row with their colors and positions."""
    random = np.random.default_rng(index)
    pixels = random.integers(100, 130, (24, 24, 3), dtype=np.uint8)
    mask, boxes, labels = np.zeros((24, 24), np.uint8), [], []
    for _ in range(random.integers(1, MAX_OBJECTS + 1)):
        label, (top, left) = int(random.integers(3)), random.integers(0, 14, 2).tolist()
        pixels[top : top + 10, left : left + 10] = COLORS[label]
        mask[top : top + 10, left : left + 10] = label + 1
        boxes.append([left, top, 10, 10])
        labels.append(NAMES[label])
    write_files(root, {f"{index}.png": encode(pixels, "PNG"), f"masks/{index}.png": encode(mask, "PNG")})
    return {
        **{"file_name": f"{index}.png", "mask": f"masks/{index}.png", "objects": {"bbox": boxes, "categories": labels}},
        **{"colors": sorted(set(labels)), "weather": labels[0], "ground": ("one", "two", "three")[len(labels) - 1]},
        **{"share": float((mask > 0).mean()), "age": index / COUNT, "weight": 1 + index % 2},
    }


@pytest.fixture(scope="module")
def prepare(tmp_path_factory) -> Callable[..., tf_input.PreparedDataset]:
    """Returns a function that prepares a dataset from the table rows with the given options of `recordmill prepare`."""
    root = tmp_path_factory.mktemp("rows")
    lines = [json.dumps(write_row(root, index)) + "\n" for index in range(COUNT)]
    (root / "rows.jsonl").write_text("".join(lines))

    @functools.cache
    def prepare(*options: str) -> tf_input.PreparedDataset:
        out = tmp_path_factory.mktemp("made") / "out"
        assert main(["prepare", "--input", str(root / "rows.jsonl"), "--output", str(out), "--splits=train=1", *options]) == 0
        return tf_input.open(out)

    return prepare


def image_input() -> tuple[keras.KerasTensor, keras.KerasTensor]:
    image = keras.Input((SIZE, SIZE, 3), dtype="uint8", name="image")
    return image, keras.layers.Rescaling(1 / 127.5, -1)(image)


def extract_features(pixels: keras.KerasTensor) -> keras.KerasTensor:
    hidden = keras.layers.Conv2D(8, 3, strides=2, activation="relu", padding="same")(pixels)
    hidden = keras.layers.Conv2D(16, 3, strides=2, activation="relu", padding="same")(hidden)
    return keras.layers.Flatten()(hidden)


def fit(model: keras.Model, dataset: tf_input.PreparedDataset, loss, epochs: int = 4, **options) -> keras.callbacks.History:
    """Fits the model for a few steps and asserts that the loss is finite and decreases."""
    keras.utils.set_random_seed(0)
    train = dataset.batches("train", batch_size=16, image_size=SIZE, seed=0, **options)
    for layer in model.layers:  # The weights are initialized again with the seed that was just set.
        if hasattr(layer, "kernel"):
            layer.kernel.assign(layer.kernel_initializer(layer.kernel.shape))
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # Otherwise the first step would be traced twice.
    history = model.fit(train, epochs=epochs, verbose=0)
    losses = history.history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0], losses
    return history


class Detector(keras.Model):
    """A model that predicts a box and class scores for each padded object of an image."""

    def __init__(self) -> None:
        super().__init__()
        image, pixels = image_input()
        outputs = keras.layers.Dense(MAX_OBJECTS * (4 + len(NAMES)))(extract_features(pixels))
        self.body = keras.Model(image, keras.layers.Reshape((MAX_OBJECTS, 4 + len(NAMES)))(outputs))

    def call(self, images):
        outputs = self.body(images)
        return {"bbox": keras.ops.sigmoid(outputs[..., :4]), "scores": outputs[..., 4:]}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        valid = keras.ops.cast(y["valid"], "float32")
        boxes = keras.ops.mean(keras.ops.abs(y["bbox"] - y_pred["bbox"]), axis=-1)
        labels = keras.ops.maximum(y["label"], 0)
        classes = keras.losses.sparse_categorical_crossentropy(labels, y_pred["scores"], from_logits=True)
        return keras.ops.sum((boxes + classes) * valid) / keras.ops.maximum(keras.ops.sum(valid), 1)


OBJECTS = ("--label=objects", "--weight_column=")


def test_trains_object_detector(prepare):
    dataset = prepare(*OBJECTS)
    assert dataset.class_names == tuple(sorted(NAMES))
    keras.utils.set_random_seed(0)
    model = Detector()
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    untrained = [variable.numpy() for variable in variables]
    for options in ({}, {"augment": tf_input.Augmentation(0.5)}, {"fit": "pad", "augment": tf_input.Augmentation(crop=False)}):
        for variable, value in zip(variables, untrained):
            variable.assign(value)
        train = dataset.batches("train", batch_size=16, image_size=SIZE, seed=0, padding={"objects": MAX_OBJECTS}, **options)
        losses = model.fit(train, epochs=4, verbose=0).history["loss"]
        assert np.isfinite(losses).all() and losses[-1] < losses[0], (options, losses)


@pytest.mark.parametrize(("arguments", "options"), [(("--weight_column=",), {}), ((), {"augment": True})], ids=str)
def test_trains_segmentation_model(prepare, arguments, options):
    dataset = prepare("--label=mask:mask", *arguments)
    image, pixels = image_input()
    wide = keras.layers.Conv2D(8, 3, activation="relu", padding="same")(pixels)
    deep = keras.layers.Conv2D(16, 3, activation="relu", padding="same")(keras.layers.MaxPooling2D()(wide))
    joined = keras.layers.Concatenate()([wide, keras.layers.UpSampling2D()(deep)])
    model = keras.Model(image, keras.layers.Conv2D(4, 1, activation="softmax")(joined))
    fit(model, dataset, "sparse_categorical_crossentropy", **options)
    # The mask covers the colored squares, so a few steps are enough to find most of it.
    x, y, *_ = next(iter(dataset.batches("train", batch_size=COUNT, image_size=SIZE)))
    assert (model.predict(x, verbose=0).argmax(axis=-1) == y.numpy()[..., 0]).mean() > 0.7


LABELS = ("--label=weather", "--label=ground", "--label=colors:multi_label", "--weight_column=")


def test_trains_model_with_two_outputs(prepare):
    dataset = prepare(*LABELS)
    image, pixels = image_input()
    hidden = extract_features(pixels)
    outputs = {name: keras.layers.Dense(3, activation="softmax", name=name)(hidden) for name in ("weather", "ground")}
    loss = dict.fromkeys(outputs, "sparse_categorical_crossentropy")
    history = fit(keras.Model(image, outputs), dataset, loss, targets=tuple(outputs))
    assert {"weather_loss", "ground_loss"} <= set(history.history)


def test_trains_multi_label_classifier(prepare):
    dataset = prepare(*LABELS)
    image, pixels = image_input()
    model = keras.Model(image, keras.layers.Dense(3, activation="sigmoid")(extract_features(pixels)))
    fit(model, dataset, "binary_crossentropy", augment=True, targets="colors")


def test_trains_regression_with_two_inputs_and_weights(prepare):
    dataset = prepare("--label=share:float", "--feature=age:float")
    image, pixels = image_input()
    age = keras.Input((), name="age")
    joined = keras.layers.Concatenate()([extract_features(pixels), keras.layers.Reshape((1,))(age)])
    model = keras.Model({"image": image, "age": age}, keras.layers.Dense(1)(joined))
    fit(model, dataset, "mse", inputs=("image", "age"))
    _, _, weight = next(iter(dataset.batches("train", batch_size=COUNT, image_size=SIZE)))
    assert sorted(weight.numpy()) == [1] * 24 + [2] * 24


def test_keras_input_can_be_built_from_example_spec(prepare):
    dataset = prepare(*OBJECTS)
    x, y = dataset.example_spec("train", batch_size=8, image_size=SIZE, padding={"objects": MAX_OBJECTS})
    image = keras.Input(x.shape[1:], dtype=x.dtype.name)
    assert keras.Model(image, image).output_shape == (None, SIZE, SIZE, 3)
    assert y["bbox"] == tf.TensorSpec((None, MAX_OBJECTS, 4), tf.float32)


@pytest.mark.parametrize("labels", [["--label=mask:mask"], ["--label=mask:mask", "--label=share:float"]])
def test_example_weight_applies_to_the_whole_dense_target(prepare, labels):
    """The loss of each example is multiplied by its weight, for dense targets of any size."""
    dataset = prepare(*labels)
    image, pixels = image_input()
    zeros = keras.layers.Conv2D(1, 1, kernel_initializer="zeros", bias_initializer="zeros")(pixels)
    outputs = {"mask": zeros, "share": keras.layers.Flatten()(keras.layers.GlobalAveragePooling2D()(zeros))}
    batches = dataset.batches("train", batch_size=COUNT, image_size=SIZE)
    _, y, weights = next(iter(batches))
    if len(labels) == 1:
        outputs, y, weights = outputs["mask"], {"mask": y}, {"mask": weights}
    model = keras.Model(image, outputs)
    model.compile(loss="mse" if len(labels) == 1 else {"mask": "mse", "share": "mse"}, jit_compile=False)
    expected = 0.0
    for name, target in y.items():
        squares = np.square(target.numpy().astype(np.float64)).reshape(COUNT, -1).mean(axis=1)
        expected += float((squares * weights[name].numpy().ravel()).mean())
    actual = model.evaluate(batches, verbose=0, return_dict=True)["loss"]
    assert abs(actual - expected) < 1e-4 * expected, (actual, expected)
    assert weights["mask"].shape == (COUNT, 1, 1)
