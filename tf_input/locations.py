"""Where a data set lies: in a directory or at a URL that TensorFlow reads itself, or elsewhere, from where shards are copied to a
local cache first.

TensorFlow reads local files and `gs://`, and other schemes once a plug-in for them is imported. Everything else that fsspec
knows (`s3://`, `abfs://`, `https://`, ...) needs a cache directory: shards are read at the speed of a local disk, in every epoch,
which no stream through Python comes near.
"""

import concurrent.futures
import contextlib
import importlib
import os
import pathlib
import re
import types
from typing import Callable, Iterator, Protocol, Sequence

import google_crc32c
import tensorflow as tf

from tf_input.dataset_format import MANIFEST, ShardInfo
from tf_input.file_errors import named_errors, os_errors

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NUM_QUESTIONS = 32  # at a time: an object store takes a moment to answer each
_NUM_DOWNLOADS = 8
_CHUNK_BYTES = 8 << 20


class Source(Protocol):
    """What is asked of the place where a data set lies. Failures are OSErrors, FileNotFoundError where a file is missing."""

    def read(self, path: str) -> bytes:
        """A whole file."""

    def copy(self, path: str, local_path: str) -> None:
        """Copies a file to a local one, which is overwritten in place."""


class TensorFlowSource:
    """Files that TensorFlow reads: local ones, `gs://`, and what plug-ins add."""

    def read(self, path: str) -> bytes:
        with named_errors(path), tf.io.gfile.GFile(path, "rb") as file:
            return file.read()

    def copy(self, path: str, local_path: str) -> None:
        with named_errors(path), tf.io.gfile.GFile(path, "rb") as source, open(local_path, "wb") as file:
            while chunk := source.read(_CHUNK_BYTES):
                file.write(chunk)

    def size(self, path: str) -> int:
        """In bytes."""
        with named_errors(path):
            return tf.io.gfile.stat(path).length


class FsspecSource:
    """Files that fsspec reads; credentials and endpoints come from where its file system looks for them."""

    def __init__(self, url: str) -> None:
        self._filesystem, _ = _import("fsspec").url_to_fs(url)  # it says itself which package a scheme needs

    def read(self, path: str) -> bytes:
        with os_errors(path):
            return self._filesystem.cat_file(path)

    def copy(self, path: str, local_path: str) -> None:
        with os_errors(path):
            self._filesystem.get_file(path, local_path)

    def copy_directory(self, path: str, local_path: str) -> None:
        """Copies all that lies in a directory to a local one, which is made."""
        with os_errors(path):
            self._filesystem.get(f"{path}/", f"{local_path}/", recursive=True)


def make_source(directory: str | os.PathLike[str], has_cache: bool) -> Source:
    """Who reads the files of a directory.

    Raises:
        ValueError: Nobody can, or only into a cache and there is none.
        ImportError: The package that could is not installed.
    """
    found = _SCHEME.match(os.fspath(directory))
    if found is None or found[1] in tf.io.gfile.get_registered_schemes():
        return TensorFlowSource()
    if not has_cache:
        raise ValueError(
            f"{directory}: TensorFlow does not read {found[0]} itself; cache_directory=... names a local directory to which "
            "shards are copied before they are read"
        )
    return FsspecSource(os.fspath(directory))


def _import(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"a cache needs the package {name}: pip install 'recordmill[remote]'") from None


def is_url(directory: str | os.PathLike[str]) -> bool:
    return _SCHEME.match(os.fspath(directory)) is not None


def join(directory: str | os.PathLike[str], name: str) -> str:
    """The path of a data set's file."""
    return f"{os.fspath(directory).rstrip('/')}/{name}"


def read_range(path: str, begin: int, num_bytes: int) -> bytes:
    """A part of a file that TensorFlow reads: fewer bytes where it ends.

    Raises:
        OSError: It can't be read.
    """
    with named_errors(path), tf.io.gfile.GFile(path, "rb") as file:
        file.seek(begin)
        return file.read(num_bytes)


def check_shards(directory: str | os.PathLike[str], shards: Sequence[ShardInfo]) -> list[str]:
    """Paths for TensorFlow to read; a data set that was half copied is refused here, not in the middle of an epoch.

    Raises:
        FileNotFoundError: A shard is missing.
        ValueError: A shard has a wrong size.
    """
    paths = [join(directory, shard.name) for shard in shards]
    for path, shard, num_bytes in zip(paths, shards, shard_sizes(directory, shards)):
        if num_bytes is None:
            raise FileNotFoundError(f"shard {path} is missing; {MANIFEST} lists it")
        if num_bytes != shard.num_bytes:
            raise ValueError(f"shard {path} has {num_bytes} bytes; {MANIFEST} says {shard.num_bytes}")
    return paths


def shard_sizes(directory: str | os.PathLike[str], shards: Sequence[ShardInfo]) -> list[int | None]:
    """Bytes of each shard; None for one that is missing."""
    source = TensorFlowSource()

    def size(shard: ShardInfo) -> int | None:
        try:
            return source.size(join(directory, shard.name))
        except FileNotFoundError:
            return None

    with concurrent.futures.ThreadPoolExecutor(_NUM_QUESTIONS) as threads:
        return list(threads.map(size, shards))


def cache_shards(
    source: Source, directory: str | os.PathLike[str], cache: pathlib.Path, shards: Sequence[ShardInfo]
) -> list[str]:
    """Copies shards that the cache lacks; processes that want the same one wait for the first.

    Returns:
        Paths in the cache, for TensorFlow to read.

    Raises:
        FileNotFoundError: A shard is missing.
        OSError: One can't be read, or the cache can't be written.
        ValueError: A shard is not what the manifest says.
    """
    with concurrent.futures.ThreadPoolExecutor(_NUM_DOWNLOADS) as threads:
        futures = [threads.submit(_cache_shard, source, join(directory, shard.name), cache, shard) for shard in shards]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)  # what is under way ends; the rest is not begun
            raise


def _cache_shard(source: Source, path: str, cache: pathlib.Path, shard: ShardInfo) -> str:
    try:
        return cache_file(source, path, cache / shard.name, shard.num_bytes, lambda copy: _check_copy(copy, path, shard))
    except FileNotFoundError:
        raise FileNotFoundError(f"shard {path} is missing; {MANIFEST} lists it") from None


def cache_file(
    source: Source, path: str, kept: pathlib.Path, num_bytes: int, check: Callable[[pathlib.Path], None] = lambda copy: None
) -> str:
    """The path of a copy in the cache, which is made if there is none of that size.

    Args:
        source: Where the file lies.
        path: Its path there.
        kept: The copy's.
        num_bytes: Its size.
        check: Raises an error if the copy is not what it should be.

    Raises:
        FileNotFoundError: The file is missing.
        OSError: It can't be read, or the cache can't be written.
    """

    def is_whole() -> bool:
        return kept.exists() and kept.stat().st_size == num_bytes

    if not is_whole():
        kept.parent.mkdir(parents=True, exist_ok=True)
        # The unfinished file is its own lock: a process that dies lets go of it, and the next one overwrites what it left.
        with _locked(unfinished := kept.with_name(f"{kept.name}.part")):
            if is_whole():
                unfinished.unlink(missing_ok=True)
            else:
                source.copy(path, os.fspath(unfinished))
                check(unfinished)
                unfinished.replace(kept)
    return os.fspath(kept)


def _check_copy(copy: pathlib.Path, path: str, shard: ShardInfo) -> None:
    num_bytes = copy.stat().st_size
    if num_bytes != shard.num_bytes:
        raise ValueError(f"shard {path} has {num_bytes} bytes; {MANIFEST} says {shard.num_bytes}")
    if (checksum := crc32c(copy)) != shard.crc32c:
        raise ValueError(f"shard {path} has CRC-32C {checksum:08x}; {MANIFEST} says {shard.crc32c:08x}")


def crc32c(path: pathlib.Path) -> int:
    """CRC-32C of a whole file."""
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
    return checksum


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    import fcntl  # not on Windows, where only caches need it

    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
