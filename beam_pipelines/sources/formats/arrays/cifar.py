"""Reads the binary version of CIFAR-10 and CIFAR-100 (cs.toronto.edu/~kriz/cifar.html).

A CIFAR-10 record starts with a label, and a CIFAR-100 record starts with a coarse and a fine label. The red, the green
and the blue values of the 32x32 pixels follow. The Python version of CIFAR is not supported, because its files are
pickles.
"""

import os
import re

import numpy as np

from beam_pipelines.columns.column import Column
from beam_pipelines.sources.arrays.array_source import ImageSet, divide_records, record_set
from beam_pipelines.sources.arrays.array_streams import Stream
from beam_pipelines.storage.files import input_size

COARSE = "coarse_label"

_IMAGE = ("image", "u1", (3, 32, 32))
_CIFAR10 = np.dtype([("label", "u1"), _IMAGE])
_CIFAR100 = np.dtype([(COARSE, "u1"), ("label", "u1"), _IMAGE])
_SPLITS = re.compile(r"(?P<ten>data_batch_\d{1,3}|test_batch)\.bin|(?P<hundred>train|test)\.bin")

# Column -> the file with its class names, one name per line.
_NAMES_10 = {"label": "batches.meta.txt"}
_NAMES_100 = {"label": "fine_label_names.txt", COARSE: "coarse_label_names.txt"}

PYTHON_VERSION = re.compile(r"(.*/)?(data_batch_\d|test_batch|batches\.meta)|.*\.(pkl|pickle)")


def is_cifar(path: str) -> bool:
    """Returns whether a file is named like a file in the binary version of CIFAR."""
    return bool(_SPLITS.fullmatch(os.path.basename(path)))


def cifar_set(root: str, path: str) -> ImageSet:
    """Returns the images in a file. Raises `UserError` if the file size is not a multiple of the record size."""
    match = _SPLITS.fullmatch(os.path.basename(path))
    advice = f"These are not CIFAR-{10 if match['ten'] else 100} records. For other records, use --source fixed_length."
    records = divide_records(Stream(path), _CIFAR10 if match["ten"] else _CIFAR100, input_size(f"{root}/{path}"), advice)
    return record_set(path, "test" if match[0].startswith("test") else "train", records, "image")


def coarse_column(images: ImageSet) -> tuple[Column, ...]:
    """Returns the column of the coarse labels of CIFAR-100, or () for CIFAR-10."""
    return (Column(COARSE, (COARSE,)),) if COARSE in images.columns else ()


def name_files(images: ImageSet) -> dict[str, str]:
    """Returns a mapping from columns to the paths where files with their class names are expected."""
    names = _NAMES_100 if COARSE in images.columns else _NAMES_10
    return {column: os.path.join(os.path.dirname(images.name), name) for column, name in names.items()}
