"""Opens a data set that was prepared, wherever it lies."""

import hashlib
import math
import os
import pathlib
from numbers import Real
from typing import Any

from tf_input.dataset import PreparedDataset
from tf_input.folds import choose_fold, plain_fold
from tf_input.options import named_options
from tf_input.storage.cache import CachedFiles
from tf_input.storage.open_files import open_manifest


@named_options()
def open(
    directory: str | os.PathLike[str],
    *,
    cache_directory: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    fold: tuple[int, int] | None = None,
) -> PreparedDataset:
    """Opens a data set that `recordmill prepare` wrote.

        tf_input.open("out/flowers")
        tf_input.open("gs://bucket/flowers")
        tf_input.open("s3://bucket/flowers", cache_directory="/local/ssd", cache_bytes=200 * 10**9)
        tf_input.open("out/scans", fold=(5, 0))

    Args:
        directory: Where it lies: a directory (`~` is one's home), or a URL, such as `gs://`, `s3://`, `az://`, `https://`, or any other
            that fsspec knows (`pip install 'recordmill[remote]'`). Keys and endpoints come from where each cloud's own tools look
            for them; without any, public data are read.
        cache_directory: Where to keep copies, on a local disk: filled while the first epoch is read, and read from in those that
            follow. All processes of a machine, and all data sets, may share it, and others' files in it stay. An exact order, which
            reads records one by one, needs one where the data set is not on this machine.
        cache_bytes: How many bytes may lie in the cache directory: where they are taken, those of data sets that nobody has open go,
            the oldest first, and if there are none the rest is read without being kept. None: as many as the disk has room for, with a
            twentieth of it left free.
        fold: Of a data set prepared with `--folds N`: N, and the number of the fold, from 0, that is the split `validation`; all others
            together are the split `train`. None: each fold is a split by its own name.

    Raises:
        FileNotFoundError: The directory is not a (finished) data set.
        OSError: It can't be read, or the cache directory can't be written.
        TypeError: There is no such option; the message says which was meant.
        ValueError: Its manifest is damaged or of another format version, it has no such folds, nobody knows its URL's scheme, or an
            argument has a wrong value.
        ImportError: A package is missing that reads the URL.
    """
    for name, path in (("directory", directory), ("cache_directory", cache_directory)):
        if not isinstance(path, (str, os.PathLike)) and (path is not None or name == "directory"):
            raise ValueError(f"{name}={path!r}: expected a path{' or a URL' if name == 'directory' else ', or None'}")
    if cache_bytes is not None and (cache_directory is None or not _is_bytes(cache_bytes)):
        raise ValueError(f"cache_bytes={cache_bytes!r}: expected a positive number of bytes, together with cache_directory=...")
    fold = None if fold is None else plain_fold(fold)
    directory = os.path.expanduser(directory)
    files, manifest, data = open_manifest(directory)
    if cache_directory is not None:
        # By its content: what replaces a data set at its URL has another folder.
        folder = pathlib.Path(os.path.expanduser(cache_directory), f"{manifest.name}-{hashlib.sha256(data).hexdigest()[:16]}")
        files = CachedFiles(files, os.fspath(directory), folder, None if cache_bytes is None else int(cache_bytes))
    return PreparedDataset(directory, manifest if fold is None else choose_fold(manifest, fold), files, fold)


def _is_bytes(value: Any) -> bool:
    """Whether it is a number of bytes, also as a float, such as 200e9."""
    return isinstance(value, Real) and not isinstance(value, bool) and 1 <= value < math.inf
