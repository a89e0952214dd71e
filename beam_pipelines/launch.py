"""One run from outside: options, runner, progress, and whose fault a failure is."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import logging
import os
import platform
import re
import sys
import tempfile
import time
from typing import Any, Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, StandardOptions, WorkerOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle

from beam_pipelines import dataflow, engines, flink
from beam_pipelines.config import SOURCES, ImageConfig, PrepareConfig, SourceConfig
from beam_pipelines.errors import StillRunningError, UserError, find_user_facing, is_interrupt, printable
from beam_pipelines.estimate import describe, make_estimate
from beam_pipelines.files import is_remote
from beam_pipelines.output_directory import check_input, check_paths, is_new, working_directory
from beam_pipelines.pipeline import prepare
from beam_pipelines.progress import ProgressDisplay
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.waiting import how_to_stop, wait_for

_SECRET = re.compile("key|secret|token|password|credential")

_PACKAGES = ("recordmill", "apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c")


def run_prepare(
    config: PrepareConfig,
    options: PipelineOptions,
    *,
    overwrite: bool = False,
    shared_filesystem: bool = False,
    wait: bool = True,
) -> str | None:
    """Runs `prepare`. Afterwards the data set is in place, whole, or nothing is.

    Args:
        config: What to do.
        options: How Beam is to do it.
        overwrite: A data set at the output is replaced, once the new one is whole.
        shared_filesystem: The workers see the local paths that the configuration names.
        wait: For the job's end; a service that takes jobs (Dataflow) needs nobody to wait for them.

    Returns:
        None once the data set is in place; without waiting, what to tell of the job that was submitted.

    Raises:
        UserError: The input or the options are not fit to run.
        RunError: The run failed for a reason that the user can see.
    """
    beam.io.filesystems.FileSystems.set_options(options)  # what reaches an object store
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)  # downloads, and each ordinary end
    engines.check_engine(config, options, shared_filesystem=shared_filesystem, wait=wait)
    check_paths(config, overwrite)
    config = dataclasses.replace(
        engines.settle(settle_source(config), options),
        input=_absolute(config.input, os.path.abspath),
        # Where the output is a link, what it points to is replaced, not the link.
        output=_absolute(config.output, os.path.realpath),
        is_output_new=is_new(config.output),
    )
    if engines.runner_name(options) == "DataflowRunner":
        dataflow.set_defaults(config, options)
    if engines.runner_name(options) == "FlinkRunner":
        flink.name_job(config.name, options)
    for name in ("apache_beam.runners.common", None):  # the second, the root, is where an engine's messages come
        logging.getLogger(name).addFilter(_quiet_user_errors)
    logging.getLogger("PrismRunner").setLevel(logging.WARNING)  # it tells of each of its steps
    is_submitted = engines.runner_name(options) == "DataflowRunner" and not wait
    with working_directory(config), _progress_directory(config, options, is_submitted) as progress_directory:
        config = dataclasses.replace(config, progress_directory=progress_directory)
        try:
            pipeline = beam.Pipeline(runner=make_runner(options), options=options)
            prepare(pipeline, config, make_run_info(config, options))
            if is_submitted:
                return dataflow.describe_job(pipeline.run(), config, options)
            stop = how_to_stop(options)
            with ProgressDisplay(progress_directory):
                wait_for(pipeline.run(), stop)
        except StillRunningError:
            raise
        except Exception as error:  # whatever wrapper the runner put around an error of ours
            if is_interrupt(error):
                raise KeyboardInterrupt from None
            explained = find_user_facing(error) or dataflow.explain(error, options)
            if explained is None:
                raise
            raise explained from None
    return None


def run_estimate(config: PrepareConfig, options: PipelineOptions) -> str:
    """What a run would be like, as text; UserError where the input is not fit to run."""
    beam.io.filesystems.FileSystems.set_options(options)
    check_input(config.input)
    estimate = make_estimate(engines.settle(settle_source(config), options))
    return describe(estimate, engines.runner_name(options), engines.runs_here(options))


def settle_source(config: PrepareConfig) -> PrepareConfig:
    """With the kind of its source: guessed where the user did not say it, and then said on the standard error output.

    Raises:
        UserError: It can't be guessed, or the input is not what the source expects, or its options do not go with it.
    """
    source = config.source
    if source.kind is None:
        source = dataclasses.replace(source, kind=guess_source(config.input))
        if source.kind != SOURCES[0]:  # what was always meant goes without saying
            print(f"recordmill: --source={source.kind}, by the names in {printable(config.input)}", file=sys.stderr)
    if source.image_root is not None:
        source = dataclasses.replace(source, image_root=_absolute(source.image_root, os.path.abspath))
    config = dataclasses.replace(config, source=source)
    open_source(config)
    return config


def _absolute(path: str, make: Any) -> str:
    """Workers and light processes need not have this process's working directory."""
    return path.rstrip("/") if is_remote(path) else make(path)


@contextlib.contextmanager
def _progress_directory(config: PrepareConfig, options: PipelineOptions, is_submitted: bool) -> Iterator[str]:
    """Where all workers can count; empty where nobody will look."""
    if is_submitted:
        yield ""
    elif is_remote(config.output) and engines.runs_here(options):
        with tempfile.TemporaryDirectory(prefix="recordmill-") as directory:
            yield directory
    else:
        yield f"{config.scratch_directory}/progress"


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
    if engines.runner_name(options) not in engines.LOCAL:
        return None
    options.view_as(StandardOptions).runner = "FnApiRunner"
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
    setup = options.view_as(SetupOptions)
    if setup.setup_file:
        setup.setup_file = os.path.abspath(setup.setup_file)  # Beam changes into its folder, which without one is ""
        if not os.path.isfile(setup.setup_file):
            raise UserError(f"--setup_file={setup.setup_file} does not exist")
    options.get_all_options(add_extra_args_fn=check)
    worker_options = options.view_as(WorkerOptions)
    if worker_options.default_sdk_harness_log_level is None:
        worker_options.default_sdk_harness_log_level = "WARN"  # worker processes report each of their channels
    return options


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
        "pipeline_options": {
            name: "(hidden)" if _SECRET.search(name) else _plain(value)
            for name, value in options.get_all_options(drop_default=True).items()
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (int, float, bool, type(None))):
        return value
    if isinstance(value, (SourceConfig, ImageConfig)):
        return {name: _plain(item) for name, item in vars(value).items()}
    return os.fsencode(str(value)).decode("utf-8", "backslashreplace")  # a path may be of any bytes
