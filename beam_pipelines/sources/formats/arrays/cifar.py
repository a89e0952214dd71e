"""Reads the binary version of CIFAR-10 and CIFAR-100 (cs.toronto.edu/~kriz/cifar.html).

A CIFAR-10 record starts with a label, and a CIFAR-100 record starts with a coarse and a fine label. The red, the green
and the blue values of the 32x32 pixels follow. The Python version of CIFAR is not supported, because its files are
pickles.
"""

import os
import re

import numpy as np

from beam_pipelines.config.columns import Column
from beam_pipelines.errors import CONTROL, UserError, printable, reject_repeated_names
from beam_pipelines.sources.arrays.array_columns import raw_layout
from beam_pipelines.sources.arrays.array_images import ImageSet, check_inside
from beam_pipelines.sources.arrays.array_streams import Field, Records, Stream
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import files_at, input_size

COARSE = "coarse_label"

_IMAGE = ("image", "u1", (3, 32, 32))
_CIFAR10 = np.dtype([("label", "u1"), _IMAGE])
_CIFAR100 = np.dtype([(COARSE, "u1"), ("label", "u1"), _IMAGE])
_SPLITS = re.compile(r"(?P<ten>data_batch_\d{1,3}|test_batch)\.bin|(?P<hundred>train|test)\.bin")

# Column -> the file with its class names, one name per line.
_NAMES_10 = {"label": "batches.meta.txt"}
_NAMES_100 = {"label": "fine_label_names.txt", COARSE: "coarse_label_names.txt"}
_MAX_NAMES_BYTES = 1 << 20

PYTHON_VERSION = re.compile(r"(.*/)?(data_batch_\d|test_batch|batches\.meta)|.*\.(pkl|pickle)")


def is_cifar(path: str) -> bool:
    """Returns whether a file is named like a file in the binary version of CIFAR."""
    return bool(_SPLITS.fullmatch(os.path.basename(path)))


def cifar_set(root: Root, path: str) -> ImageSet:
    """Returns the images in a file. Raises `UserError` if the file size is not a multiple of the record size."""
    match = _SPLITS.fullmatch(os.path.basename(path))
    dtype = _CIFAR10 if match["ten"] else _CIFAR100
    num_bytes = input_size(f"{root.path}/{path}")
    if not num_bytes or num_bytes % dtype.itemsize:
        raise UserError(
            f"{printable(path)}: {num_bytes} bytes, not a multiple of the {dtype.itemsize} bytes "
            f"of a CIFAR-{10 if match['ten'] else 100} record. For other records, use --source fixed_length."
        )
    records = Records(Stream(path), dtype, num_bytes // dtype.itemsize, 0, num_bytes)
    images = Field(records, "image")
    columns = {name: (lambda name=name: Field(records, name)) for name in dtype.names if name != "image"}
    return ImageSet(path, "test" if match[0].startswith("test") else "train", images, raw_layout(images), columns)


def coarse_column(images: ImageSet) -> tuple[Column, ...]:
    """Returns the column of the coarse labels of CIFAR-100, or () for CIFAR-10."""
    return (Column(COARSE, (COARSE,)),) if COARSE in images.columns else ()


def name_files(images: ImageSet) -> dict[str, str]:
    """Returns a mapping from columns to the paths where files with their class names are expected."""
    names = _NAMES_100 if COARSE in images.columns else _NAMES_10
    folder = os.path.dirname(images.name)
    return {column: f"{folder}/{name}".lstrip("/") for column, name in names.items()}


def read_names(root: Root, path: str) -> tuple[str, ...]:
    """Reads class names from a file, or returns () if there is no such file. Raises `UserError` for invalid names."""
    full_path = f"{root.path}/{check_inside(root, path)}"
    if not files_at(full_path).exists(full_path):
        return ()
    if files_at(full_path).size(full_path) > _MAX_NAMES_BYTES:
        raise UserError(
            f"{printable(path)}: has more than {_MAX_NAMES_BYTES} bytes. The file must contain a class name on each line."
        )
    try:
        names = tuple(line.strip() for line in files_at(full_path).read(full_path).decode().strip().split("\n"))
    except UnicodeDecodeError:
        raise UserError(f"{printable(path)}: the class names are not valid UTF-8. Convert the file to UTF-8.") from None
    for name in names:
        if not 0 < len(name) <= 256 or CONTROL.search(name):
            raise UserError(
                f"{printable(path)}: invalid class name {printable(name[:80])!r}. Each line must contain one class name."
            )
    reject_repeated_names(printable(path), names)
    return names
