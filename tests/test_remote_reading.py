"""Data sets behind URLs: what TensorFlow reads itself, and what is copied to a cache, from real servers on loopback."""

import contextlib
import datetime
import functools
import hashlib
import http.server
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from typing import Iterator

import numpy as np
import pytest
from prepared import prepare_images

import tf_input
from beam_pipelines.job_servers import reserve_port
from tf_input import locations

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'recordmill[remote]'")

ROOT = pathlib.Path(__file__).parent.parent
SHARDS = {"train": 4, "validation": 1}
OPTIONS = {"batch_size": 8, "image_size": 16, "shuffle": False}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("prepared")
    return prepare_images(folder, "--num_shards", "train=4,validation=1", num_images={"ant": 30, "bee": 30})


def digest(dataset: tf_input.PreparedDataset, split: str = "train") -> str:
    """A split, pixel by pixel."""
    batches = dataset.batches(split, **OPTIONS).as_numpy_iterator()
    return hashlib.md5(b"".join(np.asarray(part).tobytes() for batch in batches for part in batch)).hexdigest()


@pytest.fixture
def in_memory(directory) -> Iterator[str]:
    """The data set in fsspec's memory file system."""
    memory = fsspec.filesystem("memory")
    memory.put(str(directory), "/bucket/flowers", recursive=True)
    yield "memory://bucket/flowers"
    memory.rm("/bucket", recursive=True)


def cached(cache: pathlib.Path) -> list[str]:
    """The shards: indexes are copied when they are looked at."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".idx")


def test_a_split_is_copied_when_it_is_first_read_and_then_read_from_the_cache(directory, in_memory, tmp_path):
    local, remote = tf_input.open(directory), tf_input.open(in_memory, cache_directory=tmp_path)
    assert (remote.manifest, remote.statistics, remote.directory) == (local.manifest, local.statistics, in_memory)
    assert cached(tmp_path) == []
    assert digest(remote, "validation") == digest(local, "validation")
    assert cached(tmp_path) == [shard.name for shard in local.manifest.splits["validation"]]
    assert len(list(tmp_path.rglob("*.idx"))) == SHARDS["validation"]
    assert digest(remote) == digest(local)
    names = sorted(shard.name for shards in local.manifest.splits.values() for shard in shards)
    assert cached(tmp_path) == names
    for name in names:
        fsspec.filesystem("memory").rm(f"/bucket/flowers/{name}")
    assert digest(tf_input.open(in_memory, cache_directory=tmp_path)) == digest(local)


def test_what_is_not_what_the_manifest_says_is_refused_and_not_kept(directory, in_memory, tmp_path):
    memory = fsspec.filesystem("memory")
    shard = tf_input.open(directory).manifest.splits["train"][1]
    path = f"/bucket/flowers/{shard.name}"
    data = bytearray(memory.cat_file(path))
    data[100] ^= 1
    cases = [(bytes(data), f"{shard.name} has CRC-32C "), (bytes(data[:-1]), f"{shard.name} has {shard.num_bytes - 1} bytes")]
    for index, (damaged, message) in enumerate(cases):
        memory.pipe_file(path, damaged)
        cache = tmp_path / str(index)
        with pytest.raises(ValueError, match=f"shard memory://bucket/flowers/{message}"):
            digest(tf_input.open(in_memory, cache_directory=cache))
        assert shard.name not in cached(cache)
    memory.rm(path)
    with pytest.raises(FileNotFoundError, match=f"shard memory://bucket/flowers/{shard.name} is missing; manifest.json"):
        digest(tf_input.open(in_memory, cache_directory=tmp_path / "missing"))


def test_what_a_killed_process_left_is_overwritten(directory, in_memory, tmp_path):
    remote = tf_input.open(in_memory, cache_directory=tmp_path)
    remote.cache.mkdir()
    for shard in remote.manifest.splits["train"]:
        (remote.cache / f"{shard.name}.part").write_bytes(b"?" * 1_000_000)  # longer than the shard
    assert digest(remote) == digest(tf_input.open(directory))
    assert not [name for name in cached(tmp_path) if name.endswith(".part")]


def test_another_data_set_at_the_same_url_has_a_cache_of_its_own(directory, in_memory, tmp_path):
    first = tf_input.open(in_memory, cache_directory=tmp_path)
    digest(first)
    other = prepare_images(tmp_path / "other", "--num_shards", "train=4,validation=1", "--seed", "1", num_images={"ant": 60})
    fsspec.filesystem("memory").put(f"{other}/", "/bucket/flowers/", recursive=True)
    second = tf_input.open(in_memory, cache_directory=tmp_path)
    assert second.cache != first.cache
    assert digest(second) == digest(tf_input.open(other)) != digest(tf_input.open(directory))


def test_a_url_without_a_data_set_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="memory://nothing/here is not a data set: it has no manifest.json"):
        tf_input.open("memory://nothing/here", cache_directory=tmp_path)


def test_a_scheme_that_tensorflow_does_not_read_needs_a_cache():
    message = "s3://bucket/flowers: TensorFlow does not read s3:// itself; cache_directory=... names a local directory"
    with pytest.raises(ValueError, match=message):
        tf_input.open("s3://bucket/flowers")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"a cache needs the package fsspec: pip install 'recordmill\[remote\]'"):
        tf_input.open("memory://bucket/flowers", cache_directory=tmp_path)


def test_a_local_directory_may_be_cached_and_named_by_a_url(directory, tmp_path):
    expected = digest(tf_input.open(directory))
    assert digest(tf_input.open(f"file://{directory}")) == expected
    assert digest(tf_input.open(directory, cache_directory=tmp_path)) == expected
    assert len(cached(tmp_path)) == SHARDS["train"]


class SlowHandler(http.server.SimpleHTTPRequestHandler):
    """Counts who asks for what, and takes its time, so that two that want the same shard meet."""

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        time.sleep(0.2)
        super().do_GET()

    def log_message(self, *unused: object) -> None:
        pass


@pytest.fixture
def web_server(directory) -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SlowHandler, directory=str(directory)))
    server.paths = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def read_by_processes(url: str, cache: pathlib.Path, num_processes: int) -> list[str]:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import test_remote_reading, tf_input\n"
        f"print(test_remote_reading.digest(tf_input.open({url!r}, cache_directory={str(cache)!r})))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(num_processes)
    ]
    try:
        return [process.communicate(timeout=240)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
def test_processes_share_a_cache_and_copy_each_shard_once(directory, web_server, tmp_path):
    pytest.importorskip("aiohttp", reason="fsspec reads http:// with aiohttp")
    url = f"http://127.0.0.1:{web_server.server_port}"
    assert read_by_processes(url, tmp_path, 2) == [digest(tf_input.open(directory))] * 2
    shards = [path for path in web_server.paths if "tfrecord" in path]
    assert len(shards) == len(set(shards)) == SHARDS["train"]
    assert cached(tmp_path) == sorted(path.strip("/") for path in shards)


def test_of_many_who_want_a_shard_one_copies_it(directory, tmp_path):
    shard = tf_input.open(directory).manifest.splits["train"][0]
    copies = []

    class SlowSource(locations.TensorFlowSource):
        def copy(self, path: str, local_path: str) -> None:
            copies.append(path)
            time.sleep(0.3)
            super().copy(path, local_path)

    calls = [
        threading.Thread(target=locations.cache_shards, args=(SlowSource(), directory, tmp_path, [shard])) for _ in range(8)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert len(copies) == 1 and cached(tmp_path) == [shard.name]
    assert (tmp_path / shard.name).read_bytes() == (directory / shard.name).read_bytes()


def test_a_server_that_does_not_answer_is_an_oserror(tmp_path):
    pytest.importorskip("aiohttp", reason="fsspec reads http:// with aiohttp")
    port = reserve_port()
    with pytest.raises(OSError, match=f"127.0.0.1.*{port}"):
        tf_input.open(f"http://127.0.0.1:{port}", cache_directory=tmp_path)


@pytest.mark.slow
def test_s3_through_a_cache(directory, tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="fsspec reads s3:// with s3fs")
    moto_server = pytest.importorskip("moto.server", reason="needs a local S3 server: moto[server]")
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        settings = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**settings, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            monkeypatch.setenv(name, value)
        store = fsspec.filesystem("s3", skip_instance_cache=True)
        store.mkdir("bucket")
        store.put(f"{directory}/", "bucket/flowers/", recursive=True)
        assert digest(tf_input.open("s3://bucket/flowers", cache_directory=tmp_path)) == digest(tf_input.open(directory))
        assert len(cached(tmp_path)) == SHARDS["train"]
        with pytest.raises(FileNotFoundError, match="s3://no-such-bucket/x is not a data set"):
            tf_input.open("s3://no-such-bucket/x", cache_directory=tmp_path)
    finally:
        server.stop()


GOOGLE_HOSTS = ("www.googleapis.com", "storage.googleapis.com")


def write_certificate(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A certificate for the store's host names, and the same with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in GOOGLE_HOSTS])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    public, private = folder / "certificate.pem", folder / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    no_password = serialization.NoEncryption()
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
    private.write_bytes(text + public.read_bytes())
    return public, private


class Tunnel:
    """An HTTPS proxy that leads every connection to the emulator: TensorFlow's `gs://` knows Google's addresses alone."""

    def __init__(self, key: pathlib.Path, target: tuple[str, int]) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(key)
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.hosts: set[str] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(4096)
        self.hosts.add(request.split()[1].decode().partition(":")[0])  # CONNECT host:port HTTP/1.1
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        client, emulator = self.context.wrap_socket(connection, server_side=True), socket.create_connection(self.target)
        threading.Thread(target=_pump, args=(emulator, client), daemon=True).start()
        _pump(client, emulator)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def google_store(directory, tmp_path) -> Iterator[tuple[str, dict[str, str], Tunnel]]:
    """gs://bucket/flowers in an emulator; the environment in which TensorFlow finds it; the way there."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs a local store: gcp-storage-emulator")
    pytest.importorskip("cryptography", reason="needs cryptography for a certificate")
    server = emulator.create_server("localhost", 0, in_memory=True, default_bucket="bucket")
    server.start()
    try:
        port = server._api._httpd.socket.getsockname()[1]
        for path in directory.rglob("*"):
            if path.is_file() and path.stat().st_size:  # the emulator takes no empty upload
                name = urllib.parse.quote(f"flowers/{path.relative_to(directory)}", safe="")
                url = f"http://localhost:{port}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}"
                urllib.request.urlopen(urllib.request.Request(url, path.read_bytes(), method="POST")).close()
        certificate, key = write_certificate(tmp_path)
        tunnel = Tunnel(key, ("localhost", port))
        proxy = f"http://127.0.0.1:{tunnel.listener.getsockname()[1]}"
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {"https_proxy": proxy, "CURL_CA_BUNDLE": str(certificate), "NO_GCE_CHECK": "true"}
        environment |= {"GCS_RETRY_CONFIG_MAX_RETRIES": "1", "CLOUDSDK_CONFIG": str(tmp_path), "PYTHONPATH": str(ROOT)}
        environment.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        yield "gs://bucket/flowers", environment, tunnel
        tunnel.listener.close()
    finally:
        server.stop()


@pytest.mark.slow
def test_tensorflow_reads_gs_itself_and_through_a_cache(directory, google_store, tmp_path):
    url, environment, tunnel = google_store
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import test_remote_reading as t, tf_input\n"
        f"direct = tf_input.open({url!r})\n"
        "print(t.digest(direct), sorted(direct.class_weight()), direct.directory)\n"
        f"print(t.digest(tf_input.open({url!r}, cache_directory={str(tmp_path / 'cache')!r})))\n"
        "for bad in ('gs://bucket/nothing', 'gs://no-such-bucket/x'):\n"
        "    try: tf_input.open(bad)\n"
        "    except FileNotFoundError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr[-2000:]
    expected = digest(tf_input.open(directory))
    lines = run.stdout.splitlines()
    assert lines[:2] == [f"{expected} [0, 1] {url}", expected]
    assert lines[2].startswith("gs://bucket/nothing is not a data set: it has no manifest.json")
    assert lines[3].startswith("gs://no-such-bucket/x is not a data set: it has no manifest.json")
    assert tunnel.hosts == set(GOOGLE_HOSTS)
    assert len(cached(tmp_path / "cache")) == SHARDS["train"]


def test_shards_behind_a_url_are_checked_like_local_ones(directory, tmp_path):
    copy = pathlib.Path(shutil.copytree(directory, tmp_path / "copy"))
    dataset = tf_input.open(f"file://{copy}")
    path = copy / dataset.manifest.splits["train"][2].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"shard file://{path} has .* bytes; manifest.json says"):
        dataset.batches("train", **OPTIONS)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"shard file://{path} is missing; manifest.json lists it"):
        dataset.batches("train", **OPTIONS)
