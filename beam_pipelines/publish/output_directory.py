"""Holds the working directory of a run, on a disk or in an object store."""

import contextlib
from typing import Callable

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.publish.disk_output import DiskOutput
from beam_pipelines.publish.output import Jobs, Output
from beam_pipelines.publish.resumable_run import ResumePolicy
from beam_pipelines.publish.store_output import StoreOutput
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.lease import make_lease


def output_of(run: RunPaths) -> Output:
    """Returns the output of a run, on a disk or in an object store."""
    return (StoreOutput if is_remote(run.output) else DiskOutput)(run)


def working_directory(
    run: RunPaths, resume_policy: ResumePolicy = ResumePolicy.FAIL, jobs: Jobs = Jobs()
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Context manager for the working directory of a run.

    After an error, the working directory is removed unless the run can be resumed.

    Args:
        run: The run.
        resume_policy: Whether to reject, resume or remove the output of an interrupted run. `RESUME` requires such
            output.
        jobs: The jobs of the engine.

    Yields:
        A function to call if the job continues after this process ends.

    Raises:
        BusyError: Another run is using the directory.
    """
    lease = make_lease(run.id, run.holder, jobs.name, jobs.job_name, run.command)
    return output_of(run).hold(lease, resume_policy, jobs)
