"""Where an analysis is written: within its data set, hidden until it is whole. Plain."""

import contextlib
import fcntl
import os
import shutil
from typing import Iterator

from beam_pipelines.analyze_arguments import AnalyzeConfig
from beam_pipelines.errors import StillRunningError, UserError, printable
from beam_pipelines.files import is_remote
from tf_input.dataset_format import Manifest, read_manifest
from tf_input.transform_format import TRANSFORM_FN, TRANSFORMED_METADATA

_WORKING = f".{TRANSFORM_FN}.incomplete"


def open_data_set(directory: str, command: str) -> Manifest:
    """The manifest of a data set on a mounted file system.

    Raises:
        UserError: It is a URL, or no data set.
    """
    if is_remote(directory):
        raise UserError(f"{directory}: `recordmill {command}` works on a mounted directory; expected a path")
    try:
        return read_manifest(directory)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(reason if str(directory) in reason else f"{printable(directory)}: {reason}") from None


def check_analysis(config: AnalyzeConfig) -> Manifest:
    """Fails where there is nothing to analyse, or an analysis that must not be replaced; the data set's manifest.

    Raises:
        UserError: That is so.
    """
    manifest = open_data_set(config.directory, "analyze")
    for split in config.splits:
        if split not in manifest.splits:
            has = ", ".join(manifest.splits)
            raise UserError(f"--splits={','.join(config.splits)}: the data set has no split {split!r}; it has {has}")
    if not sum(map(manifest.num_examples, config.splits)):
        raise UserError(f"--splits={','.join(config.splits)}: there is no example in them")
    if os.path.lexists(f"{config.directory}/{TRANSFORM_FN}") and not config.overwrite:
        raise UserError(f"{printable(config.directory)}/{TRANSFORM_FN} exists; expected --overwrite to replace it")
    module = config.preprocessing_module
    if module is not None and not os.path.isfile(module):
        found = "is a folder" if os.path.isdir(module) else "does not exist"
        raise UserError(f"--preprocessing_module={printable(module)} {found}; expected a Python file")
    return manifest


@contextlib.contextmanager
def analysis_directory(directory: str) -> Iterator[str]:
    """Makes an empty directory within the data set, this run's alone, and removes it after the block.

    The lock is on the directory itself, and goes with the process: what a killed run left is known to be nobody's.

    Raises:
        UserError: Another run has it, or it can't be made.
    """
    working = f"{directory}/{_WORKING}"
    try:
        os.makedirs(working, exist_ok=True)
        descriptor = os.open(working, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{printable(working)}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_same(descriptor, working):
                raise BlockingIOError  # another run has just ended, and removed it
        except BlockingIOError:
            raise UserError(f"{printable(directory)}: another run is analysing it") from None
        _empty(working)
        is_left = False
        try:
            yield working
        except StillRunningError:
            is_left = True
            raise
        finally:
            if not is_left:
                shutil.rmtree(working, ignore_errors=True)
    finally:
        os.close(descriptor)


def publish_analysis(source: str, working: str, directory: str) -> None:
    """Moves a whole analysis to its place.

    An earlier one goes first, and `transform_fn` comes last: who is killed meanwhile leaves the old one, the new one or none.

    Args:
        source: Where the two directories of an analysis lie.
        working: Where the old ones go, to be removed.
        directory: The data set.
    """
    for name in (TRANSFORM_FN, TRANSFORMED_METADATA):
        if os.path.lexists(f"{directory}/{name}"):
            os.rename(f"{directory}/{name}", f"{working}/old_{name}")
    for name in (TRANSFORMED_METADATA, TRANSFORM_FN):
        os.rename(f"{source}/{name}", f"{directory}/{name}")


def _is_same(descriptor: int, path: str) -> bool:
    return os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))


def _empty(directory: str) -> None:
    for entry in os.scandir(directory):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
