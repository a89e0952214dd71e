"""The output directory of a run: what may be written, whose it is, and what a failed run leaves: nothing, or what another goes on from.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
from typing import Iterator

from beam_pipelines.config.output_paths import PROGRESS, REPLACED, SCRATCH, OutputPaths
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.errors import StillRunningError, UserError, printable
from beam_pipelines.parallel import interrupts
from beam_pipelines.parallel.light_processes import close_light_processes
from beam_pipelines.publish.left_run import OnLeft, check_left, describe_left, is_left, is_whole
from beam_pipelines.storage.files import Files, files_at, is_remote, write_file
from beam_pipelines.storage.marked_directory import (
    CLAIMS,
    MARKER,
    MARKER_TEXT,
    check_is_ours,
    is_in_use,
    own_directory,
    remove_temporary_files,
)
from tf_input.dataset_format import MANIFEST


def check_paths(config: PrepareConfig, overwrite: bool, on_left: OnLeft) -> None:
    """Fails where there is no input or the output must not be written."""
    check_input(config.input)
    resolved = dataclasses.replace(config, output=_resolve(config.output))
    if is_remote(config.output):
        _check_access(config.output_option, config.output)
    if is_remote(config.output) or not is_in_use(resolved.scratch_directory):  # whose run is at work is told under its lock
        check_left(resolved, on_left, f"{config.output_option}={printable(config.output)}")
    check_output(config.output, config.input, overwrite, config.output_option, on_left)


def check_output(path: str, source: str, overwrite: bool, option: str, on_left: OnLeft = OnLeft.REFUSE) -> None:
    """Fails where the output must not be written.

    Args:
        path: Of the output.
        source: What is read, which must lie neither in nor around it.
        overwrite: Whether it may replace a data set.
        option: How the user names the output.
        on_left: What becomes of what an earlier run has left there.
    """
    shown = f"{option}={printable(path)}"
    output, folder = _resolve(path), _resolve(source)
    if _is_within(output, folder) or _is_within(folder, output):
        raise UserError(f"{shown}: expected a path outside the input {printable(source)}, and not around it")
    _check_above(output, shown)
    _check_beside(output, shown, on_left)
    if not _exists(output):
        return
    # With the mark and a manifest it is whole, and its run was killed before it had removed the mark.
    is_half = is_remote(output) and _has(output, MARKER) and (on_left is OnLeft.RESUME or not _has(output, MANIFEST))
    if is_half and on_left is not OnLeft.REFUSE:
        return
    if not overwrite and is_half:
        raise UserError(f"{shown} holds what a run left that failed or still goes on; expected a new path, or --restart if it does not")
    if not overwrite:
        raise UserError(f"{shown} exists; expected a new path, or --overwrite")
    if not is_half and not _has(output, MANIFEST) and not _is_empty_folder(output):
        raise UserError(f"{shown} is not a data set, and --overwrite replaces nothing else")


def _check_above(output: str, whose: str) -> None:
    """Fails where it would lie in a file."""
    if is_remote(output):
        return
    above = next(parent for parent in pathlib.Path(output).parents if os.path.lexists(parent))
    if not above.is_dir():
        raise UserError(f"{whose}: {printable(str(above))} is not a folder; expected a path in one")


def _check_beside(output: str, whose: str, on_left: OnLeft) -> None:
    """Fails where a run would have to remove what may not be ours: where it works, or where the old data set steps aside."""
    if is_remote(output):
        _check_prefix(f"{output}{SCRATCH}", whose)
        return
    old = f"{output}{REPLACED}"
    if os.path.lexists(old) and not os.path.lexists(output):
        shown = f"mv {printable(old)} {printable(output)}"
        raise UserError(f"{whose}: a run that was killed may have left the old data set as {printable(old)}; bring it back (`{shown}`), or remove it")
    if os.path.lexists(old):
        raise UserError(f"{whose}: {printable(old)} exists, where an old data set steps aside; move it away, or remove it")
    if on_left is not OnLeft.RESUME or not os.path.isfile(f"{output}{SCRATCH}/{MANIFEST}"):
        check_is_ours(f"{output}{SCRATCH}", whose)


def _check_prefix(prefix: str, whose: str) -> None:
    """The same of objects."""
    if any(files_at(prefix).top_level(prefix)) and not _has(prefix, MARKER):
        raise UserError(f"{whose}: {prefix}/, where the run would work, holds what no run has put there; move it away, or remove it")


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
            raise UserError(f"--input={printable(path)}: nothing lies there; expected a folder of images, or another source's file")
        return
    if os.path.isdir(path):
        if not os.listdir(path):
            raise UserError(f"--input={printable(path)}: the folder is empty; expected class folders with images, or another source's files")
    elif is_pattern:
        if not os.path.isdir(folder or "."):
            raise UserError(f"--input={printable(path)}: its folder does not exist")
    elif not os.path.isfile(path):
        found = "is neither a folder nor a file" if os.path.exists(path) else "does not exist"
        raise UserError(f"--input={printable(path)}: {found}; expected a folder of images, or another source's file")


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


def working_directory(config: OutputPaths, on_left: OnLeft = OnLeft.REFUSE) -> contextlib.AbstractContextManager[None]:
    """Makes the working directory, this run's alone. Unless the block ends well, it is removed, or what is there is to be gone on from.

    Args:
        config: The run that is to work there.
        on_left: What becomes of what an earlier run has left; `RESUME` where there is something: see `left_run`.
    """
    return _working_objects(config, on_left) if is_remote(config.output) else _working_folder(config, on_left)


def _stays(config: OutputPaths, error: BaseException, on_left: OnLeft) -> bool:
    """Whether what is there stays after an error: where the plan is whole, unless the input or the options make no data set."""
    try:
        return (on_left is OnLeft.RESUME or not isinstance(error, UserError)) and is_left(config)
    except OSError:  # a disk or a store that does not answer: nothing is known to be of no use
        return True


@contextlib.contextmanager
def _working_objects(config: OutputPaths, on_left: OnLeft) -> Iterator[None]:
    """The job may go on after the block: then its last step removes what is scratch."""
    store, scratch, working = files_at(config.output), config.scratch_directory, config.working_directory
    for directory in (scratch, working):
        _check_prefix(directory, f"{config.output_option}={config.output}")
        write_file(f"{directory}/{MARKER}", MARKER_TEXT)
        if on_left is not OnLeft.RESUME:
            _remove_objects(store, directory)
    interrupts.note(lambda: _describe_objects(config))
    try:
        yield
    except StillRunningError:
        interrupts.note(str)
        raise
    except BaseException as error:
        if not _stays(config, error, on_left):
            if working == config.output and is_new(config.output):
                remove_marked(store, working)
            remove_marked(store, scratch)
        raise


def _describe_objects(config: OutputPaths) -> str:
    """Whether objects that this run has begun to write are a data set by now; if not, what is there of it."""
    try:
        is_marked = _has(config.working_directory, MARKER)
        if not is_new(config.output) and not is_marked:
            return f"{config.output} is written, whole"
        told = describe_left(config)
        if told and not config.is_output_new and _has(config.output, MARKER):  # the new data set is all that there is
            return f"{config.output} was being replaced, and is not whole; {told}"
        return told
    except OSError as error:
        return f"whether {config.output} is written could not be found out: {error.strerror or error}"


def _remove_objects(store: Files, directory: str) -> None:
    for name in CLAIMS:
        store.remove(f"{directory}/{name}")
    store.remove_all(directory, but=MARKER)


def remove_marked(store: Files, directory: str) -> None:
    """The mark goes last: who is killed meanwhile leaves what is still ours."""
    _remove_objects(store, directory)
    store.remove(f"{directory}/{MARKER}")


@contextlib.contextmanager
def _working_folder(config: OutputPaths, on_left: OnLeft) -> Iterator[None]:
    directory, output = config.working_directory, config.output
    missing = [parent for parent in pathlib.Path(directory).parents if not parent.exists()]
    whose, busy, goes_on = f"{config.output_option}={printable(output)}", "another run is writing to it", on_left is OnLeft.RESUME
    check = lambda: _check_still_left(config, whose) if goes_on else check_left(config, on_left, whose)
    try:
        with own_directory(directory, whose, busy, check, goes_on, lambda error: _stays(config, error, on_left)) as descriptor:
            own = os.fstat(descriptor)
            in_place = lambda: os.path.exists(output) and os.path.samestat(own, os.stat(output))
            find_whole = lambda: f"{printable(output)} is written, whole" if in_place() else ""
            interrupts.note(lambda: find_whole() or describe_left(config))
            remove_temporary_files(directory)
            shutil.rmtree(f"{directory}/{PROGRESS}", ignore_errors=True)  # what a killed run has counted
            try:
                yield
            except StillRunningError:
                interrupts.note(find_whole)
                raise
            except BaseException:
                close_light_processes()  # so that nobody writes into what is removed
                remove_temporary_files(directory)
                raise
    finally:
        with contextlib.suppress(OSError):  # not empty: the output is in it
            for parent in missing:
                parent.rmdir()


def _check_still_left(config: OutputPaths, whose: str) -> None:
    """Under the lock: a run that had it until now may have brought it to its end."""
    if not is_left(config):
        raise UserError(f"{whose}: another run has gone on from what was there meanwhile")
    if not is_whole(config):
        check_is_ours(config.working_directory, whose)
