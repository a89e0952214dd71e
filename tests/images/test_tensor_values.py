"""Tests that arrays of any dtype, byte order and shape are stored exactly, and that invalid values are rejected."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.raw_image import RawImage, layout_of
from beam_pipelines.images.tensor_values import image_tensor, npy_image, tensor_of_bytes, tensor_of_file, tensor_of_list
from tf_input.dataset_format import Feature
from tf_input.stored_kinds import TENSOR_DTYPES

ARRAYS = st.sampled_from(TENSOR_DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        st.sampled_from([np.dtype(dtype), np.dtype(dtype).newbyteorder(">")]), hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)
    )
)


def tensor(dtype: str, *shape: int | None) -> Feature:
    return Feature("x", "tensor", shape, dtype=dtype)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def bits(array: np.ndarray) -> bytes:
    """Returns the bytes of an array in little-endian C order, so that NaN values can also be compared."""
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


@given(ARRAYS, st.booleans(), st.data())
def test_arrays_keep_all_bits(array, is_fortran, data):
    shape = tuple(data.draw(st.sampled_from([side, None])) for side in array.shape)
    feature = tensor(array.dtype.name, *shape)
    value = tensor_of_file(npy(np.asfortranarray(array) if is_fortran else array), feature)
    assert value == (bits(array), array.shape)
    assert tensor_of_bytes(array.tobytes(), array.dtype.str, array.shape, feature) == value
    if None not in shape and array.dtype.byteorder != ">":
        assert tensor_of_file(array.tobytes(), feature) == value


@given(ARRAYS.filter(lambda array: array.ndim in (2, 3)), st.booleans())
def test_image_tensor_has_height_width_and_channels(array, is_fortran):
    raw, data = npy_image(npy(np.asfortranarray(array) if is_fortran else array))
    assert raw == layout_of(array.shape, array.dtype.str) and len(data) == raw.num_bytes
    expected = array[..., np.newaxis] if array.ndim == 2 else array
    assert expected.shape == raw.shape and (array.dtype == np.uint8 or not raw.is_planar)
    assert image_tensor(data, raw, tensor(array.dtype.name, None, None, raw.shape[2])) == (bits(expected), expected.shape)


@given(st.data())
def test_lists_are_converted_exactly_or_rejected(data):
    dtype = np.dtype(data.draw(st.sampled_from(TENSOR_DTYPES)))
    array = data.draw(hnp.arrays(data.draw(st.sampled_from([dtype, np.dtype("int64"), np.dtype("float64")])), (2, 3)))
    with np.errstate(all="ignore"):
        expected = array.astype(dtype)
        is_kept = array.dtype.kind == "f" and dtype.kind == "f" and (np.isinf(array) == np.isinf(expected)).all()
        is_kept = is_kept or bool((expected.astype(array.dtype) == array).all())
        # The cast of -inf to int64 is the minimum of int64, so this comparison misses an overflow.
        is_kept &= bool((np.isinf(array) == np.isinf(expected)).all())
        is_kept &= not (array.dtype.kind == "f" and dtype.kind in "iu" and (np.abs(array) >= 2**53).any())
    feature = tensor(dtype.name, 2, None)
    if is_kept:
        np.testing.assert_array_equal(tensor_of_list(array.tolist(), feature), expected)
    else:
        with pytest.raises(InvalidInput, match=f"a number that {dtype.name} cannot|from 2..53 on"):
            tensor_of_list(array.tolist(), feature)


def test_mask_can_be_an_array_of_class_ids():
    ids = np.arange(6, dtype=np.int64).reshape(2, 3) * 100
    np.testing.assert_array_equal(read_mask(npy(ids)), ids)
    np.testing.assert_array_equal(read_mask(npy(np.asfortranarray(ids % 256).astype(np.uint8)[..., None])), ids % 256)
    for wrong in (ids / 2, ids - 1, np.zeros((2, 3, 4), np.uint8)):
        with pytest.raises(InvalidInput, match="integers in one|class ids from -1") as caught:
            read_mask(npy(wrong))
        assert caught.value.reason == "bad_mask"


FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)
PICKLE = npy(FLOATS).replace(b"'<f4'", b"'|O' ")
INVALID_TENSORS = {
    "wrong number of bytes": (lambda: tensor_of_bytes(bytes(23), "<f4", (2, 3), tensor("float32", 2, 3)), r"23 bytes"),
    "empty file": (lambda: tensor_of_file(b"", tensor("float32", 2, 3)), r"0 bytes"),
    "unknown size": (lambda: tensor_of_file(bytes(24), tensor("float32", None, 3)), "not a NumPy array"),
    "truncated array": (lambda: tensor_of_file(npy(FLOATS)[:-1], tensor("float32", 2, 3)), "23 bytes"),
    "wrong shape": (lambda: tensor_of_file(npy(FLOATS), tensor("float32", 3, 2)), r"of float32\[2,3\]"),
    "wrong rank": (lambda: tensor_of_file(npy(FLOATS), tensor("float32", None)), r"float32\[\?\]"),
    "wrong dtype": (lambda: tensor_of_file(npy(FLOATS), tensor("float64", 2, 3)), r"float64\[2,3\]"),
    "objects": (lambda: tensor_of_file(PICKLE, tensor("float32", 2, 3)), "an array of object"),
    "complex": (lambda: tensor_of_file(npy(FLOATS.astype(complex)), tensor("float32", 2, 3)), "complex128"),
    "empty array": (lambda: tensor_of_file(npy(FLOATS[:0]), tensor("float32", None, 3)), r"float32\[0,3\]"),
    "huge": (lambda: tensor_of_bytes(b"", "<f8", (2**40, 2**40), tensor("float64", None, None)), "1073741824 bytes"),
    "ragged": (lambda: tensor_of_list([[1], [2, 3]], tensor("float32", 2, 2)), "lists that differ in length"),
    "words": (lambda: tensor_of_list([["a"]], tensor("float32", 1, 1)), "numbers of float32"),
    "rounded integer": (lambda: tensor_of_list([[2**53 + 1, 1.0]], tensor("int64", 1, 2)), r"floats from 2\*\*53 on, which are rounded"),
    "huge integer with a float": (lambda: tensor_of_list([[10**400, 1.0]], tensor("float64", 1, 2)), "of at most 64 bits"),
    "too large": (lambda: tensor_of_list([[300]], tensor("uint8", 1, 1)), "a number that uint8 cannot"),
    "integer that becomes infinite": (lambda: tensor_of_list([[-(2**63)]], tensor("float16", 1, 1)), "float16"),
    "four sides": (lambda: npy_image(npy(FLOATS.reshape(1, 2, 3, 1))), r"float32\[1,2,3,1\]"),
    "wrong number of channels": (
        lambda: image_tensor(bytes(24), RawImage(1, 3, 2, dtype="<f4"), tensor("float32", None, None, 5)),
        r"float32\[1,3,2\]",
    ),
}


@pytest.mark.parametrize("case", INVALID_TENSORS)
def test_invalid_tensors_are_rejected_in_one_line(case):
    make, message = INVALID_TENSORS[case]
    with pytest.raises(InvalidInput, match=message) as caught:
        make()
    assert "\n" not in str(caught.value) and caught.value.reason in ("bad_tensor", "bad_image")
