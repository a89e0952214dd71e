"""What each engine needs before a job goes to it, and what suits it: checked and settled here, so that no job starts in vain.

| `--runner` | its workers |
| --- | --- |
| DirectRunner, the default | this machine, with light processes |
| PrismRunner | this machine |
| FlinkRunner, PortableRunner | a cluster's |
| DataflowRunner | virtual machines |
"""

import dataclasses
import http.client
import os
import shutil
import urllib.error
import urllib.request
from typing import Callable, Sequence

from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    PrismRunnerOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkJarJobServer, FlinkRunner
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.utils.subprocess_server import JavaHelper, JavaJarServer
from apache_beam.version import __version__ as beam_version

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.errors import UserError
from beam_pipelines.parallel.cores import num_cores
from beam_pipelines.runners import dataflow
from beam_pipelines.storage.files import any_remote, is_remote

LOCAL = ("DirectRunner", "FnApiRunner")
RUNNERS = (*LOCAL, "PrismRunner", "FlinkRunner", "PortableRunner", "DataflowRunner")
# What `recordmill analyze` and `recordmill transform` run on.
WITH_TENSORFLOW = (*LOCAL, "FlinkRunner", "PortableRunner")

_SECONDS_TO_ANSWER = 5


def runner_name(options: PipelineOptions) -> str:
    """One of `RUNNERS`; UserError for any other."""
    runner = options.view_as(StandardOptions).runner or LOCAL[0]
    if runner not in RUNNERS:
        raise UserError(f"--runner={runner}: expected one of {', '.join(RUNNERS)}")
    return runner


def check_runs_tensorflow(command: str, options: PipelineOptions) -> None:
    """Fails where a command that needs TensorFlow on its workers is to run on a runner on which it has not been seen to."""
    runner = runner_name(options)
    if runner not in WITH_TENSORFLOW:
        raise UserError(f"--runner={runner}: `recordmill {command}` runs on {', '.join(WITH_TENSORFLOW)}")


def runs_here(options: PipelineOptions) -> bool:
    """Whether every worker is on this machine."""
    runner = runner_name(options)
    environment = options.view_as(PortableOptions).environment_type
    if runner in LOCAL or environment == "LOOPBACK":
        return True
    if runner == "FlinkRunner" and not environment:
        return options.view_as(FlinkRunnerOptions).flink_master in MAGIC_HOST_NAMES
    return runner == "PrismRunner" and environment != "DOCKER"


def uses_light_processes(options: PipelineOptions) -> bool:
    """On the local runner in memory, whose one worker leaves the other cores idle; other runners start workers enough."""
    return runner_name(options) in LOCAL and options.view_as(DirectOptions).direct_running_mode == "in_memory"


def settle(config: PrepareConfig, options: PipelineOptions) -> PrepareConfig:
    """The configuration with what the engine decides."""
    # A light process has no Beam, hence no object store.
    is_plain = not any_remote(config.input, config.output, config.source.image_root)
    num_processes = num_cores() if uses_light_processes(options) and is_plain else 0
    return dataclasses.replace(config, num_processes=num_processes)


def check_engine(
    paths: Sequence[tuple[str, str]], options: PipelineOptions, *, shared_filesystem: bool, wait: bool
) -> None:
    """Fails where the job could not run as it is asked for.

    Args:
        paths: What its workers are to see, each with the option that names it.
        options: How Beam is to run it.
        shared_filesystem: Whether workers see the local paths that are given.
        wait: For the job's end.

    Raises:
        UserError: Something that the engine needs is missing or does not answer.
    """
    runner = runner_name(options)
    _check_paths(paths, options, shared_filesystem)
    if runner == "DataflowRunner":
        dataflow.check_options(options, wait=wait)
    if options.view_as(PortableOptions).environment_type in (None, "DOCKER") and not runs_here(options):
        _check_package(options)
    if runner == "DataflowRunner" and not options.view_as(GoogleCloudOptions).no_auth:
        dataflow.check_credentials()
    if runner == "PrismRunner":
        _check_prism(options)
    if runner == "FlinkRunner":
        _check_flink(options)


def _check_paths(paths: Sequence[tuple[str, str]], options: PipelineOptions, shared_filesystem: bool) -> None:
    if runs_here(options):
        return
    runner = runner_name(options)
    for option, path in paths:
        if runner == "DataflowRunner" and not path.startswith("gs://"):
            raise UserError(f"{option}={path}: workers of Dataflow do not see it; expected a gs:// path")
        if not is_remote(path) and not shared_filesystem:
            raise UserError(
                f"{option}={path}: workers of {runner} may not see this machine's files; expected a gs:// or s3:// path, or "
                "--shared_filesystem to say that they do"
            )


def _check_prism(options: PipelineOptions) -> None:
    _check_program(
        "Prism",
        "--prism_location",
        options.view_as(PrismRunnerOptions).prism_location,
        lambda: PrismJobServer.local_bin(PrismJobServer(options).path_to_binary()),
        f" (go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam_version} builds it)",
    )


def _check_program(name: str, option: str, location: str | None, download: Callable[[], str], hint: str = "") -> None:
    """A program that is given by a path must be there; one that is not is downloaded now, and then not again."""
    if location and not is_remote(location):
        if not os.path.isfile(location):
            raise UserError(f"{option}={location} does not exist; expected the path or URL of {name}")
        return
    try:
        download()
    except Exception as error:  # of whatever class: it is all the download's
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise UserError(f"{name} could not be downloaded ({reason}); give its path or URL with {option}{hint}") from None


def _check_package(options: PipelineOptions) -> None:
    """Beam's own image has no recordmill in it; and installed from its source alone, recordmill is the trainer's half."""
    setup = options.view_as(SetupOptions)
    image = options.view_as(WorkerOptions).sdk_container_image or options.view_as(PortableOptions).environment_config
    has_package = (setup.setup_file or setup.extra_packages) and setup.requirements_file
    if not image and not has_package:
        raise UserError(
            f"--runner={runner_name(options)}: its workers would lack recordmill or what it imports; expected "
            "--sdk_container_image=IMAGE, or --setup_file=./setup.py with --requirements_file=FILE (see deploy/)"
        )


def _check_flink(options: PipelineOptions) -> None:
    flink = options.view_as(FlinkRunnerOptions)
    if flink.flink_master not in MAGIC_HOST_NAMES:
        _check_flink_master(flink.flink_master)
    if options.view_as(PortableOptions).job_endpoint or flink.flink_submit_uber_jar:
        return
    java = JavaHelper.get_java()
    if not shutil.which(java):
        raise UserError(f"--runner=FlinkRunner submits by a Java program, and {java} was not found; expected Java 11 or later")
    _check_job_server(options)


def _check_flink_master(master: str) -> None:
    try:
        with urllib.request.urlopen(f"{FlinkRunner.add_http_scheme(master)}/config", timeout=_SECONDS_TO_ANSWER) as response:
            response.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise UserError(
            f"--flink_master={master}: no answer ({getattr(reason, 'strerror', None) or reason}); "
            "expected HOST:PORT of a Flink cluster's REST interface"
        ) from None


def _check_job_server(options: PipelineOptions) -> None:
    _check_program(
        "Beam's Flink job server",
        "--flink_job_server_jar",
        options.view_as(FlinkRunnerOptions).flink_job_server_jar,
        lambda: JavaJarServer.local_jar(FlinkJarJobServer(options).path_to_jar()),
    )
