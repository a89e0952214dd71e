"""Tests reading files from local disks, and from object stores and web servers on the loopback interface."""

import errno
import functools
import http.server
import importlib.util
import json
import os
import pathlib
import pickle
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator

import numpy as np
import pytest

from object_stores import request, store_server
from range_server import RangeServer
from tf_input.storage.files import Files
from tf_input.storage.local_files import LocalFiles
from tf_input.storage.open_files import open_files
from tf_input.storage.paths import join

pytestmark = pytest.mark.xdist_group("waiting")

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCHEMES = ("", "file", "gs", "s3", "az", "http", "memory")
STORES = ("gs", "s3", "az")
LARGE = np.random.default_rng(0).bytes(3_000_000)
FILES = {"large": LARGE, "empty": b"", "sub/a file+é #1": b"hello", "sub/deep/other": b"1", "sub/deep/more": b"22"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RangeServer]:
    folder = tmp_path_factory.mktemp("served")
    for name, data in FILES.items():
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with RangeServer(folder, page_size=2) as server:
        yield server


@pytest.fixture
def files_and_directory(server, monkeypatch, request) -> tuple[Files, str]:
    """Returns a file reader for one URL scheme, and the URL of the test directory."""
    scheme = request.param
    server.reset()
    if scheme in ("", "file"):
        directory = f"{'file://' if scheme else ''}{server.directory}/data"
    elif scheme == "memory":
        memory = pytest.importorskip("fsspec").filesystem("memory")
        # Without this cleanup, the next upload would be placed inside the existing directory.
        request.addfinalizer(lambda: memory.rm("/storage_files", recursive=True))
        memory.put(f"{server.directory}/data", "/storage_files/data", recursive=True)
        directory = "memory://storage_files/data"
    else:
        pytest.importorskip("obstore")
        for name, value in server.environment(scheme).items():
            monkeypatch.setenv(name, value)
        directory = join(server.root(scheme), "data")
    return open_files(directory), directory


every_scheme = pytest.mark.parametrize(
    "files_and_directory", SCHEMES, indirect=True, ids=lambda scheme: scheme or "local"
)


@every_scheme
def test_reads_whole_files_and_byte_ranges(files_and_directory):
    files, directory = files_and_directory
    for name, data in FILES.items():
        assert files.read(join(directory, name)) == data, name
    path = join(directory, "large")
    for begin, num_bytes in [(0, 10), (5, 100), (1_000_000, 1_500_000), (len(LARGE) - 5, 100), (len(LARGE), 1), (5_000_000, 9), (7, 0)]:
        actual = files.read_range(path, begin, num_bytes)
        assert type(actual) is bytes and actual == LARGE[begin : begin + num_bytes], (begin, num_bytes)
    assert files.read_range(join(directory, "empty"), 0, 10) == b""


@every_scheme
def test_sizes_are_none_for_missing_files(files_and_directory):
    files, directory = files_and_directory
    names = ["sub/deep/more", "large", "missing", "empty", "sub/a file+é #1", "sub", "nowhere/at/all"]
    assert files.sizes(directory, names)[:5] == [2, 3_000_000, None, 0, 5]
    assert files.sizes(directory, names)[-1] is None
    assert files.sizes(directory, []) == []


@every_scheme
def test_error_names_the_missing_file(files_and_directory):
    files, directory = files_and_directory
    path = join(directory, "sub/missing")
    for read in (lambda: files.read(path), lambda: files.read_range(path, 3, 4)):
        with pytest.raises(FileNotFoundError, match=path.removeprefix("file://")):
            read()


@every_scheme
def test_copies_a_directory_recursively(files_and_directory, tmp_path):
    files, directory = files_and_directory
    if directory.startswith("http"):
        with pytest.raises(OSError, match="directories.* local directory"):
            files.copy_directory(join(directory, "sub"), str(tmp_path / "copy"))
        return
    files.copy_directory(join(directory, "sub"), str(tmp_path / "copy"))
    actual = {path.relative_to(tmp_path / "copy").as_posix(): path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert actual == {name[4:]: data for name, data in FILES.items() if name.startswith("sub/")}


@every_scheme
def test_pickled_files_are_read_by_many_threads(files_and_directory):
    files, directory = files_and_directory
    path = join(directory, "large")
    files.read_range(path, 0, 1)
    files = pickle.loads(pickle.dumps(files))  # as a spawned process receives them
    begins = range(0, len(LARGE), 100_000)
    with ThreadPoolExecutor(16) as threads:
        assert b"".join(threads.map(lambda begin: files.read_range(path, begin, 100_000), begins)) == LARGE


@pytest.mark.parametrize("files_and_directory", STORES, indirect=True)
def test_sizes_lists_the_directory_instead_of_querying_each_object(files_and_directory, server):
    files, directory = files_and_directory
    names = [f"large{number}" for number in range(50)] + ["large", "empty"]
    assert files.sizes(directory, names) == [None] * 50 + [3_000_000, 0]
    assert len(server.requests) == server.num_lists == 2, "each list response has two entries"


@pytest.mark.parametrize("files_and_directory", (*STORES, "http"), indirect=True)
def test_range_read_makes_one_request_of_the_same_size(files_and_directory, server):
    files, directory = files_and_directory
    files.read_range(join(directory, "large"), 1000, 500_000)
    assert (len(server.requests), server.num_bytes) == (1, 500_000)


@pytest.mark.parametrize("files_and_directory", (*STORES, "http"), indirect=True)
def test_client_error_raises_oserror_with_path_and_status(files_and_directory, server):
    files, directory = files_and_directory
    for status, message in [(403, "403 Forbidden"), (401, "401 Unauthorized"), (400, "400 Bad Request")]:
        server.faults["bucket/data/large"] = [status]
        with pytest.raises(OSError) as error:
            files.read_range(join(directory, "large"), 0, 10)
        assert not isinstance(error.value, FileNotFoundError)
        assert str(error.value).startswith(f"{directory}/large: {message}") and "\n" not in str(error.value), status


@pytest.mark.slow(0.6)
@pytest.mark.parametrize("files_and_directory", (*STORES, "http"), indirect=True)
def test_retries_server_errors_and_broken_connections(files_and_directory, server):
    files, directory = files_and_directory
    server.faults["bucket/data/large"] = [503, 500, "cut"]
    assert files.read_range(join(directory, "large"), 10, 2_000_000) == LARGE[10:2_000_010]
    assert not server.faults["bucket/data/large"] and server.count("large") == 4


def test_web_server_without_range_support_raises_oserror(server):
    pytest.importorskip("obstore")
    class QuietHandler(http.server.SimpleHTTPRequestHandler):
        log_message = AnonymousStore.log_message

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=server.directory))
    threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
    path = f"http://127.0.0.1:{web.server_port}/data/sub/deep/more"
    try:
        assert open_files(path).read(path) == b"22"
        with pytest.raises(OSError, match=f"{path}: .*Range request not supported"):
            open_files(path).read_range(path, 1, 1)
    finally:
        web.shutdown()
        web.server_close()


@pytest.mark.slow(7)
def test_unreachable_server_raises_oserror(server):
    pytest.importorskip("obstore")
    gone = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    gone.server_close()
    url = f"http://127.0.0.1:{gone.server_port}/data"
    with pytest.raises(OSError, match=f"{url}/x: .*error sending request"):
        open_files(url).read(f"{url}/x")


@pytest.mark.slow
def test_reads_from_moto_s3_server(monkeypatch):
    pytest.importorskip("obstore")
    pytest.importorskip("moto.server", reason="needs a local S3 server: moto[server]")
    with store_server("s3") as server:
        directory = server.make_bucket()
        for name, value in RangeServer.environment(server, "s3").items():
            monkeypatch.setenv(name, value)
        for name, data in (("large", LARGE), ("sub/x", b"hello")):
            request(server.url, "PUT", f"/{directory[5:]}/data/{name}", data)
        files = open_files(directory)
        assert files.read(f"{directory}/data/sub/x") == b"hello"
        assert files.read_range(f"{directory}/data/large", 1000, 10**9) == LARGE[1000:]
        assert files.read_range(f"{directory}/data/large", len(LARGE), 1) == b""
        assert files.sizes(f"{directory}/data", ["large", "sub/x", "x"]) == [len(LARGE), 5, None]
        for path in (f"{directory}/x", "s3://no-such-bucket/x"):
            with pytest.raises(FileNotFoundError, match=path):
                files.read(path)


class AnonymousStore(http.server.BaseHTTPRequestHandler):
    """An object store that serves public objects to anonymous clients and rejects requests for private objects. The
    metadata server is not available."""

    def do_GET(self) -> None:
        if "private" in self.path:
            self.send_error(403)
        elif self.headers.get("Authorization"):
            self.send_error(400)
        else:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.send_header("Last-Modified", self.date_time_string())
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.write(b"hello")

    def log_message(self, *unused: object) -> None:
        """Suppresses the access log."""


@pytest.mark.parametrize("scheme, names", [("s3", ("AWS_ENDPOINT_URL",)), ("az", ("AZURE_STORAGE_ENDPOINT",)), ("gs", ("GOOGLE_BASE_URL",))])
def test_public_data_need_no_credentials_and_private_data_report_them(scheme, names, tmp_path):
    pytest.importorskip("obstore")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), AnonymousStore)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_"))}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "AZURE_STORAGE_ACCOUNT_NAME": "made", "AWS_EC2_METADATA_DISABLED": "true"}
    environment |= {"GCE_METADATA_HOST": url[7:], **dict.fromkeys(names, url)}
    code = (
        "from tf_input.storage.open_files import open_files\n"
        f"files = open_files('{scheme}://bucket')\n"
        f"print(files.read('{scheme}://bucket/public'))\n"
        f"try: files.read('{scheme}://bucket/private')\n"
        "except OSError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    server.shutdown()
    server.server_close()
    assert run.returncode == 0, run.stderr[-2000:]
    public, private = run.stdout.splitlines()
    assert public == "b'hello'"
    assert private.startswith(f"{scheme}://bucket/private: 403 Forbidden; no credentials")


@pytest.mark.skipif(importlib.util.find_spec("boto3") is None, reason="needs boto3")
def test_uses_credentials_and_region_of_aws_profile(server, tmp_path, monkeypatch):
    seen = []

    class RecordingStore(AnonymousStore):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            del self.headers["Authorization"]
            super().do_GET()

    store = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RecordingStore)
    threading.Thread(target=store.serve_forever, args=(0.05,), daemon=True).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "keys").write_text("[work]\naws_access_key_id = worker\naws_secret_access_key = s\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store.server_port}")
    try:
        assert open_files("s3://bucket").read("s3://bucket/x") == b"hello"
    finally:
        store.shutdown()
        store.server_close()
    assert "Credential=worker/" in seen[0] and "/eu-north-1/" in seen[0]


@pytest.mark.parametrize("has_role", [True, False])
def test_instance_role_signs_requests_without_boto3(has_role, monkeypatch):
    pytest.importorskip("obstore")
    seen = []

    class InstanceStore(AnonymousStore):
        """An object store that also serves EC2 instance metadata to clients with a session token."""

        def do_PUT(self) -> None:
            assert self.path == "/latest/api/token"
            self.answer(b"token")

        def do_GET(self) -> None:
            if not self.path.startswith("/latest/"):
                seen.append(self.headers.get("Authorization"))
                del self.headers["Authorization"]
                super().do_GET()
            elif not has_role or self.headers.get("X-aws-ec2-metadata-token") != "token":
                self.send_error(404 if has_role else 401)
            elif self.path.endswith("/security-credentials/"):
                self.answer(b"trainer")
            else:
                keys = {"AccessKeyId": "of-role", "SecretAccessKey": "s", "Token": "t", "Expiration": "2999-01-01T00:00:00Z"}
                self.answer(json.dumps({"Code": "Success", "LastUpdated": "2020-01-01T00:00:00Z", "Type": "AWS-HMAC", **keys}).encode())

        def answer(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), InstanceStore)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_METADATA_ENDPOINT", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "boto3" else find_spec(name))
    try:
        assert open_files("s3://bucket").read("s3://bucket/x") == b"hello"
    finally:
        server.shutdown()
        server.server_close()
    assert ("Credential=of-role/" in seen[0]) if has_role else seen == [None]


@pytest.mark.parametrize("package, url", [("obstore", "s3://bucket/x"), ("fsspec", "memory://bucket/x")])
def test_error_names_the_missing_package(package, url, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ImportError, match=rf"package {package}: pip install 'recordmill\[remote\]'"):
        open_files(url)


def test_error_for_unknown_scheme_lists_supported_schemes():
    pytest.importorskip("fsspec")
    with pytest.raises(ValueError, match="nothing://bucket/x: .*gs://, s3://"):
        open_files("nothing://bucket/x")


def test_local_files_need_no_optional_package():
    code = (
        "import sys\n"
        "from tf_input.storage.open_files import open_files\n"
        "open_files('.').read('README.md')\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(run.stdout.split()) & {"obstore", "fsspec", "boto3", "tensorflow", "aiohttp"}


@pytest.mark.parametrize("limit, num_open", [(1024, 128), (1824, 200)])
def test_number_of_open_files_follows_the_descriptor_limit(tmp_path, limit, num_open):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < limit:
        pytest.skip(f"this process may have {before[1]} files open, not {limit}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        files = LocalFiles()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for number in range(300):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    before_reading = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        assert files.read_range(str(tmp_path / str(number)), 0, 9) == b"%d" % number
    assert len(os.listdir("/proc/self/fd")) - before_reading == num_open


def test_keeps_files_open_if_descriptors_are_unlimited(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda unused: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    files = LocalFiles()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
        assert files.read_range(str(tmp_path / str(number)), 0, 9) == b"%d" % number
    assert len(os.listdir("/proc/self/fd")) - before == 200


def test_error_names_the_unreadable_local_file(tmp_path):
    files = LocalFiles()
    with pytest.raises(IsADirectoryError) as error:
        files.read_range(str(tmp_path), 0, 10)
    assert error.value.errno == errno.EISDIR and error.value.filename == str(tmp_path)
