"""Tests that shards, indexes and catalogs do not depend on the number of parts in which a shard is written."""

import errno
import io
import os
import pathlib
import random
import struct
from typing import Any, Callable

import google_crc32c
import numpy as np
import pyarrow.parquet as pq
import pytest

from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.plan import PlannedShard, ShardAddress
from beam_pipelines.elements.plan_files import dead_letters_path, read_done
from beam_pipelines.elements.quality import LabelSequence
from beam_pipelines.errors import RunError
from beam_pipelines.images.images import check_image
from beam_pipelines.shards import shard_writer
from beam_pipelines.shards.shard_files import finished
from beam_pipelines.shards.write_shards import choose_num_parts
from beam_pipelines.storage.spool import SpoolWriter
from beam_pipelines.tfrecord.example_encoder import ExampleEncoder
from beam_pipelines.tfrecord.record_writer import RecordWriter, masked
from made_images import encode, jpeg, noise, png
from made_plan import PlannedInput
from made_references import make_run
from tf_input.dataset_format import decode_index

SHARD = "made-train.tfrecord-00000-of-00001"
INDEX = "index/made-train-00000-of-00001.idx"
CATALOG = "catalog/made-train-00000-of-00001.parquet"

# Sizes near the limits of one, two and three bytes of a varint and near the size at which records are flushed.
SIZES = (1, 2, 100, 127, 128, 16_383, 16_384, 300_000, (1 << 20) - 60, (1 << 20) + 1, 5, 700_000, 700_000, 3 << 20, 1)
LABELS = ("a", "b", "c")


def random_inputs(directory: pathlib.Path, **options: Any) -> tuple[PlannedInput, dict[str, tuple[bytes, str]]]:
    """Returns planned inputs of several kinds, and the expected bytes and class of each example key."""
    source, made = random.Random(0), make_run(directory)
    contents = {f"key of é {index}": (source.randbytes(size), LABELS[index % 3]) for index, size in enumerate(SIZES)}
    files, images, packed = {}, [], b"?"
    with SpoolWriter(made.run.spool_directory) as spool:
        for index, (key, (data, label)) in enumerate(contents.items()):
            path, kind = f"cat/é {index}.jpg", index % 3
            if kind == 0:
                files[path] = data
                images.append(InputRecord(key, path, label, None))
            elif kind == 1:
                images.append(InputRecord(key, "packed", label, None, len(data), offset=len(packed)))
                packed += data
            else:
                images.append(InputRecord(key, path, label, None, len(data), offset=spool.append(data), spool=spool.spool))
    return PlannedInput(directory, {**files, "packed": packed}, images, check="none", **options), contents


@pytest.fixture
def run(tmp_path: pathlib.Path) -> PlannedInput:
    return random_inputs(tmp_path)[0]


# Images in stored and other formats, and rejected inputs
MIXED = {
    **{f"{LABELS[index % 3]}/{index}.jpg": jpeg(index, 20 + index, 30) for index in range(20)},
    "a/grey.png": encode(noise(3, 9, 8)[..., 0], "PNG"),
    "b/small.png": png(4, 8, 9),
    "b/a.gif": encode(noise(5, 10, 12), "GIF"),
    "c/b.bmp": encode(noise(6, 11, 13), "BMP"),
    "a/page.jpg": b"<!DOCTYPE html>",
    "b/empty.jpg": b"",
    "c/cut.jpg": jpeg(7, 40, 40)[:400],
}
REJECTED = ["a/page.jpg", "b/empty.jpg", "c/cut.jpg"]


def read_with_tensorflow(path: pathlib.Path) -> list[bytes]:
    import tensorflow as tf

    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def catalog(run: PlannedInput) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(run.files()[CATALOG])).to_pylist()


def test_tensorflow_reads_the_records_in_order(tmp_path):
    run, contents = random_inputs(tmp_path)
    run.write()
    encoder = ExampleEncoder(run.context.listing.schema)
    expected = [(contents[key], key) for key in run.keys()]
    assert read_with_tensorflow(run.out / SHARD) == [
        encoder.encode(data, {"label": LABELS.index(label), "key": key.encode()}) for (data, label), key in expected
    ]


def test_tensorflow_rejects_a_corrupt_shard(run):
    # TensorFlow verifies the masked checksums, and so the test above shows that they are correct.
    import tensorflow as tf

    run.write()
    data = (run.out / SHARD).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    for case, position in (("length's checksum", 8), ("data", 12), ("data's checksum", 12 + length)):
        (run.out / SHARD).write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(tf.errors.DataLossError):
            read_with_tensorflow(run.out / SHARD)
            pytest.fail(case)


@pytest.mark.parametrize("check", ["none", "header", "decode", "strict"])
def test_images_are_stored_like_the_check_returns_them(tmp_path, check):
    import tensorflow as tf

    files = {path: data for path, data in MIXED.items() if path not in REJECTED}
    run = PlannedInput(tmp_path, files, check=check)
    run.write()
    records = read_with_tensorflow(run.out / SHARD)
    assert len(records) == len(files)
    for key, record in zip(run.keys(), records):
        actual = tf.train.Example.FromString(record).features.feature
        assert actual["key"].bytes_list.value[0].decode() == key
        assert LABELS[actual["label"].int64_list.value[0]] == key.split("/")[0]
        if check == "none":
            assert actual["image"].bytes_list.value[0] == files[key] and set(actual) == {"image", "key", "label"}
            continue
        checked = check_image(files[key], check)
        assert actual["image"].bytes_list.value[0] == (files[key] if checked.encoded is None else checked.encoded), key
        assert [actual[name].int64_list.value[0] for name in ("height", "width")] == [checked.height, checked.width], key


def test_index_locates_record_image_and_label(tmp_path):
    run, contents = random_inputs(tmp_path)
    run.write()
    data, records = (run.out / SHARD).read_bytes(), read_with_tensorflow(run.out / SHARD)
    rows = list(decode_index((run.out / INDEX).read_bytes()))
    assert len(rows) == len(SIZES)
    for row, record, key in zip(rows, records, run.keys()):
        image, label = contents[key]
        (length,) = struct.unpack_from("<Q", data, row.record_offset)
        assert data[row.record_offset + 12 :][:length] == record
        assert data[row.image_offset :][: row.image_length] == image
        assert (row.image_length, row.label) == (len(image), LABELS.index(label))
    assert rows[0].record_offset == 0
    assert [row.record_offset for row in rows] == sorted(row.record_offset for row in rows)


def test_catalog_rows_describe_the_records(tmp_path):
    run = PlannedInput(tmp_path, MIXED)
    run.write()
    shard = (run.out / SHARD).read_bytes()
    rows, index = catalog(run), list(decode_index((run.out / INDEX).read_bytes()))
    assert [row["key"] for row in rows] == [key for key in run.keys() if key not in REJECTED]
    for location, (row, entry) in enumerate(zip(rows, index, strict=True)):
        image, checked = shard[entry.image_offset :][: entry.image_length], check_image(MIXED[row["key"]], "strict")
        assert row == {
            "key": row["key"], "path": row["key"], "offset": None, "num_bytes": len(image), "crc32c": google_crc32c.value(image),
            "height": checked.height, "width": checked.width, "format": checked.format, "reencoded": checked.reencoded or None,
            "group": None, "weight": None, "shard": SHARD, "record": location, "label": row["key"].split("/")[0],
        }  # fmt: skip


def test_catalog_rows_locate_the_images(tmp_path):
    run, contents = random_inputs(tmp_path)
    run.write()
    for row in catalog(run):
        assert (row["num_bytes"], row["label"]) == (len(contents[row["key"]][0]), contents[row["key"]][1])
        assert (row["height"], row["width"], row["format"], row["reencoded"]) == (None,) * 4, "images are not decoded"
        if row["path"] == "packed":
            part = (run.root / "packed").read_bytes()[row["offset"] :][: row["num_bytes"]]
            assert part == contents[row["key"]][0], "the row must locate the bytes"


def test_shard_info_matches_the_files(tmp_path):
    run = PlannedInput(tmp_path, MIXED)
    written = run.write()
    assert written.address == ShardAddress("train", 0, 1)
    assert [name for name, _, _ in written.info.files()] == [SHARD, INDEX, CATALOG]
    for name, num_bytes, crc32c in written.info.files():
        data = (run.out / name).read_bytes()
        assert (num_bytes, crc32c) == (len(data), google_crc32c.value(data)), name
    labels = [LABELS.index(key.split("/")[0]) for key in run.keys() if key not in REJECTED]
    assert written.labels == {"label": LabelSequence.of(np.array(labels))}
    assert written.info.num_examples == len(labels) == written.statistics.num_examples
    assert [letter.path for letter in written.statistics.dead_letters.first] == REJECTED
    assert set(run.files()) == {SHARD, INDEX, CATALOG}
    assert read_done(run.made.run, written.address) == written


def test_masked_checksums_follow_the_format():
    # The format defines a rotation to the right by 15 bits and the addition of a constant.
    for crc in (0, 1, 0xFFFFFFFF, 0x8A9136AA, 0x12345678):
        rotated = int(f"{crc:032b}"[-15:] + f"{crc:032b}"[:-15], 2)
        assert masked(crc) == (rotated + 0xA282EAD8) % 2**32, hex(crc)


# Parts


@pytest.mark.parametrize("check", ["strict", "none"])
def test_joined_parts_have_the_same_bytes_as_a_single_part(tmp_path, check):
    alone = PlannedInput(tmp_path / "alone", MIXED, check=check)
    expected = alone.write()
    letters = pathlib.Path(dead_letters_path(alone.made.run, expected.address)).read_bytes()
    for num_parts in (2, 3, 7, len(MIXED)):
        parts = PlannedInput(tmp_path / f"{num_parts}", MIXED, check=check)
        assert parts.write(num_parts) == expected, num_parts
        assert parts.files() == alone.files(), num_parts
        assert pathlib.Path(dead_letters_path(parts.made.run, expected.address)).read_bytes() == letters, num_parts


def test_several_shards_have_consecutive_parts_of_the_order(tmp_path):
    complete = PlannedInput(tmp_path / "complete", MIXED)
    cut = PlannedInput(tmp_path / "cut", MIXED, num_shards=4)
    assert sum((cut.keys(shard) for shard in cut.shards), []) == complete.keys()
    complete.write()
    written = [cut.write(2, shard) for shard in cut.shards]
    records = [record for entry in written for record in read_with_tensorflow(cut.out / entry.info.name)]
    assert records == read_with_tensorflow(complete.out / SHARD)
    assert {shard.num_inputs for shard in cut.shards} <= {len(MIXED) // 4, -(-len(MIXED) // 4)}
    assert sum(item.statistics.dead_letters.num for item in written) == len(REJECTED)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_shard_without_valid_inputs_is_empty(tmp_path, num_parts):
    run = PlannedInput(tmp_path, {f"a/{index}.jpg": b"<html>" for index in range(5)})
    written = run.write(num_parts)
    assert (written.info.num_examples, written.info.num_bytes, written.info.crc32c) == (0, 0, 0)
    assert written.statistics.dead_letters.num == 5
    assert list(run.files()) == sorted([SHARD, INDEX, CATALOG])
    assert read_with_tensorflow(run.out / SHARD) == list(decode_index((run.out / INDEX).read_bytes())) == catalog(run) == []
    full = PlannedInput(tmp_path / "full", {"a/1.jpg": jpeg(1)})
    full.write()
    assert pq.read_schema(run.out / CATALOG) == pq.read_schema(full.out / CATALOG), "Parquet readers need equal schemas"
    assert finished(run.context, run.shards[0]) == written


def test_too_many_dead_letters_in_one_shard_fail_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_writer, "_MANY", 3)
    files = {f"a/{index:02d}.jpg": b"<html>" if index < 5 else jpeg(index) for index in range(12)}
    PlannedInput(tmp_path / "enough", files, max_bad_fraction=0.5).write()
    with pytest.raises(RunError, match=r"train-00000-of-00001 .*=0.1 .*--restart.*--resume --max_bad_fraction=1"):
        PlannedInput(tmp_path / "too many", files, max_bad_fraction=0.1).write()
    PlannedInput(tmp_path / "any number", files, max_bad_fraction=1).write()
    monkeypatch.setattr(shard_writer, "_MANY", 5)  # the end of the run checks all shards
    PlannedInput(tmp_path / "few", files, max_bad_fraction=0.1).write()


def test_few_large_shards_are_written_in_parts():
    cases = [
        # shards, inputs, processes, parts
        ("as many shards as processes", 2, 10**6, 2, 1),
        ("many shards", 9, 10**6, 2, 1),
        ("one shard", 1, 10**6, 2, 4),
        ("slightly more shards than processes", 3, 10**6, 2, 2),
        ("tiny shard", 1, 10, 8, 1),
        ("small shard", 1, 600, 8, 2),
        ("no processes", 1, 10**6, 0, 1),
    ]
    for case, num_shards, num_inputs, num_processes, expected in cases:
        shard = PlannedShard(ShardAddress("train", 0, num_shards), num_inputs)
        assert choose_num_parts(shard, num_processes) == expected, case


# Repeated writing


@pytest.mark.parametrize("num_parts", [1, 3])
def test_retry_writes_the_same_bytes_and_no_other_files(tmp_path, num_parts):
    run = PlannedInput(tmp_path, MIXED)
    first, before = run.write(num_parts), run.files()
    run.write_parts(num_parts)  # a failed attempt
    assert (run.write(num_parts), run.files()) == (first, before)


def flip_last_bit(path: pathlib.Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


CORRUPTIONS: dict[str, Callable[[pathlib.Path], None]] = {
    "missing": pathlib.Path.unlink,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "flipped bit": flip_last_bit,
    "extra byte": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_shard_is_finished_only_while_all_its_files_are_unchanged(tmp_path, corrupt):
    run = PlannedInput(tmp_path, MIXED)
    shard = run.shards[0]
    assert finished(run.context, shard) is None
    for name in (SHARD, INDEX, CATALOG):
        written, before = run.write(), run.files()
        assert finished(run.context, shard) == written
        corrupt(run.out / name)
        assert finished(run.context, shard) is None, name
        assert (run.write(), run.files()) == (written, before), name
    done = pathlib.Path(run.made.run.done_directory) / f"{shard.address}.json"
    for data in (b"", done.read_bytes()[:-1], b"{}", b"[]"):
        done.write_bytes(data)
        assert finished(run.context, shard) is None, data[:10]


# Errors


def test_corrupt_plan_fails_the_run(tmp_path):
    run = PlannedInput(tmp_path, MIXED)
    path = pathlib.Path(run.made.run.plan_directory) / "train-00000-of-00001"
    planned = path.read_bytes()
    cases = [
        ("corrupt", planned[:-9] + bytes([planned[-9] ^ 4]) + planned[-8:], "the plan of shard train-00000-of-00001 is corrupt: "),
        ("truncated", planned[:-1], "the plan of shard train-00000-of-00001 is corrupt: "),
        ("empty", b"", "the plan of shard train-00000-of-00001 is corrupt: 0 references"),
        ("twice", planned * 2, f"{2 * len(MIXED)} references"),
        ("missing", None, "the plan of shard train-00000-of-00001 could not be read: No such file"),
    ]
    for case, data, message in cases:
        path.unlink() if data is None else path.write_bytes(data)
        with pytest.raises(RunError, match=message):
            run.write()
            pytest.fail(case)
        assert run.files() == {}, case


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("target", ["tfrecord.record_writer.RecordWriter.flush", "storage.files.os.replace", "shards.shard_files._copy"])
def test_shard_that_cannot_be_written_is_missing(tmp_path, monkeypatch, target, num_parts):
    def fail(*unused: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = PlannedInput(tmp_path, MIXED)
    monkeypatch.setattr(f"beam_pipelines.{target}", fail)
    if target == "shards.shard_files._copy" and num_parts == 1:
        run.write(num_parts)  # a single part is not copied
        return
    with pytest.raises(RunError, match="train-00000-of-00001 .*No space left"):
        run.write(num_parts)
    assert not [name for name in run.files() if not name.startswith(".")], "only hidden parts may remain"
    monkeypatch.undo()
    run.write(num_parts)
    assert sorted(run.files()) == sorted([SHARD, INDEX, CATALOG])


def test_image_changed_after_listing_is_stored_as_it_is_now(tmp_path):
    run = PlannedInput(tmp_path, {"a/1.jpg": jpeg(1), "a/2.jpg": jpeg(2)})
    (run.root / "a/1.jpg").write_bytes(jpeg(3, 30, 40))
    (run.root / "a/2.jpg").unlink()
    written = run.write()
    assert [(row["key"], row["height"], row["crc32c"]) for row in catalog(run)] == [("a/1.jpg", 30, google_crc32c.value(jpeg(3, 30, 40)))]
    assert [(letter.path, letter.stage) for letter in written.statistics.dead_letters.first] == [("a/2.jpg", "read")]


def test_no_file_stays_open(run):
    # An open file of the spool would keep its disk space after the spool is deleted.
    run.write(3)
    still_open = [os.path.realpath(f"/proc/self/fd/{descriptor}") for descriptor in os.listdir("/proc/self/fd")]
    assert [path for path in still_open if path.startswith(str(run.root.parent))] == []
