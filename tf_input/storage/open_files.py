"""Who reads which path."""

import os

from tf_input.storage.files import Files
from tf_input.storage.paths import scheme_of


def open_files(directory: str | os.PathLike[str]) -> Files:
    """Who reads the files of a directory.

    Raises:
        ValueError: Nobody knows its scheme.
        ImportError: The package that reads it is not installed.
    """
    # A local data set needs none of the packages of the others.
    scheme = scheme_of(directory)
    if not scheme:
        from tf_input.storage.local_files import LocalFiles

        return LocalFiles()
    from tf_input.storage.object_stores import SCHEMES, ObjectStoreFiles

    if scheme in SCHEMES:
        return ObjectStoreFiles()
    from tf_input.storage.other_files import OtherFiles

    return OtherFiles(os.fspath(directory))
