"""The lowest versions that pyproject.toml declares prepare a dataset and read it. `make test-lowest` runs this once for each release."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_READ = "import tf_input; images, labels = next(iter(tf_input.open('out').batches('train', batch_size=8))); print(images.shape, sum(labels.numpy()))"

pytestmark = [
    pytest.mark.slow(seconds=120),
    pytest.mark.skipif("RECORDMILL_TEST_LOWEST" not in os.environ, reason="`make test-lowest` downloads the lowest versions"),
]


def test_the_lowest_versions_prepare_verify_and_read(tmp_path: pathlib.Path) -> None:
    for index, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)):
        path = tmp_path / "images" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    uv, python = pathlib.Path(sys.executable).with_name("uv"), tmp_path / "lowest" / "bin" / "python"
    run(uv, "venv", "--quiet", "--python", sys.executable, python.parents[1], folder=tmp_path)
    requirement = f"recordmill[beam] @ {CHECKOUT.as_uri()}"
    run(uv, "pip", "install", "--quiet", "--resolution=lowest-direct", "--python", python, requirement, folder=tmp_path)

    recordmill = python.with_name("recordmill")
    run(recordmill, "prepare", "--input", "images", "--output", "out", "--splits", "train=1", folder=tmp_path)
    run(recordmill, "verify", "out", folder=tmp_path)
    assert run(python, "-c", _READ, folder=tmp_path).split() == ["(8,", "32,", "32,", "3)", "4"]


def run(*command: str | os.PathLike, folder: pathlib.Path) -> str:
    """Runs a command, which must succeed, and returns its standard output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout
