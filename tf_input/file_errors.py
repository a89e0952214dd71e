"""What an error says of a file: that it is not there, or nothing, as a disk or a store is busy, broken or closed to this process."""

import contextlib
import os
import re
import stat
from typing import Iterator

import tensorflow as tf

NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # a fact about the file; any other OSError is none

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@contextlib.contextmanager
def named_errors(path: str) -> Iterator[None]:
    """TensorFlow's errors as built-in ones."""
    try:
        yield
    except tf.errors.NotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    except tf.errors.FailedPreconditionError as error:  # no file; or a busy disk, or a disk that is no more
        if _is_misplaced(path):
            raise FileNotFoundError(f"{path} does not exist") from None
        raise OSError(f"{path}: {error.message}") from error
    except tf.errors.OpError as error:
        raise OSError(f"{path}: {error.message}") from error


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """The errors of fsspec's file systems as OSErrors: each has kinds of its own for a refused key or a silent server."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{path}: {type(error).__name__}: {error}") from error


def _is_misplaced(path: str) -> bool:
    """Whether a local path is that of a folder, or leads through a file as if that were one."""
    if _URL.match(path):
        return False
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except NOT_THERE:
        return True
