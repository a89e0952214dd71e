"""Fixtures of the tests of the reader."""

from typing import Iterator

import pytest

import tf_input
from prepared import mixed_images, uniform_images


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tf_input.PreparedDataset:
    """Dataset of images of different sizes, with 93 training and 17 validation examples. It is never cached."""
    return tf_input.open(mixed_images(tmp_path_factory))


@pytest.fixture(scope="module")
def uniform(tmp_path_factory) -> tf_input.PreparedDataset:
    """Dataset of images of 24 x 32 pixels, which are cached in memory by default."""
    return tf_input.open(uniform_images(tmp_path_factory))


@pytest.fixture
def reset_tensorflow_seed() -> Iterator[None]:
    """Resets the global seed of TensorFlow after a test, because `keras.utils.set_random_seed` sets this seed."""
    yield
    import tensorflow as tf  # not needed by tests without TensorFlow

    tf.random.set_seed(None)
