"""Serves the files of a directory on localhost with the protocols gs://, s3://, az:// and http://.

The server supports GET and HEAD requests with byte ranges, and lists objects with the APIs of S3, Google (XML) and
Azure. The server counts requests and bytes, and can delay its responses.
"""

import collections
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
import xml.sax.saxutils
from typing import Iterator

BUCKET = "bucket"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_COUNTS = "counts"


class RangeServer:
    """Serves the files of a directory from threads of this process until the server is closed.

    Processes with the environment `environment(SCHEME)` read the files as `SCHEME://bucket/NAME`. HTTP clients read
    `URL/bucket/NAME`.

    Args:
        directory: Directory of the files.
        delay_s: Delay of each response in seconds.
        page_size: Maximum number of objects in one page of a listing.
    Attributes:
        url: URL of the server.
        requests: (method, path, first byte or None) of each request.
        num_bytes: Number of bytes of files that were sent.
        num_lists: Number of listing requests.
        faults: HTTP statuses of the next responses, by path. "cut" ends the connection in the body.
        most_at_once: Maximum number of concurrent requests.
    """

    def __init__(self, directory: str | os.PathLike[str], delay_s: float = 0.0, page_size: int = 1000) -> None:
        self.directory, self.delay_s, self.page_size = pathlib.Path(directory), delay_s, page_size
        self.faults: dict[str, list[int | str]] = {}
        self._lock = threading.Lock()
        self._at_once = 0
        self.reset()
        self._server = _Server(("127.0.0.1", 0), lambda *given: _Handler(self, *given))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Sets all counters to 0."""
        self.requests: list[tuple[str, str, int | None]] = []
        self.num_bytes = self.num_lists = self.most_at_once = 0

    def environment(self, scheme: str) -> dict[str, str]:
        """Returns environment variables that make a process use this server for URLs of the given scheme."""
        if scheme == "gs":
            return {"STORAGE_EMULATOR_HOST": self.url}
        if scheme == "s3":
            keys = {"AWS_ACCESS_KEY_ID": "made", "AWS_SECRET_ACCESS_KEY": "made", "AWS_DEFAULT_REGION": "us-east-1"}
            return {**keys, "AWS_ENDPOINT_URL": self.url}
        if scheme == "az":
            keys = {"AZURE_STORAGE_ACCOUNT_NAME": "made", "AZURE_STORAGE_ACCOUNT_KEY": "bWFkZQ=="}
            return {**keys, "AZURE_STORAGE_ENDPOINT": self.url}
        return {}

    def root(self, scheme: str) -> str:
        """Returns the URL of the served directory with the given scheme."""
        return f"{self.url}/{BUCKET}" if scheme == "http" else f"{scheme}://{BUCKET}"

    def count(self, part: str = "") -> int:
        """Returns the number of requests whose path contains `part`."""
        return sum(part in path for _, path, _ in self.requests)

    def counts(self) -> dict[str, int]:
        """Returns all counters. Other processes request these counters from the server."""
        return {"requests": len(self.requests) - self.count(_COUNTS), "num_bytes": self.num_bytes, "num_lists": self.num_lists}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "RangeServer":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @contextlib.contextmanager
    def answering(self, method: str, path: str, first: int | None) -> Iterator[None]:
        """Context manager that counts a request and delays the response."""
        with self._lock:
            self.requests.append((method, path, first))
            self.num_lists += path.rstrip("/") == BUCKET
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self.delay_s:
                time.sleep(self.delay_s)  # simulates the latency of a store
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    def note(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes

    def fault(self, path: str) -> int | str | None:
        """Returns the next fault to inject for a path, or None."""
        with self._lock:
            return self.faults[path].pop(0) if self.faults.get(path) else None

    def names(self) -> list[str]:
        """Returns the names of all objects in order."""
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.directory).as_posix() for path in files)


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # with the default of 5, a sixth client would connect a second later

    def handle_error(self, request: object, client_address: object) -> None:
        """Prints no message if a client closes the connection, because tests check standard error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the header and the body of a response are sent 40 ms apart

    def __init__(self, server: RangeServer, *given: object) -> None:
        self._counted = server
        super().__init__(*given)

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path).lstrip("/")
        wanted = _RANGE.match(self.headers.get("Range", ""))
        with self._counted.answering(self.command, path, int(wanted[1]) if wanted else None):
            bucket, _, name = path.partition("/")
            fault = self._counted.fault(path)
            if path == _COUNTS:
                self._answer(200, json.dumps(self._counted.counts()).encode())
            elif isinstance(fault, int):
                self._answer(fault)
            elif bucket != BUCKET:
                self._answer(404)
            elif name:
                self._send(self._counted.directory / name, wanted, is_cut=fault == "cut")
            else:
                self._list({key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()})

    do_HEAD = do_GET

    def _send(self, path: pathlib.Path, wanted: re.Match | None, is_cut: bool) -> None:
        if not path.is_file():
            self._answer(404)
            return
        size = path.stat().st_size
        begin = int(wanted[1]) if wanted else 0
        end = min(size, int(wanted[2]) + 1) if wanted and wanted[2] else size
        if wanted and begin >= size:
            self._answer(416)
            return
        headers = {"Last-Modified": self.date_time_string(path.stat().st_mtime), "ETag": f'"{path.stat().st_mtime_ns:x}"'}
        if wanted:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        self.send_response(206 if wanted else 200)
        for name, value in {**headers, "Content-Length": str(end - begin)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_cut:
            end, self.close_connection = begin + (end - begin) // 2, True
        self._counted.note(num_bytes=end - begin)  # counts before the client has received all bytes
        with open(path, "rb") as file:
            self.connection.sendfile(file, begin, end - begin)

    def _list(self, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after") or query.get("marker") or ""
        actual: dict[str, bool] = collections.OrderedDict()  # name or prefix -> whether it is a prefix
        for name in self._counted.names():
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                is_folder = "delimiter" in query and "/" in rest
                actual[prefix + rest.partition("/")[0] + "/" if is_folder else name] = is_folder
        later = [name for name in actual if name > after]
        page = later[: self._counted.page_size]
        entries = "".join(self._entry(name, actual[name], is_azure="comp" in query) for name in page)
        more = xml.sax.saxutils.escape(page[-1]) if len(later) > len(page) else ""
        if "comp" in query:
            text = f"<EnumerationResults><Blobs>{entries}</Blobs><NextMarker>{more}</NextMarker></EnumerationResults>"
        else:
            token = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>" + f"<NextContinuationToken>{more}</NextContinuationToken>" * bool(more)
            text = f"<ListBucketResult><KeyCount>{len(page)}</KeyCount>{token}{entries}</ListBucketResult>"
        self._answer(200, text.encode())

    def _entry(self, name: str, is_folder: bool, is_azure: bool) -> str:
        escaped = xml.sax.saxutils.escape(name)
        if is_folder:
            tag = "BlobPrefix" if is_azure else "CommonPrefixes"
            return f"<{tag}><{'Name' if is_azure else 'Prefix'}>{escaped}</{'Name' if is_azure else 'Prefix'}></{tag}>"
        tag, size = hashlib.md5(name.encode()).hexdigest(), (self._counted.directory / name).stat().st_size
        if is_azure:
            return (
                f"<Blob><Name>{escaped}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>{tag}</Etag>"
                f"<Content-Length>{size}</Content-Length><Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            )
        return (
            f"<Contents><Key>{escaped}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>\"{tag}\"</ETag>"
            f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(socket.error):
                self.wfile.write(body)

    def log_message(self, *unused: object) -> None:
        """Suppresses log messages."""


class RangeProcess(RangeServer):
    """Runs the server in a separate process, so that the server does not affect the measured program.

    Args:
        directory: Directory of the files.
        delay_s: Delay of each response in seconds.
    Attributes:
        url: URL of the server.
    """

    def __init__(self, directory: str | os.PathLike[str], delay_s: float = 0.0) -> None:
        command = [sys.executable, __file__, os.fspath(directory), str(delay_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._process.stdout.readline().strip()

    def counts(self) -> dict[str, int]:
        """Returns the number of requests, the number of bytes sent from files, and the number of list requests."""
        with urllib.request.urlopen(f"{self.url}/{_COUNTS}") as answer:
            return json.load(answer)

    def close(self) -> None:
        self._process.stdin.close()  # the server ends with its standard input, even if this process is killed
        self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    with RangeServer(sys.argv[1], float(sys.argv[2])) as served:
        print(served.url, flush=True)
        sys.stdin.read()
