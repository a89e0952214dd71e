"""Reads the headers of `.npy` files (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html)."""

import io
import tokenize
import warnings
from typing import NamedTuple

import numpy as np

from beam_pipelines.errors import printable

MAX_HEADER_BYTES = 1 << 14


class NpyHeader(NamedTuple):
    """The header of a `.npy` file.

    Attributes:
        dtype: The dtype of the array.
        shape: The shape of the array.
        is_fortran: Whether the array is in Fortran order.
        num_bytes: The length of the header in bytes, which is the offset of the values.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    is_fortran: bool
    num_bytes: int


def read_npy_header(data: bytes) -> NpyHeader:
    """Reads the header of an array in a `.npy` file.

    Args:
        data: The first bytes of the file. `MAX_HEADER_BYTES` are enough.

    Raises:
        ValueError: The bytes are not a valid header. The message has one line.
    """
    file = io.BytesIO(data[:MAX_HEADER_BYTES])
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"format version {version}, which is not (1, 0), (2, 0) or (3, 0)")
        # Versions 2 and 3 differ only in field names, which arrays of numbers or strings do not have.
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings(action="ignore"):  # NumPy warns about files from Python 2.
            shape, is_fortran, dtype = read(file, max_header_size=MAX_HEADER_BYTES)
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        reason = (printable(str(error)).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"not a NumPy array: {reason[:200]}") from error
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"an array of shape {shape}; it must have one or more values")
    return NpyHeader(dtype, shape, is_fortran, file.tell())
