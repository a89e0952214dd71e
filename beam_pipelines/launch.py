"""One run from outside: options, runner, progress, and whose fault a failure is."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import logging
import os
import platform
import sys
import time
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions, WorkerOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle

from beam_pipelines.config import PrepareConfig
from beam_pipelines.errors import UserError, find_user_facing, is_interrupt
from beam_pipelines.output_directory import check_paths, working_directory
from beam_pipelines.pipeline import prepare
from beam_pipelines.progress import ProgressDisplay

LOCAL_RUNNERS = (None, "DirectRunner", "FnApiRunner")

_PACKAGES = ("recordmill", "apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c")


def run_prepare(config: PrepareConfig, options: PipelineOptions, *, overwrite: bool = False) -> None:
    """Runs `prepare` and waits for it. Afterwards the data set is in place, whole, or nothing is.

    Raises:
        UserError: The input or the options are not fit to run.
        RunError: The run failed for a reason that the user can see.
    """
    check_paths(config, overwrite)
    # Workers and light processes need not have this process's working directory; and where the output is a link, what it
    # points to is replaced, not the link.
    config = dataclasses.replace(config, input=os.path.abspath(config.input), output=os.path.realpath(config.output))
    logging.getLogger("apache_beam.runners.common").addFilter(_quiet_user_errors)
    run_info = make_run_info(config, options)
    with working_directory(config):
        pipeline = beam.Pipeline(runner=make_runner(options), options=options)
        prepare(pipeline, config, run_info)
        try:
            with ProgressDisplay(config.progress_directory):
                pipeline.run().wait_until_finish()
        except Exception as error:  # whatever wrapper the runner put around an error of ours
            if is_interrupt(error):
                raise KeyboardInterrupt from None
            user_facing = find_user_facing(error)
            if user_facing is None:
                raise
            raise user_facing from None


class _QuietUserErrors(logging.Filter):
    """Keeps what the user will be told in one line from being logged with a traceback first."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not (is_interrupt(error) or find_user_facing(error))


_quiet_user_errors = _QuietUserErrors()


def make_runner(options: PipelineOptions) -> beam.runners.PipelineRunner | None:
    """The runner that the options name; None lets Beam construct it.

    `DirectRunner` would first try to download another engine, and silently change to it. Its in-memory engine is meant, and
    worker processes get the pipeline options only through the provision info.
    """
    standard = options.view_as(StandardOptions)
    if standard.runner not in LOCAL_RUNNERS:
        return None
    standard.runner = "FnApiRunner"
    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    provision_info = fn_runner.ExtendedProvisionInfo(beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded))
    return fn_runner.FnApiRunner(provision_info=provision_info)


def parse_pipeline_options(flags: list[str]) -> PipelineOptions:
    """Beam's options.

    Raises:
        UserError: One of them is unknown, or has a wrong value; Beam itself would run without it.
    """

    def refuse(message: str) -> None:
        raise UserError(f"{message} (see `recordmill prepare --help`; Beam's own options are allowed too)")

    def check(parser: argparse.ArgumentParser) -> None:
        parser.error = refuse
        _, unknown = parser.parse_known_args(flags)
        if unknown:
            refuse(f"unknown option {unknown[0]}")

    options = PipelineOptions(flags)
    options.get_all_options(add_extra_args_fn=check)
    worker_options = options.view_as(WorkerOptions)
    if worker_options.default_sdk_harness_log_level is None:
        worker_options.default_sdk_harness_log_level = "WARNING"  # worker processes report each of their channels
    return options


def uses_light_processes(options: PipelineOptions) -> bool:
    """On the local runner in memory, whose one worker leaves the other cores idle; other runners start workers enough."""
    is_local = options.view_as(StandardOptions).runner in LOCAL_RUNNERS
    return is_local and options.view_as(DirectOptions).direct_running_mode == "in_memory"


def make_run_info(config: PrepareConfig, options: PipelineOptions) -> dict[str, Any]:
    """What may differ between two runs that give the same data set."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "versions": versions,
        "options": {name: _plain(value) for name, value in vars(config).items()},
        "pipeline_options": {name: _plain(value) for name, value in options.get_all_options(drop_default=True).items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (int, float, bool, type(None))):
        return value
    return os.fsencode(str(value)).decode("utf-8", "backslashreplace")  # a path may be of any bytes
