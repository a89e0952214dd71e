"""Creates small images and directories of images for tests."""

import io
import pathlib
from typing import Any, Mapping

import numpy as np
from PIL import Image


def noise(seed: int = 0, height: int = 16, width: int = 16) -> np.ndarray:
    """Returns random pixels as a uint8 array of shape [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encode(pixels: np.ndarray, image_format: str, **options: Any) -> bytes:
    """Returns the bytes of an image file in the given Pillow format."""
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, image_format, **options)
    return encoded.getvalue()


def exif(orientation: int) -> Image.Exif:
    """Returns EXIF data that contains only the given orientation."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def jpeg(seed: int = 0, height: int = 16, width: int = 16) -> bytes:
    return encode(noise(seed, height, width), "JPEG", quality=90)


def png(seed: int = 0, height: int = 16, width: int = 16) -> bytes:
    return encode(noise(seed, height, width), "PNG")


def write_files(root: pathlib.Path, files: Mapping[str, bytes]) -> pathlib.Path:
    """Writes files below the directory `root`, given as a mapping from paths to contents, and returns `root`."""
    root.mkdir(parents=True, exist_ok=True)
    for path, contents in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(contents)
    return root


def write_class_folders(root: pathlib.Path, num_images: Mapping[str, int], height: int = 16, width: int = 16) -> pathlib.Path:
    """Writes the given number of different JPEG files for each class, such as `CLASS/000.jpg`, and returns `root`."""
    paths = [f"{label}/{index:03d}.jpg" for label, count in num_images.items() for index in range(count)]
    return write_files(root, {path: jpeg(seed, height, width) for seed, path in enumerate(paths)})
