"""Reads the numeric arrays of an example from `.npy` files and from nested lists."""

import math

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.npy_header import NpyHeader, read_npy_header
from beam_pipelines.images.resize import Geometry

_MAX_ARRAY_VALUES = 2**28  # 1 GiB of float32, because a serialized example must be smaller than 2 GiB.
_MAX_EXACT = 2**24  # The largest integer up to which float32 is exact.


def array_shape(data: bytes) -> tuple[int, ...]:
    """Reads the shape of an array from the first 64 KiB of a `.npy` file.

    Raises:
        InvalidInput: `bad_array`: the file does not contain an array of numbers.
    """
    return _read_header(data).shape


def read_array(data: bytes, shape: tuple[int, ...], geometry: Geometry) -> np.ndarray:
    """Reads an array from a `.npy` file, as float32 in C order. Pickles are never loaded.

    Raises:
        InvalidInput: `bad_array`: the file is invalid, has another shape, or has numbers that are not finite;
            `size_mismatch`: the image is rotated, and it is unknown whether the array must also be rotated.
    """
    dtype, actual_shape, is_fortran, start = _read_header(data)
    if actual_shape != tuple(shape):
        raise InvalidInput("bad_array", f"an array of shape {actual_shape}; it must be {tuple(shape)}")
    if len(data) - start != math.prod(actual_shape) * dtype.itemsize:
        sizes = f"{len(data) - start} bytes of {dtype.name} {actual_shape} instead of {math.prod(actual_shape) * dtype.itemsize}"
        raise InvalidInput("bad_array", sizes)
    check_upright(actual_shape, geometry)
    return to_float32(np.frombuffer(data, dtype, offset=start).reshape(actual_shape, order="F" if is_fortran else "C"))


def check_upright(shape: tuple[int, ...], geometry: Geometry) -> None:
    """Rejects an array with two or more dimensions if its image has an EXIF rotation.

    Raises:
        InvalidInput: `size_mismatch`: the image is rotated, and it is unknown whether the array must also be rotated.
    """
    if len(shape) >= 2 and geometry.orientation != 1:
        rotated = f"an array of shape {shape} for an image that its EXIF orientation, {geometry.orientation}, rotates"
        raise InvalidInput("size_mismatch", f"{rotated}; save the image upright, without an EXIF orientation")


def to_float32(values: np.ndarray) -> np.ndarray:
    """Converts numbers to float32 in C order, with rounding.

    Raises:
        InvalidInput: `bad_array`: a number is not finite as float32, or an integer cannot be represented exactly.
    """
    with np.errstate(over="ignore"):  # Overflow becomes infinite, which is rejected below.
        converted = values.astype(np.float32, order="C")
    if not np.isfinite(converted).all():
        raise InvalidInput("bad_array", "a number that is NaN, infinite or too large for float32")
    if values.dtype.kind in "iu" and values.dtype.itemsize > 2 and not _holds(converted, values):
        raise InvalidInput("bad_array", "an integer that float32 cannot store exactly; it must have at most 24 bits")
    return converted


def _holds(converted: np.ndarray, integers: np.ndarray) -> bool:
    is_small = (-_MAX_EXACT <= integers).all() and (integers <= _MAX_EXACT).all()
    return bool(is_small or (converted == integers.astype(np.longdouble)).all())


def nested_shape(cell: list) -> tuple[int, ...]:
    """Returns the shape of nested lists of numbers.

    Raises:
        InvalidInput: `bad_array`: the cell has no numbers, or its inner lists differ in length.
    """
    return _nested(cell).shape


def read_nested(cell: list, shape: tuple[int, ...]) -> np.ndarray:
    """Converts nested lists, or a flat list in row-major order, to a float32 array.

    Raises:
        InvalidInput: `bad_array`: the number of values does not match the shape, or a value is not finite.
    """
    values = _nested(cell)
    if values.shape not in (shape, (math.prod(shape),)):
        raise InvalidInput("bad_array", f"an array of shape {values.shape}; it must be {shape}")
    return to_float32(values.reshape(shape))


def _nested(cell: list) -> np.ndarray:
    try:
        values = np.array(cell)
    except (ValueError, OverflowError):  # Inner lists differ in length.
        raise InvalidInput("bad_array", "lists that differ in length") from None
    if values.dtype.kind not in "iufb" or not 0 < values.size <= _MAX_ARRAY_VALUES:
        raise InvalidInput("bad_array", f"not a list of 1 to {_MAX_ARRAY_VALUES} numbers of at most 64 bits")
    return values


def _read_header(data: bytes) -> NpyHeader:
    try:
        header = read_npy_header(data)
    except ValueError as error:
        raise InvalidInput("bad_array", f"not a valid .npy file: {error}") from None
    if header.dtype.kind not in "iufb" or header.dtype.itemsize > 8:
        raise InvalidInput("bad_array", f"an array of {header.dtype}; it must have numbers of at most 64 bits")
    if not 0 < math.prod(header.shape) <= _MAX_ARRAY_VALUES:
        raise InvalidInput("bad_array", f"an array of shape {header.shape}; it must have 1 to {_MAX_ARRAY_VALUES} numbers")
    return header
