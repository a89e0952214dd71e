"""Reading input files and writing output files."""

import os
import pathlib
import uuid

from beam_pipelines.errors import RunError

# A serialized tf.train.Example is a protocol buffer, and ends at 2 GiB; no single training image comes near.
MAX_FILE_BYTES = 1 << 30


def read_file(path: str) -> bytes:
    """The bytes of a file, with as few system calls as it takes: on tiny images they are a third of the work.

    Raises:
        OSError: It cannot be read, or has more than `MAX_FILE_BYTES`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_FILE_BYTES:
            raise OSError(f"{size} bytes; expected at most {MAX_FILE_BYTES}")
        return os.read(descriptor, size + 1)
    finally:
        os.close(descriptor)


def temporary_name(path: pathlib.Path) -> pathlib.Path:
    """A name beside `path` that no other attempt uses: a retried bundle may run beside its dying twin."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def write_file(path: pathlib.Path, data: bytes) -> None:
    """Writes under a temporary name and renames, so that a file is whole or not there.

    Raises:
        RunError: It could not be written: the disk is full, say.
    """
    temporary = temporary_name(path)
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise RunError(f"{path.name} could not be written: {error.strerror or error}") from error
