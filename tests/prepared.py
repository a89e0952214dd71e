"""Runs `recordmill prepare` to create the datasets that tests read."""

import fcntl
import os
import pathlib
from typing import Callable, Mapping

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.__main__ import main
from made_images import encode, write_files

CLASSES = {"ant": 40, "bee": 40, "cow": 30}


def prepare_images(
    folder: pathlib.Path,
    *options: str,
    num_images: Mapping[str, int] = CLASSES,
    image_size: tuple[int, int] | None = None,
) -> pathlib.Path:
    """Prepares a dataset from class folders of color and gray images, and returns the path of the dataset.
    Args:
        folder: New directory for the images and the dataset.
        *options: Options of `recordmill prepare`.
        num_images: Number of images of each class.
        image_size: (height, width) of all images, or None for random sizes from 20 to 60.
    """
    files = {}
    for label, count in num_images.items():
        for index in range(count):
            pixels = picture(seed=len(files), image_size=image_size)
            if index % 5 == 0:
                pixels = pixels[..., 0]  # grey image
            image_format, extension = ("PNG", "png") if index % 3 == 0 else ("JPEG", "jpg")
            files[f"{label}/{index:03d}.{extension}"] = encode(pixels, image_format)
    source, output = write_files(folder / "source", files), folder / "made"
    assert main(["prepare", "--input", str(source), "--output", str(output), *options]) == 0
    return output


def make_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[pathlib.Path], pathlib.Path]) -> pathlib.Path:
    """Creates files once for all processes of a test run and returns the path of the files. Tests must not change the
    files.
    Args:
        tmp_path_factory: Provides the directory of the test run.
        name: Name of the new directory.
        make: Function that writes files into that directory and returns the path to be used.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with open(f"{folder}.made", "a+") as made:
        fcntl.flock(made, fcntl.LOCK_EX)
        made.seek(0)
        if not (location := made.read()):
            location = str(make(folder))
            made.write(location)
    return pathlib.Path(location)


def mixed_images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a dataset with 93 training images in four shards and 17 validation images in one shard."""
    return make_once(tmp_path_factory, "mixed", lambda folder: prepare_images(folder, "--num_shards", "train=4,validation=1"))


def uniform_images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a dataset with 24 x 32 pixel images that is small enough to be cached in memory."""
    return make_once(tmp_path_factory, "uniform", lambda folder: prepare_images(folder, image_size=(24, 32)))


def picture(seed: int, image_size: tuple[int, int] | None = None) -> np.ndarray:
    """Returns a smooth random image as a uint8 array of shape [height, width, 3], which JPEG compression hardly
    changes."""
    random = np.random.default_rng(seed)
    height, width = image_size or random.integers(20, 61, 2)
    blotches = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return np.asarray(blotches.resize((int(width), int(height)), Image.Resampling.BICUBIC))
