"""Tests that each input becomes either an image or a dead letter, and that storage errors fail the run."""

import dataclasses
import errno
import os
import pathlib
import threading
import time
import tracemalloc
from typing import Any, Iterator

import numpy as np
import pytest

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.elements.statistics import NUM_PIXEL_SAMPLES, sum_pixels
from beam_pipelines.elements.tensor_sums import TensorSums
from beam_pipelines.errors import RunError
from beam_pipelines.images.images import StoredImage, check_image
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.shards import input_reader
from beam_pipelines.shards.input_reader import InputReader, ReadImage, ImageDigests
from beam_pipelines.shards.write_context import WriteContext, WriteSpec
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.local_files import LocalFiles
from beam_pipelines.storage.spool import SpoolReader, SpoolWriter
from listings import make_listing, make_schema
from made_images import encode, jpeg, noise, png, write_files
from made_plan import PlannedInput
from made_references import make_run
from tf_input.dataset_format import Feature

GOOD = {
    "bird/small.jpg": jpeg(1, 20, 30),
    "cat/large.jpg": jpeg(2, 200, 300),
    "cat/small.png": png(3, 8, 9),
    "dog/named_wrong.png": jpeg(4, 16, 16),
    "dog/a.gif": encode(noise(5, 10, 12), "GIF"),
    "dog/b.bmp": encode(noise(6, 11, 13), "BMP"),
    "dog/c.webp": encode(noise(7, 100, 130), "WEBP", lossless=True),
}


class Inputs:
    """A directory of input files, and an object that reads the inputs of a shard from this directory."""

    def __init__(self, directory: pathlib.Path, files: dict[str, bytes], check: str = "strict", **fields: Any) -> None:
        self.root = write_files(directory / "in", files)
        made = make_run(directory, check=check)
        labels = sorted({path.split("/")[0] for path in files})
        schema = fields.pop("schema", make_schema(*labels, has_sizes=check != "none"))
        listing = make_listing(*labels, **{"root": str(self.root), "num_inputs": len(files), "schema": schema, **fields})
        self.context = WriteContext(made.spec(WriteSpec), listing)
        self.spool = SpoolReader(made.run.spool_directory)
        self.files = LocalFiles()
        self.reader = InputReader(self.context, self.files, self.spool)

    def read(self, path: str, is_sampled: bool = False, **fields: Any) -> ReadImage | DeadLetter:
        return self.reader.read(InputRecord(**{"key": path, "path": path, "label": path.split("/")[0], "split": None, **fields}), is_sampled)

    def digest(self, path: str, **fields: Any) -> ImageDigests | DeadLetter:
        """Reads an input for hashing."""
        return self.reader.digest(InputRecord(**{"key": path, "path": path, "label": path.split("/")[0], "split": None, **fields}))


@pytest.fixture
def valid_inputs(tmp_path: pathlib.Path) -> Inputs:
    return Inputs(tmp_path, GOOD)


@pytest.mark.parametrize("check", ["header", "decode", "strict"])
def test_valid_image_is_read_like_the_check_returns_it(tmp_path, check):
    inputs = Inputs(tmp_path, GOOD, check)
    for path, data in GOOD.items():
        actual, checked = inputs.read(path), check_image(data, check)
        assert isinstance(actual, ReadImage), path
        assert actual.data == (data if checked.encoded is None else checked.encoded), path
        assert actual.image == checked.describe(len(actual.data))
        assert actual.extras is None and actual.pixels is None


def test_input_with_another_key_is_read_by_its_path(tmp_path):
    nfd, nfc = "cat/e\u0301.jpg", "cat/\u00e9.jpg"
    assert Inputs(tmp_path, {nfd: jpeg(1)}).read(nfd, key=nfc).data == jpeg(1)


def test_parts_of_files_and_of_the_spool_are_read(tmp_path):
    inputs = Inputs(tmp_path, {"cat/packed": b"?" * 77 + jpeg(1) + jpeg(2)})
    with SpoolWriter(inputs.context.spec.run.spool_directory) as spool:
        offset = spool.append(b"??") + 2
        spool.append(jpeg(3))
    assert inputs.read("cat/packed", key="cat/packed:1", offset=77, num_bytes=len(jpeg(1))).data == jpeg(1)
    assert inputs.read("cat/packed", key="cat/packed:2", offset=77 + len(jpeg(1)), num_bytes=len(jpeg(2))).data == jpeg(2)
    assert inputs.read("cat/x.tar.gz", key="x/3", spool=spool.spool, offset=offset, num_bytes=len(jpeg(3))).data == jpeg(3)


def test_raw_pixels_become_an_image_or_stay_raw_pixels(tmp_path):
    pixels = noise(1, 5, 7)
    inputs = Inputs(tmp_path, {"cat/data.bin": b"????" + pixels.tobytes()})
    actual = inputs.read("cat/data.bin", offset=4, num_bytes=pixels.nbytes, raw=RawImage(5, 7, 3))
    assert (actual.image.height, actual.image.width) == (5, 7) and check_image(actual.data, "strict").format == "png"
    stored = (Feature("image", "pixels", (5, 7, 3)), Feature("key", "text"))
    exact = Inputs(tmp_path, {}, schema=stored)
    exact.context = WriteContext(make_run(tmp_path, images=ImageConfig(encoding="raw")).spec(WriteSpec), exact.context.listing)
    exact.reader = InputReader(exact.context, exact.files, exact.spool)
    assert exact.read("cat/data.bin", offset=4, num_bytes=pixels.nbytes, raw=RawImage(5, 7, 3)).data == pixels.tobytes()
    other = exact.read("cat/data.bin", offset=4, num_bytes=4 * 7 * 3, raw=RawImage(4, 7, 3))
    assert other.reason == "bad_image" and "84 bytes" in other.message and "105" in other.message


# Dead letters


def replace_by_folder(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: pathlib.Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


BAD = [
    # case, change of the file, stage, reason, part of the message
    ("missing", pathlib.Path.unlink, "read", "unreadable", "No such file or directory"),
    ("a folder", replace_by_folder, "read", "unreadable", "directory"),
    ("a broken link", replace_by_link, "read", "unreadable", "No such file or directory"),
    ("huge", lambda path: os.truncate(path, MAX_FILE_BYTES + 1), "read", "unreadable", f"{MAX_FILE_BYTES + 1} bytes"),
    ("empty", lambda path: os.truncate(path, 0), "check", "bad_image", "0 bytes"),
    ("truncated", lambda path: os.truncate(path, 300), "check", "bad_image", "JPEG"),
    ("HTML page", lambda path: path.write_bytes(b"<!DOCTYPE html>"), "check", "bad_image", "HTML"),
]


@pytest.mark.parametrize("check", ["strict", "decode"])
@pytest.mark.parametrize("corrupt, stage, reason, message", [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_becomes_a_dead_letter(tmp_path, check, corrupt, stage, reason, message):
    inputs = Inputs(tmp_path, GOOD, check)
    bad = "cat/large.jpg"
    corrupt(inputs.root / bad)
    actual = {path: inputs.read(path) for path in GOOD}
    letter = actual.pop(bad)
    assert (letter.path, letter.stage, letter.reason) == (bad, stage, reason)
    assert message in letter.message and "\n" not in letter.message
    assert str(tmp_path) not in letter.message, "messages must be equal on all machines"
    assert {type(item) for item in actual.values()} == {ReadImage}


def test_dead_letter_has_the_path_and_the_key_of_a_packed_image(tmp_path):
    inputs = Inputs(tmp_path, {"cat/packed": b"<html>" * 9})
    cases = [
        ("the key begins with the path", {"key": "cat/packed:07"}, "cat/packed:07"),
        ("the key is another name", {"key": "image 7"}, "cat/packed/image 7"),
    ]
    for case, fields, expected in cases:
        assert inputs.read("cat/packed", offset=6, num_bytes=6, **fields).path == expected, case
    assert inputs.read("cat/packed", key="a key").path == "cat/packed"


def test_part_outside_its_file_is_a_dead_letter(tmp_path):
    inputs = Inputs(tmp_path, {"cat/packed": b"x" * 100})
    for offset, message in ((90, "10 bytes at 90"), (100, "0 bytes at 100"), (5000, "0 bytes at 5000")):
        letter = inputs.read("cat/packed", key=f"cat/packed:{offset}", offset=offset, num_bytes=50)
        assert (letter.stage, letter.reason) == ("read", "unreadable") and message in letter.message
        assert letter == inputs.digest("cat/packed", key=f"cat/packed:{offset}", offset=offset, num_bytes=50)


def test_hashing_reports_the_same_dead_letters(tmp_path):
    inputs = Inputs(tmp_path, {"cat/folder/1.jpg": b""})
    for name in ("cat/none.jpg", "cat/folder", "cat/folder/1.jpg/2.jpg"):
        letter = inputs.digest(name)
        assert isinstance(letter, DeadLetter) and letter == inputs.read(name), name


def test_without_check_only_empty_files_are_rejected(tmp_path):
    inputs = Inputs(tmp_path, {"cat/1.jpg": b"garbage", "cat/2.jpg": b"", "cat/3.jpg": b"x"}, "none")
    assert inputs.read("cat/1.jpg") == ReadImage(b"garbage", None, StoredImage(7))
    letter = inputs.read("cat/2.jpg")
    assert (letter.stage, letter.reason) == ("read", "unreadable") and "empty" in letter.message
    os.truncate(inputs.root / "cat/3.jpg", MAX_FILE_BYTES + 1)
    assert f"{MAX_FILE_BYTES + 1} bytes" in inputs.read("cat/3.jpg").message
    (inputs.root / "cat/3.jpg").unlink()
    assert "No such file" in inputs.read("cat/3.jpg").message


# Errors of the storage


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT])
def test_disk_error_fails_the_run(valid_inputs, monkeypatch, code):
    def fail(path: str) -> bytes:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(valid_inputs.files, "read", fail)
    with pytest.raises(RunError, match=f"cat/large.jpg.*{os.strerror(code)}"):
        valid_inputs.read("cat/large.jpg")


def test_spool_error_fails_the_run(tmp_path):
    inputs = Inputs(tmp_path, {})
    with SpoolWriter(inputs.context.spec.run.spool_directory) as spool:
        spool.append(jpeg(1))
    where = {"spool": spool.spool, "offset": 0}
    with pytest.raises(RunError, match=f"cat/x.tar.gz: the spool .*{len(jpeg(1))} of "):
        inputs.read("cat/x.tar.gz", num_bytes=len(jpeg(1)) + 1, **where)
    with pytest.raises(RunError, match="cat/x.tar.gz: .*No such file"):
        inputs.read("cat/x.tar.gz", num_bytes=1, spool=spool.spool + 1, offset=0)


def test_programming_error_is_not_a_dead_letter(valid_inputs, monkeypatch):
    def fail(*args: Any, **options: Any) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(input_reader, "check_image", fail)
    with pytest.raises(TypeError, match="a bug"):
        valid_inputs.read("cat/large.jpg")


@pytest.mark.parametrize("at_most", [1, 1000])
def test_short_reads_are_completed(valid_inputs, monkeypatch, at_most):
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, num_bytes, offset: pread(descriptor, min(num_bytes, at_most), offset))
    for path in ("bird/small.jpg", "cat/small.png"):
        assert valid_inputs.read(path).data == GOOD[path]
    assert valid_inputs.read("cat/large.jpg", offset=0, num_bytes=len(GOOD["cat/large.jpg"])).data == GOOD["cat/large.jpg"]


# Slow storage


def test_storage_is_slow_if_nearly_all_reads_wait(valid_inputs, monkeypatch):
    seconds: Iterator[float] = iter(())
    monkeypatch.setattr(input_reader.time, "perf_counter", lambda: next(seconds))

    def read(*waits: float) -> list[bool]:
        nonlocal seconds
        actual = []
        for wait in waits:
            seconds = iter((0.0, wait))
            valid_inputs.read("cat/small.png")
            actual.append(valid_inputs.reader.is_slow())
        return actual

    assert read(*[0.00001] * 20) == [False] * 20
    assert read(*[1.0, 0.00001] * 10) == [False] * 20, "single slow reads occur if the cores are busy"
    assert read(*[0.01] * 16)[-1], "all recent reads are slow"
    assert not read(*[0.00001] * 16)[-1]


def test_large_image_does_not_count_as_a_slow_read(tmp_path, monkeypatch):
    inputs = Inputs(tmp_path, {"cat/1.jpg": bytes(2 << 20)}, "none")
    seconds = iter([0.0, 0.002] * 16)
    monkeypatch.setattr(input_reader.time, "perf_counter", lambda: next(seconds))
    for _ in range(16):
        inputs.read("cat/1.jpg")
    assert not inputs.reader.is_slow()


class SlowFiles(LocalFiles):
    """A slow file system in which each read, except the first `num_alone` reads, waits for a second concurrent read."""

    def __init__(self, num_alone: int) -> None:
        self._alone = num_alone
        self._pairs = threading.Barrier(2)
        self.threads: set[int] = set()

    def read(self, path: str) -> bytes:
        self.threads.add(threading.get_ident())
        if self._alone:
            self._alone -= 1
            time.sleep(0.002)
        else:
            self._pairs.wait(timeout=60)  # raises an error if reads are sequential
        return super().read(path)


def test_reads_from_slow_storage_are_concurrent_and_in_order(tmp_path):
    files = {f"cat/{index:03d}.jpg": jpeg(index) for index in range(80)}
    inputs = Inputs(tmp_path, files)
    slow = SlowFiles(num_alone=input_reader._NUM_WAITS)
    reader = InputReader(inputs.context, slow, inputs.spool)
    images = [InputRecord(path, path, "cat", None) for path in files]
    assert [result.data for result in reader.read_all(images, [False] * len(files))] == list(files.values())
    assert len(slow.threads) > 2


# Sampled pixels


def test_only_sampled_images_return_pixel_sums(valid_inputs):
    for path, data in GOOD.items():
        expected = sum_pixels(check_image(data, "strict", full_scale=True).pixels)
        assert valid_inputs.read(path, is_sampled=True).pixels == expected, path
        assert valid_inputs.read(path).pixels is None, path


def test_sampled_pixels_are_released(tmp_path):
    photograph = jpeg(0, 1500, 2000)  # 9 MB when decoded
    inputs = Inputs(tmp_path, {f"cat/{index}.jpg": photograph for index in range(8)})
    tracemalloc.start()
    try:
        actual = [inputs.read(f"cat/{index}.jpg", is_sampled=True) for index in range(8)]
        assert {item.pixels.num_examples for item in actual} == {1}
        assert tracemalloc.get_traced_memory()[1] < 4 * 9_000_000 + 8 * len(photograph)
    finally:
        tracemalloc.stop()


def test_sample_of_pixels_depends_on_seed_and_key(tmp_path):
    files = {f"cat/{index}.png": png(index, 4, 4) for index in range(200)}
    paths = list(files)
    sums = {}
    for case, seed, num_shards in (("one", 7, 1), ("five", 7, 5), ("another seed", 8, 1)):
        run = PlannedInput(tmp_path / case, files, seed=seed, num_shards=num_shards)
        # The dataset is 20 times larger than the sample, so that about 10 of the 200 images are in the sample.
        run.context = WriteContext(run.made.spec(WriteSpec), dataclasses.replace(run.context.listing, num_inputs=20 * NUM_PIXEL_SAMPLES))
        sums[case] = TensorSums()
        for shard in run.shards:
            sums[case].merge(run.write(shard=shard).statistics.splits[0].pixels)
        orders = shuffle_orders(seed, [path.encode() for path in paths]).tolist()
        expected = TensorSums()
        for path, order in zip(paths, orders):
            if order % 2**32 < 2**32 // 20:
                expected.merge(sum_pixels(check_image(files[path], "strict", full_scale=True).pixels))
        assert sums[case] == expected and 3 < expected.num_examples < 25, case
    assert sums["one"] == sums["five"] != sums["another seed"]


def test_sample_of_pixels_has_a_limited_size(tmp_path):
    def is_sampled(num_inputs: int) -> np.ndarray:
        orders = np.sort(shuffle_orders(0, [f"{index}".encode() for index in range(num_inputs)]))
        return WriteContext(make_run(tmp_path).spec(WriteSpec), make_listing("c", num_inputs=num_inputs)).is_sampled(orders)

    assert is_sampled(0).all() and is_sampled(1).all() and is_sampled(NUM_PIXEL_SAMPLES).all()
    sampled_per_shard = is_sampled(50_000).reshape(4, -1).sum(axis=1)
    assert sum(sampled_per_shard) == pytest.approx(NUM_PIXEL_SAMPLES, rel=0.15)
    assert sampled_per_shard.tolist() == pytest.approx([NUM_PIXEL_SAMPLES / 4] * 4, rel=0.35)


def test_statistics_describe_the_stored_images(tmp_path):
    run = PlannedInput(tmp_path, {**GOOD, "dog/bad.jpg": b""})
    actual = run.write().statistics.to_json()["images"]
    checked = [check_image(data, "strict", full_scale=True) for data in GOOD.values()]
    assert actual["num_images"] == 7
    assert actual["formats"] == {"bmp": 1, "gif": 1, "jpeg": 3, "png": 1, "webp": 1}
    assert actual["reencoded"] == {"bmp": 1, "gif": 1, "webp": 1}
    stored = [len(data if element.encoded is None else element.encoded) for data, element in zip(GOOD.values(), checked)]
    for name, values in (("height", [item.height for item in checked]), ("width", [entry.width for entry in checked]), ("bytes", stored)):
        assert actual[name] == {"min": min(values), "max": max(values), "mean": sum(values) / 7}, name
