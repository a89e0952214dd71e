"""Tests the batches of parsed examples that `recordmill analyze` passes between pipeline stages."""

import concurrent.futures
import importlib.util
import pickle

import pytest
import tensorflow as tf

from beam_pipelines.errors import RunError
from made_shards import flip, write_shard
from tf_input.dataset_format import Feature
from tf_input.decoding.schema import parse_examples

if importlib.util.find_spec("tfx_bsl") is None:
    pytest.skip("the extra `transform` is not installed", allow_module_level=True)

from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

from beam_pipelines.transform.record_batches import BatchPointer, ReadRecordBatches, RecordBatchCoder, read_batch, tensor_adapter_config

SCHEMA = (
    Feature("colours", "class_label", (None,), ("red", "green")),
    Feature("image", "image"),
    Feature("label", "class_label", (), ("a", "b")),
    Feature("map", "float", (2, 2, 1)),
    Feature("mask", "mask"),
    Feature("names", "text", (None,)),
    Feature("objects/bbox", "bbox", (None, 4)),
    Feature("objects/points", "float", (None, 2, 2)),
    Feature("pixels", "pixels", (2, 2, 3)),
    Feature("words", "text", (2,)),
)


def example(index: int) -> bytes:
    """Returns an example with every kind of feature. Features of variable length have `index` values."""
    made = tf.train.Example()
    for feature in SCHEMA:
        stored, num = feature.storage, 1
        for side in () if feature.kind == "pixels" else feature.shape:
            num *= index if side is None else side
        values = [number + index for number in range(num)]
        if stored == "bytes":
            made.features.feature[feature.name].bytes_list.value.extend(b"%d" % value * 1000 for value in values)
        elif stored == "int64":
            made.features.feature[feature.name].int64_list.value.extend(values)
        else:
            made.features.feature[feature.name].float_list.value.extend(values)
    return made.SerializeToString()


RECORDS = [example(index) for index in range(7)]


def batch_pointers(folder, example_bytes: int, records=RECORDS) -> list[BatchPointer]:
    shard = write_shard(folder, "made", records)
    return list(ReadRecordBatches(str(folder), [shard], SCHEMA, example_bytes).pointers(shard))


def test_batches_equal_the_examples_parsed_by_the_reader(tmp_path):
    (pointer,) = batch_pointers(tmp_path, 1)
    parsed = TensorAdapter(tensor_adapter_config(SCHEMA)).ToBatchTensors(read_batch(pointer))
    expected = parse_examples(tf.constant(RECORDS), SCHEMA)
    assert set(parsed) == set(expected)
    for name, value in expected.items():
        assert tf.type_spec_from_value(parsed[name]).is_compatible_with(tf.type_spec_from_value(value)), name
        pairs = zip(tf.nest.flatten(parsed[name], expand_composites=True), tf.nest.flatten(value, expand_composites=True))
        assert all(item.dtype == other.dtype and (item.numpy() == other.numpy()).all() for item, other in pairs), name


def test_read_batch_is_thread_safe(tmp_path):
    pointers = batch_pointers(tmp_path, 1 << 30)
    expected = [read_batch(pointer) for pointer in pointers]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read_batch, 100 * pointers)) == 100 * expected


def test_encoded_batch_is_small_and_decodes_to_the_same_batch(tmp_path):
    coder = RecordBatchCoder()
    for pointer in batch_pointers(tmp_path, 6 << 20):
        batch = read_batch(pointer)
        encoded = coder.encode(batch)
        assert len(encoded) < 3000 < batch.nbytes
        assert coder.decode(encoded).equals(batch)
        assert coder.encode(coder.decode(encoded)) == encoded


def test_batch_size_is_limited_by_memory(tmp_path):
    cases = {1: [7], 4 << 20: [4, 3], 6 << 20: [2, 2, 2, 1], 1 << 30: [1] * 7}
    for example_bytes, expected in cases.items():
        pointers = batch_pointers(tmp_path, example_bytes)
        batches = [read_batch(pointer) for pointer in pointers]
        assert [batch.num_rows for batch in batches] == expected, example_bytes
        assert [pointer.record_index for pointer in pointers] == [sum(expected[:location]) for location in range(len(expected))]
        images = [image for batch in batches for (image,) in batch.column("image").to_pylist()]
        assert images == [b"%d" % index * 1000 for index in range(7)], example_bytes


def test_corrupt_record_is_named(tmp_path):
    pointers = batch_pointers(tmp_path, 6 << 20)
    flip(tmp_path / "made", 8 * (pointers[1].offset + 40))
    read_batch(pointers[0])
    with pytest.raises(RunError, match=rf"made: record 2, at byte {pointers[1].offset}: checksum"):
        read_batch(pointers[1])
    (tmp_path / "made").write_bytes(bytes(1 << 16))
    with pytest.raises(RunError, match=rf"made: record 2, at byte {pointers[1].offset}: not a TFRecord file"):
        read_batch(pointers[1])
    (tmp_path / "made").unlink()
    with pytest.raises(RunError, match="made: No such file"):
        read_batch(pickle.loads(pickle.dumps(pointers[0])))


@pytest.mark.slow(4)
def test_missing_index_is_named(tmp_path):
    shard = write_shard(tmp_path, "made", RECORDS)
    (tmp_path / shard.index).unlink()
    with pytest.raises(RunError, match="made.idx"):
        list(ReadRecordBatches(str(tmp_path), [shard], SCHEMA, 1).pointers(shard))
