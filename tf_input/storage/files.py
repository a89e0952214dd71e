"""The interface of classes that read local or remote files."""

from typing import Mapping, Protocol, Sequence

from tf_input.storage.fingerprints import Fingerprints

FILE_MISSING_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # any other OSError may be temporary


class Files(Protocol):
    """An interface for reading local or remote files in any number of threads. Pickled instances work in other
    processes.

    If reading fails, the methods raise an `OSError` that names the path. If the file does not exist, the error is one
    of `FILE_MISSING_ERRORS`.

    Attributes:
        is_local: Whether the files are on a local disk or a mounted file system, so that other programs can open them.
    """

    is_local: bool

    def read(self, path: str) -> bytes:
        """Reads a whole file."""

    def read_range(self, path: str, begin: int, num_bytes: int) -> bytes:
        """Reads a part of a file. If the file ends before the end of the byte range, fewer bytes are returned."""

    def read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        """Reads a byte range of a file into a buffer and returns the number of bytes that were read."""

    def sizes(self, directory: str, names: Sequence[str]) -> list[int | None]:
        """Returns the sizes of files in a directory in bytes, with None for each missing file.

        Object stores list the sizes of a thousand files in one request. Web servers require a HEAD request for each
        file.

        Raises:
            OSError: The size of a file is unknown.
        """

    def copy_directory(self, path: str, copy: str) -> None:
        """Copies all files in a directory to a new local directory."""

    def discard(self, path: str, begin: int, num_bytes: int) -> bool:
        """Removes a corrupt byte range from the cache. Returns whether a part of the byte range was in the cache.

        If it was not, reading the byte range again would return the same bytes.
        """

    def watch(self, fingerprints: Fingerprints) -> None:
        """Enables the check of each shard's fingerprint.

        A local shard is checked when its file is opened. A remote shard is checked when its first or last bytes are
        read, and again at the first read after `release`.
        """

    def release(self) -> None:
        """Closes all open files. Later reads open files again."""

    def fits_in_cache(self, sizes: Mapping[str, int]) -> bool:
        """Returns whether files are on a local disk or fit into the cache, so that random access is fast.

        Args:
            sizes: The sizes of the files in bytes, by path.
        """
