"""The data set that is analysed or transformed, and where an analysis is written: within it, hidden until it is whole."""

import contextlib
import dataclasses
import os
from typing import Any, Iterator

from beam_pipelines.config.analyze_config import AnalyzeConfig
from beam_pipelines.config.output_paths import ANALYSIS_SCRATCH
from beam_pipelines.errors import RunError, StorageError, UserError, printable
from beam_pipelines.log import say
from beam_pipelines.parallel import interrupts
from beam_pipelines.publish.output_directory import Jobs
from beam_pipelines.publish.written_data_set import read_data_set
from beam_pipelines.storage.files import make_folder
from beam_pipelines.storage.lease import check_lease, hold_on_disk, make_lease, read_lease
from beam_pipelines.storage.metadata_files import read_object
from beam_pipelines.storage.marked_directory import check_is_ours, own_directory
from beam_pipelines.transform.graph_failures import find_not_writable
from tf_input.dataset_format import STATISTICS, Manifest, training_split
from tf_input.transform.transform_format import TRANSFORM_FN, TRANSFORMED_METADATA

_WHOLE = "whole"
_NOT_IN_PATHS = "*?[\\"  # where TensorFlow looks for a SavedModel's variables, it takes these for a pattern


def open_for_analysis(directory: str, command: str) -> Manifest:
    """The manifest of a data set on a mounted file system.

    Raises:
        UserError: It is a URL, or no data set, or where TensorFlow can't open it.
    """
    manifest = read_data_set(directory, command)
    path = os.path.realpath(directory)
    if any(character in path for character in _NOT_IN_PATHS) or not _is_utf8(path):
        reason = f"TensorFlow opens no SavedModel where a path has one of {' '.join(_NOT_IN_PATHS)}, or is not UTF-8"
        raise UserError(f"{printable(path)}: {reason}; expected another path")
    return manifest


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def image_sides(directory: str, manifest: Manifest) -> list[dict[str, Any] | None]:
    """Returns the facts of `statistics.json` about the heights and the widths of the images; None if unknown, or without images.

    Raises:
        UserError: The file can't be read, or is not the one that was written.
    """
    try:
        images = read_object(directory, manifest, STATISTICS).get("images", {})
        return [images.get(side) for side in ("height", "width")]
    except (OSError, AttributeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UserError(f"{printable(directory)}/{STATISTICS}: {reason}; expected what `recordmill prepare` wrote") from None


def check_analysis(config: AnalyzeConfig) -> tuple[AnalyzeConfig, Manifest]:
    """Fails where there is nothing to analyse, or an analysis that must not be replaced.

    Returns:
        The configuration, which now has splits, and the data set's manifest.

    Raises:
        UserError: That is so.
    """
    manifest = open_for_analysis(config.directory, "analyze")
    if config.splits is None:
        try:
            config = dataclasses.replace(config, splits=(training_split(manifest.splits),))
        except ValueError as error:
            raise UserError(f"--splits: {error}") from None
    for split in config.splits:
        if split not in manifest.splits:
            has = ", ".join(manifest.splits)
            raise UserError(f"--splits={','.join(config.splits)}: the data set has no split {split!r}; expected one of {has}")
    if not sum(map(manifest.num_examples, config.splits)):
        raise UserError(f"--splits={','.join(config.splits)}: there is no example in them; expected a split that has some")
    for feature in manifest.schema:
        if feature.shape.count(None) > 1:
            raise UserError(
                f"{feature.name!r}: examples differ in shape, {feature.shape}, which no preprocessing takes; expected tensors of one shape"
            )
    _check_may_replace(config.directory, config.overwrite)
    module = config.preprocessing_module
    if module is not None and not os.path.isfile(module):
        found = "is a folder" if os.path.isdir(module) else "does not exist"
        raise UserError(f"--preprocessing_module={printable(module)} {found}; expected a Python file")
    check_is_ours(_working_directory(config.directory), printable(config.directory))
    return config, manifest


@contextlib.contextmanager
def analysis_directory(directory: str, overwrite: bool, run_id: str, jobs: Jobs = Jobs()) -> Iterator[str]:
    """Makes an empty directory within the data set, this run's alone, and removes it after the block: see `own_directory`.

    Jobs of killed commands that analyse the same data set are ended first; one that cannot be found writes to a folder of its own. An
    earlier analysis that a run moved aside, and was killed before the new one was in its place, is brought back.

    Args:
        directory: The directory of the data set.
        overwrite: Whether an earlier analysis may be replaced, one that was brought back too.
        run_id: The id of the run, whose folder has this name.
        jobs: The jobs of the engine that may be left by killed commands.

    Raises:
        BusyError: Another run has it.
        UserError: It is not ours, or it can't be made, or there is an analysis that must not be replaced.
        RunError: It was full, or the earlier analysis could not be brought back.
    """
    working = _working_directory(directory)

    def rescue() -> None:
        _bring_back(directory)
        jobs.end_others(analysis_path(directory))

    with own_directory(working, printable(directory), "another run is analysing it", rescue):
        try:
            _check_may_replace(directory, overwrite)
            with hold_on_disk(working, make_lease(run_id, run_id, jobs.name, jobs.job_name, "analyze")):
                make_folder(f"{working}/{run_id}")
                yield f"{working}/{run_id}"
        except (UserError, RunError):
            raise
        except Exception as error:  # whatever TensorFlow made of it, in whatever wrapper of an engine
            if reason := find_not_writable(str(error)):
                raise StorageError(f"{printable(working)} could not be written: {reason}") from None
            raise


def _check_may_replace(directory: str, overwrite: bool) -> None:
    if os.path.lexists(analysis_path(directory)) and not overwrite:
        raise UserError(f"{printable(analysis_path(directory))} exists; expected --overwrite to replace it")


def analysis_path(directory: str) -> str:
    """The last part of a data set's analysis to come to its place: what names of jobs stand for."""
    return f"{directory}/{TRANSFORM_FN}"


def _working_directory(directory: str) -> str:
    return f"{os.path.realpath(directory)}/{ANALYSIS_SCRATCH}"  # workers may have another folder as their own


def _moves(whole: str, directory: str) -> list[tuple[str, str]]:
    """(path, new path) of each step of a publication, in order: an earlier analysis goes first, and `transform_fn` comes last."""
    names, working = (TRANSFORM_FN, TRANSFORMED_METADATA), _working_directory(directory)
    aside = [(f"{directory}/{name}", f"{working}/old_{name}") for name in names]
    return aside + [(f"{whole}/{name}", f"{directory}/{name}") for name in reversed(names)]


def _move_back(moves: list[tuple[str, str]]) -> None:
    """Undoes those that were made, the last one first; who is killed meanwhile can be followed by another who does."""
    for path, new_path in reversed(moves):
        if os.path.lexists(new_path) and not os.path.lexists(path):
            os.rename(new_path, path)


def _bring_back(directory: str) -> None:
    """Undoes a publication whose run was killed between its first move and its last."""
    working = _working_directory(directory)
    is_aside = any(os.path.lexists(f"{working}/old_{name}") for name in (TRANSFORM_FN, TRANSFORMED_METADATA))
    if not is_aside or os.path.lexists(analysis_path(directory)):
        return
    lease = read_lease(working)
    try:
        _move_back(_moves(f"{working}/{lease.run_id if lease else ''}/{_WHOLE}", directory))
    except OSError as error:
        raise StorageError(f"the earlier analysis could not be moved back from {printable(working)}: {error.strerror}") from None
    told = "a run was killed as it replaced the analysis; the earlier one is back in its place"
    say(f"{printable(directory)}: {told}")


def publish_analysis(working: str, directory: str, run_id: str) -> None:
    """Moves a whole analysis, `working/whole`, to its place.

    Who is killed meanwhile leaves the old one, the new one, or the old one aside, from where the next run brings it back; and who is
    interrupted, or fails, leaves the old one.

    Args:
        working: The directory that `analysis_directory` gave.
        directory: The directory of the data set.
        run_id: The id of the run.

    Raises:
        RunError: Another run has taken over.
    """
    check_lease(_working_directory(directory), run_id)
    whole = f"{working}/{_WHOLE}"
    moves = _moves(whole, directory)
    source, target = moves[-1]
    new, shown = os.stat(source), printable(target)
    in_place = lambda: os.path.exists(target) and os.path.samestat(new, os.stat(target))
    interrupts.note(lambda: f"{shown} is written, whole" if in_place() else "")
    try:
        for path, new_path in moves:
            if os.path.lexists(path) or path.startswith(f"{whole}/"):  # what is new is there, or that is an error
                os.rename(path, new_path)
    except BaseException:  # Ctrl-C too
        _move_back(moves)
        raise
