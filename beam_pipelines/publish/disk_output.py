"""Holds the working directory of a run on a disk and publishes the output with a rename."""

import contextlib
import os
import pathlib
import shutil
from typing import Callable, Iterator

from beam_pipelines.config.run_paths import PROGRESS, REPLACED, RunPaths
from beam_pipelines.errors import BusyError, RunError, StillRunningError, printable
from beam_pipelines.parallel import interrupts
from beam_pipelines.parallel.worker_processes import end_running_tasks
from beam_pipelines.publish.output import Jobs, Output
from beam_pipelines.publish.resumable_run import ResumePolicy, check_resumable, describe_resumable_run, is_published
from beam_pipelines.storage.files import make_folder, write_file
from beam_pipelines.storage.lease import Lease, disk_lease
from beam_pipelines.storage.marked_directory import exclusive_directory, is_in_use, remove_directory, remove_temporary_files

_BUSY = "another run is writing to it (see `recordmill status`)"


class DiskOutput(Output):
    """The output of a run on a disk. See `Output`."""

    def is_at_work(self) -> bool:
        return is_in_use(self.run.scratch_directory)

    def wait(self) -> None:
        if self.is_at_work():  # The operating system releases the lock of a killed command at once.
            raise BusyError(f"{self.message_start}: {_BUSY}")

    @contextlib.contextmanager
    def hold(self, lease: Lease, resume_policy: ResumePolicy, jobs: Jobs) -> Iterator[Callable[[], None]]:
        run, scratch, resumes = self.run, self.run.scratch_directory, resume_policy is ResumePolicy.RESUME

        def check() -> None:
            self.check_still_resumable() if resumes else check_resumable(run, resume_policy, self.message_start)
            jobs.end_others(run.output)

        missing = [parent for parent in pathlib.Path(scratch).parents if not parent.exists()]
        stays = lambda error: self.stays(error, resume_policy)
        try:
            with exclusive_directory(scratch, self.message_start, _BUSY, check, resumes, stays), disk_lease(scratch, lease):
                with self._prepared():
                    yield lambda: None
        finally:
            with contextlib.suppress(OSError):  # A parent that contains the output is not empty.
                for parent in missing:
                    parent.rmdir()

    @contextlib.contextmanager
    def _prepared(self) -> Iterator[None]:
        """Context manager that creates the directory of the run, and stops the writers in this process after an error."""
        run, scratch = self.run, self.run.scratch_directory
        make_folder(run.directory)
        remove_temporary_files(scratch)
        shutil.rmtree(f"{run.directory}/{PROGRESS}", ignore_errors=True)  # The counts of a killed run.
        find_complete = lambda: f"{printable(run.output)} is complete." if is_published(run) else ""
        interrupts.note(lambda: find_complete() or describe_resumable_run(run))
        try:
            yield
        except StillRunningError:
            interrupts.note(lambda: find_complete() or f"Rerun with --resume to continue from {printable(scratch)}.")
            raise
        except BaseException:
            end_running_tasks()  # Running tasks could write to the files that are removed next.
            remove_temporary_files(scratch)
            raise

    def publish(self, last_file: bytes) -> None:
        run = self.run
        if is_published(run):
            return
        if run.is_output_new:
            check_still_new(pathlib.Path(run.output))
        remove_temporary_files(run.working_directory)  # A killed attempt can leave temporary files.
        write_file(f"{run.working_directory}/{run.last_file}", last_file)
        move_to_output(run)

    def remove_leftovers(self) -> None:
        if os.path.lexists(self.run.scratch_directory):
            with contextlib.suppress(BusyError), exclusive_directory(self.run.scratch_directory, self.message_start, _BUSY):
                pass


def move_to_output(run: RunPaths) -> None:
    """Removes the intermediate files of a complete output and moves it to its final path."""
    for scratch in (run.spool_directory, run.plan_directory, run.done_directory, f"{run.directory}/{PROGRESS}"):
        shutil.rmtree(scratch, ignore_errors=True)
    publish_directory(pathlib.Path(run.working_directory), pathlib.Path(run.output))
    remove_directory(run.scratch_directory)


def check_still_new(output: pathlib.Path) -> None:
    """Raises `RunError` if another program created files at the output path during the run."""
    if os.path.lexists(output) and not (output.is_dir() and not os.listdir(output)):
        raise RunError(
            f"{printable(str(output))} was created by another program during the run, and was not changed. Choose a "
            "new --output."
        )


def publish_directory(directory: pathlib.Path, output: pathlib.Path) -> None:
    """Moves a directory to the output path with a single rename.

    An old dataset is first moved to a path beside the output. It is moved back if the rename fails, and removed
    otherwise. If the process is killed between the two renames, both datasets remain.
    """
    old = output.with_name(f"{output.name}{REPLACED}")
    has_old = output.exists()
    if has_old:
        if os.path.lexists(old):
            raise RunError(
                f"{printable(str(old))} was created by another program during the run, but --overwrite needs this path "
                "for the old dataset. Remove it."
            )
        os.replace(output, old)
    try:
        os.replace(directory, output)
    except BaseException:  # Includes KeyboardInterrupt.
        if has_old and not output.exists():
            os.replace(old, output)
        raise
    if has_old:
        shutil.rmtree(old, ignore_errors=True)
