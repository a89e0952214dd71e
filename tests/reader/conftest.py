"""Fixtures for the reader tests."""

from typing import Iterator

import pytest

import tf_input
from prepared import mixed_images, uniform_images


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tf_input.PreparedDataset:
    """A dataset of 93 training images and 17 validation images, which are not cached because their sizes differ."""
    return tf_input.open(mixed_images(tmp_path_factory))


@pytest.fixture(scope="module")
def uniform(tmp_path_factory) -> tf_input.PreparedDataset:
    """A dataset whose 24 x 32 pixel images are cached in memory by default."""
    return tf_input.open(uniform_images(tmp_path_factory))


@pytest.fixture
def reset_tensorflow_seed() -> Iterator[None]:
    """Resets TensorFlow's global seed after a test, because `keras.utils.set_random_seed` sets the global seed."""
    yield
    import tensorflow as tf  # not needed by tests without TensorFlow

    tf.random.set_seed(None)
