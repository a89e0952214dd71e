"""Compares two ways to read small files from object stores: one by one with Beam, and in 32 threads with `recordmill`.

Each object store is a server in a separate process on this machine. Both readers use the same server. A bare HTTP
client without signatures, checks and retries shows the maximum speed of the server. Beam reads only a part of the
files, because reading all files would take minutes. At the end, the benchmark compares the memory that is needed to
list many objects and to list ten objects.

Usage: python -m benchmarks.object_store_benchmark [--files 2000] [--objects 100000]
"""

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from threading import local
from typing import Callable
from urllib.parse import quote, urlsplit

from benchmarks.measure import measure
from tests.object_stores import StoreServer, store_server

NUM_THREADS = 32
STOCK_FILES = {"s3": 60, "gs": 400}
MIN_BYTES, MAX_BYTES = 2_000, 10_000


def connect(server: StoreServer) -> None:
    """Configures Beam to use the server of the benchmark for object stores."""
    from apache_beam.internal.gcp.auth import _Credentials
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    logging.disable(logging.WARNING)
    os.environ.update(server.environment)
    _Credentials._credentials_init = True  # Otherwise Beam searches for Google credentials for 30 s.
    FileSystems.set_options(PipelineOptions([*server.flags, "--no_auth"]))


def compare(scheme: str, num_files: int) -> None:
    from apache_beam.io.filesystems import FileSystems

    from beam_pipelines.storage.files import files_at

    with store_server(scheme) as server:
        connect(server)
        bucket = server.make_bucket()
        store = files_at(bucket)
        files = {f"{bucket}/images/{index:06d}.jpg": made_bytes(index) for index in range(num_files)}
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            list(pool.map(store.write, files, files.values()))

        def read_stock(path: str) -> bytes:
            with FileSystems.open(path) as file:
                return file.read()

        stock_files = dict(list(files.items())[: STOCK_FILES[scheme]])
        read_stock(next(iter(files)))  # Excludes Beam's one-time setup from the measurement.
        stock = files_per_second(lambda paths: map(read_stock, paths), stock_files)
        one_thread = files_per_second(lambda paths: map(store.read, paths), files)
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            ours = files_per_second(lambda paths: pool.map(store.read, paths), files)
            bare = files_per_second(lambda paths: pool.map(bare_reader(server), paths), files)
        rows = [
            (f"Beam's FileSystems.open ({len(stock_files):,} files)", stock),
            ("our store, one thread", one_thread),
            (f"our store, {NUM_THREADS} threads", ours),
            (f"bare HTTP, {NUM_THREADS} threads", bare),
        ]
        for name, rate in rows:
            print(f"{scheme}://  {name:<42}{rate:10,.0f} files/s{rate / stock:8.1f} x", flush=True)


def made_bytes(index: int) -> bytes:
    return bytes([index % 251]) * (MIN_BYTES + index * 7919 % (MAX_BYTES - MIN_BYTES))


def files_per_second(read: Callable, files: dict[str, bytes]) -> float:
    start = time.perf_counter()
    for (path, expected), data in zip(files.items(), read(files), strict=True):
        if data != expected:
            sys.exit(f"{path}: {len(data)} bytes differ from the bytes that were written")
    return len(files) / (time.perf_counter() - start)


def bare_reader(server: StoreServer) -> Callable[[str], bytes]:
    connections = local()
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=made/20000101/us-east-1/s3/aws4_request"}

    def read(path: str) -> bytes:
        if not hasattr(connections, "one"):
            connections.one = HTTPConnection(urlsplit(server.url).netloc)
        bucket, _, key = path.partition("://")[2].partition("/")
        google_path = f"/download/storage/v1/b/{bucket}/o/{quote(key, safe='')}?alt=media"
        connections.one.request("GET", f"/{bucket}/{key}" if server.scheme == "s3" else google_path, headers=headers)
        return connections.one.getresponse().read()

    return read


def list_objects(flags: list[str]) -> None:
    """Lists objects in this process and prints the number of objects and the time in seconds."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_pipelines.storage.files import files_at

    FileSystems.set_options(PipelineOptions(flags))
    start = time.perf_counter()
    count = sum(1 for _ in files_at("s3://many").list("s3://many/folder"))
    print(count, f"{time.perf_counter() - start:.1f}")


def compare_listings(num_objects: int) -> None:
    print(f"\n{'s3:// objects':>14}{'seconds':>9}{'peak MB':>9}")
    for count in (10, num_objects):
        with store_server("s3", count) as server:
            run = measure([sys.executable, "-m", __spec__.name, "--list", *server.flags])
        listed, seconds = run.output.split()
        if int(listed) != count:
            sys.exit(f"{listed} objects listed; expected {count}")
        print(f"{count:14,}{seconds:>9}{run.peak_bytes / 1e6:9.0f}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--list"]:
        list_objects(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--objects", type=int, default=100_000)
    arguments = parser.parse_args()
    for scheme in ("s3", "gs"):
        compare(scheme, arguments.files)
    compare_listings(arguments.objects)


if __name__ == "__main__":
    main()
