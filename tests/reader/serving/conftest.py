"""What is served."""

import pytest

import tf_input
from analysed import analysed_images


@pytest.fixture(scope="session")
def flowers(tmp_path_factory) -> tf_input.PreparedDataset:
    """Images with the graph of an analysis."""
    return tf_input.open(analysed_images(tmp_path_factory))
