"""Reads numbers from `.npy` files, from bytes without a header, and from nested lists.

Tensors are stored without loss as little-endian bytes in C order. Other arrays are stored as float32. Pickles are never
loaded, because they can execute code.
"""

import math
from typing import NamedTuple, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.npy_header import NpyHeader, read_npy_header
from beam_pipelines.images.raw_image import RawImage, layout_of
from beam_pipelines.images.resize import Geometry
from tf_input.dataset_format import Feature
from tf_input.stored_kinds import TENSOR_DTYPES

NPY_MAGIC = b"\x93NUMPY"
FLOAT_DTYPES = (*TENSOR_DTYPES, "uint32", "uint64")  # Dtypes of arrays that are stored as float32.
_FIRST_ROUNDED = 2.0**53  # Floats of this size or larger may be rounded integers.
_MAX_EXACT = 2**24  # The largest integer up to which float32 is exact.
_MAX_BYTES = 1 << 30  # A serialized example must be smaller than 2 GiB.


class TensorValue(NamedTuple):
    """The value of a tensor feature in one example.

    Attributes:
        data: The numbers as little-endian bytes in C order.
        shape: The shape of the tensor, without unknown dimensions.
    """

    data: bytes
    shape: tuple[int, ...]


def read_array_header(data: bytes, reason: str, dtypes: Sequence[str] = TENSOR_DTYPES) -> NpyHeader:
    """Reads the header of a `.npy` file, and checks its dtype and size.

    Args:
        data: The first bytes of the file. 16 KiB are enough.
        reason: The reason of the error.
        dtypes: The names of the valid dtypes.

    Raises:
        InvalidInput: The file does not contain an array of numbers, or the array is empty or too large.
    """
    try:
        header = read_npy_header(data)
    except ValueError as error:
        raise InvalidInput(reason, f"not a valid .npy file: {error}") from None
    check_type_and_size(header.dtype, header.shape, reason, dtypes)
    return header


def check_type_and_size(dtype: np.dtype, shape: tuple[int, ...], reason: str, dtypes: Sequence[str] = TENSOR_DTYPES) -> None:
    """Raises `InvalidInput` if the dtype of an array is not valid, or if the array is empty or too large."""
    if dtype.name not in dtypes:
        raise InvalidInput(reason, f"an array of {dtype}; it must be one of {', '.join(dtypes)}")
    if not 0 < math.prod(shape) * dtype.itemsize <= _MAX_BYTES:
        raise InvalidInput(reason, f"an array of {describe_array(dtype.name, shape)}; it must have 1 to {_MAX_BYTES} bytes")


def describe_array(dtype: str, shape: Sequence[int | None]) -> str:
    """Returns the dtype and shape of an array in the syntax of `--feature`, such as `float32[28,28,?]`."""
    return f"{dtype}[{','.join('?' if side is None else str(side) for side in shape)}]"


def read_npy(data: bytes, reason: str, dtypes: Sequence[str] = TENSOR_DTYPES) -> np.ndarray:
    """Reads the array in a `.npy` file without copying its numbers. Raises `InvalidInput` if the file is invalid."""
    dtype, shape, is_fortran, start = read_array_header(data, reason, dtypes)
    if len(data) - start != (wanted := math.prod(shape) * dtype.itemsize):
        raise InvalidInput(reason, f"{len(data) - start} bytes of {describe_array(dtype.name, shape)} instead of {wanted}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if is_fortran else "C")


def read_lists(cell: list, reason: str) -> np.ndarray:
    """Converts nested lists of numbers, as in JSON and Parquet, to an array.

    Raises:
        InvalidInput: There are no numbers or too many, or inner lists differ in length.
    """
    try:
        values = np.array(cell)
    except (ValueError, OverflowError):
        raise InvalidInput(reason, "lists that differ in length") from None
    if values.dtype.kind not in "iufb" or not 0 < values.nbytes <= _MAX_BYTES:
        raise InvalidInput(reason, f"lists of {values.size} {values.dtype.name}; they must have 1 to {_MAX_BYTES // 8} numbers of at most 64 bits")
    return values


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
    if values.dtype.kind in "iu" and values.dtype.itemsize > 2 and not ((-_MAX_EXACT <= values) & (values <= _MAX_EXACT)).all():
        if not (converted == values.astype(np.longdouble)).all():
            raise InvalidInput("bad_array", "an integer that float32 cannot store exactly; it must have at most 24 bits")
    return converted


def to_shape(values: np.ndarray, shape: tuple[int, ...], *, may_be_flat: bool = False) -> np.ndarray:
    """Converts an array to float32 of the given shape.

    Args:
        values: The numbers.
        shape: The requested shape.
        may_be_flat: Whether the numbers can also be a flat array in row-major order.

    Raises:
        InvalidInput: `bad_array`: the array has another shape, or float32 cannot represent a number.
    """
    if values.shape != tuple(shape) and not (may_be_flat and values.shape == (math.prod(shape),)):
        raise InvalidInput("bad_array", f"an array of shape {values.shape}; it must be {tuple(shape)}")
    return to_float32(values.reshape(shape))


def check_feature(dtype: np.dtype, shape: tuple[int, ...], feature: Feature, reason: str = "bad_tensor") -> None:
    """Raises `InvalidInput` if the dtype or shape of a tensor does not match its feature."""
    check_type_and_size(dtype, shape, reason)
    is_compatible = len(shape) == len(feature.shape) and all(wanted in (None, side) for side, wanted in zip(shape, feature.shape))
    if dtype.name != feature.dtype or not is_compatible:
        array_type, wanted = describe_array(dtype.name, shape), describe_array(feature.dtype, feature.shape)
        raise InvalidInput(reason, f"an array of {array_type}; it must be {wanted}")


def tensor_of_bytes(data: bytes, dtype: str | np.dtype, shape: Sequence[int], feature: Feature, reason: str = "bad_tensor") -> TensorValue:
    """Converts bytes without a header, such as the output of `tobytes`, to a tensor.

    Args:
        data: The numbers as bytes in C order.
        dtype: The dtype with its byte order, such as `<f4` or `>u2`.
        shape: The shape of the tensor.
        feature: The feature that the tensor must match.
        reason: The reason of the error.

    Raises:
        InvalidInput: The number of bytes does not match, or the feature has another dtype or shape.
    """
    dtype, shape = np.dtype(dtype), tuple(shape)
    check_feature(dtype, shape, feature, reason)
    if len(data) != (wanted := math.prod(shape) * dtype.itemsize):
        raise InvalidInput(reason, f"{len(data)} bytes instead of {wanted} of {describe_array(dtype.name, shape)}")
    if dtype.newbyteorder("<") != dtype:  # Little-endian data does not have to be copied.
        data = np.frombuffer(data, dtype).astype(dtype.newbyteorder("<")).tobytes()
    return TensorValue(data, shape)


def tensor_of_file(data: bytes, feature: Feature) -> TensorValue:
    """Reads a tensor from a `.npy` file or, if the feature's shape is known, from bytes without a header.

    Raises:
        InvalidInput: `bad_tensor`: the bytes are not a tensor, or do not match the feature.
    """
    if not data.startswith(NPY_MAGIC) and feature.shape and None not in feature.shape:
        return tensor_of_bytes(data, np.dtype(feature.dtype).newbyteorder("<"), feature.shape, feature)
    values = read_npy(data, "bad_tensor")
    return tensor_of_bytes(values.tobytes(), values.dtype, values.shape, feature)


def tensor_of_list(cell: list, feature: Feature) -> np.ndarray:
    """Converts nested lists of numbers to an array with the feature's dtype and shape.

    Raises:
        InvalidInput: `bad_tensor`: there are no numbers, the shape differs, or the dtype cannot represent a number.
    """
    parsed, dtype = read_lists(cell, "bad_tensor"), np.dtype(feature.dtype)
    if parsed.dtype.kind == "f" and dtype.kind in "iu" and (np.abs(parsed) >= _FIRST_ROUNDED).any():
        raise InvalidInput("bad_tensor", f"lists of floats from 2**53 on, which are rounded; it must be integers of {feature.dtype}")
    with np.errstate(all="ignore"):  # Values that overflow are rejected below.
        values = parsed.astype(dtype)
        is_exact = values.dtype.kind == parsed.dtype.kind == "f" or (values.astype(parsed.dtype) == parsed).all()
    if not is_exact or (np.isinf(values) & ~np.isinf(parsed)).any():
        raise InvalidInput("bad_tensor", f"lists of {parsed.dtype.name} with a number that {feature.dtype} cannot represent")
    check_feature(dtype, values.shape, feature)
    return values


def npy_image(data: bytes) -> tuple[RawImage, bytes]:
    """Returns the layout of an image in a `.npy` file, and its pixels as bytes in C order.

    Raises:
        InvalidInput: `bad_image`: the array does not have two or three dimensions, or the file has a wrong size.
    """
    return npy_layout(data), read_npy(data, "bad_image").tobytes()


def npy_layout(data: bytes) -> RawImage:
    """Returns the layout of an image in a `.npy` file, given the first bytes of the file.

    Raises:
        InvalidInput: `bad_image`: the array is not valid, or does not have two or three dimensions.
    """
    header = read_array_header(data, "bad_image")
    raw = layout_of(header.shape, header.dtype.str)
    if raw is None:
        array_type = describe_array(header.dtype.name, header.shape)
        raise InvalidInput("bad_image", f"an array of {array_type}; it must be [HEIGHT,WIDTH] or [HEIGHT,WIDTH,CHANNELS]")
    return raw
