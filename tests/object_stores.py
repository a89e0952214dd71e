"""Runs object store servers on localhost for tests and benchmarks, and a proxy that injects faults."""

import atexit
import base64
import collections
import contextlib
import email.utils
import functools
import hashlib
import hmac
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
import uuid
from types import MappingProxyType
from typing import Callable, Iterator, Mapping, NamedTuple
from unittest import mock

AZURE_ACCOUNT = "devstoreaccount1"  # The account of Azurite, with its public key.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

# The servers that are not Python packages, and the commands that install them.
PROGRAMS = {
    "gs": ("fake-gcs-server", "go install github.com/fsouza/fake-gcs-server@latest"),
    "az": ("azurite-blob", "npm install --global azurite"),
}

ROOT = pathlib.Path(__file__).resolve().parents[1]


class StoreServer(NamedTuple):
    """A server of an object store.
    Attributes:
        scheme: gs, s3 or az.
        url: URL of the server.
        flags: Beam options that select the server.
        environment: Environment variables that a client also needs; the caller sets them.
        process_id: Process ID of the server.
    """

    scheme: str
    url: str
    flags: list[str]
    environment: dict[str, str]
    process_id: int

    def make_bucket(self) -> str:
        """Creates an empty bucket and returns the URL of the bucket, such as `gs://…`."""
        name = f"made-{uuid.uuid4().hex[:12]}"
        if self.scheme == "s3":
            request(self.url, "PUT", f"/{name}")
        elif self.scheme == "az":
            path = f"/{AZURE_ACCOUNT}/{name}"
            request(self.url, "PUT", f"{path}?restype=container", headers=_signed_headers("PUT", path, "\nrestype:container"))
        else:
            request(self.url, "POST", "/storage/v1/b?project=made", json.dumps({"name": name}).encode())
        return f"{self.scheme}://{name}"

    def write(self, path: str, data: bytes) -> None:
        """Writes an object with any name, including names that obstore does not support."""
        bucket, _, key = path.partition("://")[2].partition("/")
        name = urllib.parse.quote(key)
        if self.scheme == "s3":
            request(self.url, "PUT", f"/{bucket}/{name}", data)
        elif self.scheme == "az":
            kind = {"x-ms-blob-type": "BlockBlob"} | ({"Content-Length": str(len(data))} if data else {})
            path = f"/{AZURE_ACCOUNT}/{bucket}/{name}"
            request(self.url, "PUT", path, data, _signed_headers("PUT", path, "", kind))
        else:
            request(self.url, "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={urllib.parse.quote(key, safe='')}", data)

    def through(self, url: str) -> "StoreServer":
        """Returns a copy of this server description with the URL of a proxy."""
        return make_server(self.scheme, url, self.process_id)


def make_server(scheme: str, url: str, process_id: int) -> StoreServer:
    if scheme == "gs":
        return StoreServer(scheme, url, [], {"STORAGE_EMULATOR_HOST": url}, process_id)
    if scheme == "az":
        account = {"ACCOUNT_NAME": AZURE_ACCOUNT, "ACCOUNT_KEY": AZURE_KEY, "ENDPOINT": f"{url}/{AZURE_ACCOUNT}"}
        return StoreServer(scheme, url, [], {f"AZURE_STORAGE_{name}": value for name, value in account.items()}, process_id)
    keys = ["--s3_access_key_id=made", "--s3_secret_access_key=made", "--s3_region_name=us-east-1"]
    return StoreServer(scheme, url, [f"--s3_endpoint_url={url}", *keys], {}, process_id)


def _signed_headers(method: str, path: str, query: str, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Returns the headers of a request to Azurite."""
    headers = {**more, "x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()) if name.startswith("x-ms-"))
    text = f"{method}\n\n\n{more.get('Content-Length', '')}" + "\n" * 9 + f"{lines}/{AZURE_ACCOUNT}{path}{query}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")).decode()
    return {**headers, "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}"}


def request(url: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {"Content-Type": "application/octet-stream"})
        response = connection.getresponse()
        data = response.read()
        if response.status >= 300:
            raise OSError(f"{method} {path}: {response.status} {data[:200]!r}")
        return data


@contextlib.contextmanager
def store_server(scheme: str, num_objects: int = 0) -> Iterator[StoreServer]:
    """Context manager that runs a server. An S3 server initially contains `num_objects` objects in
    s3://many/folder/."""
    if scheme in PROGRAMS and not _find_program(PROGRAMS[scheme][0]):
        import pytest  # a server must not import pytest

        pytest.skip(f"{PROGRAMS[scheme][0]} is not installed. Run: {PROGRAMS[scheme][1]}")
    command = [sys.executable, "-m", "tests.object_stores", scheme, str(num_objects)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
    try:
        announced = process.stdout.readline().split()
        if not announced:
            raise RuntimeError(f"the server of {scheme}:// did not start: exit code {process.wait()}")
        yield make_server(scheme, announced[0], int(announced[1]))
    finally:
        process.stdin.close()  # the server ends with its standard input, even if this process is killed
        process.wait(timeout=240)
        process.stdout.close()


@functools.cache
def shared_server(scheme: str) -> StoreServer:
    """Returns the server for all tests in this process. Each test uses its own bucket."""
    server = store_server(scheme)
    atexit.register(server.__exit__, None, None, None)
    return server.__enter__()


@contextlib.contextmanager
def connected_to(server: StoreServer) -> Iterator[StoreServer]:
    """Context manager that makes this process, its child processes and Beam's file systems use the given server."""
    with mock.patch.dict(os.environ, server.environment):
        _set_beam_options(server.flags)
        yield server
    _set_beam_options([])


def _set_beam_options(flags: list[str]) -> None:
    from apache_beam.io.filesystems import FileSystems  # a server must not import Beam

    from beam_pipelines.runners.jobs import parse_pipeline_options

    FileSystems.set_options(parse_pipeline_options(flags))


def upload_files(server: StoreServer, files: Mapping[str, bytes], folder: str = "/some/folder") -> str:
    """Uploads files to a directory in a new bucket and returns the URL of the directory."""
    bucket = server.make_bucket()
    for name, data in files.items():
        server.write(f"{bucket}{folder}/{name}", data)
    return f"{bucket}{folder}"


def object_digests(server: StoreServer, folder: str) -> dict[str, str]:
    """Returns the SHA-256 digest of each object below a directory, except for run.json."""
    from beam_pipelines.storage.files import files_at
    from tf_input.dataset_format import RUN

    _set_beam_options(server.flags)
    store = files_at(folder)
    return {name: hashlib.sha256(store.read(f"{folder}/{name}")).hexdigest() for name, _ in store.list(folder) if name != RUN}


@contextlib.contextmanager
def unresponsive(server: StoreServer) -> Iterator[None]:
    """Context manager that makes a server accept connections without responding."""
    os.kill(server.process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process_id, signal.SIGCONT)


class Faults:
    """The faults that a proxy injects.
    Attributes:
        choose: Function from method, unescaped path and number of a request to None, an HTTP status or a fault. The fault "truncate"
            ends the connection in the body, "lose" closes it after the request has been executed, "silence" sends no
            response until the client closes the connection, "login" responds with status 200 and a web page, and
            "unconditional" ignores the conditions of a write.
        seen: Method, path and fault of every request.
        num_connections: Number of connections to the proxy.
    """

    def __init__(self) -> None:
        self.choose: Callable[[str, str, int], int | str | None] = lambda method, path, number: None
        self.seen: list[tuple[str, str, int | str | None]] = []
        self.num_connections = 0
        self.uploads: dict[str, _ResumableUpload] = {}  # By path.
        self._lock = threading.Lock()

    def connect(self) -> None:
        with self._lock:
            self.num_connections += 1

    def take(self, method: str, path: str) -> int | str | None:
        with self._lock:
            fault = self.choose(method, path, len(self.seen))
            self.seen.append((method, path, fault))
        return fault

    def count(self, *faults: int | str) -> int:
        return sum(fault in faults for _, _, fault in self.seen)


@contextlib.contextmanager
def fault_proxy(server: StoreServer) -> Iterator[tuple[StoreServer, Faults]]:
    """Context manager that yields a server behind a proxy, and the faults that the proxy injects."""
    faults = Faults()

    class Handler(_Proxy):
        upstream = urllib.parse.urlsplit(server.url).netloc
        injected = faults

    proxy = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.through(f"http://127.0.0.1:{proxy.server_port}"), faults
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


LOGIN_PAGE = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><form>Log in</form></body></html>"


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with the default of 5, a sixth client would connect a second later


class _ResumableUpload:
    """The received bytes of an upload and the response to its last request."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.answer: tuple[int, dict[str, str], bytes] | None = None


class _Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the header and the body of a response are sent 40 ms apart
    upstream: str
    injected: Faults

    def setup(self) -> None:
        super().setup()
        self.injected.connect()

    def _forward(self) -> None:
        body = self._read_body()
        path, mark, query = self.path.partition("?")
        fault = self.injected.take(self.command, urllib.parse.unquote(path) + mark + query)
        if isinstance(fault, int):
            self._answer(fault, {}, b"")
            return
        if fault == "login":
            headers = {"Content-Type": "text/html", "Content-Length": str(len(LOGIN_PAGE))}
            self._answer(200, headers, b"" if self.command == "HEAD" else LOGIN_PAGE)
            return
        if fault == "silence":
            self.close_connection = True
            self.rfile.read(1)
            return
        if fault == "unconditional":
            del self.headers["If-Match"], self.headers["If-None-Match"]
        if self.command == "PUT" and "upload_id=" in self.path:
            status, headers, data = self._continue_upload(body)
        else:
            status, headers, data = self._ask(body)
        length = headers.pop("Content-Length", str(len(data)))
        if fault == "lose":
            self.close_connection = True
            return
        if fault == "truncate":
            self.close_connection = True
            data = data[: len(data) // 2]
        self._answer(status, {**headers, "Content-Length": length}, data)

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Sends the request to the server and returns the status, the headers and the body of its response."""
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "content-length", "transfer-encoding", "expect"):
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            data = response.read()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS}
            return response.status, {**headers, "Content-Length": response.getheader("Content-Length", str(len(data)))}, data

    def _continue_upload(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Implements the protocol of resumable uploads, because fake-gcs-server cannot repeat requests."""
        upload = self.injected.uploads.setdefault(self.path, _ResumableUpload())
        span, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        if span != "*":
            start = int(span.partition("-")[0])
            upload.data[start:] = body
        if upload.answer is None and total == str(len(upload.data)):
            self.headers.replace_header("Content-Range", f"bytes 0-{len(upload.data) - 1}/{total}")
            upload.answer = self._ask(bytes(upload.data))
        if upload.answer is not None:
            status, headers, data = upload.answer
            return status, {**headers}, data
        return 308, {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}, b""

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *unused: object) -> None:
        """Suppresses log messages."""

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _forward


_OWN_HEADERS = ("content-length", "transfer-encoding", "connection", "server", "date")


def _serve_s3(num_objects: int) -> None:
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"  # only browsers need CORS
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log(self, *unused: object) -> None:
            """Suppresses log messages."""

    if num_objects:
        _fill(num_objects)
    # Serves only S3, because finding the service of each request takes as long as the response.
    application, one_at_a_time = create_backend_app("s3"), threading.Lock()

    def respond(environment, start_response):
        """Answers conditional requests one at a time, so that no object changes between the check and the write."""
        is_conditional = {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & environment.keys()
        with one_at_a_time if is_conditional else contextlib.nullcontext():
            return application(environment, start_response)

    server = make_server("127.0.0.1", 0, respond, threaded=True, request_handler=Handler)
    _announce(server.server_port)
    server.serve_forever()


def _fill(num_objects: int) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket("many", "us-east-1")
    keys = backend.buckets["many"].keys
    first = backend.put_object("many", "folder/000/00000000.jpg", b"1")
    for index in range(1, num_objects):
        key = f"folder/{index // 1000:03d}/{index:08d}.jpg"
        keys[key] = _copy_of(first, key)


def _copy_of(fake_key: object, name: str) -> object:
    import copy

    copied = copy.copy(fake_key)
    copied.name = name
    return copied


def _find_program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.path.expanduser("~/go/bin"))


def _serve_with_program(command: list[str], ready: str) -> None:
    """Runs a server until the standard input of this process is closed.

    Args:
        command: The command that starts the server.
        ready: A regular expression for the line that the server prints when it is ready. The group is the port.
    """
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        port = next(match[1] for line in server.stdout if (match := re.search(ready, line)))
        print(f"http://127.0.0.1:{port} {server.pid}", flush=True)
        threading.Thread(target=collections.deque, args=(server.stdout, 0), daemon=True).start()
        sys.stdin.read()
    finally:
        server.kill()
        server.wait()


def _announce(port: int) -> None:
    """Prints the URL of the server and ends this process when its standard input is closed."""
    print(f"http://127.0.0.1:{port} {os.getpid()}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()


if __name__ == "__main__":
    match sys.argv[1]:
        case "s3":
            _serve_s3(int(sys.argv[2]))
        case "gs":
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            options = ("-scheme=http", "-backend=memory", "-host=127.0.0.1", "-public-host=127.0.0.1", f"-port={port}")
            _serve_with_program([_find_program("fake-gcs-server"), *options], r"server started at http://127.0.0.1:(\d+)")
        case "az":
            options = ("--blobPort=0", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent")
            _serve_with_program([_find_program("azurite-blob"), *options], r"listens on http://127.0.0.1:(\d+)")
