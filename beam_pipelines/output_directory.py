"""The output directory of a run: what may be written, whose it is, and what a failed run leaves: nothing. Plain."""

import contextlib
import fcntl
import os
import pathlib
import shutil
from typing import Iterator

from beam_pipelines.config import PrepareConfig
from beam_pipelines.errors import UserError
from beam_pipelines.light_processes import close_light_processes
from tf_input import dataset_format


def check_paths(config: PrepareConfig, overwrite: bool) -> None:
    """Fails where the input is no folder of files or the output must not be written."""
    for option, path in (("--input", config.input), ("--output", config.output)):
        if "://" in path:
            raise UserError(f"{option}={path}: expected a path in a file system that every worker sees")
    if not os.path.isdir(config.input):
        found = "is not a folder" if os.path.exists(config.input) else "does not exist"
        raise UserError(f"--input={config.input}: {found}; expected a folder of class folders")
    if not os.listdir(config.input):
        raise UserError(f"--input={config.input}: the folder is empty; expected class folders with images")
    output, source = os.path.realpath(config.output), os.path.realpath(config.input)
    if os.path.commonpath([output, source]) in (output, source):
        raise UserError(f"--output={config.output}: expected a path outside the input {config.input}, and not around it")
    if not os.path.lexists(output):
        return
    if not overwrite:
        raise UserError(f"--output={config.output} exists; expected a new path, or --overwrite")
    if not os.path.isfile(os.path.join(output, dataset_format.MANIFEST)) and (
        not os.path.isdir(output) or os.listdir(output)
    ):
        raise UserError(f"--output={config.output} is not a data set, and --overwrite replaces nothing else")


@contextlib.contextmanager
def working_directory(config: PrepareConfig) -> Iterator[None]:
    """Makes the working directory, this run's alone, and removes it unless it has become the output.

    The lock is on the directory itself: it goes with the process, however that ends, so a directory that a killed run left is
    known to be nobody's.
    """
    directory = pathlib.Path(config.working_directory)
    missing = [parent for parent in directory.parents if not parent.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output={config.output}: {directory.parent}: {error.strerror}") from None
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_same(descriptor, directory):
                raise BlockingIOError  # it has just become another run's output
        except BlockingIOError:
            raise UserError(f"--output={config.output}: another run is writing to it") from None
        _empty(directory)
        try:
            yield
        except BaseException:
            close_light_processes()  # so that nobody writes into what is removed
            raise
        finally:
            if _is_same(descriptor, directory):  # else it is the output by now, and another run may have made a new one
                shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):  # not empty: the output is in it
                for parent in missing:
                    parent.rmdir()
    finally:
        os.close(descriptor)


def _is_same(descriptor: int, directory: pathlib.Path) -> bool:
    return directory.exists() and os.path.samestat(os.fstat(descriptor), os.stat(directory))


def _empty(directory: pathlib.Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
