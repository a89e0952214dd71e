"""Fixtures for the serving tests."""

import pytest

import tf_input
from analysed import analysed_images


@pytest.fixture(scope="session")
def flowers(tmp_path_factory) -> tf_input.PreparedDataset:
    """A dataset of images with a transform graph."""
    return tf_input.open(analysed_images(tmp_path_factory))
