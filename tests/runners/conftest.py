"""Provides fixtures for the tests of Beam runners."""

import pathlib

import pytest

from engines import digest, prepare_here, write_source


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> pathlib.Path:
    """Returns a folder of source images that no test changes."""
    return write_source(tmp_path_factory.mktemp("source") / "in", num_images=300)


@pytest.fixture(scope="session")
def expected(source, tmp_path_factory) -> dict[str, str]:
    """Returns the digest of each file that the local runner writes."""
    output = tmp_path_factory.mktemp("local") / "out"
    prepare_here(source, output)
    return digest(output)
