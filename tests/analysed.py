"""Creates an analyzed dataset once for all tests that do not change the dataset."""

import importlib.util
import pathlib

import pytest

from beam_pipelines.__main__ import main
from prepared import make_once, prepare_images

SIZE = 24
COUNTS = {"ant": 50, "bee": 50, "cow": 40}
NAMES = list(COUNTS)


def analysed_images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns an analyzed dataset of color and gray JPEG and PNG images of many sizes."""
    if importlib.util.find_spec("tensorflow_transform") is None:
        pytest.skip("the extra `transform` is not installed")
    return make_once(tmp_path_factory, "analysed", _analyse)


def _analyse(folder: pathlib.Path) -> pathlib.Path:
    made = prepare_images(folder, "--splits=train=0.8,validation=0.1,test=0.1", "--num_shards=train=3,validation=1,test=1", num_images=COUNTS)
    analyze(made, "--image_size", str(SIZE))
    return made


def analyze(made: pathlib.Path, *options: str) -> None:
    assert main(["analyze", str(made), *options]) == 0
