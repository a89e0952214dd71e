"""Writes scikit-learn's handwritten digits as PNG files, with one folder per class."""

import collections
import io
import pathlib

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def write_folder(folder: pathlib.Path) -> int:
    """Writes the files `folder/<class>/NNNN.png` and returns the number of images. Existing files are overwritten.

    Raises:
        FileExistsError: The folder contains files that the demo did not write. They would become part of the dataset.
    """
    images = make_images()
    others = {path.relative_to(folder).as_posix() for path in folder.glob("**/*") if not path.is_dir()} - set(images)
    if others:
        raise FileExistsError(
            f"{folder / min(others)} was not written by the demo. Remove it, or choose another --output."
        )
    for name, image in images.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    return len(images)


def make_images() -> dict[str, bytes]:
    """Returns a dictionary from paths within the folder to the bytes of PNG files."""
    digits = load_digits()
    images, num_in_class = {}, collections.Counter()
    for pixels, label in zip(digits.images, digits.target):
        file = io.BytesIO()
        Image.fromarray((pixels * (255 / 16)).astype(np.uint8)).save(file, "png")  # Pixel values are 0 to 16.
        images[f"{label}/{num_in_class[label]:04d}.png"] = file.getvalue()
        num_in_class[label] += 1
    return images
