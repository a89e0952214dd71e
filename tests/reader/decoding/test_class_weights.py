"""Tests class weights for one target, several targets and masks, with and without stored weights."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_sources import write_jsonl

NUM, SIZE = 20, 8
OPTIONS = {"batch_size": NUM, "image_size": SIZE, "shuffle": False}


def prepare(tmp_path_factory, *options: str) -> tf_input.PreparedDataset:
    folder = tmp_path_factory.mktemp("weighed")
    source, out = folder / "in" / write_jsonl(folder / "in"), folder / "out"
    assert main(["prepare", "--input", str(source), "--output", str(out), "--splits=train=1", *options]) == 0
    return tf_input.open(out)


@pytest.fixture(scope="module")
def class_targets(tmp_path_factory) -> tf_input.PreparedDataset:
    """Returns a dataset with a target of two classes, a target of three classes, and stored weights."""
    return prepare(tmp_path_factory, "--label=weather", "--label=ground", "--label=tags:multi_label")


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> tf_input.PreparedDataset:
    return prepare(tmp_path_factory, "--label=class", "--weight_column=")


def read(dataset: tf_input.PreparedDataset, **options) -> tuple:
    """Returns the whole split as one batch. The batch has no images unless the option `inputs` requests images."""
    (batch,) = dataset.batches("train", **{**OPTIONS, "inputs": "key", **options}).as_numpy_iterator()
    return batch


@pytest.mark.slow
def test_one_target_has_one_weight_per_example(single):
    cases = [({"ant": 5.0, 2: 0.25}, [5, 1, 0.25]), ({"label": {"bee": 3}}, [1, 3, 1])]
    cases += [("balanced", list(single.class_weight().values()))]
    for option, table in cases:
        _, y, weight = read(single, class_weight=option)
        assert weight.dtype == np.float32
        np.testing.assert_allclose(weight, np.array(table)[y], rtol=1e-6, err_msg=str(option))
    sums = [weight[y == label].sum() for label in range(3)]
    np.testing.assert_allclose(sums, NUM / 3, rtol=1e-5)
    assert len(single.example_spec("train", **OPTIONS)) == 2


@pytest.mark.slow
def test_each_target_has_its_class_weights_times_stored_weights(class_targets):
    two = {"targets": ("weather", "ground")}
    _, y, stored = read(class_targets, **two)
    assert stored.shape == (NUM,) and len(set(stored)) == 2
    _, y, weights = read(class_targets, **two, class_weight={"ground": {0: 2.0, 1: 0.5}})
    np.testing.assert_allclose(weights["ground"], np.array([2, 0.5, 1])[y["ground"]] * stored)
    np.testing.assert_allclose(weights["weather"], stored)
    _, y, weights = read(class_targets, **two, class_weight="balanced")
    for name in two["targets"]:
        expected = class_targets.class_weight(target=name)
        np.testing.assert_allclose(weights[name], [expected[label] for label in y[name]] * stored, rtol=1e-6)
    *_, spec = class_targets.example_spec("train", **OPTIONS, **two, class_weight="balanced")
    assert spec["ground"] == tf.TensorSpec((None,), tf.float32)


@pytest.mark.slow
def test_keras_multiplies_the_loss_of_each_output_by_its_weights(class_targets):
    options = {"targets": ("weather", "ground"), "class_weight": {"ground": {0: 4.0}, "weather": {1: 0.0}}}
    image = keras.Input((SIZE, SIZE, 3))
    hidden = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(image))
    outputs = {name: keras.layers.Dense(n, activation="softmax", name=name)(hidden) for name, n in (("weather", 2), ("ground", 3))}
    model = keras.Model(image, outputs)
    model.compile("sgd", dict.fromkeys(outputs, "sparse_categorical_crossentropy"), jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # Otherwise the first step would be traced twice.
    data = class_targets.batches("train", **OPTIONS, **options)
    actual = model.evaluate(data, verbose=0, return_dict=True)["loss"]
    x, y, weights = read(class_targets, **options, inputs="image")
    expected = 0.0
    for name, predicted in model.predict(x, verbose=0).items():
        expected += (-np.log(predicted[np.arange(NUM), y[name]]) * weights[name]).mean()
    assert actual == pytest.approx(expected, rel=1e-4)
    assert np.isfinite(model.fit(data, verbose=0).history["loss"]).all()


def test_rejects_invalid_class_weights(class_targets, single):
    cases = [
        (single, {"class_weight": "even"}, "class_weight='even'"),
        (single, {"class_weight": {3: 1.0}}, "class_weight: 3 .*label"),
        (single, {"class_weight": {"bea": 1.0}}, "class_weight: 'bea' .*label"),
        (single, {"class_weight": {True: 1.0}}, "class_weight: True .*label"),
        (single, {"class_weight": {"weather": {0: 1}}}, "class_weight .*'weather'"),
        (single, {"class_weight": {0.5: 1.0}}, "class_weight: 0.5 .*label"),
        (single, {"class_weight": {1: None}}, "class_weight.*label 1 of label .*None"),
        (single, {"class_weight": {1: 10**400}}, "class_weight.*label 1 of label .*inf"),
        (single, {"class_weight": {1: -1.0}}, "class_weight.*label 1 of label .*-1.0"),
        (single, {"class_weight": {"label": "even"}}, "class_weight='even'"),
        (class_targets, {"class_weight": {0: 1.0}}, "class_weight=.*weather, ground"),
        (class_targets, {"class_weight": {"tags": {0: 1}}}, "class_weight .*'tags'"),
        (class_targets, {"class_weight": "balanced", "targets": "tags"}, "class_weight='balanced'.*tags"),
        (class_targets, {"class_weight": "balanced", "targets": ()}, "class_weight='balanced'.*none"),
    ]
    for dataset, options, message in cases:
        with pytest.raises(ValueError, match=message):
            dataset.batches("train", **OPTIONS, **options)
    with pytest.raises(ValueError, match="target='label'"):
        class_targets.class_weight(target="label")
    with pytest.raises(ValueError, match="one class.*tags"):
        class_targets.class_weight(target="tags")


def test_balanced_weights_give_equal_sums_per_class(class_targets):
    counts = json.loads((class_targets.directory / "statistics.json").read_text())["splits"]["train"]["other_label_counts"]
    for name in ("weather", "ground"):
        weights = class_targets.class_weight(target=name)
        sums = [weights[label] * counts[name][text] for label, text in enumerate(class_targets.features[name].label_names)]
        np.testing.assert_allclose(sums, NUM / len(sums))


@pytest.fixture(scope="module")
def masks(tmp_path_factory) -> tf_input.PreparedDataset:
    """Returns a dataset with masks, classes, numbers and stored weights. Mask pixels are the image index or 255."""
    return prepare(tmp_path_factory, "--label=mask_path:mask", "--label=class", "--label=age:float")


@pytest.mark.slow(5)
def test_mask_has_class_weights_per_pixel(masks):
    """Pixels of weight 0 do not contribute to the Keras loss. The weights are correct for batches of every shape."""
    (name,) = [target for target in masks.targets if masks.features[target].kind == "mask"]
    table = np.ones(256, np.float32)
    table[[3, 255]] = 2.5, 0
    for options in ({}, {"augment": True, "seed": 0}, {"hosts": (4, 1), "batch_size": 12, "cache_in_memory": 0}):
        _, y, weights = next(masks.batches("train", **{**OPTIONS, **options}, targets=name, class_weight={3: 2.5, 255: 0}).as_numpy_iterator())
        assert weights.dtype == np.float32 and weights.shape == y.shape[:3]
        stored = weights.max(axis=(1, 2)) / table[y[..., 0]].max(axis=(1, 2)).clip(1e-9)
        np.testing.assert_allclose(weights, table[y[..., 0]] * stored[:, None, None], rtol=1e-6, err_msg=str(options))
        assert {0.5, 1.5} >= set(stored[stored > 0].round(4).tolist())
    *_, stored = read(masks, targets="age")
    _, y, weights = read(masks, class_weight={name: {255: 0.0}, "class": {"ant": 4}})
    np.testing.assert_array_equal(weights[name], (y[name][..., 0] != 255) * stored[:, None, None])
    np.testing.assert_array_equal(weights["class"], np.where(y["class"] == 0, 4, 1) * stored)
    np.testing.assert_array_equal(weights["age"], stored)

    image = keras.Input((SIZE, SIZE, 3))
    zeros = keras.layers.Conv2D(1, 1, kernel_initializer="zeros", bias_initializer="zeros")(image)
    model = keras.Model(image, zeros)
    model.compile("sgd", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    data = masks.batches("train", **OPTIONS, targets=name, class_weight={255: 0})
    squares = np.where(y[name] == 255, 0, y[name].astype(np.float64) ** 2) * stored[:, None, None, None]
    assert model.evaluate(data, verbose=0) == pytest.approx(squares.mean(), rel=1e-5)
    assert np.isfinite(model.fit(data, verbose=0).history["loss"]).all()
    spec = masks.example_spec("train", **OPTIONS, targets=name, class_weight={255: 0})[2]
    assert spec == tf.TensorSpec((None, SIZE, SIZE), tf.float32)
    for option, message in {"balanced": "the pixels of .* are not counted", 256: "class_weight: 256 .*"}.items():
        with pytest.raises(ValueError, match=message):
            read(masks, targets=name, class_weight=option if option == "balanced" else {option: 1.0})


@pytest.mark.slow
def test_one_hot_option_converts_labels_to_vectors(class_targets, single, masks):
    numbers_of = {"single": read(single), "several": read(class_targets)}
    for dataset, one_hot, names in ((single, True, ["label"]), (single, "label", ["label"]), (class_targets, True, ["weather", "ground"]), (class_targets, ["ground"], ["ground"])):
        as_numbers, as_vectors = numbers_of["single" if dataset is single else "several"], read(dataset, one_hot=one_hot)
        numbers, vectors = ({"label": batch[1]} if dataset is single else batch[1] for batch in (as_numbers, as_vectors))
        for name, value in vectors.items():
            expected = np.eye(len(dataset.features[name].label_names), dtype=np.float32)[numbers[name]] if name in names else numbers[name]
            np.testing.assert_array_equal(value, expected, strict=True, err_msg=str(one_hot))
    _, y, weight = read(single, one_hot=True, class_weight={"bee": 3})
    np.testing.assert_array_equal(weight, np.array([1, 3, 1])[y.argmax(axis=1)])
    spec = single.example_spec("train", **OPTIONS, one_hot=True)[1]
    assert spec == tf.TensorSpec((None, 3), tf.float32)
    cases = [
        (single, "lable", "one_hot='lable'"),
        (class_targets, ["tags"], "one_hot=['tags']"),
        (single, 3, "one_hot=3"),
        (single, (), "one_hot=()"),
    ]
    for dataset, one_hot, message in cases:
        with pytest.raises(ValueError) as caught:
            dataset.batches("train", **OPTIONS, one_hot=one_hot)
        assert str(caught.value).startswith(message)
    with pytest.raises(ValueError, match="one_hot=True"):
        single.batches("train", **OPTIONS, targets=(), one_hot=True)
