"""Fixtures for the tests of runners: source images, and the dataset that the local runner writes."""

import pathlib

import pytest

from engines import digest, prepare_here, write_source


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> pathlib.Path:
    """Returns the folder of a source that no test changes."""
    return write_source(tmp_path_factory.mktemp("source") / "in", num_images=300)


@pytest.fixture(scope="session")
def expected(source, tmp_path_factory) -> dict[str, str]:
    """Returns the digests of the files that the local runner writes, by file name."""
    output = tmp_path_factory.mktemp("local") / "out"
    prepare_here(source, output)
    return digest(output)
