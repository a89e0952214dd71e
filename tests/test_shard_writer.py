"""A shard is a TFRecord file that TensorFlow reads, of the images that were checked, whole or not there."""

import os
import pathlib
import random
import struct
from typing import Any, Callable

import google_crc32c
import numpy as np
import pytest

from beam_pipelines import shard_writer
from beam_pipelines.errors import RunError
from beam_pipelines.examples import ExampleEncoder
from beam_pipelines.light_processes import share
from beam_pipelines.quality import LabelSequence
from beam_pipelines.references import ROW, References
from beam_pipelines.shard_writer import ShardAddress, WriteContext, WrittenShard, masked, write_shard
from beam_pipelines.spool import SpoolWriter
from listings import make_schema
from made_images import write_files
from tf_input.dataset_format import decode_index

ADDRESS = ShardAddress("train", 3, 16)
SHARD, INDEX = "flowers-train.tfrecord-00003-of-00016", "index/flowers-train-00003-of-00016.idx"

# Around what fits one, two and three bytes of a varint, and around the size at which records are flushed.
SIZES = (1, 2, 100, 127, 128, 16_383, 16_384, 300_000, (1 << 20) - 60, (1 << 20) + 1, 5, 700_000, 700_000, 3 << 20, 1)


class Run:
    """What stands between the check and the write of images: files, a spool, references in rank order."""

    def __init__(self, directory: pathlib.Path, check: str = "strict") -> None:
        self.root, self.out, self.spool = directory / "in", directory / "out", directory / "spool"
        self.out.mkdir()
        self.check = check
        self.schema = make_schema("a", "b", "c", has_sizes=check != "none")
        self._writer = SpoolWriter(str(self.spool))
        self._rows: list[tuple] = []
        self._paths: list[str] = []
        self.images: list[bytes] = []

    def add(self, path: str, image: bytes, *, spooled: bool) -> None:
        write_files(self.root, {path: image})
        spool, offset = (self._writer.spool, self._writer.append(image)) if spooled else (0, 0)
        self._writer.flush()
        index = len(self.images)
        crc32c = google_crc32c.value(image) if self.check != "none" else 0
        self._rows.append((index, 0, index % 3, len(image), crc32c, 10 + index, 20 + index, spool, offset))
        self._paths.append(path)
        self.images.append(image)

    def references(self) -> References:
        keys = [f"key of {path}".encode() for path in self._paths]
        return References(np.array(self._rows, ROW), keys, [path.encode() for path in self._paths])

    def write(self) -> WrittenShard:
        self._writer._file.close()  # what a worker leaves to its end
        context = WriteContext(
            str(self.root), str(self.out), str(self.spool), "flowers", self.schema, has_checksums=self.check != "none"
        )
        return write_shard(share(context), ADDRESS, self.references().pack())

    def examples(self) -> list[bytes]:
        """The serialized examples that the shard is to hold."""
        encoder = ExampleEncoder(self.schema)
        return [
            encoder.encode(
                image, {"height": 10 + index, "width": 20 + index, "label": index % 3, "key": f"key of {path}".encode()}
            )
            for index, (path, image) in enumerate(zip(self._paths, self.images))
        ]

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.out)) for path in self.out.rglob("*") if path.is_file())


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Run:
    """Images of all sizes, every other one spooled."""
    run, source = Run(tmp_path), random.Random(0)
    for index, size in enumerate(SIZES):
        run.add(f"cat/é {index}.jpg", source.randbytes(size), spooled=index % 2 == 1)
    return run


def read_with_tensorflow(path: pathlib.Path) -> list[bytes]:
    import tensorflow as tf

    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def test_tensorflow_reads_the_records_in_order_with_equal_bytes(run):
    run.write()
    assert read_with_tensorflow(run.out / SHARD) == run.examples()


def test_tensorflow_refuses_a_shard_with_one_wrong_bit(run):
    # It verifies the masked checksums, so the test above shows that they are right.
    import tensorflow as tf

    run.write()
    data = (run.out / SHARD).read_bytes()
    length_crc, first_data, data_crc = 8, 12, 12 + len(run.examples()[0])
    for case, position in (("length's checksum", length_crc), ("data", first_data), ("data's checksum", data_crc)):
        (run.out / SHARD).write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(tf.errors.DataLossError):
            read_with_tensorflow(run.out / SHARD)
            pytest.fail(case)


def test_examples_without_a_check_have_no_size_and_are_read_too(tmp_path):
    import tensorflow as tf

    run = Run(tmp_path, check="none")
    run.add("cat/1.jpg", b"an image", spooled=False)
    run.write()
    (record,) = read_with_tensorflow(run.out / SHARD)
    assert set(tf.train.Example.FromString(record).features.feature) == {"image", "key", "label"}
    assert [record] == run.examples()


def test_masked_checksums_are_those_of_the_format():
    # From TensorFlow's crc32c_test.cc and record_writer: rotate right by 15, add a constant.
    for crc in (0, 1, 0xFFFFFFFF, 0x8A9136AA, 0x12345678):
        rotated = int(f"{crc:032b}"[-15:] + f"{crc:032b}"[:-15], 2)
        assert masked(crc) == (rotated + 0xA282EAD8) % 2**32, hex(crc)


def test_index_rows_point_at_record_image_and_label(run):
    run.write()
    data = (run.out / SHARD).read_bytes()
    rows = list(decode_index((run.out / INDEX).read_bytes()))
    assert len(rows) == len(SIZES)
    for row, example, image, label in zip(rows, run.examples(), run.images, run.references().rows["label"]):
        (length,) = struct.unpack_from("<Q", data, row.record_offset)
        assert data[row.record_offset + 12 :][:length] == example
        assert data[row.image_offset :][: row.image_length] == image
        assert row.image_length == len(image)
        assert row.label == label
    assert rows[0].record_offset == 0
    assert [row.record_offset for row in rows] == sorted(row.record_offset for row in rows)


def test_what_is_said_of_a_shard_is_so(run):
    written = run.write()
    data = (run.out / SHARD).read_bytes()
    assert written.address == ADDRESS
    assert (written.info.name, written.info.index) == (SHARD, INDEX)
    assert written.info.num_examples == len(SIZES)
    assert written.info.num_bytes == len(data)
    assert written.info.crc32c == google_crc32c.value(data)
    assert written.labels == {"label": LabelSequence.of(np.arange(len(SIZES)) % 3)}
    assert run.files() == sorted([SHARD, INDEX])


def test_a_retry_gives_the_same_bytes_and_leaves_nothing_else(run):
    first = run.write()
    before = {name: (run.out / name).read_bytes() for name in run.files()}
    assert run.write() == first
    assert {name: (run.out / name).read_bytes() for name in run.files()} == before


# What changes between the check and the write


def rewrite(path: pathlib.Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def become_folder(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


def the_spool(run: Run) -> pathlib.Path:
    (path,) = run.spool.iterdir()
    return path


FILE = "cat/second.jpg"
CHANGES = [
    # case, is the image spooled, what happens, what the error says
    ("a byte more", False, lambda run: rewrite(run.root / FILE, lambda data: data + b"!"), "changed between"),
    ("a byte less", False, lambda run: rewrite(run.root / FILE, lambda data: data[:-1]), "changed between"),
    ("nothing left", False, lambda run: rewrite(run.root / FILE, lambda data: b""), "changed between"),
    ("other bytes", False, lambda run: rewrite(run.root / FILE, lambda data: data[::-1]), "changed between"),
    ("another bit", False, lambda run: rewrite(run.root / FILE, lambda data: data[:-1] + b"\x01"), "changed between"),
    ("a hundred times the size", False, lambda run: rewrite(run.root / FILE, lambda data: data * 100), "changed between"),
    ("vanished", False, lambda run: (run.root / FILE).unlink(), "could not be read again"),
    ("a folder now", False, lambda run: become_folder(run.root / FILE), "could not be read again"),
    ("a broken link now", False, lambda run: os.replace(make_link(run), run.root / FILE), "could not be read again"),
    ("the spool is cut off", True, lambda run: rewrite(the_spool(run), lambda data: data[:-1]), "changed between"),
    ("the spool is damaged", True, lambda run: rewrite(the_spool(run), lambda data: data[:-1] + b"\x01"), "changed between"),
    ("the spool vanished", True, lambda run: the_spool(run).unlink(), "could not be read again"),
]


def make_link(run: Run) -> pathlib.Path:
    link = run.root / "link"
    link.symlink_to("nowhere")
    return link


@pytest.mark.parametrize("spooled, change, message", [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_a_file_that_is_not_what_was_checked_fails_the_run_by_name_and_leaves_nothing(tmp_path, spooled, change, message):
    run = Run(tmp_path)
    run.add("cat/first.jpg", b"the first image" * 100_000, spooled=False)  # a flush lies behind it already
    run.add(FILE, b"the second image\0", spooled=spooled)
    change(run)
    with pytest.raises(RunError) as caught:
        run.write()
    for part in (FILE, message):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert run.files() == []


@pytest.mark.parametrize("spoil", [pathlib.Path.unlink, become_folder, lambda path: path.write_bytes(b"")])
def test_a_file_is_named_on_one_line_whatever_its_path_holds(tmp_path, spoil):
    run = Run(tmp_path)
    run.add("cat/a\nb.jpg", b"an image", spooled=False)
    spoil(run.root / "cat/a\nb.jpg")
    with pytest.raises(RunError) as caught:
        run.write()
    assert str(caught.value).isprintable()


def test_without_checksums_another_size_is_noticed_and_other_bytes_are_not(tmp_path):
    run = Run(tmp_path, check="none")
    run.add(FILE, b"the second image", spooled=False)
    rewrite(run.root / FILE, lambda data: data[::-1])
    run.write()
    assert b"egami dnoces eht" in (run.out / SHARD).read_bytes()
    rewrite(run.root / FILE, lambda data: data + b"!")
    with pytest.raises(RunError, match=FILE):
        run.write()


def test_a_shard_that_cannot_be_written_leaves_no_temporary_file(tmp_path, monkeypatch):
    def fail(*unused: Any) -> None:
        raise OSError(28, "No space left on device")

    for case, target in (("a full disk", "shard_writer.RecordWriter.flush"), ("the rename", "files.os.replace")):
        directory = tmp_path / case
        directory.mkdir()
        run = Run(directory)
        run.add(FILE, b"an image", spooled=False)
        with monkeypatch.context() as patch:
            patch.setattr(f"beam_pipelines.{target}", fail)
            with pytest.raises((OSError, RunError), match="No space left"):
                run.write()
        assert run.files() == [], case


def test_a_file_that_takes_few_bytes_at_a_time_gets_them_all():
    class Trickle:
        """As a pipe or a network file system: no error, and not all of it."""

        def __init__(self) -> None:
            self.data = b""

        def write(self, view: memoryview) -> int:
            self.data += bytes(view[:7])
            return len(view[:7])

    trickle = Trickle()
    writer = shard_writer.RecordWriter(trickle)
    assert [writer.write(b"one", b"", b" record"), writer.write(b""), writer.write(b"x" * 1000)] == [0, 26, 42]
    writer.flush()
    assert len(trickle.data) == writer.num_bytes == 42 + 1016
    assert google_crc32c.value(trickle.data) == writer.crc32c
    assert trickle.data[12:22] == b"one record"


def test_no_file_stays_open(run):
    # Not even the spool's: an open file keeps its disk space when the spool is deleted.
    run.write()
    still_open = [os.path.realpath(f"/proc/self/fd/{descriptor}") for descriptor in os.listdir("/proc/self/fd")]
    assert [path for path in still_open if path.startswith(str(run.root.parent))] == []
