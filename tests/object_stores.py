"""Object stores on loopback for tests and benchmarks: real servers in processes of their own, and a proxy that injects faults."""

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
    """One server.

    Attributes:
        scheme: gs or s3.
        url: Where it listens.
        flags: Beam's options that lead there.
        environment: What a process needs besides; the caller sets it.
        process_id: Of the server.
    """

    scheme: str
    url: str
    flags: list[str]
    environment: dict[str, str]
    process_id: int

    def make_bucket(self) -> str:
        """A new, empty bucket: `gs://…` or `s3://…`."""
        name = f"made-{uuid.uuid4().hex[:12]}"
        if self.scheme == "s3":
            request(self.url, "PUT", f"/{name}")
        else:
            request(self.url, "POST", "/storage/v1/b?project=made", json.dumps({"name": name}).encode())
        return f"{self.scheme}://{name}"

    def through(self, url: str) -> "StoreServer":
        """The same server by way of a proxy."""
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
    """Starts a server and ends it. For s3 it may begin with that many objects of one byte, in s3://many/folder/."""
    command = [sys.executable, "-m", "tests.object_stores", scheme, str(num_objects)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the server of {scheme}:// did not start: exit code {process.wait()}")
        yield make_server(scheme, url, process.pid)
    finally:
        process.stdin.close()  # the server ends with its input, so also where this process is killed
        process.wait(timeout=240)
        process.stdout.close()


@functools.cache
def shared_server(scheme: str) -> StoreServer:
    """One for all tests of this process, with which it ends; they keep apart by buckets of their own."""
    server = store_server(scheme)
    atexit.register(server.__exit__, None, None, None)
    return server.__enter__()


@contextlib.contextmanager
def reached(server: StoreServer) -> Iterator[StoreServer]:
    """Within it, this process and what it starts reach a server, and Beam's file systems do."""
    with mock.patch.dict(os.environ, server.environment):
        _lead_to(server.flags)
        yield server
    _lead_to([])


def _lead_to(flags: list[str]) -> None:
    from apache_beam.io.filesystems import FileSystems  # here, not where a server imports this module

    from beam_pipelines.runners.jobs import parse_pipeline_options

    FileSystems.set_options(parse_pipeline_options(flags))


def put(server: StoreServer, files: Mapping[str, bytes], folder: str = "/some/folder") -> str:
    """Writes files into a folder of a new bucket of a server that is reached, and returns where that is."""
    from beam_pipelines.storage.object_stores.open_object_store import open_object_store

    _lead_to(server.flags)  # again, since a command without them has let go of them
    root = f"{server.make_bucket()}{folder}"
    for name, data in files.items():
        open_object_store(root).write(f"{root}/{name}", data)
    return root


def objects(server: StoreServer, folder: str) -> dict[str, str]:
    """sha256 of each object below a folder, by name, but for a dataset's run.json; as `engines.digest` has that of files."""
    from beam_pipelines.storage.object_stores.open_object_store import open_object_store
    from tf_input.dataset_format import RUN

    _lead_to(server.flags)
    store = open_object_store(folder)
    return {name: hashlib.sha256(store.read(f"{folder}/{name}")).hexdigest() for name, _ in store.list(folder) if name != RUN}


@contextlib.contextmanager
def silenced(server: StoreServer) -> Iterator[None]:
    """Connections are taken, and nothing is answered."""
    os.kill(server.process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process_id, signal.SIGCONT)


class Faults:
    """What a proxy does to requests.

    Attributes:
        choose: (method, path, number of the request) -> None, an HTTP status, "truncate", to break off in mid-body, "lose", to close
            the connection once the server has done what was asked, "silence", to say nothing until the client has given up, or "login",
            to answer 200 with a web page.
        seen: Method, path and fault of every request so far.
        num_connections: To the proxy.
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
def faulty(server: StoreServer) -> Iterator[tuple[StoreServer, Faults]]:
    """A proxy before a server, and the faults that it injects."""
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
    request_queue_size = 128  # of the five that wait as it comes, a sixth client is let in a second later


class _Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else header and body of an answer are 40 ms apart
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
        """Quiet."""

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _forward


_OWN_HEADERS = ("content-length", "transfer-encoding", "connection", "server", "date")


def _serve_s3(num_objects: int) -> None:
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"  # which browsers ask for
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log(self, *unused: object) -> None:
            """Quiet."""

    if num_objects:
        _fill(num_objects)
    # Of this service alone: to find out which one each request is meant for takes as long as to answer it.
    application, one_at_a_time = create_backend_app("s3"), threading.Lock()

    def respond(environment, start_response):
        """What a condition is asked of, is not changed before the condition's object is written."""
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
    """The emulator, where it is unlike the real store made like it: pages, several requests at a time, nothing arrived yet."""
    from gcp_storage_emulator import server as emulator
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects
    from gcp_storage_emulator.storage import Storage

    Storage._write_config_to_file = lambda self: None  # all metadata, at each write
    incomplete = objects._resumable_incomplete

    def note_what_arrived(response, storage, upload_id, fallback_end=0):
        incomplete(response, storage, upload_id, fallback_end)
        if not storage.get_resumable_byte_count(upload_id):
            del response._headers["Range"]

    objects._resumable_incomplete = note_what_arrived
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
            return "0"  # as the real store has it

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
    objects.insert, objects.download = insert_on_condition, download_with_generation  # where one handler calls another

    class Handler(emulator.RequestHandler):
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            with one_at_a_time:
                super().handle_one_request()

        def log_message(self, *unused: object) -> None:
            """Quiet."""

    storage = Storage(use_memory_fs=True)
    server = _Server(("127.0.0.1", 0), lambda *given: Handler(storage, *given))
    _announce(server.server_port)
    server.serve_forever()


def _announce(port: int) -> None:
    """Says where the server listens, and lets the process end with its standard input."""
    print(f"http://127.0.0.1:{port}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()


if __name__ == "__main__":
    _serve_gcs() if sys.argv[1] == "gs" else _serve_s3(int(sys.argv[2]))
