"""Uses fsspec to read URLs that obstore does not support, such as `memory://`, `hf://` and `hdfs://`."""

import contextlib
import os
from typing import Iterator, Sequence

from tf_input.storage.packages import import_package
from tf_input.storage.paths import join
from tf_input.storage.remote_files import RemoteFiles


class OtherFiles(RemoteFiles):
    """Implements `Files` with fsspec, which also finds credentials and endpoints.

    Args:
        directory: The URL of any directory with the same scheme and server.

    Raises:
        ValueError: The scheme of the URL is unknown.
        ImportError: fsspec, or the package that fsspec needs for this scheme, is not installed.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        fsspec = import_package("fsspec")
        try:
            self._filesystem, _ = fsspec.url_to_fs(directory)  # error messages name the package for the scheme
        except ValueError as error:
            raise ValueError(
                f"{directory}: {error}. Pass a directory, or a gs://, s3://, az://, https:// or fsspec URL."
            ) from None

    def __reduce__(self) -> tuple[type["OtherFiles"], tuple[str]]:
        return OtherFiles, (self._directory,)

    def read(self, path: str) -> bytes:
        with _os_errors(path):
            return self._filesystem.cat_file(path)

    def _read_range(self, path: str, begin: int, num_bytes: int) -> bytes:
        with _os_errors(path):
            return self._filesystem.cat_file(path, start=begin, end=begin + num_bytes)

    def sizes(self, directory: str, names: Sequence[str]) -> list[int | None]:
        details = {}
        for folder in dict.fromkeys(os.path.dirname(join(directory, name)) for name in names):
            with _os_errors(folder), contextlib.suppress(FileNotFoundError):
                details |= self._filesystem.find(folder, maxdepth=1, detail=True)
        paths = [self._filesystem._strip_protocol(join(directory, name)) for name in names]
        return [details[path]["size"] if path in details else None for path in paths]

    def copy_directory(self, path: str, copy: str) -> None:
        with _os_errors(path):
            self._filesystem.get(f"{path}/", f"{copy}/", recursive=True)


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Context manager that converts the various exceptions of fsspec's file systems to `OSError`."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{path}: {type(error).__name__}: {error}") from error
