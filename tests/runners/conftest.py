"""What several engines prepare, each as the local runner does."""

import pathlib

import pytest

from engines import digest, prepare_here, write_source


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> pathlib.Path:
    """A folder that no test changes."""
    return write_source(tmp_path_factory.mktemp("source") / "in", num_images=300)


@pytest.fixture(scope="session")
def expected(source, tmp_path_factory) -> dict[str, str]:
    """The files of the dataset that the local runner makes of it, by name."""
    output = tmp_path_factory.mktemp("local") / "out"
    prepare_here(source, output)
    return digest(output)
