"""Manages the output directory of a run: checks and locks it, and cleans up after a failure.

A failed run removes its files unless the run can be resumed.
"""

import contextlib
import glob
import os
import pathlib
import re
import shutil
import signal
import uuid
from typing import Callable, Iterator

from beam_pipelines.config.output_paths import PROGRESS, REPLACED, SCRATCH, OutputPaths
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.errors import BusyError, SilentStoreError, StillRunningError, StorageError, UserError, printable
from beam_pipelines.log import print_message
from beam_pipelines.parallel import interrupts
from beam_pipelines.parallel.worker_processes import end_running_tasks
from beam_pipelines.publish.resumable_run import RESUME, ResumePolicy, check_resumable, describe_resumable_run, is_published, is_resumable, of_resumable_run
from beam_pipelines.storage.files import Files, files_at, is_remote, make_folder, write_file
from beam_pipelines.storage.lease import LEASE, Lease, store_lease, disk_lease, make_lease, read_lease, wait_for_lease
from beam_pipelines.storage.marked_directory import (
    MARKER,
    MARKER_TEXT,
    check_is_owned,
    is_in_use,
    exclusive_directory,
    remove_temporary_files,
)
from beam_pipelines.storage.near_paths import did_you_mean_path
from tf_input.dataset_format import MANIFEST

_MAGIC = re.compile(r"[*?\[{]")
_BUSY = "another run is writing to it (see `recordmill status`)"


def check_paths(config: PrepareConfig, overwrite: bool, resume_policy: ResumePolicy) -> None:
    """Raises `UserError` if the input does not exist, or if the output path is not usable."""
    check_input(config.input)
    resolved = PrepareJob.of(config, output=_resolve(config.output))
    if is_remote(config.output):
        _check_access(resolved.output_option, config.output)
    if not _is_at_work(resolved):  # If the run is still active, the error is raised when its lock is taken.
        check_resumable(resolved, resume_policy, f"{resolved.output_option}={printable(config.output)}")
    may_stay = resume_policy is ResumePolicy.RESUME and (not is_resumable(left := of_resumable_run(resolved)) or is_published(left))
    check_output(config.output, config.input, overwrite, resolved.output_option, resume_policy, may_stay)


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
    _check_temporary_paths(output, shown, resume_policy)
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
    """Raises UserError if a parent of the output path is a file."""
    if is_remote(output):
        return
    above = next(parent for parent in pathlib.Path(output).parents if os.path.lexists(parent))
    if not above.is_dir():
        raise UserError(f"{message_start}: {printable(str(above))} is not a folder. Choose another path.")


def _check_temporary_paths(output: str, message_start: str, resume_policy: ResumePolicy) -> None:
    """Raises `UserError` if the temporary paths beside the output may contain files of other programs."""
    if is_remote(output):
        _check_prefix(f"{output}{SCRATCH}", message_start)
        return
    old = f"{output}{REPLACED}"
    if os.path.lexists(old) and not os.path.lexists(output):
        advice = f"Restore it (`mv {printable(old)} {printable(output)}`), or remove it"
        raise UserError(f"{message_start}: an interrupted run moved the old dataset to {printable(old)}. {advice}.")
    if os.path.lexists(old):
        raise UserError(
            f"{message_start}: {printable(old)} exists, but --overwrite needs this path for the old dataset. Move or remove it."
        )
    check_is_owned(f"{output}{SCRATCH}", message_start)


def _check_prefix(prefix: str, message_start: str) -> None:
    """Raises `UserError` if a prefix in an object store contains objects that may not belong to Recordmill."""
    if any(files_at(prefix).top_level(prefix)) and not (_has(prefix, MARKER) or _has(prefix, LEASE)):
        raise UserError(f"{message_start}: {prefix}/, which the run needs for its files, has files from elsewhere. Move or remove them.")


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


def _is_at_work(config: OutputPaths) -> bool:
    directory = config.scratch_directory
    if not is_remote(directory):
        return is_in_use(directory)
    lease = read_lease(directory)
    return bool(lease and lease.is_live)


def wait_for_others(config: OutputPaths) -> None:
    """Waits until no other command uses the output, so that an interrupted run can be resumed.

    In an object store, the lease of a killed command must expire first. A lease is a lock file with a time limit.

    Raises:
        BusyError: Another run still writes to the output.
    """
    message_start = f"{config.output_option}={printable(config.output)}"
    if is_remote(config.output):
        wait_for_lease(config.scratch_directory, message_start)
    elif is_in_use(config.scratch_directory):
        raise BusyError(f"{message_start}: {_BUSY}")


def remove_leftovers(config: OutputPaths) -> None:
    """Removes the scratch directory of a run that was killed after it had published its dataset."""
    scratch, message_start = config.scratch_directory, f"{config.output_option}={printable(config.output)}"
    if not _exists(scratch):
        return
    with contextlib.suppress(BusyError):
        if is_remote(scratch):
            lease = make_lease(config.run_id, uuid.uuid4().hex, command=config.command)
            with store_lease(scratch, lease, message_start, lambda lease_of_run: True, _stop_after_lost_lease):
                remove_marked(files_at(scratch), scratch)
        else:
            with exclusive_directory(scratch, message_start, _BUSY):
                pass


class Jobs:
    """Finds and cancels jobs on an engine that were started by killed commands.

    This base class is for engines whose jobs end with their process, and never finds jobs.

    Attributes:
        name: The name of the engine.
        job_name: The name of this run's job.
    """

    name = job_name = ""

    def is_at_work(self, job: str, output: str) -> bool:
        """Returns whether the job with the given name still runs."""
        return False

    def end_others(self, output: str) -> None:
        """Cancels jobs of killed commands that still write to the same output."""


def working_directory(
    config: OutputPaths, resume_policy: ResumePolicy = ResumePolicy.FAIL, jobs: Jobs = Jobs()
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Context manager for the working directory of a run.

    After an error, the working directory is removed unless the run can be resumed.

    Args:
        config: The paths of the run.
        resume_policy: Whether to reject, resume or remove the output of an interrupted run. `RESUME` requires such
            output.
        jobs: The jobs of the engine.

    Yields:
        A function to call if the job continues after this process ends.

    Raises:
        BusyError: Another run is using the directory.
    """
    lease = make_lease(config.run_id, config.holder, jobs.name, jobs.job_name, config.command)
    return (_working_objects if is_remote(config.output) else _working_folder)(config, resume_policy, jobs, lease)


def _stays(config: OutputPaths, error: BaseException, resume_policy: ResumePolicy) -> bool:
    """Returns whether the working directory is kept after an error, because its plan is complete.

    After a `UserError`, the directory of a new run is always removed, because the input or the options are wrong.
    """
    try:
        return (resume_policy is ResumePolicy.RESUME or not isinstance(error, UserError)) and is_resumable(config)
    except OSError:  # A disk or store that does not respond may contain useful files.
        return True


@contextlib.contextmanager
def _working_objects(config: OutputPaths, resume_policy: ResumePolicy, jobs: Jobs, lease: Lease) -> Iterator[Callable[[], None]]:
    """Context manager for the working directory in an object store. The job may continue after the block."""
    store, scratch, working = files_at(config.output), config.scratch_directory, config.working_directory
    message_start = f"{config.output_option}={config.output}"
    for directory in (scratch, working):
        _check_prefix(directory, message_start)
    is_at_work = lambda other: jobs.name != other.engine or jobs.is_at_work(other.job, config.output)
    with store_lease(scratch, lease, message_start, is_at_work, _stop_after_lost_lease) as acquired:
        interrupts.note(lambda: _describe_objects(config))
        try:
            if resume_policy is ResumePolicy.RESUME:
                _check_still_resumable(config, message_start)
            jobs.end_others(config.output)
            for directory in (scratch, working):
                write_file(f"{directory}/{MARKER}", MARKER_TEXT)
                store.abandon_uploads(directory)
                if resume_policy is not ResumePolicy.RESUME:
                    _remove_objects(store, directory, config.last_file)
            yield acquired.detach
        except StillRunningError:
            interrupts.note(lambda: f"Rerun with --resume to continue from {scratch}.")
            acquired.detach()
            raise
        except BaseException as error:
            if not _stays(config, error, resume_policy) and acquired.is_owned():  # Otherwise another run owns the objects.
                if working == config.output and is_new(config.output, config.last_file):
                    remove_marked(store, working)
                remove_marked(store, scratch)
            raise


def _stop_after_lost_lease() -> None:
    """Ends this process with SIGTERM because another command has taken over the output."""
    print_message("another run has taken over the output, so this run stops")
    os.kill(os.getpid(), signal.SIGTERM)


def _describe_objects(config: OutputPaths) -> str:
    """Returns a message that says whether the output contains a complete dataset or a resumable run."""
    try:
        if is_published(config):
            return f"{config.output} is complete."
        description = describe_resumable_run(config)
        if description and not config.is_output_new and _has(config.output, MARKER):  # The old dataset was already removed.
            return f"{config.output} was being replaced and is incomplete: {description}"
        return description
    except SilentStoreError:  # The failure is reported elsewhere.
        return f"The state of {config.output} is unknown, because the store does not respond. {RESUME}"
    except OSError as error:
        return f"The state of {config.output} is unknown: {error.strerror or error}."


def _remove_objects(store: Files, directory: str, last_file: str = MANIFEST) -> None:
    """Removes all objects of a working directory except the marker and the lease."""
    store.remove(f"{directory}/{last_file}")
    store.remove_all(directory, but=(MARKER, LEASE))


def remove_marked(store: Files, directory: str) -> None:
    """Removes a directory that a marker file identifies as the directory of a run.

    The marker is removed last, so that a later run can complete an interrupted removal.
    """
    _remove_objects(store, directory)
    for name in (LEASE, MARKER):
        store.remove(f"{directory}/{name}")


@contextlib.contextmanager
def _working_folder(config: OutputPaths, resume_policy: ResumePolicy, jobs: Jobs, lease: Lease) -> Iterator[Callable[[], None]]:
    scratch, output = config.scratch_directory, config.output
    missing = [parent for parent in pathlib.Path(scratch).parents if not parent.exists()]
    message_start, resumes = f"{config.output_option}={printable(output)}", resume_policy is ResumePolicy.RESUME

    def check() -> None:
        _check_still_resumable(config, message_start) if resumes else check_resumable(config, resume_policy, message_start)
        jobs.end_others(config.output)

    try:
        with (
            exclusive_directory(scratch, message_start, _BUSY, check, resumes, lambda error: _stays(config, error, resume_policy)),
            disk_lease(scratch, lease),
        ):
            make_folder(config.run_directory)
            find_complete = lambda: f"{printable(output)} is complete." if is_published(config) else ""
            interrupts.note(lambda: find_complete() or describe_resumable_run(config))
            remove_temporary_files(scratch)
            shutil.rmtree(f"{config.run_directory}/{PROGRESS}", ignore_errors=True)  # The counts of a killed run.
            try:
                yield lambda: None
            except StillRunningError:
                interrupts.note(lambda: find_complete() or f"Rerun with --resume to continue from {printable(scratch)}.")
                raise
            except BaseException:
                end_running_tasks()  # Running tasks could write to the files that are removed next.
                remove_temporary_files(scratch)
                raise
    finally:
        with contextlib.suppress(OSError):  # A parent that contains the output is not empty.
            for parent in missing:
                parent.rmdir()


def _check_still_resumable(config: OutputPaths, message_start: str) -> None:
    """Raises `BusyError` if the run to resume no longer exists, because another command resumed it before the lock."""
    if not is_resumable(config):
        raise BusyError(f"{message_start}: another command has already resumed the interrupted run. See `recordmill status`.")
