"""Tensors: numbers of any shape, stored exactly as they are, in little-endian bytes and C order.

Nothing is converted, nothing unpickled.
"""

import dataclasses
import math
from typing import NamedTuple, Sequence

import numpy as np

from beam_pipelines.errors import Refusal
from beam_pipelines.images.npy_header import NpyHeader, read_npy_header
from beam_pipelines.images.raw_image import RawImage, layout_of
from tf_input.dataset_format import TENSOR_DTYPES, Feature

NPY_MAGIC = b"\x93NUMPY"
_FIRST_ROUNDED = 2.0**53  # what may have been another integer: a float has no odd ones from here on
_MAX_TENSOR_BYTES = 1 << 30  # a serialized example must be smaller than two


class TensorValue(NamedTuple):
    """The value of a tensor in one example.

    Attributes:
        data: The bytes of the tensor's numbers, little-endian, in C order.
        shape: The shape of the tensor, in which all sides are known.
    """

    data: bytes
    shape: tuple[int, ...]


def tensor_of_bytes(data: bytes, dtype: str | np.dtype, shape: Sequence[int], feature: Feature) -> TensorValue:
    """Makes a tensor of bytes without a header, as `tostring` and `tobytes` write them, and records of fixed length hold.

    Args:
        data: The bytes of the tensor's numbers, in C order.
        dtype: The type of the numbers, with its byte order: `<f4`, `>u2`.
        shape: The shape of the tensor.
        feature: The feature that the tensor is to be a value of.

    Raises:
        Refusal: `bad_tensor`: there are more or fewer bytes than that, or the feature has another type or shape.
    """
    dtype, shape = np.dtype(dtype), tuple(shape)
    _check(dtype, shape, feature)
    if len(data) != (wanted := math.prod(shape) * dtype.itemsize):
        raise Refusal("bad_tensor", f"{len(data)} bytes; expected {wanted} of {describe_tensor(dtype.name, shape)}")
    if dtype.newbyteorder("<") != dtype:  # what is little-endian already is not copied
        data = np.frombuffer(data, dtype).astype(dtype.newbyteorder("<")).tobytes()
    return TensorValue(data, shape)


def tensor_of_file(data: bytes, feature: Feature) -> TensorValue:
    """Makes a tensor of a `.npy` file, or of bytes without a header where all sides of the feature are known.

    Raises:
        Refusal: `bad_tensor`: the bytes are no tensor, or not one that the feature says.
    """
    if not data.startswith(NPY_MAGIC) and feature.shape and None not in feature.shape:
        return tensor_of_bytes(data, np.dtype(feature.dtype).newbyteorder("<"), feature.shape, feature)
    header = read_tensor_header(data)
    values = memoryview(data)[header.num_bytes :]
    if not header.is_fortran or len(header.shape) < 2:
        return tensor_of_bytes(bytes(values), header.dtype, header.shape, feature)
    turned = dataclasses.replace(feature, shape=feature.shape[::-1])
    value = tensor_of_bytes(bytes(values), header.dtype, header.shape[::-1], turned)
    numbers = np.frombuffer(value.data, header.dtype.newbyteorder("<")).reshape(header.shape, order="F")
    return TensorValue(numbers.tobytes(), header.shape)


def tensor_of_list(cell: list, feature: Feature) -> np.ndarray:
    """Makes an array of numbers in lists of lists, as JSON and Parquet have them: of the feature's type, [*sides].

    Raises:
        Refusal: `bad_tensor`: the cell has no numbers, they are not of that shape, or the type has no place for one of them.
    """
    try:
        found = np.array(cell)
    except ValueError:
        raise Refusal("bad_tensor", "lists that differ in length; expected as many numbers in each") from None
    if found.dtype.kind not in "iufb":
        raise Refusal("bad_tensor", f"lists of {found.dtype.name}; expected numbers of {feature.dtype}, of at most 64 bits")
    is_of_integers = np.dtype(feature.dtype).kind in "iu"
    if found.dtype.kind == "f" and is_of_integers and (np.abs(found) >= _FIRST_ROUNDED).any():
        raise Refusal("bad_tensor", f"lists of floats from 2**53 on, which are rounded; expected integers of {feature.dtype}")
    with np.errstate(all="ignore"):  # what that would warn of is refused
        values = found.astype(feature.dtype)
        is_exact = values.dtype.kind == found.dtype.kind == "f" or (values.astype(found.dtype) == found).all()
    if not is_exact or (np.isinf(values) & ~np.isinf(found)).any():
        raise Refusal("bad_tensor", f"lists of {found.dtype.name} with a number that {feature.dtype} has not; expected such")
    _check(values.dtype, values.shape, feature)
    return values


def read_tensor_header(data: bytes) -> NpyHeader:
    """Reads what a `.npy` file says of its array, which may be a tensor: of a type that there is, with a number in it.

    Args:
        data: The first bytes of the file: 16 KiB are enough.

    Raises:
        Refusal: `bad_tensor`: the file holds no array that may be a tensor.
    """
    try:
        header = read_npy_header(data)
    except ValueError as error:
        raise Refusal("bad_tensor", f"{error}; expected a .npy file") from None
    check_type_and_size(header.dtype, header.shape)
    return header


def check_type_and_size(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Checks that there are tensors of that type and size.

    Raises:
        Refusal: `bad_tensor`: no tensor is of that type, or so large, or without a number.
    """
    if dtype.name not in TENSOR_DTYPES:
        raise Refusal("bad_tensor", f"an array of {dtype}; expected one of {', '.join(TENSOR_DTYPES)}")
    if not 0 < math.prod(shape) * dtype.itemsize <= _MAX_TENSOR_BYTES:
        raise Refusal("bad_tensor", f"an array of {describe_tensor(dtype.name, shape)}; expected 1 to {_MAX_TENSOR_BYTES} bytes")


def describe_tensor(dtype: str, shape: Sequence[int | None]) -> str:
    """The type and shape of a tensor as `--feature` has them, such as `float32[28,28,?]`."""
    return f"{dtype}[{','.join('?' if side is None else str(side) for side in shape)}]"


def npy_image(data: bytes) -> tuple[RawImage, bytes]:
    """The image in a `.npy` file: how its numbers lie, and their bytes, in C order.

    Raises:
        Refusal: `bad_image`: the file has no array of two or three dimensions, or more or fewer bytes than it says.
    """
    raw, header = npy_layout(data)
    values = data[header.num_bytes :]
    if len(values) != raw.num_bytes:
        raise Refusal("bad_image", f"{len(values)} bytes of {describe_tensor(header.dtype.name, header.shape)}; expected {raw.num_bytes}")
    if header.is_fortran:
        values = np.frombuffer(values, header.dtype).reshape(header.shape, order="F").tobytes()
    return raw, values


def npy_layout(data: bytes) -> tuple[RawImage, NpyHeader]:
    """How the numbers of an image in a `.npy` file lie, and the file's header, from how the file begins; errors as in `npy_image`."""
    try:
        header = read_tensor_header(data)
    except Refusal as error:
        raise Refusal("bad_image", str(error)) from None
    raw = layout_of(header.shape, header.dtype.str)
    if raw is None:
        raise Refusal(
            "bad_image",
            f"an array of {describe_tensor(header.dtype.name, header.shape)}; expected [HEIGHT,WIDTH] or [HEIGHT,WIDTH,CHANNELS]",
        )
    return raw, header


def image_tensor(data: bytes, raw: RawImage, feature: Feature) -> TensorValue:
    """Makes a tensor, [height, width, channels], of an image.

    Args:
        data: The bytes of the image's numbers, which lie as `raw` says.
        raw: How the numbers lie.
        feature: The feature of the image.

    Raises:
        Refusal: `bad_image`: the image is of another type, has other channels, or more or fewer bytes.
    """
    try:
        return tensor_of_bytes(data, raw.dtype, raw.shape, feature)
    except Refusal as error:
        raise Refusal("bad_image", str(error)) from None


def _check(dtype: np.dtype, shape: tuple[int, ...], feature: Feature) -> None:
    check_type_and_size(dtype, shape)
    is_alike = len(shape) == len(feature.shape) and all(wanted in (None, side) for side, wanted in zip(shape, feature.shape))
    if dtype.name != feature.dtype or not is_alike:
        found, wanted = describe_tensor(dtype.name, shape), describe_tensor(feature.dtype, feature.shape)
        raise Refusal("bad_tensor", f"an array of {found}; expected {wanted}")
