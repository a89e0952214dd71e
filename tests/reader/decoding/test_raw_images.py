"""Tests that `decode_images` returns the same pixels as the batches of the reader."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from prepared import prepare_images
from tf_input.dataset_format import read_manifest
from tf_input.decoding.raw_images import decode_images
from tf_input.decoding.schema import parse_examples


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    return prepare_images(tmp_path_factory.mktemp("raw"), "--splits=train=1", num_images={"a": 12, "b": 12})


@pytest.mark.slow(1.8)
@pytest.mark.parametrize("fit, size", [("crop", 24), ("crop", (10, 31)), ("stretch", (10, 31)), ("pad", 24)])
def test_decoded_pixels_equal_those_of_batches(directory, fit, size):
    dataset = tf_input.open(directory)
    files = sorted(map(str, directory.glob("*.tfrecord-*")))
    records = next(iter(tf.data.TFRecordDataset(files).batch(24)))
    stored = parse_examples(records, read_manifest(directory).schema, ["image"])["image"]
    (shown,) = [images for images, _ in dataset.batches("train", batch_size=24, image_size=size, fit=fit, shuffle=False)]
    assert (decode_images(stored, size, fit).numpy() == shown.numpy()).all()
    in_graph = tf.function(lambda images: decode_images(images, size, fit), autograph=False)
    assert (in_graph(stored[:5]).numpy() == shown[:5].numpy()).all()
    assert in_graph(stored[:0]).shape == (0, *np.broadcast_to(size, 2), 3)


def test_rejects_invalid_options_and_images(directory):
    images = tf.constant([b"no image"])
    with pytest.raises(ValueError, match="fit='whole' "):
        decode_images(images, 8, "whole")
    with pytest.raises(ValueError, match="image_size=0 "):
        decode_images(images, 0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_images(images, 8)
