"""One Beam job: its options, its runner, and whose fault a failure is."""

import argparse
import contextlib
import logging
import os
from typing import Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, SetupOptions, StandardOptions, WorkerOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle

from beam_pipelines.errors import StillRunningError, UserError, find_user_facing, is_interrupt
from beam_pipelines.runners import dataflow, engines, job_servers


@contextlib.contextmanager
def explained_errors(options: PipelineOptions) -> Iterator[None]:
    """Around a job: what it raises is an error of ours, or KeyboardInterrupt, wherever one of them is behind it."""
    try:
        yield
    except StillRunningError:
        raise
    except Exception as error:  # whatever wrapper the runner put around an error of ours
        if is_interrupt(error):
            raise KeyboardInterrupt from None
        explained = find_user_facing(error) or dataflow.explain(error, options)
        if explained is None:
            raise
        raise explained from None


def quiet_engines() -> None:
    """Keeps engines from telling of each of their steps, and from showing the traceback of what will be told in one line."""
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)  # downloads, and each ordinary end
    logging.getLogger("PrismRunner").setLevel(logging.WARNING)
    for name in ("apache_beam.runners.common", None):  # the second, the root, is where an engine's messages come
        logging.getLogger(name).addFilter(_quiet_user_errors)


class _QuietUserErrors(logging.Filter):
    """Keeps what the user will be told in one line from being logged with a traceback first, Python's or Java's."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else RuntimeError(record.getMessage())
        return not (is_interrupt(error) or find_user_facing(error))


_quiet_user_errors = _QuietUserErrors()


def make_runner(options: PipelineOptions) -> beam.runners.PipelineRunner | None:
    """The runner that the options name; None lets Beam construct it.

    `DirectRunner` would first try to download another engine, and silently change to it. Its in-memory engine is meant, and
    worker processes get the pipeline options only through the provision info.
    """
    name = engines.runner_name(options)
    if name in job_servers.RUNNERS:
        return job_servers.RUNNERS[name]()
    if name not in engines.LOCAL:
        return None
    options.view_as(StandardOptions).runner = "FnApiRunner"
    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    provision_info = fn_runner.ExtendedProvisionInfo(beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded))
    return fn_runner.FnApiRunner(provision_info=provision_info)


def parse_pipeline_options(flags: list[str], command: str = "prepare") -> PipelineOptions:
    """Beam's options, beside those of one of our commands.

    Raises:
        UserError: One of them is unknown, or has a wrong value; Beam itself would run without it.
    """

    def refuse(message: str) -> None:
        raise UserError(f"{message} (see `recordmill {command} --help`; Beam's own options are allowed too)")

    def check(parser: argparse.ArgumentParser) -> None:
        parser.error = refuse
        _, unknown = parser.parse_known_args(flags)
        if unknown:
            refuse(f"unknown option {unknown[0]}")

    options = PipelineOptions(flags)
    setup = options.view_as(SetupOptions)
    if setup.setup_file:
        setup.setup_file = os.path.abspath(setup.setup_file)  # Beam changes into its folder, which without one is ""
        if not os.path.isfile(setup.setup_file):
            raise UserError(f"--setup_file={setup.setup_file} does not exist")
    options.get_all_options(add_extra_args_fn=check)
    num_workers = options.view_as(DirectOptions).direct_num_workers
    if num_workers < 0:
        raise UserError(f"--direct_num_workers={num_workers}: expected 1 or more, or 0 for one for each core")
    worker_options = options.view_as(WorkerOptions)
    if worker_options.default_sdk_harness_log_level is None:
        worker_options.default_sdk_harness_log_level = "WARN"  # worker processes report each of their channels
    return options


def use_for_stores(flags: list[str], command: str) -> None:
    """Lets Beam's options say how object stores are reached from this process.

    Raises:
        UserError: One of them is unknown, or has a wrong value.
    """
    beam.io.filesystems.FileSystems.set_options(parse_pipeline_options(flags, command))
