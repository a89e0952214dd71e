"""Reads IDX files, such as the files of MNIST (yann.lecun.com/exdb/mnist).

The header contains two zero bytes, the dtype, the number of dimensions, and each dimension as a big-endian uint32.
"""

import functools
import os
import re
import struct
from typing import Sequence

import numpy as np

from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.arrays.array_source import take_split
from beam_pipelines.sources.arrays.array_streams import Field, Stream, make_field, open_stream, read_exactly
from beam_pipelines.sources.formats.arrays.named_arrays import NamedArray
from beam_pipelines.storage.files import files_at

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_DIMENSIONS = 8

_NAME = re.compile(r"(?P<of>.*?)[-_.]?(?P<name>images|labels)[-_.]idx\d[-_.][a-z]+(\.gz)?", re.IGNORECASE)


def is_idx(path: str) -> bool:
    """Returns whether a file has the name of an IDX file, such as `train-images-idx3-ubyte`."""
    return bool(_NAME.fullmatch(os.path.basename(path)))


def idx_arrays(root: str, paths: Sequence[str]) -> list[NamedArray]:
    """Returns the arrays in IDX files. Uncompressed files come before their compressed copies."""
    arrays = []
    for path in sorted(paths):
        match = _NAME.fullmatch(os.path.basename(path))
        split, dataset = ("test", match["of"][:-4]) if match["of"].endswith("t10k") else take_split(match["of"])
        set_name = f"{os.path.dirname(path)}/{dataset.rstrip('-_.')}"
        arrays.append(NamedArray(set_name, split, match["name"].lower(), path, functools.partial(_open_idx, root, path)))
    return arrays


def check_one_dataset(arrays: Sequence[NamedArray]) -> None:
    """Raises `UserError` if a folder contains files of several datasets, such as the parts of EMNIST."""
    paths_by_set = {array.location: array.path for array in arrays}
    if len(paths_by_set) > 1:
        first, second = (printable(path) for path in sorted(paths_by_set.values())[:2])
        raise UserError(
            f"{first} and {second} are from different datasets. Exclude one of them, for example with "
            f"--ignore='{os.path.basename(second)[:8]}*'."
        )


def _open_idx(root: str, path: str) -> Field:
    stream = Stream(path, "gzip" if path.lower().endswith(".gz") else "")
    with open_stream(root, stream) as file:
        zeros, kind, num_dimensions = struct.unpack(">HBB", read_exactly(file, stream, 4))
        if zeros or kind not in _TYPES or not 0 < num_dimensions <= _MAX_DIMENSIONS:
            raise UserError(
                f"{stream.name}: not an IDX file: it begins with {zeros:04x}{kind:02x}{num_dimensions:02x} instead of "
                "0000, the type and the number of dimensions. Rename it, or exclude it with --ignore."
            )
        shape = struct.unpack(f">{num_dimensions}I", read_exactly(file, stream, 4 * num_dimensions))
    size = files_at(root).size(f"{root}/{path}")
    sizes = (None, size) if stream.packing else (size, None)
    return make_field(stream, np.dtype(_TYPES[kind]), shape, 4 + 4 * num_dimensions, sizes[0], num_packed=sizes[1])
