"""Tests that user functions are called in the same way as `Dataset.map` calls them."""

import functools
import json
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import picture, prepare_images
from tf_input.pipeline import input_pipeline
from tf_input.pipeline.user_functions import allow_state, apply_functions
from tf_input.read_config import ReadConfig
from resumed import batches_from

SIZE, COUNT, BATCH = 12, 50, 16


@pytest.fixture(scope="module")
def flowers(tmp_path_factory) -> tf_input.PreparedDataset:
    folder, num_images = tmp_path_factory.mktemp("flowers"), {"a": 30, "b": COUNT - 30}
    return tf_input.open(prepare_images(folder, "--splits=train=1", num_images=num_images))


@pytest.fixture(scope="module")
def images(flowers) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of two batches."""
    return arrays(read(flowers, batch_size=2 * BATCH))[0]


@pytest.fixture(scope="module")
def table_dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    """A dataset with objects, weights and strings."""
    root, lines = tmp_path_factory.mktemp("table_dataset"), []
    for index in range(COUNT):
        boxes = [[1, 1, 4 + index % 7, 5]] * (index % 3)
        objects = {"bbox": boxes, "categories": ["cat"] * len(boxes)}
        row = {"file_name": f"{index}.png", "objects": objects, "weight": 1 + index % 2, "words": f"é {index}"}
        write_files(root, {f"{index}.png": encode(picture(index, (16, 20)), "PNG")})
        lines.append(json.dumps(row) + "\n")
    (root / "rows.jsonl").write_text("".join(lines))
    options = ["--label=objects", "--weight_column=weight", "--feature=words:text", "--splits=train=1"]
    assert main(["prepare", "--input", str(root / "rows.jsonl"), "--output", str(root / "out"), *options]) == 0
    return tf_input.open(root / "out")


def read(dataset, **options) -> tf.data.Dataset:
    return dataset.batches("train", **{"batch_size": BATCH, "image_size": SIZE, "seed": 3, **options})


def arrays(data) -> list:
    return [tf.nest.map_structure(lambda tensor: tensor.numpy(), batch) for batch in data]


def assert_same(actual, expected) -> None:
    assert len(actual) == len(expected)
    for batch, expected_batch in zip(actual, expected):
        tf.nest.map_structure(np.testing.assert_array_equal, batch, expected_batch)


def map_examples(data: tf.data.Dataset, function) -> tf.data.Dataset:
    """Returns batches in which the function has been applied to each example."""
    config = ReadConfig(BATCH, map_example=function)
    return allow_state(data.map(tf.autograph.experimental.do_not_convert(lambda *batch: apply_functions(*batch, config))))


SEED = np.array([1, 2], np.int64)


def batches_of(parts, make_batch, spec) -> tf.data.Dataset:
    def generate():
        for part in parts:
            batch = make_batch(part)
            first = tf.nest.flatten(batch, expand_composites=False)[0]
            yield batch, SEED, range(first.nrows() if isinstance(first, tf.RaggedTensor) else len(first))

    slots = tf.TensorSpec([None], tf.int64)
    return tf.data.Dataset.from_generator(generate, output_signature=(spec, tf.TensorSpec([2], tf.int64), slots))


def rescale(x, y):
    return tf.cast(x, tf.float32) / 255, tf.one_hot(y, 2)


def mean_with_numpy(x, y):
    mean = tf.numpy_function(lambda pixels: pixels.mean(axis=(0, 1), dtype=np.float32), [x], tf.float32)
    return tf.ensure_shape(mean, [3]), y


def invert_first_class(x, y):
    if y == 0:  # AutoGraph converts this condition to tf.cond
        x = 255 - x
    return x, y


@functools.cache
def stateful() -> dict[str, Any]:
    """Creates stateful objects, such as tables and layers, outside the graph of the calling function."""
    with tf.init_scope():
        initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([5, 7], tf.int64))
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        dense.build((None, 3))
        words = keras.layers.StringLookup(vocabulary=["0", "1"], num_oov_indices=0)
        table, flip = tf.lookup.StaticHashTable(initializer, -1), keras.layers.RandomFlip(seed=0)
        return {"table": table, "variable": tf.Variable(2, dtype=tf.int64), "dense": dense, "flip": flip, "words": words}


def apply_layer(x, y):
    mean = tf.reduce_mean(tf.cast(x, tf.float32), axis=(0, 1))
    return stateful()["dense"](mean[tf.newaxis])[0], y


def apply_random_layer(x, y):
    flipped = stateful()["flip"](x[tf.newaxis], training=True)[0]
    return tf.reduce_mean(tf.cast(flipped, tf.float32), axis=(0, 1)), y


EXAMPLE_FUNCTIONS = {
    "different dtype": (rescale, lambda x, y: (x.astype(np.float32) / np.float32(255), np.eye(2, dtype=np.float32)[y])),
    "NumPy": (mean_with_numpy, lambda x, y: (x.mean(axis=(1, 2), dtype=np.float32), y)),
    "AutoGraph": (invert_first_class, lambda x, y: (np.where((y == 0)[:, None, None, None], 255 - x, x), y)),
    "dictionary": (lambda x, y: {"image": x}, lambda x, y: {"image": x}),
    "list as tensor": (lambda x, y: (x, [y, y + 1]), lambda x, y: (x, np.stack([y, y + 1], axis=1))),
    "additional weight": (lambda x, y: (x, y, 0.5), lambda x, y: (x, y, np.full(len(y), 0.5, np.float32))),
    "partial function": (functools.partial(lambda x, y, by: (x, y * by), by=2), lambda x, y: (x, y * 2)),
    "lookup table": (lambda x, y: (x, stateful()["table"].lookup(y)), lambda x, y: (x, np.where(y == 0, 5, np.where(y == 1, 7, -1)))),
    "variable": (lambda x, y: (x, y * stateful()["variable"]), lambda x, y: (x, y * 2)),
    "random layer": (apply_random_layer, lambda x, y: (x.mean(axis=(1, 2), dtype=np.float32), y)),
    "layer with variables": (apply_layer, lambda x, y: (x.mean(axis=(1, 2), dtype=np.float32).sum(axis=1, keepdims=True), y)),
    "layer with vocabulary": (lambda x, y: (x, stateful()["words"](tf.as_string(y))), lambda x, y: (x, y)),
    "tf.function": (tf.function(lambda x, y: (x, y + 1)), lambda x, y: (x, y + 1)),
}


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("case", EXAMPLE_FUNCTIONS)
def test_map_example_is_applied_to_each_example(images, case):
    function, expected = EXAMPLE_FUNCTIONS[case]
    for length in (None, BATCH) if case == "different dtype" else (None,):  # batch size, if it is known
        spec = tf.TensorSpec((length, SIZE, SIZE, 3), tf.uint8), tf.TensorSpec((length,), tf.int64)
        parts = slice(0, BATCH), slice(BATCH, 2 * BATCH)
        data = batches_of(parts, lambda part: (images[0][part], images[1][part]), spec)
        mapped = map_examples(data, function)
        actual = arrays(mapped)
        for start, batch in zip((0, BATCH), actual, strict=True):
            wanted = expected(*(image[start : start + BATCH] for image in images))
            tf.nest.map_structure(functools.partial(np.testing.assert_allclose, rtol=1e-6), batch, wanted)
        for leaf, value in zip(tf.nest.flatten(mapped.element_spec), tf.nest.flatten(actual[0])):
            assert leaf.shape.as_list() == [length, *value.shape[1:]] and leaf.dtype == value.dtype


@pytest.mark.slow
def test_functions_with_state_work_in_batches_and_sequences(flowers):
    options = {"batch_size": BATCH, "image_size": SIZE, "seed": 3, "map_example": lambda x, y: (x, stateful()["table"].lookup(y))}
    expected = [np.where(labels == 0, 5, 7) for _, labels in arrays(read(flowers))]
    sequence = tf_input.Sequence(flowers, "train", **options)
    for actual in ([labels for _, labels in arrays(flowers.batches("train", **options))], [sequence[step][1] for step in range(len(sequence))]):
        np.testing.assert_array_equal(np.concatenate(actual), np.concatenate(expected))


@pytest.mark.slow
def test_map_batch_is_applied_after_map_example(flowers):
    def swap(x, y):
        return {"first": x[::-1], "mean": tf.reduce_mean(x)}, tf.reverse(y, [0])

    plain = arrays(read(flowers))
    for drop_remainder in (False, True):
        batches = read(flowers, drop_remainder=drop_remainder, map_example=rescale, map_batch=swap)
        actual = arrays(batches)
        assert batches.cardinality() == len(actual) == COUNT // BATCH + (not drop_remainder)
        for (x, y), (inputs, labels) in zip(plain[: len(actual)], actual, strict=True):
            np.testing.assert_allclose(inputs["first"], x[::-1] / 255, rtol=1e-6)
            np.testing.assert_allclose(inputs["mean"], x.mean() / 255, rtol=1e-4)
            np.testing.assert_array_equal(labels, np.eye(2)[y[::-1]])
    assert batches.element_spec[0]["first"] == tf.TensorSpec((BATCH, SIZE, SIZE, 3), tf.float32)
    options = {"batch_size": BATCH, "image_size": SIZE, "drop_remainder": True}
    assert flowers.example_spec(map_example=rescale, map_batch=swap, **options) == batches.element_spec


@pytest.mark.slow
def test_functions_receive_weights_objects_and_texts(table_dataset):
    options = {"inputs": ("image", "words"), "targets": "objects"}
    functions = {"map_example": lambda x, y, weight: (x, y, weight), "map_batch": lambda *outputs: outputs}
    assert_same(arrays(read(table_dataset, **options, **functions)), arrays(read(table_dataset, **options)))


@pytest.mark.slow
def test_map_example_receives_objects_padded_as_in_the_batch(table_dataset):
    def cover(x, y, weight):
        assert y["bbox"].shape.as_list() == [None, 4] and weight.shape == ()
        return tf.strings.length(x), {"num": tf.shape(y["valid"])[0], "sum": tf.reduce_sum(y["bbox"])}, weight

    options = {"inputs": "words", "targets": "objects"}
    for (x, y, weight), actual in zip(
        read(table_dataset, **options), read(table_dataset, map_example=cover, **options), strict=True
    ):
        np.testing.assert_array_equal(actual[0], tf.strings.length(x))
        np.testing.assert_array_equal(actual[1]["num"], [y["bbox"].shape[1]] * len(x))
        np.testing.assert_allclose(actual[1]["sum"], tf.reduce_sum(y["bbox"], axis=(1, 2)), rtol=1e-5)
        np.testing.assert_array_equal(actual[2], weight)


def draw(x, y, seed):
    return tf.random.stateless_uniform([2], seed), y


@pytest.mark.slow
def test_function_seeds_depend_on_seed_epoch_and_step(flowers):
    options = {"map_example": draw, "map_batch": lambda x, y, seed: (x, tf.random.stateless_uniform([2], seed))}
    data = read(flowers, **options)
    epochs = [arrays(data), arrays(data)]
    assert_same(arrays(batches_from(read(flowers, **options), 1, 2)), epochs[1][2:])
    examples = np.concatenate([x for epoch in epochs for x, _ in epoch])
    batches = np.stack([y for epoch in epochs for _, y in epoch])
    assert len(np.unique(examples, axis=0)) == 2 * COUNT and len(np.unique(batches, axis=0)) == 2 * 4
    other = arrays(read(flowers, **{**options, "seed": 4}))
    assert not np.isin(np.concatenate([x for x, _ in other]), examples).any()
    assert abs(examples.mean() - 0.5) < 0.1


@pytest.mark.slow
def test_hosts_share_example_seeds_but_not_batch_seeds(flowers):
    """The function `map_batch` draws different random numbers on each host."""

    def draw_rows(x, y, seed):
        return x, tf.random.stateless_uniform(tf.shape(y), seed)

    options = {"batch_size": 10, "map_example": draw, "map_batch": draw_rows}
    alone = arrays(read(flowers, hosts=(1, 0), **options))
    hosts = [arrays(read(flowers, hosts=(2, index), **options)) for index in range(2)]
    for (complete, _), (first, first_draws), (second, second_draws) in zip(alone, *hosts, strict=True):
        np.testing.assert_array_equal(np.sort(np.concatenate([first, second]), axis=0), np.sort(complete, axis=0))
        assert not np.isin(second_draws, first_draws).any()
    assert_same(arrays(batches_from(read(flowers, hosts=(2, 1), **options), 0, 2)), hosts[1][2:])


@pytest.mark.slow
@pytest.mark.parametrize("growth, max_batches", [(1, 1 + 4 + 2), (8, 1 + 1 + 2)])
def test_read_buffer_limits_batches_computed_ahead(flowers, monkeypatch, growth, max_batches):
    """Fewer batches are computed in advance if the user's function returns larger batches."""
    monkeypatch.setattr(input_pipeline, "num_cores", lambda: 4)
    batch_bytes, calls = 4 * SIZE * SIZE * 3, []

    def count(x, y):
        return tf.numpy_function(lambda pixels: calls.append(0) or pixels, [x], tf.uint8), y

    def grow(x, y):
        return tf.ensure_shape(tf.tile(x, [1, 1, 1, growth]), [None, SIZE, SIZE, 3 * growth]), y

    batches = iter(read(flowers, batch_size=4, map_example=count, map_batch=grow, read_buffer=10 * batch_bytes))
    next(batches)
    num_calls = None
    while num_calls != len(calls):  # wait until no function is running
        num_calls = len(calls)
        time.sleep(0.5)
    assert num_calls <= 4 * max_batches < COUNT, "a batch has four examples"


def test_bound_seed_is_not_replaced(flowers):
    bound = functools.partial(draw, seed=tf.constant([1, 2], tf.int64))
    (x, _), *_ = arrays(read(flowers, map_example=bound))
    assert len(np.unique(x, axis=0)) == 1


def test_numpy_function_with_seed_resumes_exactly(flowers):
    """A function that uses NumPy's random numbers returns the same results in resumed and in uninterrupted epochs."""

    def shift(x, y, seed):
        def add_noise(x, seed):
            return x + np.random.default_rng(seed.view(np.uint64)).normal()

        return tf.ensure_shape(tf.numpy_function(add_noise, [x, seed], tf.float64), x.shape), y

    complete = arrays(read(flowers, map_batch=shift))
    assert_same(arrays(batches_from(read(flowers, map_batch=shift), 0, 2)), complete[2:])


def test_map_example_supports_short_and_empty_batches():
    """The test includes an empty batch and outputs of unknown shape."""
    data = batches_of([3, 0, 2], lambda size: tf.ones((size, 4)), tf.TensorSpec((None, 4)))
    functions = {
        "known": (lambda x: {"x": x, "sum": tf.reduce_sum(x)}, [(3, 4), (0, 4), (2, 4)]),
        "unknown": (lambda x: {"x": tf.numpy_function(np.copy, [x], tf.float32)}, [(3, 4), (0,), (2, 4)]),
    }
    for case, (function, shapes) in functions.items():
        assert [batch["x"].shape for batch in map_examples(data, function)] == shapes, case


def test_map_example_receives_ragged_features_as_vectors():
    def make_batch(size):
        return tf.RaggedTensor.from_row_lengths(tf.range(size * (size + 1) // 2), tf.range(1, size + 1))

    spec = tf.RaggedTensorSpec([None, None], tf.int32, row_splits_dtype=tf.int32)
    data = batches_of([3, 0, 2], make_batch, spec)
    same = [batch.to_list() for batch in map_examples(data, lambda x: x + 1)]
    assert same == [[[1], [2, 3], [4, 5, 6]], [], [[1], [2, 3]]]
    padded = map_examples(data, lambda x: tf.ensure_shape(tf.pad(x, [[0, 4 - tf.shape(x)[0]]]), [4]))
    expected = [[[0, 0, 0, 0], [1, 2, 0, 0], [3, 4, 5, 0]], [], [[0, 0, 0, 0], [1, 2, 0, 0]]]
    assert [batch.numpy().tolist() for batch in padded] == expected


INVALID_FUNCTIONS = {
    "not a function": ({"map_example": 3}, ValueError, "map_example=3"),
    "not a function of batches": ({"map_batch": "flip"}, ValueError, "map_batch='flip'"),
    "too few parameters": ({"map_example": lambda x: x}, TypeError, r"map_example=.* takes \(x\).* \(x, y\): too many"),
    "too many parameters": (
        {"map_batch": lambda x, y, weight: x}, TypeError, "map_batch=.*missing a required argument: 'weight'",
    ),
    "seed instead of y": (
        {"map_batch": lambda x, seed: x}, TypeError, r"map_batch=.* takes \(x, seed\).* \(x, y, seed\)",
    ),
    "returns nothing": ({"map_example": lambda x, y: None}, ValueError, "map_example=.*returned None"),
    "batch function returns nothing": (
        {"map_batch": lambda x, y: print(end="")}, ValueError, "map_batch=.*returned None",
    ),
}


@pytest.mark.parametrize("case", INVALID_FUNCTIONS)
def test_rejects_invalid_functions_before_reading(flowers, case):
    options, error, message = INVALID_FUNCTIONS[case]
    with pytest.raises(error, match=message):
        read(flowers, **options)


def test_rejects_examples_of_different_shapes_in_a_batch(flowers):
    data = read(flowers, shuffle=False, map_example=lambda x, y: (tf.repeat(x, y + 1, axis=0), y))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Cannot batch tensors with different shapes"):
        arrays(data)


@pytest.mark.slow
def test_keras_trains_on_mapped_batches(flowers):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="softmax")])
    model.compile(loss="categorical_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # avoids tracing the first step twice
    means = read(flowers, map_example=rescale, map_batch=lambda x, y: (tf.reduce_mean(x, axis=(1, 2)), y))
    assert np.isfinite(model.fit(means, epochs=2, verbose=0).history["loss"]).all()
