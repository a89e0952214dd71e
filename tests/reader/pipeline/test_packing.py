"""Tests that Python sends batches to TensorFlow in groups."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_input
from prepared import uniform_images
from tf_input.pipeline.packing import pack, pack_error, together

MAX_GROUP = 8
RECORDS = st.lists(st.binary(max_size=30), max_size=3).map(lambda records: np.array([*records, None], object)[:-1])


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORDS, max_size=30), st.integers(1, 300), st.booleans())
def test_groups_keep_batches_and_their_order(batches, num_bytes, ends_in_an_error):
    packed = [pack([0] * 5, [(records, np.arange(len(records)))]) for records in batches]
    packed += [pack_error(ValueError("corrupt"))] * ends_in_an_error
    consumed = []
    chunks = list(together((consumed.append(element) or element for element in packed), num_bytes))
    assert [batch.tolist() for chunk in chunks for batch in chunk] == [batch.tolist() for batch in packed]
    assert all(len(chunk) <= MAX_GROUP and sum(map(len, chunk[:-1].ravel())) < num_bytes for chunk in chunks)
    if packed:
        assert len(chunks[0]) == 1 and next(together(iter(packed), num_bytes)).tolist() == [packed[0].tolist()]
    assert len(consumed) == len(packed)


def test_arrays_of_numbers_are_grouped():
    chunks = [chunk.tolist() for chunk in together((np.full(2, number) for number in range(12)), 1000)]
    assert chunks == [[[0, 0]], [[number] * 2 for number in range(1, 9)], [[number] * 2 for number in range(9, 12)]]


def test_batches_before_an_error_are_returned():
    def batches():
        yield from (np.full(2, number) for number in range(3))
        raise MemoryError("out of memory")

    chunks = together(batches(), 1000)
    assert [next(chunks).tolist(), next(chunks).tolist()] == [[[0, 0]], [[1, 1], [2, 2]]]
    with pytest.raises(MemoryError):
        next(chunks)


def test_batches_before_a_corrupt_record_are_returned(tmp_path_factory, tmp_path):
    directory = shutil.copytree(uniform_images(tmp_path_factory), tmp_path / "copy")
    dataset = tf_input.open(directory)
    options = {"batch_size": 2, "cache_in_memory": 0, "shuffle": False}
    complete = list(dataset.batches("train", **options).as_numpy_iterator())
    shard = directory / dataset.manifest.splits["train"][0].name
    data, offset = bytearray(shard.read_bytes()), dataset.files.store.index(dataset.manifest.splits["train"][0]).extent(11)[0]
    data[offset + 40] ^= 1
    shard.write_bytes(data)
    read = []
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{shard.name}: record 11"):
        read.extend(tf_input.open(directory).batches("train", **options).as_numpy_iterator())
    assert len(read) == 5 < len(complete)
    for actual, expected in zip(read, complete):
        np.testing.assert_array_equal(actual[0], expected[0])
