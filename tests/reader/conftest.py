"""What many tests of the reader begin with."""

from typing import Iterator

import pytest

import tf_input
from prepared import mixed_images, uniform_images


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tf_input.PreparedDataset:
    """Images of many sizes, which are never held in memory: 93 in four shards of `train`, 17 in one of `validation`."""
    return tf_input.open(mixed_images(tmp_path_factory))


@pytest.fixture(scope="module")
def uniform(tmp_path_factory) -> tf_input.PreparedDataset:
    """Images of 24 x 32 pixels, which are held in memory unless that is forbidden."""
    return tf_input.open(uniform_images(tmp_path_factory))


@pytest.fixture
def no_seed_stays() -> Iterator[None]:
    """Keras sets TensorFlow's too, on which the orders of other tests' epochs would then depend."""
    yield
    import tensorflow as tf  # which tests of plain values go without

    tf.random.set_seed(None)
