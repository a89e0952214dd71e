"""Tests reading, writing and failing requests for `gs://` and `s3://` with real servers on localhost."""

import contextlib
import errno
import itertools
import os
import re
import socket
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator

import pytest

from engines import digest
from made_images import write_class_folders
from object_stores import ROOT, Faults, StoreServer, fault_proxy, object_digests, request, shared_server, upload_files
from range_server import RangeServer

pytest.importorskip("boto3", reason="the extra aws is not installed")
pytest.importorskip("google.cloud.storage", reason="the extra gcp is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.__main__ import main
from beam_pipelines.errors import SilentStoreError, StorageError, UserError
from beam_pipelines.runners.job_servers import reserve_port
from beam_pipelines.runners.jobs import parse_pipeline_options
from beam_pipelines.storage.object_stores import gcs, object_listing, object_store, retries, s3, upload
from beam_pipelines.storage.object_stores.object_store import ObjectStore
from beam_pipelines.storage.files import files_at

MIB = 1 << 20
OWN_CHUNK_BYTES = upload.CHUNK_BYTES
CHUNK_BYTES = 5 * MIB  # The smallest chunk that stores accept, for these tests.
ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "STORAGE_EMULATOR_HOST")


@pytest.fixture(scope="module", params=["s3", "gs", "az"])
def server(request: pytest.FixtureRequest) -> StoreServer:
    return shared_server(request.param)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Removes the credentials and the object store settings of the user who runs the tests."""
    for name in os.environ:
        if name.startswith(ENVIRONMENT):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    monkeypatch.setattr(retries, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(upload, "CHUNK_BYTES", CHUNK_BYTES)


def connect(server: StoreServer, monkeypatch: pytest.MonkeyPatch, bucket: str) -> ObjectStore:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    FileSystems.set_options(PipelineOptions(server.flags))
    return files_at(bucket)


@pytest.fixture
def bucket(server: StoreServer) -> str:
    return server.make_bucket()


@pytest.fixture
def store(server: StoreServer, bucket: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    return connect(server, monkeypatch, bucket)


@pytest.fixture
def faults(server: StoreServer, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Yields the faults that the server of `faulty_store` injects."""
    with fault_proxy(server) as (proxied, faults):
        connect(proxied, monkeypatch, bucket)
        yield faults


@pytest.fixture
def faulty_store(bucket: str, faults: Faults) -> ObjectStore:
    return files_at(bucket)


def contents(store: ObjectStore, folder: str) -> dict[str, bytes]:
    return {name: store.read(f"{folder}/{name}") for name, _ in store.list(folder)}


def test_reads_object_with_one_request(faulty_store, bucket, faults):
    faulty_store.write(f"{bucket}/a", b"a" * 5000)
    faults.seen.clear()
    faulty_store.read(f"{bucket}/a")
    assert [method for method, _, _ in faults.seen] == ["GET"]


def test_rejects_object_above_the_size_limit(store, bucket, monkeypatch):
    monkeypatch.setattr(object_store, "MAX_FILE_BYTES", 9)
    store.write(f"{bucket}/nine", b"123456789")
    store.write(f"{bucket}/ten", b"1234567890")
    assert store.read(f"{bucket}/nine") == b"123456789"
    with pytest.raises(OSError, match="bytes") as caught:
        store.read(f"{bucket}/ten")
    assert caught.value.errno == errno.EFBIG


@pytest.fixture
def tree(store: ObjectStore, server: StoreServer, bucket: str) -> str:
    """Creates objects in nested folders, including objects that mark folders, and returns the root folder."""
    names = ("b.jpg", "a/1.jpg", "a/2.jpg", "a/", "c/d/3.jpg", "")
    for name in names:
        server.write(f"{bucket}/root/{name}", b"12" if name and not name.endswith("/") else b"")
    store.write(f"{bucket}/root.incomplete/x.jpg", b"1")
    store.write(f"{bucket}/rooted", b"1")
    return f"{bucket}/root"


@pytest.mark.parametrize("end", ["", "/"])
def test_listing_covers_only_the_folder(store, tree, bucket, end):
    assert list(store.list(tree + end)) == [("a/1.jpg", 2), ("a/2.jpg", 2), ("b.jpg", 2), ("c/d/3.jpg", 2)]
    assert store.top_level(tree + end) == (["a", "c"], ["b.jpg"])
    assert store.top_level(f"{tree}/a{end}") == ([], ["1.jpg", "2.jpg"])
    assert store.top_level(f"{tree}/none{end}") == ([], [])
    assert store.top_level(bucket + end) == (["root", "root.incomplete"], ["rooted"]) and len(list(store.list(bucket + end))) == 6


@pytest.mark.parametrize("server", ["s3", "gs"], indirect=True)  # obstore does not set the size of pages
def test_listing_reads_one_page_at_a_time(faulty_store, bucket, faults, monkeypatch):
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", 10)
    names = [f"{index:05d}" for index in range(21)]
    for name in reversed(names):
        faulty_store.write(f"{bucket}/many/{name}", b"1")
    faults.seen.clear()
    listing = faulty_store.list(f"{bucket}/many")
    assert next(listing) == ("00000", 1)
    assert len(faults.seen) == 1
    assert [name for name, _ in listing] == names[1:]
    assert len(faults.seen) == 3
    faulty_store.remove_all(f"{bucket}/many")
    assert not list(faulty_store.list(f"{bucket}/many"))


@pytest.mark.parametrize("server", ["s3", "gs"], indirect=True)  # obstore cannot tell empty folders of Azure from files
def test_removing_a_folder_keeps_other_objects(store, tree, bucket):
    store.remove_all(tree)
    assert contents(store, bucket) == {"root.incomplete/x.jpg": b"1", "rooted": b"1"}
    store.remove_all(tree)


@pytest.mark.parametrize("server", ["s3"], indirect=True)
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_failed_upload_leaves_no_chunks(store, server, bucket, error):
    with pytest.raises(error), store.create(f"{bucket}/new") as file:
        file.write(b"\1" * (CHUNK_BYTES + 10))
        raise error
    assert unfinished_uploads(server, bucket) == 0


def test_chunk_size_is_accepted_by_stores():
    assert OWN_CHUNK_BYTES >= CHUNK_BYTES and OWN_CHUNK_BYTES % (256 << 10) == 0


@pytest.mark.parametrize("server", ["s3"], indirect=True)  # other servers do not list unfinished uploads
def test_abandon_uploads_aborts_uploads_below_the_folder(server, bucket):
    FileSystems.set_options(parse_pipeline_options([*server.flags, "--store_timeout=2"]))  # moto fails with a temporary error
    store = files_at(bucket)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(store.create(f"{bucket}/{name}")) for name in ("outer", "out/a", "out/b/c")]
        for file in files:
            file.write(b"1" * (3 * CHUNK_BYTES))
        assert unfinished_uploads(server, bucket) == 3
        store.write(f"{bucket}/out/complete", b"1")
        for _ in range(2):
            store.abandon_uploads(f"{bucket}/out")
        assert unfinished_uploads(server, bucket) == 1
        with pytest.raises(OSError):
            stack.close()
    assert contents(store, bucket) == {"out/complete": b"1"}


def unfinished_uploads(server: StoreServer, bucket: str) -> int:
    """Returns the number of unfinished uploads that contain data. Repeated requests can leave uploads without data."""
    if server.scheme != "s3":
        return 0
    path = f"/{bucket.partition('://')[2]}"
    uploads = request(server.url, "GET", f"{path}?uploads")
    keys, names = (re.findall(rb"<%s>(.*?)</" % tag, uploads) for tag in (b"Key", b"UploadId"))
    actual = zip(keys, names, strict=True)
    parts = [request(server.url, "GET", f"{path}/{key.decode()}?uploadId={name.decode()}") for key, name in actual]
    return sum(b"<PartNumber>" in part for part in parts)


@pytest.mark.slow(1.4)
def test_streamed_object_is_not_cached_in_memory(store, bucket):
    block = os.urandom(MIB)
    tracemalloc.start()
    try:
        with store.create(f"{bucket}/large") as file:
            for _ in range(40):
                file.write(block)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * CHUNK_BYTES
    assert store.size(f"{bucket}/large") == 40 * MIB


@pytest.mark.slow
def test_copy_all_copies_the_given_last_object_last(faulty_store, bucket, faults):
    names = ["manifest.json", *(f"shard-{index:02d}" for index in range(40)), "index/a b+c", "z/deep/er"]
    for name in names:
        faulty_store.write(f"{bucket}/new.incomplete/{name}", name.encode())
    faults.seen.clear()
    faulty_store.copy_all(f"{bucket}/new.incomplete", f"{bucket}/new", "manifest.json")
    for folder in ("new.incomplete", "new"):
        assert contents(faulty_store, f"{bucket}/{folder}") == {name: name.encode() for name in names}
    writes = [path for method, path, _ in faults.seen if method in ("PUT", "POST") and "delete" not in path]
    assert len(writes) == len(names)
    assert [path for path in writes if "manifest.json" in path] == writes[-1:]


def test_copy_all_copies_nothing_without_the_last_object(store, bucket):
    store.write(f"{bucket}/new.incomplete/shard", b"1")
    with pytest.raises(FileNotFoundError):
        store.copy_all(f"{bucket}/new.incomplete", f"{bucket}/new", "manifest.json")
    assert contents(store, bucket) == {"new.incomplete/shard": b"1"}


def test_failed_copy_omits_last_object_and_keeps_sources(faulty_store, bucket, faults):
    names = ["manifest.json", "shard-0", "shard-1"]
    for name in names:
        faulty_store.write(f"{bucket}/new.incomplete/{name}", b"1")
    faults.choose = lambda method, path, number: 403 if method in ("PUT", "POST") and "shard-1" in path else None
    with pytest.raises(PermissionError):
        faulty_store.copy_all(f"{bucket}/new.incomplete", f"{bucket}/new", "manifest.json")
    faults.choose = lambda method, path, number: None
    assert set(contents(faulty_store, f"{bucket}/new.incomplete")) == set(names)
    assert not faulty_store.exists(f"{bucket}/new/manifest.json")


def test_copies_object_that_is_too_large_for_a_copy_request(store, bucket, monkeypatch):
    monkeypatch.setattr(object_store, "MAX_COPY_BYTES", 5 * MIB)
    data = os.urandom(12 * MIB + 5)
    store.write(f"{bucket}/old/large", data)
    store.write(f"{bucket}/old/manifest.json", b"{}")
    store.copy_all(f"{bucket}/old", f"{bucket}/new", "manifest.json")
    assert contents(store, f"{bucket}/new") == {"large": data, "manifest.json": b"{}"}


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_upload_is_complete_if_its_last_answer_is_lost(faulty_store, bucket, faults):
    data = os.urandom(2 * CHUNK_BYTES + 1)
    faults.choose = lambda method, path, number: "lose" if method == "POST" and "uploadId=" in path and not faults.count("lose") else None
    with faulty_store.create(f"{bucket}/shard") as file:
        file.write(data)
    assert faults.count("lose") == 1 and faulty_store.read(f"{bucket}/shard") == data


def every(nth: int, *faults: int | str) -> Callable[[str, str, int], int | str | None]:
    """Returns a function that makes every n-th request fail, and cycles through the given faults."""
    return lambda method, path, number: faults[number // nth % len(faults)] if number % nth == 0 else None


def use_all(store: ObjectStore, bucket: str) -> None:
    """Runs each operation of the object store and checks that the result is correct."""
    data = os.urandom(CHUNK_BYTES + 17)
    for index in range(10):
        store.write(f"{bucket}/new/{index:02d}", b"%d" % index)
    with store.create(f"{bucket}/new/shard") as file:
        file.write(data)
    store.write(f"{bucket}/new/manifest.json", b"{}")
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda index: store.read(f"{bucket}/new/{index:02d}"), range(10)))
    assert read == [b"%d" % index for index in range(10)]
    assert store.read(f"{bucket}/new/shard") == data
    assert store.read_range(f"{bucket}/new/shard", 1000, 100) == data[1000:1100]
    assert store.size(f"{bucket}/new/shard") == len(data)
    assert not store.exists(f"{bucket}/new/none")
    assert store.top_level(bucket) == (["new"], [])
    assert len(list(store.list(f"{bucket}/new"))) == 12
    store.copy_all(f"{bucket}/new", f"{bucket}/moved", "manifest.json")
    store.remove_all(f"{bucket}/new")
    for _ in range(2):
        store.remove(f"{bucket}/moved/00")
    assert store.top_level(bucket) == (["moved"], []) and not store.exists(f"{bucket}/moved/00")
    assert store.read(f"{bucket}/moved/shard") == data
    store.check_access(bucket)
    store.remove_all(bucket)
    assert not list(store.list(bucket))


# Each kind of fault is tested with one of the stores, and all kinds together with both.
FAULTS = {
    "busy": ("gs", every(3, 503, 429)),
    "server error": ("s3", every(3, 500, 502, 504)),
    "truncated body": ("gs", every(3, "truncate")),
    "answer lost": ("s3", every(3, "lose")),
    "all on s3": ("s3", every(2, 503, "truncate", "lose", 429, 500, 502, 504)),
    "all on gs": ("gs", every(2, 503, "truncate", "lose", 429, 500, 502, 504)),
}


@pytest.mark.parametrize("server, choose", FAULTS.values(), ids=FAULTS, indirect=["server"])
@pytest.mark.slow(1)
def test_all_operations_succeed_after_retried_faults(faulty_store, server, bucket, faults, choose):
    faults.choose = choose
    use_all(faulty_store, bucket)
    assert len([fault for _, _, fault in faults.seen if fault is not None]) >= len(faults.seen) // 3
    assert unfinished_uploads(server, bucket) == 0


@pytest.mark.parametrize(("status", "expected"), [(403, PermissionError), (404, FileNotFoundError), (400, OSError)])
def test_client_errors_are_not_retried(faulty_store, bucket, faults, status, expected):
    faults.choose = lambda method, path, number: status
    for use in (
        lambda: faulty_store.read(f"{bucket}/a"),
        lambda: faulty_store.write(f"{bucket}/a", b"1"),
        lambda: list(faulty_store.list(bucket)),
    ):
        faults.seen.clear()
        with pytest.raises(expected) as caught:
            use()
        assert caught.value.strerror and caught.value.filename.startswith(bucket)
        assert len(faults.seen) == 1


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the waiting times between attempts in seconds. The clock is simulated, but the requests are real."""
    waited: list[float] = []
    monkeypatch.setattr(retries, "time", Clock(waited))
    monkeypatch.setattr(retries, "_pause", waited.append)
    return waited


READS: dict[str, Callable[[ObjectStore, str], Any]] = {
    "read": lambda store, bucket: store.read(f"{bucket}/a"),
    "read a range": lambda store, bucket: store.read_range(f"{bucket}/a", 1, 2),
    "size": lambda store, bucket: store.size(f"{bucket}/a"),
    "list": lambda store, bucket: list(store.list(bucket)),
    "list a folder": lambda store, bucket: store.top_level(bucket),
}


@pytest.mark.parametrize("operation", READS)
def test_login_page_is_rejected_and_retried(faulty_store, bucket, faults, waited, operation):
    faulty_store.write(f"{bucket}/a", b"0123")
    expected = READS[operation](faulty_store, bucket)
    faults.choose = lambda method, path, number: "login" if faults.count("login") < 2 else None
    assert READS[operation](faulty_store, bucket) == expected and faults.count("login") == 2
    faults.choose = lambda method, path, number: "login"
    with pytest.raises(OSError, match=bucket):
        READS[operation](faulty_store, bucket)


@pytest.mark.parametrize("server", ["s3"], indirect=True)
@pytest.mark.parametrize("change", [{"Contents": []}, {"IsTruncated": True}, {"IsTruncated": None, "KeyCount": None}])
def test_incomplete_listing_page_is_retried(store, bucket, waited, monkeypatch, change):
    store.write(f"{bucket}/a", b"a")
    ask, num_incomplete = store._client.list_objects_v2, 3

    def list_incompletely(**request: Any) -> dict[str, Any]:
        nonlocal num_incomplete
        num_incomplete -= 1
        changed = {**ask(**request), **(change if num_incomplete >= 0 else {})}
        return {name: value for name, value in changed.items() if value is not None}

    monkeypatch.setattr(store._client, "list_objects_v2", list_incompletely)
    assert list(store.list(bucket)) == [("a", 1)] and num_incomplete == -1


def test_delays_double_and_end_after_two_minutes(faulty_store, bucket, faults, waited, monkeypatch):
    monkeypatch.setattr(retries, "_FIRST_DELAY", 0.2)
    faults.choose = lambda method, path, number: 503
    with pytest.raises(OSError, match="503"):
        faulty_store.read(f"{bucket}/a")
    assert 80 < sum(waited) <= 120
    assert all(delay <= min(20, 0.2 * 2**attempt) for attempt, delay in enumerate(waited))
    assert faults.count(503) == len(waited) + 1


def test_silent_store_fails_all_requests_until_it_answers(faulty_store, bucket, faults, waited):
    faulty_store.write(f"{bucket}/a", b"a")
    for _ in range(2):
        faults.seen.clear()
        faults.choose = lambda method, path, number: 503
        waited.append(1000.0)  # No request is sent during this time.
        reported = r"/a: .*http://\S+ for 120 s \(--store_timeout\).*503"
        with pytest.raises(SilentStoreError, match=reported):
            faulty_store.read(f"{bucket}/a")
        num_attempts = len(faults.seen)
        assert num_attempts > 5
        with pytest.raises(SilentStoreError, match="/b: "):
            faulty_store.write(f"{bucket}/b", b"b")
        assert len(faults.seen) == num_attempts, "the store was asked recently"
        waited.append(60.0)
        with pytest.raises(OSError, match="--store_timeout"):
            faulty_store.read(f"{bucket}/a")
        assert len(faults.seen) == num_attempts + 1
        waited.append(60.0)
        faults.choose = lambda method, path, number: None
        assert faulty_store.read(f"{bucket}/a") == b"a"


def test_gives_up_on_failing_request_but_not_on_the_store(faulty_store, bucket, faults, waited, monkeypatch):
    """While a failed request waits for its next attempt, another request gets a successful response or status 404."""
    faulty_store.write(f"{bucket}/a", b"a")
    faults.choose = lambda method, path, number: 503 if "/hard" in path else None

    def wait(seconds: float) -> None:
        waited.append(seconds)
        faulty_store.exists(f"{bucket}/{'a' if len(waited) % 2 else 'none'}")

    monkeypatch.setattr(retries, "_pause", wait)
    with pytest.raises(OSError, match="503") as caught:
        faulty_store.read(f"{bucket}/hard")
    assert not isinstance(caught.value, SilentStoreError) and 80 < sum(waited) <= 120


def test_store_timeout_option_extends_waiting(bucket, server, waited, monkeypatch):
    with fault_proxy(server) as (proxied, faults):
        for name, value in proxied.environment.items():
            monkeypatch.setenv(name, value)
        FileSystems.set_options(parse_pipeline_options([*proxied.flags, "--store_timeout=900"]))
        faults.choose = lambda method, path, number: 503
        with pytest.raises(SilentStoreError, match="for 900 s"):
            files_at(bucket).read(f"{bucket}/a")
    assert 800 < sum(waited) <= 900


def test_no_retries_in_a_process_that_ends(faulty_store, bucket, faults):
    faults.choose = lambda method, path, number: 503
    retries.end_waiting()
    try:
        with pytest.raises(OSError, match="503"):
            faulty_store.read(f"{bucket}/a")
    finally:
        retries.end_waiting(False)
    assert len(faults.seen) == 1


class Clock:
    """A clock that advances only by waiting."""

    def __init__(self, waited: list[float]):
        self._waited = waited

    def monotonic(self) -> float:
        return sum(self._waited)


# Conditional writes


@pytest.mark.slow
def test_only_one_of_concurrent_conditional_writes_succeeds(store, bucket):
    path, version = f"{bucket}/lease", None
    for _ in range(3):
        with ThreadPoolExecutor(16) as pool:
            versions = list(pool.map(lambda number: store.write_if(path, os.urandom(8) + b"%d" % number, version), range(16)))
        assert sum(written is not None for written in versions) == 1
        version = next(filter(None, versions))
        assert store.read_versioned(path)[1] == version


@pytest.mark.parametrize("version", [None, "known"])
def test_write_if_recognizes_its_own_write_after_lost_answer(faulty_store, bucket, faults, version):
    path = f"{bucket}/lease"
    version = version and faulty_store.write_if(path, b"before", None)
    faults.seen.clear()
    faults.choose = lambda method, path, number: None if number else "lose"
    assert faulty_store.write_if(path, b"mine", version) == faulty_store.read_versioned(path)[1]
    assert faults.count("lose") == 1 and faulty_store.read(path) == b"mine"


def test_write_if_fails_if_another_wrote_after_lost_answer(faulty_store, server, bucket, faults, monkeypatch):
    path, direct = f"{bucket}/lease", connect(server, monkeypatch, bucket)

    def choose(method: str, unused: str, number: int) -> str | None:
        if number == 1:  # The second attempt comes after another writer has written.
            direct.write(path, b"theirs")
        return None if number else "lose"

    faults.choose = choose
    assert faulty_store.write_if(path, b"mine", None) is None
    assert faulty_store.read(path) == b"theirs"


@pytest.mark.parametrize("status", [409, 412])
def test_failed_condition_is_not_retried(faulty_store, bucket, faults, status):
    faults.choose = lambda method, path, number: status if number == 0 else None
    assert faulty_store.write_if(f"{bucket}/lease", b"mine", None) is None
    assert [method for method, _, _ in faults.seen[1:]] == ["GET"]


def test_reports_store_without_conditional_writes(faulty_store, bucket, faults):
    faults.choose = lambda method, path, number: 501
    with pytest.raises(OSError, match="501") as caught:
        faulty_store.write_if(f"{bucket}/lease", b"mine", None)
    assert caught.value.filename == f"{bucket}/lease"
    assert len(faults.seen) == 1


@pytest.mark.parametrize("server", ["s3"], indirect=True)  # all other stores support conditions
def test_reports_store_that_ignores_conditions(faulty_store, bucket, faults):
    faults.choose = lambda method, path, number: "unconditional"
    with pytest.raises(OSError, match="If-Match"):
        faulty_store.write_if(f"{bucket}/lease", b"mine", None)


@pytest.mark.slow
def test_threads_share_one_store_and_its_connections(faulty_store, bucket, faults):
    for index in range(20):
        faulty_store.write(f"{bucket}/{index}", b"%d" % index)
    faults.num_connections = 0

    def read(number: int) -> bool:
        store = files_at(bucket)
        return store is faulty_store and store.read(f"{bucket}/{number % 20}") == b"%d" % (number % 20)

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(read, range(200)))
    assert faults.num_connections <= 64


AFTER_FORK = """
import os, sys
from {module} import {function}
path = sys.argv[1]
first = {function}(path)
if os.fork() == 0:  # A fork before the first request is allowed.
    print(first.read(path), flush=True)
    os._exit(0)
os.wait()
first.read(path)
if os.fork() == 0:
    try:
        {function}(path).read(path)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("module, function", [("beam_pipelines.storage.files", "files_at"), ("tf_input.storage.open_files", "open_files")])
def test_request_after_a_fork_raises_an_error(tmp_path, module, function):
    """In a forked process, a request of obstore would never return."""
    (tmp_path / "a").write_bytes(b"1")
    with RangeServer(tmp_path) as web:
        command = [sys.executable, "-c", AFTER_FORK.format(module=module, function=function), f"{web.root('http')}/a"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    lines = run.stdout.splitlines()
    assert lines[0] == "b'1'" and "forked" in lines[1], run.stderr[-2000:]


# check_access


def test_check_access_accepts_bucket_that_can_be_listed(store, bucket):
    store.check_access(bucket)
    store.check_access(f"{bucket}/a folder/that is not there")


def check(path: str, kind: type[Exception] = UserError) -> str:
    """Returns the one-line message of the exception that `check_access` raises for `path`."""
    with pytest.raises(kind) as caught:
        files_at(path).check_access(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_bucket_is_reported(store, server):
    path = f"{server.scheme}://no-such-bucket/images"
    assert check(path) == f"{path}: bucket 'no-such-bucket' does not exist"
    for use in (lambda: store.read_versioned(path), lambda: store.write_if(path, b"mine", None)):
        with pytest.raises(FileNotFoundError):
            use()


@pytest.mark.parametrize("status", [401, 403])
def test_check_access_reports_bucket_without_permission(faulty_store, bucket, faults, status):
    faults.choose = lambda method, path, number: status
    message, name = check(f"{bucket}/a"), bucket.partition("://")[2]
    assert message.startswith(f"{bucket}/a: access to bucket '{name}' is denied (")
    assert ("no Google credentials were found" in message) == bucket.startswith("gs://")


@pytest.mark.slow
def test_check_access_retries_busy_store_briefly(faulty_store, bucket, faults, waited, monkeypatch):
    set_check_seconds(monkeypatch, 1.0)
    faults.choose = lambda method, path, number: 503 if number < 2 else None
    faulty_store.check_access(bucket)
    assert len(waited) == 2
    waited.clear()
    faults.seen.clear()
    faults.choose = lambda method, path, number: 503
    assert "503" in check(bucket, StorageError)
    assert sum(waited) <= 1.0 and faults.count(503) == len(waited) + 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["silence", 503])
def test_check_access_retries_after_slow_first_answer(faulty_store, bucket, faults, monkeypatch, fault):
    """The first response may be slow if the client or the server is busy."""
    set_check_seconds(monkeypatch, 1.5)
    if fault != "silence":
        monkeypatch.setattr(retries, "time", BusyClock())
    faults.choose = lambda method, path, number: None if number else fault
    faulty_store.check_access(bucket)
    assert [seen[2] for seen in faults.seen] == [fault, None]


class BusyClock:
    """A fake clock that advances by one minute each time it is read."""

    def __init__(self) -> None:
        self._minutes = itertools.count()

    def monotonic(self) -> float:
        return 60.0 * next(self._minutes)


@pytest.fixture
def closed_port() -> int:
    return reserve_port()


@pytest.fixture
def silent_listener() -> Iterator[socket.socket]:
    """Yields a listening socket that accepts connections but never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield listener


def num_callers(listener: socket.socket) -> int:
    """Returns the number of connections that clients made."""
    listener.setblocking(False)
    for number in itertools.count():
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return number


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_check_access_names_unreachable_store(scheme, closed_port, monkeypatch):
    url = f"http://127.0.0.1:{closed_port}"
    use_endpoint(scheme, url, monkeypatch)
    set_check_seconds(monkeypatch, 0.5)
    assert check(f"{scheme}://bucket/a", StorageError).startswith(f"{scheme}://bucket/a: {url} ")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_check_access_asks_silent_store_twice(scheme, silent_listener, monkeypatch):
    set_check_seconds(monkeypatch, 0.5)
    use_endpoint(scheme, f"http://127.0.0.1:{silent_listener.getsockname()[1]}", monkeypatch)
    assert check(f"{scheme}://bucket/a", StorageError).startswith(f"{scheme}://bucket/a: ")
    assert num_callers(silent_listener) == 2


def set_check_seconds(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for module in (gcs, s3, object_store):
        monkeypatch.setattr(module, "CHECK_SECONDS", seconds)


def use_endpoint(scheme: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if scheme == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    flags = [f"--s3_endpoint_url={url}", "--s3_access_key_id=made", "--s3_secret_access_key=made"]
    FileSystems.set_options(PipelineOptions(flags if scheme == "s3" else []))


def test_missing_credentials_are_reported(monkeypatch):
    """Requests without credentials are not signed, so that they can read public data."""
    for scheme, words in {"s3": "no AWS credentials", "gs": "no Google credentials", "az": "AZURE_STORAGE_ACCOUNT_KEY"}.items():
        with fault_proxy(shared_server("s3")) as (proxied, faults):
            faults.choose = lambda method, path, number: 403
            endpoints = [f"{proxied.url}/account" if scheme == "az" else proxied.url, "account"]
            for name, value in zip(("AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME"), endpoints):
                monkeypatch.setenv(name, value)
            if scheme == "gs":
                monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxied.url)
            FileSystems.set_options(PipelineOptions([f"--s3_endpoint_url={proxied.url}"]))
            assert words in check(f"{scheme}://bucket/a")
            assert len(faults.seen) == 1


def test_names_missing_credentials_file(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(UserError, match=r"GOOGLE_APPLICATION_CREDENTIALS=.*none\.json"):
        files_at("gs://bucket/a")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://", "s3://.* s3://BUCKET/NAME"),
        ("gs:///a", "gs:///a.* s3://BUCKET/NAME"),
        ("hdfs://host/a", "hdfs://host/a.* gs://, s3://"),
        ("s3://Not_A Bucket!/a", "s3://Not_A Bucket!/a: .*[Ii]nvalid bucket name"),
    ],
)
def test_rejects_invalid_store_path(path, message, closed_port, monkeypatch):
    use_endpoint(path.partition("://")[0], f"http://127.0.0.1:{closed_port}", monkeypatch)
    assert re.match(message, check(path))


def test_rejects_invalid_endpoint_url():
    FileSystems.set_options(PipelineOptions(["--s3_endpoint_url=nowhere"]))
    with pytest.raises(UserError, match="nowhere"):
        files_at("s3://bucket/a")


@pytest.mark.parametrize(
    ("path", "module", "ours", "extra"),
    [
        ("s3://bucket/a", "boto3", "beam_pipelines.storage.object_stores.s3", "aws"),
        ("gs://bucket/a", "google.auth", "beam_pipelines.storage.object_stores.gcs", "gcp"),
        ("az://bucket/a", "obstore", "beam_pipelines.storage.object_stores.object_store", "azure"),
    ],
)
def test_names_missing_extra(path, module, ours, extra, monkeypatch):
    monkeypatch.delitem(sys.modules, ours, raising=False)
    monkeypatch.delattr(ours, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    FileSystems.set_options(PipelineOptions([]))  # opens the store again
    with pytest.raises(UserError, match=re.escape(f"pip install 'recordmill[{extra}]'")):
        files_at(path)


# Whole runs. `test_prepare_objects` and other tests run on s3:// and gs://.


def prepare(source: str, output: object, *flags: str) -> None:
    assert main(["prepare", f"--input={source}", f"--output={output}", "--name=made", "--num_shards=2", *flags]) == 0


@pytest.mark.slow(6)
def test_run_in_azure_and_from_web_server_write_the_same_bytes_as_on_disk(monkeypatch, tmp_path):
    folder = write_class_folders(tmp_path / "in", {"ant": 5, "bee": 6})
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}
    prepare(str(folder), tmp_path / "out")
    server = shared_server("az")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = upload_files(server, files, "/in").removesuffix("/in")
    prepare(f"{bucket}/in", f"{bucket}/out")
    assert object_digests(server, f"{bucket}/out") == digest(tmp_path / "out")
    rows = "".join(f"{name},{name.partition('/')[0]}\n" for name in sorted(files))
    (folder / "rows.csv").write_text(f"image,label\n{rows}")
    prepare(str(folder / "rows.csv"), tmp_path / "rows")
    with RangeServer(folder) as web:
        prepare(f"{web.root('http')}/rows.csv", tmp_path / "web")
    assert digest(tmp_path / "web") == digest(tmp_path / "rows")
