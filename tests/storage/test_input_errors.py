"""What can't be read: a fact about an input is a dead letter, a busy or broken disk or store fails the run, by name."""

import contextlib
import errno
import os
import pickle
import resource
from typing import Iterator

import pytest
from apache_beam.io.filesystems import FileSystems

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import RunError, StorageError, UserError
from beam_pipelines.runners.jobs import parse_pipeline_options
from beam_pipelines.shards.input_reader import InputReader
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import files_at, write_file, write_chunks
from beam_pipelines.storage.input_errors import describe_fact, kind_of, listing_error, size_on_disk
from beam_pipelines.storage.object_stores.open_object_store import open_object_store
from beam_pipelines.storage.spool import SpoolReader
from listings import make_listing
from made_images import jpeg, write_files
from object_stores import Faults, StoreServer, faulty, put, reached, shared_server
from tf_input.dataset_format import Feature


def read(root: str, path: str, **options) -> object:
    """What becomes of one input of a root."""
    schema = (Feature("image", "image"),)
    listing = make_listing(root=root, schema=schema, targets=(), listed_labels={}, num_inputs=1)
    context = WriteContext(PrepareJob(root, f"{root}/out", "made"), listing)
    with contextlib.closing(SpoolReader(context.config.spool_directory)) as spool:
        return InputReader(context, files_at(root), spool).read(InputRecord(path, path, "", None, **options), False)


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_only_what_a_path_would_say_again_tomorrow_is_a_fact(number):
    error = OSError(number, os.strerror(number))
    everywhere = {"ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "EFBIG", "ENXIO", "ENODEV"}
    for path, facts in (("in/1.jpg", everywhere | {"EACCES", "EPERM"}), ("gs://bucket/1.jpg", everywhere)):
        if errno.errorcode[number] in facts:
            assert describe_fact(error, path) == os.strerror(number)
            assert isinstance(listing_error(error, path, "told"), UserError)
        else:
            with pytest.raises(RunError, match=f"^{path} could not be read: "):
                describe_fact(error, path)
            assert isinstance(listing_error(error, path, "told"), RunError)


def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path):
    for write in (lambda path: write_file(path, b"mine"), lambda path: write_chunks(path, [b"mi", b"ne"])):
        with pytest.raises(StorageError, match="^mine.json could not be written: No such file or directory$"):
            write(str(tmp_path / "nowhere" / "mine.json"))
    assert not os.listdir(tmp_path)


def test_many_pieces_become_one_file(tmp_path):
    chunks = [bytes([number]) * 400_000 for number in range(7)]
    assert write_chunks(str(tmp_path / "file"), chunks) == 2_800_000
    assert (tmp_path / "file").read_bytes() == b"".join(chunks) and os.listdir(tmp_path) == ["file"]


def test_no_file_has_a_name_that_no_file_can_have(tmp_path):
    for name in ("a\0b", "a" * 300, "file/below"):
        (tmp_path / "file").write_bytes(b"")
        assert not files_at(str(tmp_path)).exists(f"{tmp_path}/{name}"), name


def test_an_error_without_a_number_is_no_fact_about_an_image():
    with pytest.raises(RunError, match="1.jpg could not be read: timed out"):
        describe_fact(TimeoutError("timed out"), "in/1.jpg")
    assert isinstance(listing_error(ValueError("damaged"), "in/a.csv", "told"), UserError)


def test_facts_are_dead_letters(tmp_path):
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
    """The process is at its limit, really."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    lease = []
    try:
        with contextlib.suppress(OSError):
            while True:
                lease.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in lease:
            os.close(descriptor)


def test_what_says_nothing_about_an_image_is_not_blamed_on_it(tmp_path):
    write_files(tmp_path, {"1.jpg": jpeg()})
    with no_free_descriptors(), pytest.raises(RunError, match="1.jpg could not be read: Too many open files"):
        read(str(tmp_path), "1.jpg")
    with pytest.raises(RunError, match="/proc/self/mem could not be read: Input/output error"):
        read("/proc/self", "mem")  # a read of it gives EIO, as a broken disk's does
    with pytest.raises(RunError, match="1.jpg: the spool could not be read: No such file") as caught:
        read(str(tmp_path), "1.jpg", spool=77, offset=0, num_bytes=9)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "it crosses from a light process"


def test_a_disk_that_fails_fails_the_run_in_one_line(tmp_path, capsys, monkeypatch):
    """However few of the images it does not give."""
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
    """A server behind a proxy with faults, and a bucket with 2 x 30 images at `in/`."""
    with faulty(shared_server(request.param)) as (proxied, faults), reached(proxied):
        bucket = put(proxied, {f"in/{label}/{index:02}.jpg": jpeg(index) for label in "ab" for index in range(30)}, "")
        yield proxied, faults, bucket
        faults.choose = lambda method, path, number: None


def answering(status: int, *names: str):
    """The proxy's answer to a read of any of the objects."""

    def choose(method: str, path: str, number: int) -> int | None:
        return status if method == "GET" and any(path.partition("?")[0].replace("%2F", "/").endswith(name) for name in names) else None

    return choose


@pytest.mark.slow(3)
@pytest.mark.parametrize("proxied", ["gs"], indirect=True)
def test_objects_that_a_store_refuses_do_not_vanish(proxied, capsys):
    server, faults, bucket = proxied
    call = ["prepare", f"--input={bucket}/in", f"--output={bucket}/out", "--max_bad_fraction=0.5", *server.flags]
    faults.choose = answering(403, "b/10.jpg", "b/11.jpg")
    assert main(call) == 1
    reported = capsys.readouterr().err.splitlines()[-1]
    assert reported.startswith(f"recordmill: {bucket}/in/b/1"), reported
    assert ".jpg could not be read: access to bucket" in reported or "no Google credentials" in reported, reported
    assert f"{bucket}/out is complete" not in reported and "--resume" in reported, reported
    assert "manifest.json" not in dict(open_object_store(bucket).list(f"{bucket}/out"))
    faults.choose = answering(404, "b/10.jpg", "b/11.jpg")
    assert main([*call, "--resume"]) == 0, "that they are not there is a fact about them"
    assert "dead letters: 2 of 60 inputs" in capsys.readouterr().out


@pytest.mark.slow(0.3)
@pytest.mark.parametrize("status", [400, 401, 403, 412, 429, 500, 503])
def test_only_that_an_object_is_not_there_is_a_fact_about_it(proxied, status):
    server, faults, bucket = proxied
    options = [*server.flags, "--store_timeout=0.5"]
    FileSystems.set_options(parse_pipeline_options(options))
    faults.choose = answering(status, "a/10.jpg")
    with pytest.raises(StorageError, match="in/a/10.jpg( could not be read)?: "):
        read(f"{bucket}/in", "a/10.jpg")
    FileSystems.set_options(parse_pipeline_options(options))  # a store that has not been given up
    faults.choose = answering(404, "a/10.jpg")
    assert isinstance(read(f"{bucket}/in", "a/10.jpg"), DeadLetter)
