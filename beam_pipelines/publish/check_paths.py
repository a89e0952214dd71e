"""Checks the input and output paths of a command before it runs."""

import glob
import os
import pathlib
import re

from beam_pipelines.config.run_paths import REPLACED, SCRATCH, RunPaths
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.errors import StorageError, UserError, printable
from beam_pipelines.publish.resumable_run import ResumePolicy, check_resumable, is_published, is_resumable, of_resumable_run
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.near_paths import did_you_mean_path
from beam_pipelines.storage.working_directory import MARKER, check_is_owned, is_in_use
from tf_input.dataset_format import MANIFEST

_MAGIC = re.compile(r"[*?\[{]")


def check_paths(options: PrepareOptions, overwrite: bool, resume_policy: ResumePolicy) -> None:
    """Raises `UserError` if the input does not exist, or if the output path is not usable."""
    check_input(options.input)
    resolved = RunPaths(_resolve(options.output))
    if is_remote(options.output):
        _check_access(resolved.output_option, options.output)
    if not is_in_use(resolved.scratch_directory):  # If the run is still active, the error is raised when its lock is taken.
        check_resumable(resolved, resume_policy)
    may_stay = resume_policy is ResumePolicy.RESUME and (not is_resumable(left := of_resumable_run(resolved)) or is_published(left))
    check_output(options.output, options.input, overwrite, resolved.output_option, resume_policy, may_stay)


def check_output(
    path: str,
    source: str,
    overwrite: bool,
    option: str,
    resume_policy: ResumePolicy = ResumePolicy.FAIL,
    may_stay: bool = False,
    last_file: str = MANIFEST,
) -> None:
    """Checks that the output can be written to the given path.

    Args:
        path: The path of the output, local or a URL.
        source: The path of the input. Neither path may contain the other.
        overwrite: Whether the run may replace a dataset.
        option: The option that sets the output path.
        resume_policy: Whether to reject, resume or remove the output of an interrupted run.
        may_stay: Whether an existing dataset is accepted, because it can be the result of the run to resume.
        last_file: The file that is written last, and marks a complete output.

    Raises:
        UserError: The path is not usable.
    """
    shown = f"{option}={printable(path)}"
    output, folder = _resolve(path), _resolve(source)
    if _is_within(output, folder) or _is_within(folder, output):
        raise UserError(f"{shown}: the output and the input {printable(source)} contain each other. Choose a path outside the input.")
    _check_above(output, shown)
    _check_temporary_paths(output, shown)
    if not _exists(output):
        return
    # A marker next to a manifest means that the dataset is complete, but the run was killed before removing the marker.
    is_half = is_remote(output) and _has(output, MARKER) and (resume_policy is ResumePolicy.RESUME or not _has(output, last_file))
    if is_half or (may_stay and not overwrite and _has(output, last_file)):
        return
    if not overwrite:
        raise UserError(f"{shown} exists. Choose a new path, or pass --overwrite to replace it.")
    if not _has(output, last_file) and not _is_empty_folder(output):
        kind = "a dataset" if last_file == MANIFEST else "an export"
        raise UserError(
            f"{shown} is not {kind}: it has no {last_file}. --overwrite replaces only datasets and exports. Choose a "
            "new path."
        )


def _check_above(output: str, message_start: str) -> None:
    """Raises `UserError` if a parent of the output path is a file."""
    if is_remote(output):
        return
    above = next(parent for parent in pathlib.Path(output).parents if os.path.lexists(parent))
    if not above.is_dir():
        raise UserError(f"{message_start}: {printable(str(above))} is not a folder. Choose another path.")


def _check_temporary_paths(output: str, message_start: str) -> None:
    """Raises `UserError` if the temporary paths beside the output may contain files of other programs."""
    check_is_owned(f"{output}{SCRATCH}", message_start)
    if is_remote(output):
        return
    old = f"{output}{REPLACED}"
    if os.path.lexists(old) and not os.path.lexists(output):
        advice = f"Restore it (`mv {printable(old)} {printable(output)}`), or remove it"
        raise UserError(f"{message_start}: an interrupted run moved the old dataset to {printable(old)}. {advice}.")
    if os.path.lexists(old):
        raise UserError(
            f"{message_start}: {printable(old)} exists, but --overwrite needs this path for the old dataset. Move or remove it."
        )


def is_new(path: str, last_file: str = MANIFEST) -> bool:
    """Returns whether the path contains no complete dataset, so that a new dataset can be written there directly."""
    return not _has(path, last_file)


def _check_access(option: str, path: str) -> None:
    try:
        files_at(path).check_access(path)
    except (UserError, StorageError) as error:
        raise type(error)(f"{option}={error}", path) from None


def check_input(path: str) -> None:
    """Raises `UserError` unless the input is a file, a nonempty folder, or a pattern below an existing folder."""
    magic = _MAGIC.search(path)
    is_pattern = magic is not None and not os.path.lexists(path)
    folder = path[: magic.start()].rpartition("/")[0] if is_pattern else ""
    if is_remote(path):
        _check_access("--input", folder if is_pattern else path)
        store = files_at(path)
        if not (any(store.top_level(folder if is_pattern else path)) or store.exists(path)):
            raise UserError(f"--input={printable(path)}: does not exist. Give a folder of images, or a file of another source.")
        return
    if os.path.isdir(path):
        if not os.listdir(path):
            raise UserError(
                f"--input={printable(path)}: the folder is empty. Give a folder with class folders, or with files of another source."
            )
    elif is_pattern:
        if not os.path.isdir(folder or "."):
            near = did_you_mean_path(folder) or "."
            raise UserError(
                f"--input={printable(path)}: folder {printable(folder)!r} does not exist{near} Name an existing folder."
            )
        if (first := next(glob.iglob(path, recursive=True), None)) and os.path.isdir(first):
            raise UserError(
                f"--input={printable(path)}: the pattern matches folders, such as {printable(first)!r}. Name the "
                "folder above them, "
                f"--input={printable(folder or '.')}, or a pattern of files, such as "
                f"{printable(path.rstrip('/'))}/*.csv."
            )
    elif not os.path.isfile(path):
        exists = os.path.exists(path)
        reason = "is neither a folder nor a file." if exists else f"does not exist{did_you_mean_path(path) or '.'}"
        raise UserError(f"--input={printable(path)}: {reason} Give a folder of images, or a file of another source.")


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
