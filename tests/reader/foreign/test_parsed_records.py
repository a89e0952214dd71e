"""Tests that `open_tfrecords(parse=...)` parses TFRecords with a user-defined function."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from made_images import noise
from made_records import example, write_records

COUNT = 70  # more records than are inspected to detect the layout
IMAGES = [noise(index, 3, 4) for index in range(COUNT)]


def write(path, most_ids: int = 1, compression: str = "") -> str:
    stored = [
        {"picture": image.tobytes(), "shape": [3, 4, 3], "y": index % 5, "ids": [index] * (1 + index % most_ids)}
        for index, image in enumerate(IMAGES)
    ]
    return str(write_records(path, [example(item) for item in stored], compression))


def parser(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses a record with a label and an image of raw pixels, as in TensorFlow's tutorials."""
    features = {
        "picture": tf.io.FixedLenFeature([], tf.string),
        "shape": tf.io.FixedLenFeature([3], tf.int64),
        "y": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.io.parse_single_example(serialized, features)
    image = tf.reshape(tf.io.decode_raw(parsed["picture"], tf.uint8), parsed["shape"])
    if tf.reduce_max(image) > 0:  # a condition on a tensor requires AutoGraph
        image = tf.cast(image, tf.float32) / 255
    else:
        image = tf.zeros_like(image, tf.float32)
    return tf.ensure_shape(image, (3, 4, 3)), parsed["y"]


def parse_ids(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    parsed = tf.io.parse_single_example(serialized, {"ids": tf.io.VarLenFeature(tf.int64)})
    return {"ids": tf.sparse.to_dense(parsed["ids"])}


def test_pattern_can_be_tensor_array_list_or_dataset(tmp_path):
    paths = [write(tmp_path / "a.tfrecord"), write(tmp_path / "b.tfrecord")]
    patterns = {
        "string tensor": tf.constant(paths),
        "scalar tensor": tf.constant(f"{tmp_path}/*.tfrecord"),
        "array": np.array(paths),
        "object array": np.array(paths, object),
        "bytes": [path.encode() for path in paths],
        "generator": (path for path in paths),
        "paths": sorted(tmp_path.glob("*.tfrecord")),
        "dataset": tf.data.Dataset.list_files(paths),
    }
    for name, pattern in patterns.items():
        assert [*tf_input.open_tfrecords(pattern, parse=parser).paths["train"]] == paths, name
    for wrong in (3, None, [3], {"train": paths}, tf.constant([1]), np.array([paths])):
        with pytest.raises(ValueError, match="pattern=.*names of files"):
            tf_input.open_tfrecords(wrong, parse=parser)
    for files in (tf_input.open_tfrecords(paths, parse=parser), tf_input.open_tfrecords(paths[:1], "values=ids,label=y")):
        with pytest.raises(ValueError, match="dataset=.*batches.*recordmill prepare --source tfrecord"):
            tf_input.Sequence(files, "train", batch_size=8)


@pytest.mark.slow
def test_parse_function_defines_the_elements_of_batches(tmp_path):
    paths = [write(tmp_path / "a.tfrecord"), write(tmp_path / "b.tfrecord")]
    files = tf_input.open_tfrecords(paths, parse=parser, count=True)
    plain = files.batches(batch_size=32, shuffle=False)
    assert len(plain) == 5 and files.num_examples() == 2 * COUNT
    assert plain.element_spec == (tf.TensorSpec((None, 3, 4, 3), tf.float32), tf.TensorSpec((None,), tf.int64))
    x, y = next(iter(plain))
    np.testing.assert_allclose(x, np.stack(IMAGES[:32]) / 255, rtol=1e-6)
    assert y.numpy().tolist() == [index % 5 for index in range(32)]
    orders = [np.concatenate([x[:, 0, 0, 0] for x, _ in files.batches(batch_size=32, seed=seed)]) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).any() and sorted(orders[0]) == sorted(orders[2])
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(5)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.fit(files.batches(batch_size=32, drop_remainder=True), epochs=2, verbose=0)
    assert model.optimizer.iterations == 2 * (2 * COUNT // 32)


def test_features_of_varying_length_become_ragged_tensors(tmp_path):
    files = tf_input.open_tfrecords(write(tmp_path / "a.tfrecord", 3, "GZIP"), parse=parse_ids)
    assert (files.compression, files.num_examples()) == ("GZIP", None)
    (batch,) = files.batches(batch_size=COUNT, shuffle=False)
    assert batch["ids"].to_list() == [[index] * (1 + index % 3) for index in range(COUNT)]
    equal_lengths = tf_input.open_tfrecords(write(tmp_path / "b.tfrecord"), parse=parse_ids)
    assert next(iter(equal_lengths.batches(batch_size=COUNT)))["ids"].shape == (COUNT, 1)


def test_parse_function_reads_sequence_examples(tmp_path):
    records = []
    for index in range(1, 4):
        frames = [tf.train.Feature(float_list=tf.train.FloatList(value=[index, 0, frame])) for frame in range(index)]
        lists = tf.train.FeatureLists(feature_list={"frames": tf.train.FeatureList(feature=frames)})
        label = tf.train.Feature(int64_list=tf.train.Int64List(value=[index]))
        sequence = tf.train.SequenceExample(context=tf.train.Features(feature={"label": label}), feature_lists=lists)
        records.append(sequence.SerializeToString())
    path = str(write_records(tmp_path / "a.tfrecord", records))

    def parse(serialized):
        context, sequences = tf.io.parse_single_sequence_example(
            serialized, {"label": tf.io.FixedLenFeature([], tf.int64)}, {"frames": tf.io.FixedLenSequenceFeature([3], tf.float32)}
        )
        return sequences["frames"], context["label"]

    with pytest.raises(ValueError, match="tf.train.SequenceExample"):
        tf_input.open_tfrecords(path)
    ((x, y),) = tf_input.open_tfrecords(path, parse=parse).batches(batch_size=3, shuffle=False)
    assert x.to_list()[1] == [[2, 0, 0], [2, 0, 1]] and y.numpy().tolist() == [1, 2, 3]


def test_rejects_invalid_parse_functions_and_options(tmp_path):
    path = write(tmp_path / "a.tfrecord")
    cases = [
        (lambda serialized: None, "returned None"),
        (lambda serialized: (serialized,) * 4, "tuple of 4"),
        (lambda: 1, "too many positional arguments.*"),
        (lambda item: tf.io.parse_single_example(item, {"z": tf.io.FixedLenFeature([], tf.int64)}), "Feature: z .*required.*"),
        (lambda serialized: tf.reshape(tf.io.decode_raw(serialized, tf.uint8), (10**6,)), "function that takes one record"),
    ]
    for parse, message in cases:
        with pytest.raises(ValueError, match=f"a.tfrecord: parse=.*{message}") as caught:
            tf_input.open_tfrecords(path, parse=parse)
        assert "\n" not in str(caught.value)
    files = tf_input.open_tfrecords(path, parse=parser)
    for options, message in [
        ({"image_size": 8}, "image_size=8 "),
        ({"shuffle": "exact"}, "shuffle='exact' "),
        ({"split": "test"}, "split='test'"),
    ]:
        with pytest.raises(ValueError, match=message):
            files.batches(batch_size=2, **options)
    with pytest.raises(TypeError, match="batch_sise.*did you mean 'batch_size'"):
        files.batches(batch_sise=2)
    for options in ({"layout": "raw"}, {"label_names": ("a", "b")}):
        with pytest.raises(ValueError, match="parse=<function parser .*layout and label_names"):
            tf_input.open_tfrecords(path, parse=parser, **options)
    with pytest.raises(ValueError, match="parse='raw'"):
        tf_input.open_tfrecords(path, parse="raw")


@pytest.mark.parametrize("options", [{"parse": parser}, {"layout": "label=y,size=shape"}], ids=["parse function", "layout"])
def test_logs_that_each_host_reads_all_records(tmp_path, monkeypatch, caplog, options):
    """Logs no message about hosts if there is only one host or if a distribution strategy divides the data."""
    path = write(tmp_path / "made.tfrecord")
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}

    def messages() -> list[str]:
        caplog.clear()
        tf_input.open_tfrecords(path, **options).batches(batch_size=2)
        return [record.getMessage() for record in caplog.records if "hosts" in record.getMessage()]

    assert not messages()
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    (message,) = messages()
    assert "2 hosts" in message and "TF_CONFIG" in message
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert not messages()
