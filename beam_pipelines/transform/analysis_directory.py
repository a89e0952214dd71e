"""Manages the directory of an analysis. An incomplete analysis is stored in a hidden folder of the dataset."""

import contextlib
import dataclasses
import os
from typing import Any, Iterator

from beam_pipelines.config.job_options import AnalyzeOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.errors import RunError, StorageError, UserError, printable
from beam_pipelines.log import print_message
from beam_pipelines.parallel import interrupts
from beam_pipelines.publish.output import Jobs
from beam_pipelines.publish.written_dataset import read_dataset, reject_verbatim
from beam_pipelines.storage.files import make_folder
from beam_pipelines.storage.lease import check_lease, make_lease, read_lease
from beam_pipelines.storage.metadata_files import read_object
from beam_pipelines.storage.working_directory import WorkingDirectory, check_is_owned
from beam_pipelines.transform.graph_failures import find_not_writable
from tf_input.dataset_format import STATISTICS, Manifest, training_split
from tf_input.transform.transform_format import TRANSFORM_FN, TRANSFORMED_METADATA

_NEW_ANALYSIS = "complete"
# TensorFlow treats paths with these characters as patterns when it searches for the variables of a SavedModel.
_NOT_IN_PATHS = "*?[\\"


def open_for_analysis(directory: str, command: str) -> Manifest:
    """Returns the manifest of a dataset on a local disk or a mounted file system.

    Raises:
        UserError: The path is a URL, is not a dataset, or cannot be used by TensorFlow.
    """
    manifest = read_dataset(directory, command)
    reject_verbatim(directory, manifest, command)
    path = os.path.realpath(directory)
    if any(character in path for character in _NOT_IN_PATHS) or not _is_utf8(path):
        reason = f"TensorFlow can't open a SavedModel if its path has {' '.join(_NOT_IN_PATHS)}, or is not UTF-8"
        raise UserError(f"{printable(path)}: {reason}. Move the dataset to another path.")
    return manifest


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def image_sides(directory: str, manifest: Manifest) -> list[dict[str, Any] | None]:
    """Returns the statistics of image heights and widths from `statistics.json`. None means unknown.

    Raises:
        UserError: The file cannot be read, or differs from the manifest.
    """
    try:
        images = read_object(directory, manifest, STATISTICS).get("images", {})
        return [images.get(side) for side in ("height", "width")]
    except (OSError, AttributeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UserError(
            f"{printable(directory)}/{STATISTICS}: {reason}. `recordmill prepare` writes this file: prepare the "
            "dataset again."
        ) from None


def check_analysis(options: AnalyzeOptions) -> tuple[AnalyzeOptions, Manifest]:
    """Checks that the dataset has examples to analyze, and that an existing analysis may be replaced.

    Returns:
        The configuration with its splits, and the manifest of the dataset.

    Raises:
        UserError: There are no examples to analyze, or an existing analysis must not be replaced.
    """
    manifest = open_for_analysis(options.directory, "analyze")
    if options.splits is None:
        try:
            options = dataclasses.replace(options, splits=(training_split(manifest.splits),))
        except ValueError as error:
            raise UserError(f"--splits: {error}") from None
    for split in options.splits:
        if split not in manifest.splits:
            has = ", ".join(manifest.splits)
            raise UserError(
                f"--splits={','.join(options.splits)}: the dataset has no split {split!r}. Choose from {has}."
            )
    if not sum(map(manifest.num_examples, options.splits)):
        raise UserError(f"--splits={','.join(options.splits)} has no examples. Choose a split with examples.")
    for feature in manifest.schema:
        if feature.shape.count(None) > 1:
            raise UserError(
                f"{feature.name!r}: examples differ in shape, {feature.shape}, which preprocessing does not support. "
                "Store tensors of one shape."
            )
    _check_may_replace(f"{options.directory}/{TRANSFORM_FN}", options.overwrite)
    module = options.preprocessing_module
    if module is not None and not os.path.isfile(module):
        problem = "is a folder" if os.path.isdir(module) else "does not exist"
        raise UserError(f"--preprocessing_module={printable(module)} {problem}. Pass a Python file.")
    check_is_owned(analysis_paths(options.directory).scratch_directory, printable(options.directory))
    return options, manifest


@contextlib.contextmanager
def analysis_directory(run: RunPaths, overwrite: bool, jobs: Jobs = Jobs()) -> Iterator[None]:
    """Context manager that creates an empty working directory for an analysis inside the dataset.

    First, jobs that killed commands left running for the same dataset are canceled. If a killed command moved an
    earlier analysis away, the analysis is moved back. See `WorkingDirectory`.

    Args:
        run: The run, from `analysis_paths`.
        overwrite: Whether an earlier analysis may be replaced.
        jobs: The jobs of the engine, including jobs that killed commands left running.

    Raises:
        BusyError: Another run uses the directory.
        UserError: The directory belongs to another program or cannot be created, or an analysis exists.
        RunError: The disk is full, or the earlier analysis could not be restored.
    """

    def rescue() -> None:
        _bring_back(run)
        jobs.end_others(run.output)

    lease = make_lease(run.id, run.holder, jobs.name, jobs.job_name, run.command)
    with WorkingDirectory(run.scratch_directory, lease, printable(os.path.dirname(run.output)), rescue).hold():
        try:
            _check_may_replace(run.output, overwrite)
            make_folder(run.directory)
            yield
        except (UserError, RunError):
            raise
        except Exception as error:  # TensorFlow and the engines wrap the error in various classes.
            if reason := find_not_writable(str(error)):
                raise StorageError(f"{printable(run.scratch_directory)} could not be written: {reason}") from None
            raise


def _check_may_replace(path: str, overwrite: bool) -> None:
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"{printable(path)} exists. To replace it, pass --overwrite.")


def analysis_paths(directory: str) -> RunPaths:
    """Returns the paths of a new run that analyzes a dataset. Its output is the transform graph, which is published last.

    The paths are absolute, because workers may have another current directory.
    """
    return RunPaths.start(f"{os.path.realpath(directory)}/{TRANSFORM_FN}", "analyze")


def _moves(run: RunPaths, run_id: str) -> list[tuple[str, str]]:
    """Returns the renames that publish an analysis, as (old path, new path). The last rename creates `transform_fn`."""
    names, directory, scratch = (TRANSFORM_FN, TRANSFORMED_METADATA), os.path.dirname(run.output), run.scratch_directory
    aside = [(f"{directory}/{name}", f"{scratch}/old_{name}") for name in names]
    return aside + [(f"{scratch}/{run_id}/{_NEW_ANALYSIS}/{name}", f"{directory}/{name}") for name in reversed(names)]


def _move_back(moves: list[tuple[str, str]]) -> None:
    """Undoes completed moves in reverse order. It is safe to call the function again after an interruption."""
    for path, new_path in reversed(moves):
        if os.path.lexists(new_path) and not os.path.lexists(path):
            os.rename(new_path, path)


def _bring_back(run: RunPaths) -> None:
    """Restores the earlier analysis if a run was killed while publishing a new analysis."""
    scratch = run.scratch_directory
    was_moved = any(os.path.lexists(f"{scratch}/old_{name}") for name in (TRANSFORM_FN, TRANSFORMED_METADATA))
    if not was_moved or os.path.lexists(run.output):
        return
    lease = read_lease(scratch)
    try:
        _move_back(_moves(run, lease.run_id if lease else ""))
    except OSError as error:
        raise StorageError(f"the earlier analysis could not be moved back from {printable(scratch)}: {error.strerror}") from None
    message = "a run was killed while it replaced the analysis; the earlier analysis is restored"
    print_message(f"{printable(os.path.dirname(run.output))}: {message}")


def publish_analysis(run: RunPaths) -> None:
    """Moves a complete analysis from the working directory to its final path.

    After an error, the earlier analysis is unchanged. If the process is killed during the move, the dataset may contain
    no analysis until the next run restores the earlier analysis.

    Raises:
        RunError: Another run has taken over the directory.
    """
    check_lease(run.scratch_directory, run.holder)
    moves = _moves(run, run.id)
    source, target = moves[-1]
    new, shown = os.stat(source), printable(target)
    in_place = lambda: os.path.exists(target) and os.path.samestat(new, os.stat(target))
    interrupts.note(lambda: f"{shown} is complete." if in_place() else "")
    try:
        for path, new_path in moves:
            # The new files must exist. A missing new file is an error.
            if os.path.lexists(path) or path.startswith(f"{run.directory}/"):
                os.rename(path, new_path)
    except BaseException:  # Includes KeyboardInterrupt.
        _move_back(moves)
        raise
