"""Tests that tensors are prepared, verified, trained on, analyzed, served and prepared again."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main

NUM, SHAPE = 40, (6, 5, 2)
MODULE = """
import tensorflow as tf
import tensorflow_transform as tft


def preprocessing_fn(inputs):
    images = tf.reshape(tf.io.decode_raw(inputs["image"], tf.float32), (-1, 6, 5, 2))
    return {"image": tft.scale_by_min_max(images), "heat": inputs["heat"], "label": inputs["label"]}
"""


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(NUM, *shape))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pathlib.Path:
    """Returns a folder with float images, their heat maps, and a dataset of both. The class of an image is the sign of
    its mean pixel value."""
    root = tmp_path_factory.mktemp("tensors")
    labels = np.arange(NUM) % 2
    images = (numbers(0, *SHAPE) / 4 + np.where(labels, 1, -1)[:, None, None, None]).astype(np.float32)
    np.savez(root / "a.npz", images=images, labels=labels, heat=numbers(1, 3, 5, 1).astype(np.float16))
    assert main(["prepare", "--input", str(root / "a.npz"), "--output", str(root / "out"), "--feature=heat:tensor", "--splits=train=1"]) == 0
    return root


def model_of(shape: tuple[int, ...]) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], jit_compile=False)
    return model


@pytest.mark.slow(3)
def test_model_is_trained_and_served_with_float_images(made, tmp_path, capsys):
    assert main(["verify", str(made / "out")]) == 0
    data, arrays = tf_input.open(made / "out"), np.load(made / "a.npz")
    train = data.batches("train", batch_size=8, seed=0, augment=tf_input.Augmentation(crop=False))
    model = model_of(SHAPE)
    assert model.fit(train, epochs=6, verbose=0).history["accuracy"][-1] == 1
    tf_input.export_serving(model, train, tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served")).signatures
    answers = served["serving_default"](image=tf.constant([image.tobytes() for image in arrays["images"]]))
    assert [label.decode() for label in answers["label"].numpy()] == [str(label) for label in arrays["labels"]]
    seen = served["preprocess"](image=tf.constant([arrays["images"][0].tobytes()]))["image"]
    np.testing.assert_array_equal(seen[0], arrays["images"][0])
    (x, y), *_ = tf_input.Sequence(data, "train", batch_size=8, inputs=("image", "heat"), shuffle=False)
    assert x["image"].dtype == np.float32 and x["heat"].dtype == np.float16 and y.shape == (8,)


def test_dataset_of_tensors_can_be_prepared_again(made, tmp_path):
    again = tmp_path / "again"
    assert main(["prepare", "--input", str(made / "out"), "--output", str(again)]) == 0
    first, second = (tf_input.open(directory)["train"] for directory in (made / "out", again))
    by_key = {item["key"]: item for item in first}
    assert len(second) == NUM
    for example in second:
        for name in ("image", "heat"):
            assert example[name].dtype == by_key[example["key"]][name].dtype
            np.testing.assert_array_equal(example[name], by_key[example["key"]][name])


@pytest.mark.slow
def test_tensors_pass_through_tensorflow_transform(made, tmp_path, capsys):
    (tmp_path / "my.py").write_text(MODULE)
    out = str(made / "out")
    assert main(["analyze", out]) == 2
    assert "'image'" in (error := capsys.readouterr().err) and "--preprocessing_module" in error
    assert main(["analyze", out, f"--preprocessing_module={tmp_path / 'my.py'}"]) == 0
    data, arrays = tf_input.open(out), np.load(made / "a.npz")
    x, _ = next(iter(data.batches("train", batch_size=NUM, inputs=("image", "heat"), transform=True, shuffle=False)))
    order = [int(entry["key"].rpartition("#")[2]) for entry in data["train"]]
    images = arrays["images"]
    np.testing.assert_allclose(x["image"], (images - images.min())[order] / (images.max() - images.min()), atol=1e-5)
    np.testing.assert_array_equal(x["heat"], arrays["heat"][order])
    assert main(["transform", out, str(tmp_path / "transformed")]) == 0
    transformed = tf_input.open(tmp_path / "transformed")
    assert (transformed.features["heat"].kind, transformed.features["heat"].dtype) == ("tensor", "float16")
    np.testing.assert_array_equal([item["heat"] for item in transformed["train"]], arrays["heat"][order])


def test_manifest_and_schema_describe_tensors(made):
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    manifest = json.loads((made / "out" / "manifest.json").read_text())
    (heat,) = [feature for feature in manifest["schema"] if feature["name"] == "heat"]
    assert heat == {"name": "heat", "kind": "tensor", "shape": [3, 5, 1], "dtype": "float16"}
    schema = text_format.Parse((made / "out" / "schema.pbtxt").read_text(), schema_pb2.Schema())
    (column,) = [feature for feature in schema.feature if feature.name == "heat"]
    assert column.type == schema_pb2.BYTES and not column.shape.dim
    assert "tensor float16  3 × 5 × 1" in str(tf_input.open(made / "out"))
