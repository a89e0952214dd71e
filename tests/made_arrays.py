"""Writes and lists array files for the tests of the sources `arrays` and `fixed_length`."""

import gzip
import os
import pathlib
import struct
from typing import Any, Callable

import numpy as np
import pytest

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader

_IDX_TYPES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx_file(array: np.ndarray) -> bytes:
    """Returns the bytes of an array in the IDX file format."""
    header = struct.pack(">HBB", 0, _IDX_TYPES[array.dtype.name], array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def make_pixels(num: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Returns random pixels, uint8 [num, *shape]."""
    return np.random.default_rng(seed).integers(0, 256, (num, *shape), dtype=np.uint8)


class Listing:
    """The listing of a source. Each part is listed with a new source object, as on Beam workers."""

    def __init__(self, make: Callable[..., Source], path: os.PathLike[str] | str, **options: Any) -> None:
        self.spool_directory = f"{os.fspath(path).rstrip('/')}.spool"
        config = PrepareOptions(input=os.fspath(path), output="out", name="digits", **options)
        self.source = make(config)
        self.parts = self.source.parts()
        self.num_ignored = 0
        actual: list[InputRecord | DeadLetter] = []
        for part in self.parts:
            source = make(config, spool_directory=self.spool_directory)
            actual += source.list(part)
            self.num_ignored += source.num_ignored
        self.images = [image for image in actual if isinstance(image, InputRecord)]
        self.dead_letters = {letter.path: letter for letter in actual if isinstance(letter, DeadLetter)}
        assert len(self.images) + len(self.dead_letters) == len(actual)
        assert len({image.key for image in self.images}) == len(self.images)

    @property
    def labels(self) -> list[str]:
        return [image.label for image in self.images]

    def of_split(self, split: str | None) -> list[InputRecord]:
        return [image for image in self.images if image.split == split]

    def pixels(self, images: list[InputRecord] | None = None) -> np.ndarray:
        """Returns the pixels of all listed images as an array of shape [n, height, width, channels]."""
        reader = SpoolReader(self.spool_directory)
        pixels = []
        for image in self.images if images is None else images:
            if image.spool:
                data = reader.read(image.spool, image.offset, image.num_bytes)
            else:
                path = f"{self.source.root}/{image.path}"
                data = files_at(path).read_range(path, image.offset, image.num_bytes)
            height, width, num_channels, is_planar, _ = image.raw
            shape = (num_channels, height, width) if is_planar else (height, width, num_channels)
            array = np.frombuffer(data, np.uint8).reshape(shape)
            pixels.append(array.transpose(1, 2, 0) if is_planar else array)
        reader.close()
        return np.stack(pixels)


def assert_rejected(make: Callable[..., Source], path: pathlib.Path, expected: str, **options: Any) -> None:
    """Checks that a listing fails with a one-line message that contains `expected`."""
    with pytest.raises(UserError) as caught:
        Listing(make, path, **options)
    message = str(caught.value)
    assert expected in message and message.isprintable(), message
