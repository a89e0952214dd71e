"""The output directory of a run: what may be written, whose it is, and what a failed run leaves: nothing. Plain."""

import contextlib
import os
import pathlib
from typing import Iterator

from beam_pipelines import interrupts
from beam_pipelines.config import REPLACED, SCRATCH, OutputPaths, PrepareConfig
from beam_pipelines.errors import LeftError, StillRunningError, UserError, printable
from beam_pipelines.files import Files, files_at, is_remote, write_file
from beam_pipelines.light_processes import close_light_processes
from beam_pipelines.marked_directory import MARKER, MARKER_TEXT, check_is_ours, own_directory
from tf_input.dataset_format import MANIFEST


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
    shown = f"{option}={printable(path)}"
    output, folder = _resolve(path), _resolve(source)
    if _is_within(output, folder) or _is_within(folder, output):
        raise UserError(f"{shown}: expected a path outside the input {printable(source)}, and not around it")
    _check_above(output, shown)
    _check_beside(output, shown)
    if not _exists(output):
        return
    is_left = is_remote(output) and not _has(output, MANIFEST) and _has(output, MARKER)
    if not overwrite and is_left:
        raise UserError(f"{shown} holds what a run left that failed or still goes on; expected a new path, or --overwrite")
    if not overwrite:
        raise UserError(f"{shown} exists; expected a new path, or --overwrite")
    if not is_left and not _has(output, MANIFEST) and not _is_empty_folder(output):
        raise UserError(f"{shown} is not a data set, and --overwrite replaces nothing else")


def _check_above(output: str, whose: str) -> None:
    """Fails where it would lie in a file."""
    if is_remote(output):
        return
    above = next(parent for parent in pathlib.Path(output).parents if os.path.lexists(parent))
    if not above.is_dir():
        raise UserError(f"{whose}: {printable(str(above))} is not a folder; expected a path in one")


def _check_beside(output: str, whose: str) -> None:
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


def working_directory(config: OutputPaths) -> contextlib.AbstractContextManager[None]:
    """Makes the working directory, this run's alone, and removes it unless the block ends well."""
    return _working_objects(config) if is_remote(config.output) else _working_folder(config)


@contextlib.contextmanager
def _working_objects(config: OutputPaths) -> Iterator[None]:
    """The job may go on after the block: then its last step removes what is scratch."""
    store, scratch, working = files_at(config.output), config.scratch_directory, config.working_directory
    for directory in (scratch, working):
        _check_prefix(directory, f"{config.output_option}={config.output}")
        write_file(f"{directory}/{MARKER}", MARKER_TEXT)
        store.remove_all(directory, but=MARKER)
    interrupts.note(lambda: _describe_objects(config))
    try:
        yield
    except StillRunningError:
        raise
    except BaseException as error:
        if not is_new(config.output):
            remove_marked(store, scratch)
        elif working == config.output:
            remove_marked(store, working)
            remove_marked(store, scratch)
        elif not _has(working, MANIFEST):
            remove_marked(store, scratch)
        else:  # it is all that there is
            told = f"{config.output} was being replaced, and is not whole; the new data set is, as {working}: copy it from there"
            raise LeftError(f"{told} ({' '.join(str(error).split()) or type(error).__name__})") from error
        raise


def _describe_objects(config: OutputPaths) -> str:
    """Whether objects that this run has begun to write are a data set by now."""
    try:
        is_whole = not is_new(config.output) and not _has(config.working_directory, MARKER)
    except OSError as error:
        return f"whether {config.output} is written could not be found out: {error.strerror or error}"
    return f"{config.output} is written, whole" if is_whole else ""


def remove_marked(store: Files, directory: str) -> None:
    """The mark goes last: who is killed meanwhile leaves what is still ours."""
    store.remove_all(directory, but=MARKER)
    store.remove(f"{directory}/{MARKER}")


@contextlib.contextmanager
def _working_folder(config: OutputPaths) -> Iterator[None]:
    directory, output = pathlib.Path(config.working_directory), config.output
    missing = [parent for parent in directory.parents if not parent.exists()]
    try:
        with own_directory(str(directory), f"{config.output_option}={output}", "another run is writing to it") as descriptor:
            own = os.fstat(descriptor)
            in_place = lambda: os.path.exists(output) and os.path.samestat(own, os.stat(output))
            interrupts.note(lambda: f"{printable(output)} is written, whole" if in_place() else "")
            try:
                yield
            except StillRunningError:
                raise
            except BaseException:
                close_light_processes()  # so that nobody writes into what is removed
                raise
    finally:
        with contextlib.suppress(OSError):  # not empty: the output is in it
            for parent in missing:
                parent.rmdir()
