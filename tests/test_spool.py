"""What is spooled is read back as it was, by another process too, and leaves nothing open behind."""

import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.files import files_at
from beam_pipelines.spool import SpoolReader, SpoolWriter, own_spool, spool_writer
from tf_input.records import _LocalFiles


def num_open_files(directory: object) -> int:
    """Of this process, in a directory, deleted ones too."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # that of listdir itself
            pass
    return sum(target.startswith(str(directory)) for target in targets)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.one_of(st.binary(), st.integers(1_000, 3_000_000).map(bytes)), max_size=10),
    st.randoms(use_true_random=False),
)
def test_bytes_are_read_back_as_they_were_in_any_order(tmp_path_factory, pieces, random):
    directory = str(tmp_path_factory.mktemp("spool"))
    writers = [SpoolWriter(directory), SpoolWriter(directory)]
    pointers = []
    for piece in pieces:
        writer = random.choice(writers)
        pointers.append((writer.spool, writer.append(piece), len(piece)))
    for writer in writers:
        writer.flush()
    reader = SpoolReader(directory)
    for index in random.sample(range(len(pieces)), len(pieces)):
        assert reader.read(*pointers[index]) == pieces[index]
    reader.close()
    shutil.rmtree(directory)


def test_every_writer_has_a_file_and_an_id_of_its_own(tmp_path):
    writers = [SpoolWriter(str(tmp_path)) for _ in range(100)]
    assert len({writer.spool for writer in writers}) == len(os.listdir(tmp_path)) == 100
    for writer in writers:
        assert writer.spool < 2**64, "a row has 64 bits for it"


def test_no_file_has_the_id_of_the_original_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "urandom", bytes)
    assert SpoolWriter(str(tmp_path)).spool != 0


def test_the_spool_directory_is_made_where_it_is_missing_but_not_what_it_should_lie_in(tmp_path):
    SpoolWriter(str(tmp_path / "spool"))
    assert len(os.listdir(tmp_path / "spool")) == 1
    with pytest.raises(FileNotFoundError):
        SpoolWriter(str(tmp_path / "removed" / "spool"))


def test_what_was_flushed_is_there_for_another_process(tmp_path):
    writer = SpoolWriter(str(tmp_path))
    writer.append(b"before")
    offset = writer.append(b"a small image")
    writer.flush()
    script = f"import os, sys; os.write(1, os.pread(os.open(sys.argv[1], os.O_RDONLY), 13, {offset}))"
    path = tmp_path / os.listdir(tmp_path)[0]
    assert subprocess.run([sys.executable, "-c", script, path], capture_output=True).stdout == b"a small image"


def test_a_pointer_past_the_end_reads_short_and_one_into_no_file_fails(tmp_path):
    writer = SpoolWriter(str(tmp_path))
    writer.append(b"0123456789")
    writer.flush()
    reader = SpoolReader(str(tmp_path))
    assert reader.read(writer.spool, 8, 5) == b"89"
    with pytest.raises(FileNotFoundError):
        reader.read(writer.spool ^ 2, 0, 1)
    reader.close()


def test_a_reader_opens_each_file_once_and_closes_them_all(tmp_path):
    writers = [SpoolWriter(str(tmp_path)) for _ in range(3)]
    for writer in writers:
        writer.append(b"abc")
        writer.flush()
    before = num_open_files(tmp_path)
    reader = SpoolReader(str(tmp_path))
    for _ in range(5):
        for writer in writers:
            assert reader.read(writer.spool, 1, 2) == b"bc"
    assert num_open_files(tmp_path) == before + 3
    reader.close()
    assert num_open_files(tmp_path) == before
    with pytest.raises(ValueError, match="its reader is closed"):  # else what a thread still reads would stay open
        reader.read(writers[0].spool, 0, 1)
    assert num_open_files(tmp_path) == before


def test_a_process_keeps_one_writer_for_a_directory(tmp_path):
    first = spool_writer(str(tmp_path / "one"))
    assert spool_writer(str(tmp_path / "one")) is first
    assert spool_writer(str(tmp_path / "other")).spool != first.spool
    assert [len(os.listdir(tmp_path / name)) for name in ("one", "other")] == [1, 1]


def test_a_second_run_in_the_same_process_spools_to_a_file_that_is_there(tmp_path):
    # A notebook that prepares the same output again: the first run's spool is gone, and its writer must not live on.
    directory, writers = str(tmp_path / "spool"), []
    for run in range(3):
        writers.append(spool_writer(directory))
        offset = writers[-1].append(b"an image")
        writers[-1].flush()
        reader = SpoolReader(directory)
        assert reader.read(writers[-1].spool, offset, 8) == b"an image", run
        reader.close()
        assert num_open_files(tmp_path) == 1, "a file that is removed and open keeps its disk space"
        shutil.rmtree(directory)


def test_threads_of_one_worker_do_not_write_into_each_others_images(tmp_path):
    # As with --direct_running_mode=multi_threading, where bundles run in threads of one process.
    directory, num_threads, num_images = str(tmp_path / "spool"), 4, 20
    barrier = threading.Barrier(num_threads)
    found: dict[bytes, tuple[Any, int]] = {}

    def spool_some(thread: int) -> None:
        barrier.wait()
        for index in range(num_images):
            image = f"thread {thread} image {index:03d}".encode()
            writer = spool_writer(directory)
            found[image] = writer, writer.append(image)
        writer.flush()

    class SlowFile:
        """Gives other threads their turn in the middle of an append, as a full buffer does."""

        def __init__(self, file: Any) -> None:
            self._file = file
            self.flush, self.fileno, self.close = file.flush, file.fileno, file.close

        def write(self, data: bytes) -> None:
            time.sleep(0.001)
            self._file.write(data)

    original = SpoolWriter.__init__

    def start_slow(self: SpoolWriter, *args: Any) -> None:
        original(self, *args)
        self._file = SlowFile(self._file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpoolWriter, "__init__", start_slow)
        threads = [threading.Thread(target=spool_some, args=(thread,)) for thread in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reader = SpoolReader(directory)
    assert len(found) == num_threads * num_images
    wrong = [image for image, (writer, offset) in found.items() if reader.read(writer.spool, offset, len(image)) != image]
    reader.close()
    assert wrong == []


def test_a_reader_of_many_spools_has_few_of_them_open(tmp_path, monkeypatch):
    monkeypatch.setattr("beam_pipelines.spool.MAX_OPEN", 5)
    writers = [SpoolWriter(str(tmp_path)) for _ in range(23)]
    for number, writer in enumerate(writers):
        writer.append(b"%02d" % number)
        writer.flush()
        writer.close()
    reader = SpoolReader(str(tmp_path))
    for _ in range(2):
        assert [reader.read(writer.spool, 0, 2) for writer in writers] == [b"%02d" % number for number in range(23)]
        assert num_open_files(tmp_path) <= 5
    reader.close()


def test_a_reader_that_is_closed_while_it_reads_gives_no_bytes_of_another_file(tmp_path, monkeypatch):
    """Its descriptor's number goes to the next file that is opened: not before the read is done."""
    with own_spool(str(tmp_path / "spool")) as writer:
        writer.append(b"mine")
    (tmp_path / "other").write_bytes(b"THEIRS")
    reading, closed, pread = threading.Event(), threading.Event(), os.pread

    def hold(descriptor: int, num_bytes: int, offset: int) -> bytes:
        reading.set()
        assert closed.wait(60)
        return pread(descriptor, num_bytes, offset)

    reader = SpoolReader(str(tmp_path / "spool"))
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(os, "pread", hold)
        found = thread.submit(reader.read, writer.spool, 0, 4)
        assert reading.wait(60)
        reader.close()
        others = [os.open(tmp_path / "other", os.O_RDONLY) for _ in range(9)]
        closed.set()
        assert found.result(60) == b"mine"
    monkeypatch.undo()
    for descriptor in others:
        os.close(descriptor)
    with pytest.raises(ValueError, match="its reader is closed"):
        reader.read(writer.spool, 0, 4)


def test_a_closed_reader_holds_no_file_open(tmp_path):
    with own_spool(str(tmp_path)) as writer:
        writer.append(b"mine")
    reader = SpoolReader(str(tmp_path))
    assert reader.read(writer.spool, 1, 2) == b"in" and num_open_files(tmp_path) == 1
    reader.close()
    assert num_open_files(tmp_path) == 0


@pytest.mark.parametrize("at_most", [1, 7, 4096])
def test_reads_that_give_less_than_was_asked_for_change_nothing(tmp_path, monkeypatch, at_most):
    """As FUSE's may, and those that a signal interrupts: for every reader of files that are not buffered."""
    data = os.urandom(9000)
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "empty").write_bytes(b"")
    with own_spool(str(tmp_path)) as writer:
        writer.append(data)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, num_bytes, offset: pread(descriptor, min(num_bytes, at_most), offset))
    files, path = files_at(str(tmp_path)), str(tmp_path / "file")
    assert files.read(path) == data and files.read(str(tmp_path / "empty")) == b""
    assert files.read_range(path, 5, 8000) == data[5:8005] and files.read_range(path, 8990, 100) == data[8990:]
    with contextlib.closing(SpoolReader(str(tmp_path))) as reader:
        assert reader.read(writer.spool, 3, 8000) == data[3:8003]
    assert _LocalFiles().read(path, 5, 8000) == data[5:8005] and _LocalFiles().read(path, 8990, 100) == data[8990:]
