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

from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
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

from beam_pipelines import dataflow
from beam_pipelines.config import PrepareConfig
from beam_pipelines.errors import UserError
from beam_pipelines.files import is_remote
from beam_pipelines.light_processes import num_cores

LOCAL = ("DirectRunner", "FnApiRunner")
RUNNERS = (*LOCAL, "PrismRunner", "FlinkRunner", "PortableRunner", "DataflowRunner")

_SECONDS_TO_ANSWER = 5


def runner_name(options: PipelineOptions) -> str:
    """One of `RUNNERS`; UserError for any other."""
    runner = options.view_as(StandardOptions).runner or LOCAL[0]
    if runner not in RUNNERS:
        raise UserError(f"--runner={runner}: expected one of {', '.join(RUNNERS)}")
    return runner


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
    is_plain = not is_remote(config.input) and not is_remote(config.output)
    num_processes = num_cores() if uses_light_processes(options) and is_plain else 0
    payload = config.shuffle_payload
    if payload == "auto":
        payload = "inline" if is_remote(config.input) else "pointer"  # the second request costs more than the spool
    return dataclasses.replace(config, num_processes=num_processes, shuffle_payload=payload)


def check_engine(config: PrepareConfig, options: PipelineOptions, *, shared_filesystem: bool, wait: bool) -> None:
    """Fails where the job could not run as it is asked for.

    Raises:
        UserError: Something that the engine needs is missing or does not answer.
    """
    runner = runner_name(options)
    _check_paths(config, options, shared_filesystem)
    if runner == "DataflowRunner":
        dataflow.check_options(options, wait=wait)
    if runner == "PrismRunner":
        _check_prism(options)
    if runner in ("FlinkRunner", "PortableRunner"):
        _check_workers(options)
    if runner == "FlinkRunner":
        _check_flink(options)


def _check_paths(config: PrepareConfig, options: PipelineOptions, shared_filesystem: bool) -> None:
    if runs_here(options):
        return
    runner = runner_name(options)
    for option, path in (("--input", config.input), ("--output", config.output)):
        if runner == "DataflowRunner" and not path.startswith("gs://"):
            raise UserError(f"{option}={path}: workers of Dataflow do not see it; expected a gs:// path")
        if not is_remote(path) and not shared_filesystem:
            raise UserError(
                f"{option}={path}: workers of {runner} may not see this machine's files; expected a gs:// or s3:// path, or "
                "--shared_filesystem to say that they do"
            )


def _check_prism(options: PipelineOptions) -> None:
    location = options.view_as(PrismRunnerOptions).prism_location
    if location and "://" not in location:
        if not os.path.isfile(location):
            raise UserError(f"--prism_location={location} does not exist; expected the path of a prism binary")
        return
    try:
        PrismJobServer.local_bin(PrismJobServer(options).path_to_binary())
    except Exception as error:  # of whatever class: it is all the download's
        raise UserError(
            f"Prism could not be downloaded ({_first_sentence(error)}); give its path with --prism_location "
            f"(go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam_version} builds it)"
        ) from None


def _check_workers(options: PipelineOptions) -> None:
    """Beam's own worker image has no recordmill in it."""
    portable, setup = options.view_as(PortableOptions), options.view_as(SetupOptions)
    image = portable.environment_config or options.view_as(WorkerOptions).sdk_container_image
    brings_package = image or setup.setup_file or setup.extra_packages
    if portable.environment_type in (None, "DOCKER") and not runs_here(options) and not brings_package:
        raise UserError(
            "the workers would run in Beam's own image, without recordmill; expected --sdk_container_image=IMAGE, "
            "--setup_file=./setup.py, or another --environment_type"
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
    jar = options.view_as(FlinkRunnerOptions).flink_job_server_jar
    if jar and "://" not in jar:
        if not os.path.isfile(jar):
            raise UserError(f"--flink_job_server_jar={jar} does not exist; expected the path or URL of Beam's Flink job server")
        return
    try:
        JavaJarServer.local_jar(FlinkJarJobServer(options).path_to_jar())
    except Exception as error:  # of whatever class: it is all the download's
        raise UserError(
            f"Beam's Flink job server could not be downloaded ({_first_sentence(error)}); "
            "give its path or URL with --flink_job_server_jar"
        ) from None


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0].partition("\n")[0]
