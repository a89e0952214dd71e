"""Tests that arrays of any dtype, byte order and shape are stored exactly, and that invalid values are rejected."""

import io
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.raw_image import layout_of
from beam_pipelines.images.arrays import FLOAT_DTYPES, check_upright, npy_image, read_array_header, read_npy, tensor_of_bytes, tensor_of_file, tensor_of_list, to_shape
from beam_pipelines.images.resize import Geometry
from tf_input.dataset_format import Feature
from tf_input.stored_kinds import TENSOR_DTYPES

ARRAYS = st.sampled_from(TENSOR_DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        st.sampled_from([np.dtype(dtype), np.dtype(dtype).newbyteorder(">")]), hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)
    )
)


def tensor(dtype: str, *shape: int | None) -> Feature:
    return Feature("x", "tensor", shape, dtype=dtype)


def npy(values: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    written = io.BytesIO()
    np.lib.format.write_array(written, values, version)
    return written.getvalue()


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
    assert tensor_of_bytes(data, raw.dtype, raw.shape, tensor(array.dtype.name, None, None, raw.shape[2])) == (bits(expected), expected.shape)


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
    "words": (lambda: tensor_of_list([["a"]], tensor("float32", 1, 1)), "numbers of at most 64 bits"),
    "rounded integer": (lambda: tensor_of_list([[2**53 + 1, 1.0]], tensor("int64", 1, 2)), r"floats from 2\*\*53 on, which are rounded"),
    "huge integer with a float": (lambda: tensor_of_list([[10**400, 1.0]], tensor("float64", 1, 2)), "of at most 64 bits"),
    "too large": (lambda: tensor_of_list([[300]], tensor("uint8", 1, 1)), "a number that uint8 cannot"),
    "integer that becomes infinite": (lambda: tensor_of_list([[-(2**63)]], tensor("float16", 1, 1)), "float16"),
    "four sides": (lambda: npy_image(npy(FLOATS.reshape(1, 2, 3, 1))), r"float32\[1,2,3,1\]"),
    "wrong number of channels": (
        lambda: tensor_of_bytes(bytes(24), "<f4", (1, 3, 2), tensor("float32", None, None, 5)),
        r"float32\[1,3,2\]",
    ),
}


@pytest.mark.parametrize("case", INVALID_TENSORS)
def test_invalid_tensors_are_rejected_in_one_line(case):
    make, message = INVALID_TENSORS[case]
    with pytest.raises(InvalidInput, match=message) as caught:
        make()
    assert "\n" not in str(caught.value) and caught.value.reason in ("bad_tensor", "bad_image")


def npy_with_header(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode("latin-1") + data


def read_array(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    return to_shape(read_npy(data, "bad_array", FLOAT_DTYPES), shape)


MAPS = np.arange(-60, 60).reshape(4, 6, 5)


def test_numeric_arrays_are_read_as_float32():
    for name in ("f2", "f4", "f8", ">f4", ">f8", "i1", "i2", ">i4", "i8", "u1", "u2", "u4", "u8", "bool"):
        values = np.abs(MAPS).astype(name) if name[-2] == "u" else MAPS.astype(name)
        for case, array in {"C": values, "Fortran": np.asfortranarray(values), "strided": values[:, ::-1]}.items():
            for version in (None, (2, 0), (3, 0)):
                data = npy(array, version)
                actual = read_array(data, (4, 6, 5))
                assert read_array_header(data[:128], "bad_array", FLOAT_DTYPES).shape == (4, 6, 5), (name, case)
                assert (actual.dtype, actual.flags.c_contiguous) == (np.float32, True), (name, case)
                np.testing.assert_array_equal(actual, array.astype(np.float32), err_msg=f"{name} {case}")
    for shape in ((), (7,), (1, 1, 1, 1)):
        assert read_array(npy(np.ones(shape)), shape).shape == shape


GOOD_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
BAD_ARRAYS = {
    "empty": (b"", "not a valid .npy file"),
    "no array": (b"PK\3\4" + bytes(100), "not a valid .npy file"),
    "unknown version": (npy(MAPS).replace(b"NUMPY\1", b"NUMPY\4"), "not a valid .npy file"),
    "truncated header": (npy(MAPS)[:50], "not a valid .npy file"),
    "truncated values": (npy(np.ones(2))[:-1], "15 bytes of float64[2]"),
    "too long": (npy(np.ones(2)) + b"\0", "17 bytes of float64[2]"),
    "pickled": (npy(np.array([{}, print], object)), "it must be one of"),
    "structured": (npy(np.zeros(2, [("a", "f4")])), "it must be one of"),
    "text": (npy(np.array(["a", "b"])), "it must be one of"),
    "complex": (npy(np.ones(2, complex)), "it must be one of"),
    "wrong shape": (npy(np.ones((3, 2))), "an array of shape (3, 2)"),
    "empty array": (npy(np.ones((0, 2))), "float64[0,2]"),
    "huge shape": (npy_with_header(GOOD_HEADER.replace("2,", "999999999999, 999999999999")), "float32[999999999999,999999999999]"),
    "more values than in the file": (npy_with_header(GOOD_HEADER, bytes(4)), "4 bytes of float32[2]"),
    "negative side": (npy_with_header(GOOD_HEADER.replace("(2,)", "(-2,)")), "shape (-2,)"),
    "code in the header": (npy_with_header(GOOD_HEADER.replace("(2,)", "(exit(),)")), "not a valid .npy file"),
    "many sides": (npy_with_header(GOOD_HEADER.replace("(2,)", f"({'1,' * 40})")), "float32[1,1,"),
    "deeply nested header": (npy_with_header("(" * 60_000), "not a valid .npy file"),
    "NaN": (npy(np.array([1, np.nan])), "NaN, infinite"),
    "infinite": (npy(np.array([1, -np.inf], np.float32)), "NaN, infinite"),
    "too large for float32": (npy(np.array([1, 1e300])), "NaN, infinite"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_rejected(case):
    data, message = BAD_ARRAYS[case]
    with pytest.raises(InvalidInput) as error:
        read_array(data, (2,))
    assert error.value.reason == "bad_array", case
    assert message in str(error.value) and "\n" not in str(error.value), case


def test_array_with_pickled_objects_is_not_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "touched"), "w"))

    data = npy(np.array([Bomb(), Bomb()], object))
    with pytest.raises(InvalidInput):
        read_array(data, (2,))
    assert not (tmp_path / "touched").exists()
    pickle.loads(data[128:])  # shows that unpickling has an effect
    assert (tmp_path / "touched").exists()


def test_maps_are_rejected_for_a_rotated_image():
    rotated = Geometry((8, 12), 6, (12, 8))
    check_upright((5,), rotated)  # a vector is not a map
    with pytest.raises(InvalidInput, match="its EXIF orientation, 6") as error:
        check_upright((4, 6, 5), rotated)
    assert error.value.reason == "size_mismatch"


@settings(max_examples=400, deadline=None)
@given(
    header=st.text(st.characters(max_codepoint=255), max_size=60)
    | st.lists(st.sampled_from("( 9 , L ) 'shape':( 'descr': '<f4' 'fortran_order':True".split())).map("".join)
    | st.tuples(st.integers(0, len(GOOD_HEADER)), st.text("09,()'<f-L ", max_size=4)).map(
        lambda change: GOOD_HEADER[: change[0]] + change[1] + GOOD_HEADER[change[0] :]
    ),
    data=st.binary(max_size=16),
    kept=st.floats(0, 1),
)
def test_any_header_is_read_or_rejected(header, data, kept):
    file = npy_with_header(header, data)
    file = file[: int(len(file) * kept)] if kept < 0.9 else file
    try:
        values = read_array(file, read_array_header(file, "bad_array", FLOAT_DTYPES).shape)
    except InvalidInput as error:
        assert error.reason == "bad_array" and "\n" not in str(error)
    else:
        assert values.dtype == np.float32 and values.nbytes <= 4 * len(data)


@pytest.mark.parametrize("digits", ["1", "1,", "1L, "])
def test_header_with_a_huge_number_is_rejected(digits):
    with pytest.raises(InvalidInput, match="not a valid .npy file"):
        read_array_header(npy_with_header(GOOD_HEADER.replace("(2,)", "(" + digits * (60_000 // len(digits)))), "bad_array")
