"""Tests that records from common tutorials give equal examples with `open_tfrecords` and after `recordmill prepare`."""

import pathlib
from typing import Any, Callable, Iterable, Mapping, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, noise
from made_records import encode_mask

COUNT = 6
GREY = [noise(index, 7, 5)[..., :1] for index in range(COUNT)]
COLOUR = [noise(index, 8, 6) for index in range(COUNT)]
CLASSES = ("daisy", "rose", "tulip")


def _int64_feature(value):
    if not isinstance(value, list):
        value = [value]
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value))


def _bytes_feature(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _float_feature(value):
    return tf.train.Feature(float_list=tf.train.FloatList(value=value))


def raw_pixels(index: int, image: np.ndarray | None = None) -> dict:
    """Returns the features that `convert_to_records.py` from TensorFlow's MNIST tutorial writes."""
    image = GREY[index] if image is None else image
    rows, cols, depth = image.shape
    return {
        "height": _int64_feature(rows),
        "width": _int64_feature(cols),
        "depth": _int64_feature(depth),
        "label": _int64_feature(index % 3),
        "image_raw": _bytes_feature(image.tobytes()),
    }


def one_hot_pixels(index: int) -> dict:
    return {**raw_pixels(index), "label": _float_feature(np.eye(10)[index])}


def pixels_of_varying_size(index: int) -> dict:
    return raw_pixels(index, np.full((4 + index, 5, 3), 40 * index, np.uint8))


def image_and_label_only(index: int) -> dict:
    features = raw_pixels(index)
    return {"image_raw": features["image_raw"], "label": features["label"]}


def name_shape_data(index: int) -> dict:
    img = COLOUR[index]
    return {
        "name": _bytes_feature(CLASSES[index % 3].encode()),
        "shape": _int64_feature(list(img.shape)),
        "data": _bytes_feature(img.tobytes()),
    }


def floats_of_varying_size(index: int) -> dict:
    img = np.full((4 + index, 5, 3), 40 * index, np.uint8) / 255.0
    return {
        "name": _bytes_feature(CLASSES[index % 3].encode()),
        "shape": _int64_feature(list(img.shape)),
        "data": _bytes_feature(img.astype(np.float32).tobytes()),
    }


def floats(index: int) -> dict:
    img = COLOUR[index] / 255.0
    return {**name_shape_data(index), "data": _bytes_feature(img.tobytes())}


def matrix(index: int) -> np.ndarray:
    return np.random.default_rng(index).standard_normal((7, 20))


def image_and_matrix(index: int) -> dict:
    """Returns the features of an image and of an array that is not an image."""
    array = matrix(index)
    return {
        "feature": _bytes_feature(array.tobytes()),
        "shape": _int64_feature(list(array.shape)),
        "label": _int64_feature(index % 3),
        "image": _bytes_feature(encode(COLOUR[index], "PNG")),
    }


def feature_shape_label(index: int) -> dict:
    flags = [float(index >> bit & 1) for bit in range(4)]
    shape = np.array(COLOUR[index].shape, np.int64)
    return {"feature": _bytes_feature(COLOUR[index].tobytes()), "shape": _bytes_feature(shape.tobytes()), "label": _float_feature(flags)}


def integer_flags(index: int) -> dict:
    return {**feature_shape_label(index), "label": _int64_feature([int(index == 1), 0, index & 1])}


def slim(index: int) -> dict:
    return {**minimal_slim(index), "image/class/label": _int64_feature(index % 3)}


def minimal_slim(index: int) -> dict:
    height, width = COLOUR[index].shape[:2]
    return {
        "image/encoded": _bytes_feature(encode(COLOUR[index], "PNG")),
        "image/format": _bytes_feature(b"png"),
        "image/height": _int64_feature(height),
        "image/width": _int64_feature(width),
    }


SIDES = {"ymin": 0.125, "xmin": 0.25, "ymax": 0.5, "xmax": 1.0}
CORNERS = [f"{axis}{corner}" for corner in range(1, 5) for axis in "xy"]


def text_boxes(index: int) -> dict:
    """Returns the features that PixelLink's `convert_to_example` writes. Some images have no text."""
    count = index % 3
    boxes = {f"image/object/bbox/{side}": _float_feature([value] * count) for side, value in SIDES.items()}
    corners = {f"image/object/bbox/{name}": _float_feature([number / 8] * count) for number, name in enumerate(CORNERS)}
    return {
        **minimal_slim(index),
        "image/shape": _int64_feature([8, 6, 3]),
        "image/filename": _bytes_feature(f"{index}.png".encode()),
        **boxes,
        **corners,
        "image/object/bbox/label": _int64_feature([1] * count),
    }


def detection(index: int) -> dict:
    count = index % 3
    boxes = {f"image/object/bbox/{side}": _float_feature([value] * count) for side, value in SIDES.items()}
    texts = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"cat"] * count))
    source = {"image/source_id": _bytes_feature(f"{index}.png".encode())}
    classes = {"image/object/class/text": texts, "image/object/class/label": _int64_feature([1] * count)}
    return {**minimal_slim(index), **source, **boxes, **classes}


def mask_of(index: int) -> np.ndarray:
    return np.full((8, 6), index, np.uint8)


def segmentation(index: int) -> dict:
    return {**minimal_slim(index), "image/segmentation/class/encoded": _bytes_feature(encode_mask(mask_of(index)))}


def raw_masks(index: int) -> dict:
    height, width = COLOUR[index].shape[:2]
    return {
        "height": _int64_feature(height),
        "width": _int64_feature(width),
        "image_raw": _bytes_feature(COLOUR[index].tostring() if hasattr(np.ndarray, "tostring") else COLOUR[index].tobytes()),
        "mask_raw": _bytes_feature(mask_of(index).tobytes()),
    }


def label_lists(index: int) -> dict:
    return {
        "image": _bytes_feature(COLOUR[index].tobytes()),
        "label": _int64_feature([0, 2][: 1 + index % 2]),
        "shape": _int64_feature(list(COLOUR[index].shape)),
        "filename": _bytes_feature(f"{index}.png".encode()),
    }


class Case(NamedTuple):
    """A record layout, and the examples that `open_tfrecords` and a prepared dataset should return for its records.

    Attributes:
        write: Function that returns the features of a record.
        images: Expected images.
        y: Function that returns the expected target of a record, or None if there are only images.
        names: Value of `label_names`.
        layout: Layout of the records, or None to detect it.
        features: Functions that return the expected value of other features of a record, by feature name.
        compression: Compression of the file.
        image_size: Image size to read with.
    """

    write: Callable[[int], Mapping[str, tf.train.Feature]]
    images: Any
    y: Callable[[int], Any] | None
    names: tuple[str, ...] = ()
    layout: str | None = None
    features: Mapping[str, Callable[[int], Any]] = {}
    compression: str = ""
    image_size: tuple[int, int] | None = None


def class_index(index: int) -> Any:
    return index % 3


CASES = {
    "raw pixels with sizes": Case(raw_pixels, GREY, class_index),
    "raw pixels with sizes, GZIP": Case(raw_pixels, GREY, class_index, compression="GZIP"),
    "raw pixels, one-hot": Case(one_hot_pixels, GREY, lambda i: np.eye(10, dtype=np.float32)[i]),
    "raw pixels of varying size": Case(
        pixels_of_varying_size, [np.full((5, 5, 3), 40 * i, np.uint8) for i in range(COUNT)], class_index,
        image_size=(5, 5),
    ),
    "raw pixels with size in the layout": Case(
        image_and_label_only, GREY, class_index, layout="image=image_raw,label=label,height=7,width=5,depth=1"
    ),
    "name, shape, data": Case(name_shape_data, COLOUR, None, features={"name": lambda i: CLASSES[i % 3].encode()}),
    "name, shape, data with name as label": Case(
        name_shape_data, COLOUR, class_index, CLASSES, "image=data,shape=shape,label=name"
    ),
    "name, shape, data of floats": Case(
        floats, [image / 255.0 for image in COLOUR], class_index, CLASSES, "image=data:float64,shape=shape,label=name"
    ),
    "name, shape, data of floats of varying size": Case(
        floats_of_varying_size,
        [np.full((5, 5, 3), 40 * i / 255.0, np.float32) for i in range(COUNT)],
        class_index,
        CLASSES,
        "image=data:float32,shape=shape,label=name",
        image_size=(5, 5),
    ),
    "float matrix": Case(
        image_and_matrix, COLOUR, class_index, layout="image=image,matrix=feature:float64,shape=shape,label=label",
        features={"matrix": matrix},
    ),
    "feature, shape, label": Case(
        feature_shape_label, COLOUR, lambda i: np.float32([i >> bit & 1 for bit in range(4)])
    ),
    "feature, shape, label of integers": Case(integer_flags, COLOUR, lambda i: np.float32([i == 1, 0, i & 1])),
    "TF-Slim classification": Case(slim, COLOUR, class_index, CLASSES),
    "TF-Slim minimal": Case(minimal_slim, COLOUR, None),
    "text boxes": Case(text_boxes, COLOUR, lambda i: i % 3),
    "object detection": Case(detection, COLOUR, lambda i: i % 3),
    "segmentation": Case(segmentation, COLOUR, lambda i: mask_of(i)[..., np.newaxis]),
    "segmentation of raw masks": Case(raw_masks, COLOUR, lambda i: mask_of(i)[..., np.newaxis]),
    "label lists with shape and file name": Case(
        label_lists, COLOUR, lambda i: np.float32([1, 0, i % 2]), CLASSES,
        features={"filename": lambda i: f"{i}.png".encode()},
    ),
}


def write_records(path: pathlib.Path, write: Callable[[int], Mapping[str, tf.train.Feature]], compression: str = "") -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for index in range(COUNT):
            writer.write(tf.train.Example(features=tf.train.Features(feature=write(index))).SerializeToString())
    return path


def examples_by_image(batches: Iterable) -> dict[bytes, tuple]:
    """Returns a dictionary from the image pixels of each example to its label and features."""
    actual = {}
    for batch in batches:
        x, y = batch if isinstance(batch, tuple) else (batch, None)
        x = x if isinstance(x, dict) else {"image": x}
        if isinstance(y, dict):  # the number of objects is compared
            np.testing.assert_array_equal(y["bbox"][y["valid"]], np.tile(np.float32([*SIDES.values()]), (np.sum(y["valid"]), 1)))
            y = tf.reduce_sum(tf.cast(y["valid"], tf.int64), axis=1)
        for row, image in enumerate(np.asarray(x["image"])):
            features = {name: np.asarray(value[row]) for name, value in x.items() if name != "image"}
            actual[image.tobytes()] = (None if y is None else np.asarray(y[row]), features)
    assert len(actual) == COUNT
    return actual


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_tutorial_records_are_read_directly_and_after_prepare(tmp_path, name, capsys):
    case = CASES[name]
    path = write_records(tmp_path / "a.tfrecord", case.write, case.compression)
    names = ["--label_names", str(tmp_path / "labels.txt")] if case.names else []
    (tmp_path / "labels.txt").write_text("".join(f"{number}:{name}\n" for number, name in enumerate(case.names)))
    command = ["prepare", "--input", str(path), "--output", str(tmp_path / "out"), "--splits=train=1", "--num_shards=1", *names]
    assert main([*command, *(["--layout", case.layout] if case.layout else [])]) == 0
    assert ("recordmill: layout " in capsys.readouterr().err) == (case.layout is None)
    opened = tf_input.open_tfrecords(path, case.layout, label_names=case.names)
    assert opened.compression == case.compression
    inputs = ("image", *case.features)
    expected = {image.tobytes(): (case.y and case.y(index), index) for index, image in enumerate(case.images)}
    options = {"image_size": case.image_size or case.images[0].shape[:2], "inputs": inputs, "fit": "stretch", "seed": 1}
    prepared = tf_input.Sequence(tf_input.open(tmp_path / "out"), "train", batch_size=COUNT, **options)
    for dataset in (opened.batches("train", batch_size=4, **options), prepared):
        actual = examples_by_image(dataset)
        assert actual.keys() == expected.keys(), dataset
        for image, (y, features) in actual.items():
            wanted, index = expected[image]
            np.testing.assert_array_equal(y, wanted, err_msg=f"{dataset}")
            for name, value in case.features.items():
                np.testing.assert_array_equal(features[name], value(index), err_msg=name)


def plain_features(index: int) -> dict:
    return {"feat1": _int64_feature(index), "feat2": _int64_feature(10 * index)}


def ids_and_label(index: int) -> dict:
    return {"ids": _int64_feature([index + 1] * index), "label": _int64_feature(index % 3)}


@pytest.mark.slow
def test_records_without_images_are_read_directly_and_after_prepare(tmp_path):
    plain = write_records(tmp_path / "plain.tfrecord", plain_features)
    ids = write_records(tmp_path / "ids.tfrecord", ids_and_label)
    for path, options in ((plain, ["--label=none"]), (ids, [])):
        command = ["prepare", "--input", str(path), "--output", f"{path}.out", "--splits=train=1", "--num_shards=1", *options]
        assert main(command) == 0
    prepared = tf_input.Sequence(tf_input.open(f"{plain}.out"), "train", batch_size=COUNT)
    for (x,) in (tf_input.open_tfrecords(plain).batches("train", batch_size=COUNT), prepared):
        assert sorted(zip(np.asarray(x["feat1"]), np.asarray(x["feat2"]))) == [(index, 10 * index) for index in range(COUNT)]
    for opened in (tf_input.open_tfrecords(ids), tf_input.open(f"{ids}.out")):
        ((x, y),) = opened.batches("train", batch_size=COUNT, padding=False)
        assert sorted(zip(map(len, x.to_list()), y.numpy())) == [(index, index % 3) for index in range(COUNT)]
        assert all(set(row) == {len(row) + 1} for row in x.to_list() if row)
        ((padded, _),) = opened.batches("train", batch_size=COUNT)
        assert padded.shape == (COUNT, COUNT - 1)
