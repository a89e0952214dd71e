"""Runs object store servers on localhost for tests and benchmarks, and a proxy that injects faults."""

import atexit
import contextlib
import functools
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import urllib.parse
import uuid
from typing import Callable, Iterator, Mapping, NamedTuple
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]


class StoreServer(NamedTuple):
    """A server of an object store.
    Attributes:
        scheme: gs or s3.
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
        """Creates an empty bucket and returns the URL of the bucket, such as `gs://…` or `s3://…`."""
        name = f"made-{uuid.uuid4().hex[:12]}"
        if self.scheme == "s3":
            request(self.url, "PUT", f"/{name}")
        else:
            request(self.url, "POST", "/storage/v1/b?project=made", json.dumps({"name": name}).encode())
        return f"{self.scheme}://{name}"

    def through(self, url: str) -> "StoreServer":
        """Returns a copy of this server description with the URL of a proxy."""
        return make_server(self.scheme, url, self.process_id)


def make_server(scheme: str, url: str, process_id: int) -> StoreServer:
    if scheme == "gs":
        return StoreServer(scheme, url, [], {"STORAGE_EMULATOR_HOST": url}, process_id)
    keys = ["--s3_access_key_id=made", "--s3_secret_access_key=made", "--s3_region_name=us-east-1"]
    return StoreServer(scheme, url, [f"--s3_endpoint_url={url}", *keys], {}, process_id)


def request(url: str, method: str, path: str, body: bytes = b"") -> bytes:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        if response.status >= 300:
            raise OSError(f"{method} {path}: {response.status} {data[:200]!r}")
        return data


@contextlib.contextmanager
def store_server(scheme: str, num_objects: int = 0) -> Iterator[StoreServer]:
    """Starts a server and ends it. An S3 server initially contains `num_objects` objects in s3://many/folder/."""
    command = [sys.executable, "-m", "tests.object_stores", scheme, str(num_objects)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the server of {scheme}:// did not start: exit code {process.wait()}")
        yield make_server(scheme, url, process.pid)
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
    from beam_pipelines.storage.object_stores.open_object_store import open_object_store

    _set_beam_options(server.flags)  # a command without these options has reset them
    root = f"{server.make_bucket()}{folder}"
    for name, data in files.items():
        open_object_store(root).write(f"{root}/{name}", data)
    return root


def object_digests(server: StoreServer, folder: str) -> dict[str, str]:
    """Returns the SHA-256 digest of each object below a directory, except for run.json."""
    from beam_pipelines.storage.object_stores.open_object_store import open_object_store
    from tf_input.dataset_format import RUN

    _set_beam_options(server.flags)
    store = open_object_store(folder)
    return {name: hashlib.sha256(store.read(f"{folder}/{name}")).hexdigest() for name, _ in store.list(folder) if name != RUN}


@contextlib.contextmanager
def unresponsive(server: StoreServer) -> Iterator[None]:
    """Context manager in which a server accepts connections but does not respond."""
    os.kill(server.process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process_id, signal.SIGCONT)


class Faults:
    """The faults that a proxy injects.
    Attributes:
        choose: Function from method, path and number of a request to None, an HTTP status or a fault. The fault "truncate"
            ends the connection in the body, "lose" closes it after the request has been executed, "silence" sends no
            response until the client closes the connection, and "login" responds with status 200 and a web page.
        seen: Method, path and fault of every request.
        num_connections: Number of connections to the proxy.
    """

    def __init__(self) -> None:
        self.choose: Callable[[str, str, int], int | str | None] = lambda method, path, number: None
        self.seen: list[tuple[str, str, int | str | None]] = []
        self.num_connections = 0
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
        fault = self.injected.take(self.command, self.path)
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
            length = response.getheader("Content-Length", str(len(data)))
            headers = {name: value for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS}
        if fault == "lose":
            self.close_connection = True
            return
        if fault == "truncate":
            self.close_connection = True
            data = data[: len(data) // 2]
        self._answer(response.status, {**headers, "Content-Length": length}, data)

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


def _serve_gcs() -> None:
    """Runs an emulator of Google Cloud Storage, which is patched to behave more like the real service."""
    from gcp_storage_emulator import server as emulator
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects
    from gcp_storage_emulator.storage import Storage

    Storage._write_config_to_file = lambda self: None  # the emulator would write all metadata for each object
    incomplete = objects._resumable_incomplete

    def report_received_bytes(response, storage, upload_id, fallback_end=0):
        incomplete(response, storage, upload_id, fallback_end)
        if not storage.get_resumable_byte_count(upload_id):
            del response._headers["Range"]

    objects._resumable_incomplete = report_received_bytes
    list_all, one_at_a_time = objects.ls, threading.Lock()

    def list_page(request, response, storage, *arguments, **options):
        list_all(request, response, storage, *arguments, **options)
        if not response._content:
            return
        actual = json.loads(response._content)
        items = sorted(actual["items"], key=lambda item: item["name"].encode())
        after = request.query.get("pageToken", [""])[0]
        first = request.query.get("startOffset", [""])[0]
        items = [item for item in items if item["name"].encode() > after.encode() and item["name"].encode() >= first.encode()]
        size = min(1000, int(request.query.get("maxResults", ["1000"])[0]))
        actual["items"] = items[:size]
        if len(items) > size:
            actual["nextPageToken"] = items[size - 1]["name"]
        response.json(actual)

    for _, methods in emulator.HANDLERS:
        if methods.get("GET") is list_all:
            methods["GET"] = list_page

    def generation(storage, bucket, name):
        try:
            return storage.get_file_obj(bucket, name)["generation"]
        except NotFound:
            return "0"  # generation of missing objects in the real store

    def insert_on_condition(request, response, storage, *arguments, **options):
        if wanted := request.query.get("ifGenerationMatch"):
            meta = request.data.get("meta", {}) if isinstance(request.data, dict) else {}
            name = request.query.get("name", [meta.get("name")])[0]
            if wanted[0] != generation(storage, request.params["bucket_name"], name):
                response.status = http.HTTPStatus.PRECONDITION_FAILED
                return
        insert(request, response, storage, *arguments, **options)

    def download_with_generation(request, response, storage, *arguments, **options):
        response["X-Goog-Generation"] = generation(storage, request.params["bucket_name"], request.params["object_id"])
        download(request, response, storage, *arguments, **options)

    insert, download = objects.insert, objects.download
    for _, methods in emulator.HANDLERS:
        if methods.get("POST") is insert:
            methods["POST"] = insert_on_condition
        if methods.get("GET") is download:
            methods["GET"] = download_with_generation
    objects.insert, objects.download = insert_on_condition, download_with_generation  # handlers also call each other

    class Handler(emulator.RequestHandler):
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            with one_at_a_time:
                super().handle_one_request()

        def log_message(self, *unused: object) -> None:
            """Suppresses log messages."""

    storage = Storage(use_memory_fs=True)
    server = _Server(("127.0.0.1", 0), lambda *given: Handler(storage, *given))
    _announce(server.server_port)
    server.serve_forever()


def _announce(port: int) -> None:
    """Prints the URL of the server and ends this process when its standard input is closed."""
    print(f"http://127.0.0.1:{port}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()


if __name__ == "__main__":
    _serve_gcs() if sys.argv[1] == "gs" else _serve_s3(int(sys.argv[2]))
