"""Reads tensors, which are stored without loss as little-endian bytes in C order.

Pickles are never loaded, because they can execute code.
"""

import dataclasses
import math
from typing import NamedTuple, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.npy_header import NpyHeader, read_npy_header
from beam_pipelines.images.raw_image import RawImage, layout_of
from tf_input.dataset_format import Feature
from tf_input.stored_kinds import TENSOR_DTYPES

NPY_MAGIC = b"\x93NUMPY"
_FIRST_ROUNDED = 2.0**53  # Floats of this size or larger may be rounded integers.
_MAX_TENSOR_BYTES = 1 << 30  # A serialized example must be smaller than 2 GiB.


class TensorValue(NamedTuple):
    """The value of a tensor feature in one example.

    Attributes:
        data: The numbers as little-endian bytes in C order.
        shape: The shape of the tensor, without unknown dimensions.
    """

    data: bytes
    shape: tuple[int, ...]


def tensor_of_bytes(data: bytes, dtype: str | np.dtype, shape: Sequence[int], feature: Feature) -> TensorValue:
    """Converts bytes without a header, such as the output of `tobytes`, to a tensor.

    Args:
        data: The numbers as bytes in C order.
        dtype: The dtype with its byte order, such as `<f4` or `>u2`.
        shape: The shape of the tensor.
        feature: The feature that the tensor must match.

    Raises:
        InvalidInput: `bad_tensor`: the number of bytes does not match, or the feature has another dtype or shape.
    """
    dtype, shape = np.dtype(dtype), tuple(shape)
    _check(dtype, shape, feature)
    if len(data) != (wanted := math.prod(shape) * dtype.itemsize):
        raise InvalidInput("bad_tensor", f"{len(data)} bytes instead of {wanted} of {describe_tensor(dtype.name, shape)}")
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
    header = read_tensor_header(data)
    values = memoryview(data)[header.num_bytes :]
    if not header.is_fortran or len(header.shape) < 2:
        return tensor_of_bytes(bytes(values), header.dtype, header.shape, feature)
    rotated = dataclasses.replace(feature, shape=feature.shape[::-1])
    value = tensor_of_bytes(bytes(values), header.dtype, header.shape[::-1], rotated)
    numbers = np.frombuffer(value.data, header.dtype.newbyteorder("<")).reshape(header.shape, order="F")
    return TensorValue(numbers.tobytes(), header.shape)


def tensor_of_list(cell: list, feature: Feature) -> np.ndarray:
    """Converts nested lists of numbers, as in JSON and Parquet, to an array with the feature's dtype and shape.

    Raises:
        InvalidInput: `bad_tensor`: there are no numbers, the shape differs, or the dtype cannot represent a number.
    """
    try:
        parsed = np.array(cell)
    except ValueError:
        raise InvalidInput("bad_tensor", "lists that differ in length") from None
    if parsed.dtype.kind not in "iufb":
        raise InvalidInput(
            "bad_tensor", f"lists of {parsed.dtype.name}; they must have numbers of {feature.dtype}, of at most 64 bits"
        )
    is_of_integers = np.dtype(feature.dtype).kind in "iu"
    if parsed.dtype.kind == "f" and is_of_integers and (np.abs(parsed) >= _FIRST_ROUNDED).any():
        raise InvalidInput(
            "bad_tensor", f"lists of floats from 2**53 on, which are rounded; it must be integers of {feature.dtype}"
        )
    with np.errstate(all="ignore"):  # Values that overflow are rejected below.
        values = parsed.astype(feature.dtype)
        is_exact = values.dtype.kind == parsed.dtype.kind == "f" or (values.astype(parsed.dtype) == parsed).all()
    if not is_exact or (np.isinf(values) & ~np.isinf(parsed)).any():
        raise InvalidInput("bad_tensor", f"lists of {parsed.dtype.name} with a number that {feature.dtype} cannot represent")
    _check(values.dtype, values.shape, feature)
    return values


def read_tensor_header(data: bytes) -> NpyHeader:
    """Reads the header of a `.npy` file, and checks that its dtype and size are valid for a tensor.

    Args:
        data: The first bytes of the file. 16 KiB are enough.

    Raises:
        InvalidInput: `bad_tensor`: the file does not contain a valid tensor.
    """
    try:
        header = read_npy_header(data)
    except ValueError as error:
        raise InvalidInput("bad_tensor", f"not a valid .npy file: {error}") from None
    check_type_and_size(header.dtype, header.shape)
    return header


def check_type_and_size(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Checks that a dtype and shape are valid for a tensor.

    Raises:
        InvalidInput: `bad_tensor`: the dtype is not supported, or the tensor is empty or too large.
    """
    if dtype.name not in TENSOR_DTYPES:
        raise InvalidInput("bad_tensor", f"an array of {dtype}; it must be one of {', '.join(TENSOR_DTYPES)}")
    if not 0 < math.prod(shape) * dtype.itemsize <= _MAX_TENSOR_BYTES:
        array_type = describe_tensor(dtype.name, shape)
        raise InvalidInput("bad_tensor", f"an array of {array_type}; it must have 1 to {_MAX_TENSOR_BYTES} bytes")


def describe_tensor(dtype: str, shape: Sequence[int | None]) -> str:
    """Returns the dtype and shape of a tensor in the syntax of `--feature`, such as `float32[28,28,?]`."""
    return f"{dtype}[{','.join('?' if side is None else str(side) for side in shape)}]"


def npy_image(data: bytes) -> tuple[RawImage, bytes]:
    """Returns the layout of an image in a `.npy` file, and its pixels as bytes in C order.

    Raises:
        InvalidInput: `bad_image`: the array does not have two or three dimensions, or the file has a wrong size.
    """
    raw, header = npy_layout(data)
    values = data[header.num_bytes :]
    if len(values) != raw.num_bytes:
        array_type = describe_tensor(header.dtype.name, header.shape)
        raise InvalidInput("bad_image", f"{len(values)} bytes of {array_type} instead of {raw.num_bytes}")
    if header.is_fortran:
        values = np.frombuffer(values, header.dtype).reshape(header.shape, order="F").tobytes()
    return raw, values


def npy_layout(data: bytes) -> tuple[RawImage, NpyHeader]:
    """Returns the layout of an image in a `.npy` file, and the header of the file.

    Raises:
        InvalidInput: `bad_image`: the array is not valid, or does not have two or three dimensions.
    """
    try:
        header = read_tensor_header(data)
    except InvalidInput as error:
        raise InvalidInput("bad_image", str(error)) from None
    raw = layout_of(header.shape, header.dtype.str)
    if raw is None:
        raise InvalidInput(
            "bad_image",
            f"an array of {describe_tensor(header.dtype.name, header.shape)}; it must be [HEIGHT,WIDTH] or "
            "[HEIGHT,WIDTH,CHANNELS]",
        )
    return raw, header


def image_tensor(data: bytes, raw: RawImage, feature: Feature) -> TensorValue:
    """Converts an image to a tensor [height, width, channels].

    Args:
        data: The numbers of the image, as bytes.
        raw: The layout of the numbers.
        feature: The feature of the image.

    Raises:
        InvalidInput: `bad_image`: the image has another dtype, other channels or another size.
    """
    try:
        return tensor_of_bytes(data, raw.dtype, raw.shape, feature)
    except InvalidInput as error:
        raise InvalidInput("bad_image", str(error)) from None


def _check(dtype: np.dtype, shape: tuple[int, ...], feature: Feature) -> None:
    check_type_and_size(dtype, shape)
    is_compatible = len(shape) == len(feature.shape) and all(wanted in (None, side) for side, wanted in zip(shape, feature.shape))
    if dtype.name != feature.dtype or not is_compatible:
        array_type, wanted = describe_tensor(dtype.name, shape), describe_tensor(feature.dtype, feature.shape)
        raise InvalidInput("bad_tensor", f"an array of {array_type}; it must be {wanted}")
