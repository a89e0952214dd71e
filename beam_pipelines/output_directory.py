"""The output directory of a run: what may be written, whose it is, and what a failed run leaves: nothing. Plain."""

import contextlib
import fcntl
import os
import pathlib
import shutil
from typing import Iterator

from beam_pipelines.config import OutputPaths, PrepareConfig
from beam_pipelines.errors import StillRunningError, UserError
from beam_pipelines.files import files_at, is_remote, write_file
from beam_pipelines.light_processes import close_light_processes
from tf_input.dataset_format import MANIFEST

# In an object store: an object that says that what lies beside it is not whole yet.
MARKER = "INCOMPLETE"
_MARKER_TEXT = b"A run of recordmill is writing here, or failed. manifest.json comes last, and then this object goes.\n"


def check_paths(config: PrepareConfig, overwrite: bool) -> None:
    """Fails where there is no input or the output must not be written."""
    check_input(config.input)
    check_output(config.output, config.input, overwrite, config.output_option)


def check_output(path: str, source: str, overwrite: bool, option: str) -> None:
    """Fails where the output must not be written.

    Args:
        path: Of the output.
        source: What is read, which must lie neither in nor around it.
        overwrite: Whether it may replace a data set.
        option: How the user names the output.
    """
    if is_remote(path):
        _check_access(option, path)
    output, folder = _resolve(path), _resolve(source)
    if _is_within(output, folder) or _is_within(folder, output):
        raise UserError(f"{option}={path}: expected a path outside the input {source}, and not around it")
    if not _exists(output):
        return
    is_left = is_remote(output) and not _has(output, MANIFEST) and _has(output, MARKER)
    if not overwrite and is_left:
        raise UserError(f"{option}={path} holds what a run left that failed or still goes on; expected a new path, or --overwrite")
    if not overwrite:
        raise UserError(f"{option}={path} exists; expected a new path, or --overwrite")
    if not is_left and not _has(output, MANIFEST) and not _is_empty_folder(output):
        raise UserError(f"{option}={path} is not a data set, and --overwrite replaces nothing else")


def is_new(path: str) -> bool:
    """Whether no data set is at the output that would have to stay until another is whole."""
    return not _has(path, MANIFEST)


def _check_access(option: str, path: str) -> None:
    try:
        files_at(path).check_access(path)
    except UserError as error:
        raise UserError(f"{option}={error}") from None


def check_input(path: str) -> None:
    """Fails where there is nothing at the input: neither a file, nor a folder with something in it, nor what a pattern means."""
    folder, _, name = path.rstrip("/").rpartition("/")
    is_pattern = any(character in name for character in "*?[{")
    if is_remote(path):
        _check_access("--input", folder if is_pattern else path)
        store = files_at(path)
        if not (any(store.top_level(folder if is_pattern else path)) or store.exists(path)):
            raise UserError(f"--input={path}: nothing lies there; expected a folder of images, or another source's file")
        return
    if os.path.isdir(path):
        if not os.listdir(path):
            raise UserError(f"--input={path}: the folder is empty; expected class folders with images, or another source's files")
    elif is_pattern:
        if not os.path.isdir(folder or "."):
            raise UserError(f"--input={path}: its folder does not exist")
    elif not os.path.isfile(path):
        found = "is neither a folder nor a file" if os.path.exists(path) else "does not exist"
        raise UserError(f"--input={path}: {found}; expected a folder of images, or another source's file")


def _resolve(path: str) -> str:
    return path.rstrip("/") if is_remote(path) else os.path.realpath(path)


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _exists(path: str) -> bool:
    return any(files_at(path).top_level(path)) if is_remote(path) else os.path.lexists(path)


def _has(folder: str, name: str) -> bool:
    return files_at(folder).exists(f"{folder}/{name}")


def _is_empty_folder(path: str) -> bool:
    return not is_remote(path) and os.path.isdir(path) and not os.listdir(path)


def working_directory(config: OutputPaths) -> contextlib.AbstractContextManager[None]:
    """Makes the working directory, this run's alone, and removes it unless the block ends well."""
    return _working_objects(config) if is_remote(config.output) else _working_folder(config)


@contextlib.contextmanager
def _working_objects(config: OutputPaths) -> Iterator[None]:
    """The job may go on after the block: then its last step removes what is scratch."""
    store = files_at(config.output)
    for directory in {config.scratch_directory, config.working_directory}:
        store.remove_all(directory)
    write_file(f"{config.working_directory}/{MARKER}", _MARKER_TEXT)
    try:
        yield
    except StillRunningError:
        raise
    except BaseException:
        if is_new(config.output):
            store.remove_all(config.working_directory)
        store.remove_all(config.scratch_directory)
        raise


@contextlib.contextmanager
def _working_folder(config: OutputPaths) -> Iterator[None]:
    """The lock is on the directory itself: it goes with the process, however that ends, so a directory that a killed run left
    is known to be nobody's.
    """
    directory = pathlib.Path(config.working_directory)
    missing = [parent for parent in directory.parents if not parent.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{config.output_option}={config.output}: {directory.parent}: {error.strerror}") from None
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_same(descriptor, directory):
                raise BlockingIOError  # it has just become another run's output
        except BlockingIOError:
            raise UserError(f"{config.output_option}={config.output}: another run is writing to it") from None
        _empty(directory)
        is_left = False
        try:
            yield
        except StillRunningError:
            is_left = True
            raise
        except BaseException:
            close_light_processes()  # so that nobody writes into what is removed
            raise
        finally:
            if not is_left and _is_same(descriptor, directory):  # else it is the output by now, and another run may have made a new one
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
