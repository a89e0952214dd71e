"""Tests that an unreadable input becomes a dead letter, and that errors of disks and object stores fail the run."""

import contextlib
import errno
import os
import pickle
import resource
from typing import Iterator

import pytest
from apache_beam.io.filesystems import FileSystems

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import RunError, StorageError, UserError
from beam_pipelines.runners.jobs import parse_pipeline_options
from beam_pipelines.shards.input_reader import InputReader
from beam_pipelines.shards.write_context import WriteContext, WriteSpec
from beam_pipelines.storage.files import files_at, write_file, write_chunks
from beam_pipelines.storage.input_errors import describe_fact, kind_of, listing_error, size_on_disk
from beam_pipelines.storage.spool import SpoolReader
from listings import make_listing
from made_images import jpeg, write_files
from object_stores import Faults, StoreServer, connected_to, fault_proxy, shared_server, upload_files
from tf_input.dataset_format import Feature


def read(root: str, path: str, **options) -> object:
    """Reads one input below `root` and returns the image or the dead letter."""
    schema = (Feature("image", "image"),)
    listing = make_listing(root=root, schema=schema, targets=(), listed_labels={}, num_inputs=1)
    context = WriteContext(WriteSpec.of(PrepareOptions(root, f"{root}/out", "made"), RunPaths(f"{root}/out")), listing)
    with SpoolReader(context.spec.run.spool_directory) as spool:
        return InputReader(context, files_at(root), spool).read(InputRecord(path, path, "", None, **options), False)


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_only_permanent_errors_of_a_path_are_dead_letters(number):
    error = OSError(number, os.strerror(number))
    everywhere = {"ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "EFBIG", "ENXIO", "ENODEV", "EILSEQ"}
    for path, facts in (("in/1.jpg", everywhere | {"EACCES", "EPERM"}), ("gs://bucket/1.jpg", everywhere)):
        if errno.errorcode[number] in facts:
            assert describe_fact(error, path) == os.strerror(number)
            assert isinstance(listing_error(error, path, "message"), UserError)
        else:
            with pytest.raises(RunError, match=f"^{path} could not be read: "):
                describe_fact(error, path)
            assert isinstance(listing_error(error, path, "message"), RunError)


def test_failed_write_names_file_and_leaves_nothing(tmp_path):
    for write in (lambda path: write_file(path, b"mine"), lambda path: write_chunks(path, [b"mi", b"ne"])):
        with pytest.raises(StorageError, match="^mine.json could not be written: No such file or directory$"):
            write(str(tmp_path / "nowhere" / "mine.json"))
    assert not os.listdir(tmp_path)


def test_exists_is_false_for_impossible_file_names(tmp_path):
    for name in ("a\0b", "a" * 300, "file/below"):
        (tmp_path / "file").write_bytes(b"")
        assert not files_at(str(tmp_path)).exists(f"{tmp_path}/{name}"), name


def test_error_without_errno_is_not_a_dead_letter():
    with pytest.raises(RunError, match="1.jpg could not be read: timed out"):
        describe_fact(TimeoutError("timed out"), "in/1.jpg")
    assert isinstance(listing_error(ValueError("corrupt"), "in/a.csv", "message"), UserError)


def test_permanent_read_errors_make_dead_letters(tmp_path):
    write_files(tmp_path, {"a/1.jpg": jpeg(), "file": b""})
    (tmp_path / "loop").symlink_to("loop")
    for path in ("none.jpg", "a", "loop", "file/1.jpg", "a/" + 300 * "x"):
        letter = read(str(tmp_path), path)
        assert isinstance(letter, DeadLetter) and (letter.stage, letter.reason) == ("read", "unreadable"), path
        assert size_on_disk(f"{tmp_path}/{path}") is None and not files_at(str(tmp_path)).exists(f"{tmp_path}/{path}")
    assert size_on_disk(f"{tmp_path}/a/1.jpg") == len(jpeg())
    assert read(str(tmp_path), "a/1.jpg", offset=9, num_bytes=9999).message == f"{len(jpeg()) - 9} bytes at 9 instead of 9999"
    paths = {"a": "folder", "a/1.jpg": "file", "loop": None, "none": None, "/dev/null": "other"}
    assert {path: kind_of(os.path.join(tmp_path, path)) for path in paths} == paths


@contextlib.contextmanager
def no_free_descriptors() -> Iterator[None]:
    """Opens files until the process reaches its limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    descriptors = []
    try:
        with contextlib.suppress(OSError):
            while True:
                descriptors.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in descriptors:
            os.close(descriptor)


def test_errors_of_process_or_disk_fail_the_run(tmp_path):
    write_files(tmp_path, {"1.jpg": jpeg()})
    with no_free_descriptors(), pytest.raises(RunError, match="1.jpg could not be read: Too many open files"):
        read(str(tmp_path), "1.jpg")
    with pytest.raises(RunError, match="/proc/self/mem could not be read: Input/output error"):
        read("/proc/self", "mem")  # Reading this file raises EIO, as reading a broken disk does.
    with pytest.raises(RunError, match="1.jpg: the spool could not be read: No such file") as caught:
        read(str(tmp_path), "1.jpg", spool=77, offset=0, num_bytes=9)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "worker processes return the exception"


def test_disk_error_fails_run_with_one_message(tmp_path, capsys, monkeypatch):
    """One image that causes a disk error is enough to fail the run."""
    write_files(tmp_path, {f"{index}.jpg": jpeg(index) for index in range(200)})
    folder = str(tmp_path).lstrip("/")
    rows = [f"{folder}/{index}.jpg,{'ab'[index % 2]}" for index in range(200)] + ["proc/self/mem,a"]
    (tmp_path / "table.csv").write_text("\n".join(["image,label", *rows]))
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", "--input", "table.csv", "--image_root=/", "--output", "out"]) == 1
    reported = capsys.readouterr().err.splitlines()[-1]
    reason = "//proc/self/mem could not be read: Input/output error. "
    assert reported.startswith(f"recordmill: {reason}") and "0 of 2 shards are complete. " in reported
    assert [path.name for path in tmp_path.glob("out*")] == ["out.incomplete"]


@pytest.fixture(scope="module", params=["s3", "gs"])
def proxied(request) -> Iterator[tuple[StoreServer, Faults, str]]:
    """Yields an object store behind a proxy, the faults that the proxy injects, and a bucket with images."""
    with fault_proxy(shared_server(request.param)) as (proxied, faults), connected_to(proxied):
        bucket = upload_files(proxied, {f"in/{label}/{index:02}.jpg": jpeg(index) for label in "ab" for index in range(30)}, "")
        yield proxied, faults, bucket
        faults.choose = lambda method, path, number: None


def answer_reads_with(status: int, *names: str):
    """Returns a function that makes the proxy answer reads of the named objects with the given HTTP status."""

    def choose(method: str, path: str, number: int) -> int | None:
        return status if method == "GET" and any(path.partition("?")[0].endswith(name) for name in names) else None

    return choose


@pytest.mark.slow(3)
@pytest.mark.parametrize("proxied", ["gs"], indirect=True)
def test_denied_objects_fail_the_run_and_missing_ones_are_dead_letters(proxied, capsys):
    server, faults, bucket = proxied
    command = ["prepare", f"--input={bucket}/in", f"--output={bucket}/out", "--max_bad_fraction=0.5", *server.flags]
    faults.choose = answer_reads_with(403, "b/10.jpg", "b/11.jpg")
    assert main(command) == 1
    reported = capsys.readouterr().err.splitlines()[-1]
    assert reported.startswith(f"recordmill: {bucket}/in/b/1"), reported
    assert ".jpg could not be read: access to bucket" in reported or "no Google credentials" in reported, reported
    assert f"{bucket}/out is complete" not in reported and "--resume" in reported, reported
    assert "manifest.json" not in dict(files_at(bucket).list(f"{bucket}/out"))
    faults.choose = answer_reads_with(404, "b/10.jpg", "b/11.jpg")
    assert main([*command, "--resume"]) == 0, "missing objects are dead letters"
    assert "dead letters: 2 of 60 inputs" in capsys.readouterr().out


@pytest.mark.slow(0.3)
@pytest.mark.parametrize("status", [400, 401, 403, 412, 429, 500, 503])
def test_only_missing_object_makes_dead_letter(proxied, status):
    server, faults, bucket = proxied
    options = [*server.flags, "--store_timeout=0.5"]
    FileSystems.set_options(parse_pipeline_options(options))
    faults.choose = answer_reads_with(status, "a/10.jpg")
    with pytest.raises(StorageError, match="in/a/10.jpg( could not be read)?: "):
        read(f"{bucket}/in", "a/10.jpg")
    FileSystems.set_options(parse_pipeline_options(options))  # New options reset a store that was given up.
    faults.choose = answer_reads_with(404, "a/10.jpg")
    assert isinstance(read(f"{bucket}/in", "a/10.jpg"), DeadLetter)
