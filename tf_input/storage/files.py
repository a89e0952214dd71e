"""What is asked of files, wherever they lie."""

from typing import Mapping, Protocol, Sequence

from tf_input.storage.fingerprints import Fingerprints

NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # a fact about the file; any other OSError is none


class Files(Protocol):
    """Reads files; any number of threads may do so at a time, and a copy in another process.

    Failures are OSErrors that name the path, and one of `NOT_THERE` where there is no such file.

    Attributes:
        is_local: Whether paths are those of files on this machine, or on a mount, which others can open too.
    """

    is_local: bool

    def read(self, path: str) -> bytes:
        """Reads a whole file."""

    def read_range(self, path: str, begin: int, num_bytes: int) -> bytes:
        """Reads a part of a file: fewer bytes where it ends, none after its end."""

    def read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        """Reads a part of a file into a buffer, and returns how many bytes that were: fewer than it has where the file ends."""

    def sizes(self, directory: str, names: Sequence[str]) -> list[int | None]:
        """Bytes of each of a directory's files. None: it is missing, and never that nobody could say, which is an OSError.

        An object store is asked for a list, a thousand objects a request. A web server has none, and is asked for each file (HEAD).
        """

    def copy_directory(self, path: str, copy: str) -> None:
        """Copies all that lies in a directory to a local one, which is made."""

    def discard(self, path: str, begin: int, num_bytes: int) -> bool:
        """Drops what a cache has of a range that was found damaged; False: it has nothing, and reading it again is no use."""

    def watch(self, fingerprints: Fingerprints) -> None:
        """Checks each shard from now on: when its file is opened, or, of a store, when one of its ends is read and at the first read after
        `release`."""

    def release(self) -> None:
        """Closes what is open, which is opened again for who reads on."""

    def can_hold(self, sizes: Mapping[str, int]) -> bool:
        """Whether files, by their paths and lengths, are on a disk of this machine, where single records are at hand, or will be once they
        were read."""
