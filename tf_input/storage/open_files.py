"""Who reads which path."""

import os

from tf_input.dataset_format import MANIFEST, Manifest, decode_manifest, not_a_data_set
from tf_input.storage.files import NOT_THERE, Files
from tf_input.storage.paths import bucket_and_key, join, scheme_of


def open_manifest(directory: str | os.PathLike[str]) -> tuple[Files, Manifest, bytes]:
    """Who reads the files of a data set, what its manifest says, and the manifest's bytes.

    Raises:
        FileNotFoundError: The directory is not a (finished) data set.
        ImportError, OSError, ValueError: It can't be read, or its manifest is damaged or of another format version.
    """
    files, path = open_files(directory), join(directory, MANIFEST)
    try:
        data = files.read(path)
    except NOT_THERE:
        raise not_a_data_set(directory) from None
    return files, decode_manifest(data, path), data


def open_files(directory: str | os.PathLike[str]) -> Files:
    """Who reads the files of a directory.

    Raises:
        ValueError: Nobody knows its scheme, or it names no bucket or server.
        ImportError: The package that reads it is not installed.
    """
    # A local data set needs none of the packages of the others.
    scheme = scheme_of(directory)
    if not scheme:
        from tf_input.storage.local_files import LocalFiles

        return LocalFiles()
    from tf_input.storage.object_stores import SCHEMES, ObjectStoreFiles

    if scheme in SCHEMES:
        if not bucket_and_key(os.fspath(directory))[0].partition("://")[2]:
            what = "server" if scheme in ("http", "https") else "bucket"
            raise ValueError(f"{directory}: names no {what}; expected such as {scheme}://{what}/folder")
        return ObjectStoreFiles()
    from tf_input.storage.other_files import OtherFiles

    return OtherFiles(os.fspath(directory))
