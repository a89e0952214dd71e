"""Holds the working directory of a run in an object store and publishes the output.

An object store cannot rename objects. Therefore, a new dataset is written directly to the output path. A dataset that
replaces an old dataset is written to the scratch directory first, and then copied.
"""

import contextlib
import os
import signal
import uuid
from typing import Callable, Iterator

from beam_pipelines.errors import BusyError, SilentStoreError, StillRunningError, UserError
from beam_pipelines.log import print_message
from beam_pipelines.parallel import interrupts
from beam_pipelines.publish.output import Jobs, Output
from beam_pipelines.publish.resumable_run import RESUME, ResumePolicy, describe_resumable_run, is_published
from beam_pipelines.storage.files import files_at, write_file
from beam_pipelines.storage.lease import LEASE, Lease, make_lease, read_lease, store_lease, wait_for_lease
from beam_pipelines.storage.marked_directory import MARKER, MARKER_TEXT
from tf_input.dataset_format import MANIFEST


class StoreOutput(Output):
    """The output of a run in an object store. See `Output`."""

    def is_at_work(self) -> bool:
        lease = read_lease(self.run.scratch_directory)
        return bool(lease and lease.is_live)

    def wait(self) -> None:
        wait_for_lease(self.run.scratch_directory, self.message_start)  # The lease of a killed command must expire.

    @contextlib.contextmanager
    def hold(self, lease: Lease, resume_policy: ResumePolicy, jobs: Jobs) -> Iterator[Callable[[], None]]:
        run, scratch = self.run, self.run.scratch_directory
        for directory in (scratch, run.working_directory):
            check_prefix(directory, self.message_start)
        is_at_work = lambda other: jobs.name != other.engine or jobs.is_at_work(other.job, run.output)
        with store_lease(scratch, lease, self.message_start, is_at_work, _stop_after_lost_lease) as acquired:
            interrupts.note(self._describe)
            try:
                if resume_policy is ResumePolicy.RESUME:
                    self.check_still_resumable()
                jobs.end_others(run.output)
                for directory in (scratch, run.working_directory):
                    write_file(f"{directory}/{MARKER}", MARKER_TEXT)
                    files_at(directory).abandon_uploads(directory)
                    if resume_policy is not ResumePolicy.RESUME:
                        _empty(directory, run.last_file)
                yield acquired.detach
            except StillRunningError:
                interrupts.note(lambda: f"Rerun with --resume to continue from {scratch}.")
                acquired.detach()
                raise
            except BaseException as error:
                if not self.stays(error, resume_policy) and acquired.is_owned():  # Otherwise another run owns the objects.
                    if run.working_directory == run.output and not self._has(run.last_file):
                        _remove(run.output, run.last_file)
                    _remove(scratch)
                raise

    def _has(self, name: str) -> bool:
        return files_at(self.run.output).exists(f"{self.run.output}/{name}")

    def _describe(self) -> str:
        """Returns a message that says whether the output contains a complete dataset or a resumable run."""
        run = self.run
        try:
            if is_published(run):
                return f"{run.output} is complete."
            description = describe_resumable_run(run)
            if description and not run.is_output_new and self._has(MARKER):  # The old dataset was already removed.
                return f"{run.output} was being replaced and is incomplete: {description}"
            return description
        except SilentStoreError:  # The failure is reported elsewhere.
            return f"The state of {run.output} is unknown, because the store does not respond. {RESUME}"
        except OSError as error:
            return f"The state of {run.output} is unknown: {error.strerror or error}."

    def publish(self, last_file: bytes) -> None:
        run, store = self.run, files_at(self.run.output)
        if not is_published(run):
            write_file(f"{run.working_directory}/{run.last_file}", last_file)
            if run.working_directory != run.output:
                # If the copy fails, the marker lets a later run remove the rest of the old dataset.
                write_file(f"{run.output}/{MARKER}", MARKER_TEXT)
                store.remove(f"{run.output}/{run.last_file}")
                store.remove_all(run.output, but=(MARKER,))
                store.copy_all(run.working_directory, run.output, last=run.last_file)
            store.remove(f"{run.working_directory}/{MARKER}")
        store.remove(f"{run.output}/{MARKER}")
        _remove(run.scratch_directory)

    def remove_leftovers(self) -> None:
        scratch = self.run.scratch_directory
        if any(files_at(scratch).top_level(scratch)):
            lease = make_lease(self.run.id, uuid.uuid4().hex, command=self.run.command)
            acquiring = store_lease(scratch, lease, self.message_start, lambda other: True, _stop_after_lost_lease)
            with contextlib.suppress(BusyError), acquiring:
                _remove(scratch)


def check_prefix(prefix: str, message_start: str) -> None:
    """Raises `UserError` if a prefix in an object store contains objects that may not belong to Recordmill."""
    store = files_at(prefix)
    if any(store.top_level(prefix)) and not (store.exists(f"{prefix}/{MARKER}") or store.exists(f"{prefix}/{LEASE}")):
        raise UserError(
            f"{message_start}: {prefix}/, which the run needs for its files, has files from elsewhere. Move or remove them."
        )


def _stop_after_lost_lease() -> None:
    """Ends this process with SIGTERM because another command has taken over the output."""
    print_message("another run has taken over the output, so this run stops")
    os.kill(os.getpid(), signal.SIGTERM)


def _empty(directory: str, last_file: str = MANIFEST) -> None:
    """Removes all objects of a working directory except the marker and the lease."""
    store = files_at(directory)
    store.remove(f"{directory}/{last_file}")
    store.remove_all(directory, but=(MARKER, LEASE))


def _remove(directory: str, last_file: str = MANIFEST) -> None:
    """Removes a working directory. The marker is removed last, so that a later run can complete an interrupted removal."""
    _empty(directory, last_file)
    for name in (LEASE, MARKER):
        files_at(directory).remove(f"{directory}/{name}")
