"""Chooses the implementation of `Files` for a path or URL."""

import os

from tf_input.dataset_format import MANIFEST, Manifest, decode_manifest, not_a_dataset
from tf_input.storage.files import FILE_MISSING_ERRORS, Files
from tf_input.storage.paths import bucket_and_key, join, scheme_of


def open_manifest(directory: str | os.PathLike[str]) -> tuple[Files, Manifest, bytes]:
    """Opens a dataset and returns its `Files`, its manifest and the bytes of the manifest.

    Raises:
        FileNotFoundError: The directory is not a complete dataset.
        ImportError, OSError, ValueError: The dataset cannot be read, or its manifest is corrupt or has another version.
    """
    files, path = open_files(directory), join(directory, MANIFEST)
    try:
        data = files.read(path)
    except FILE_MISSING_ERRORS:
        raise not_a_dataset(directory) from None
    return files, decode_manifest(data, path), data


def open_files(directory: str | os.PathLike[str]) -> Files:
    """Returns the `Files` that reads a directory or URL.

    Raises:
        ValueError: The scheme of the URL is unknown, or the URL has no bucket or server.
        ImportError: The package for the URL's scheme is not installed.
    """
    # Imports are deferred, because local datasets need no packages for remote files.
    scheme = scheme_of(directory)
    if not scheme:
        from tf_input.storage.local_files import LocalFiles

        return LocalFiles()
    from tf_input.storage.object_stores import SCHEMES, ObjectStoreFiles

    if scheme in SCHEMES:
        if not bucket_and_key(os.fspath(directory))[0].partition("://")[2]:
            missing_part = "server" if scheme in ("http", "https") else "bucket"
            raise ValueError(f"{directory} names no {missing_part}. Write for example {scheme}://{missing_part}/folder.")
        return ObjectStoreFiles()
    from tf_input.storage.other_files import OtherFiles

    return OtherFiles(os.fspath(directory))
