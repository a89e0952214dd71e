"""Runs jobs with Prism, Beam's local runner in Go (`--runner=PrismRunner`)."""

import logging

from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, PrismRunnerOptions
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner
from apache_beam.version import __version__ as beam_version

from beam_pipelines.quiet import is_no_user_error
from beam_pipelines.runners.engine import Engine, check_program
from beam_pipelines.runners.job_servers import JobServerRunner


class Prism(Engine):
    """Runs pipelines with a Prism process on this machine."""

    @property
    def is_local(self) -> bool:
        return self.environment != "DOCKER"

    def _check_needs(self, wait: bool) -> None:
        super()._check_needs(wait)
        check_program(
            "Prism",
            "--prism_location",
            self.options.view_as(PrismRunnerOptions).prism_location,
            lambda: PrismJobServer.local_bin(PrismJobServer(self.options).path_to_binary()),
            f" (build it with: go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam_version})",
        )

    def make_runner(self) -> PrismRunner:
        return _PrismRunner()


class _PrismRunner(JobServerRunner, PrismRunner):
    def default_job_server(self, options: PipelineOptions) -> JobServer:
        options.view_as(DebugOptions).add_experiment("disable_prism_server_singleton")  # Each run stops its own server.
        server = super().default_job_server(options)
        prism = getattr(server, "_job_server", None)
        if log_filter := getattr(prism, "_log_filter", None):  # Missing with --prism_log_kind and in older Beam.
            prism._log_filter = _LogFilter(log_filter)
        return server


class _LogFilter(logging.Filter):
    """A log filter for the output of Prism. It keeps warnings, errors from workers, and lines without a log level.

    Prism's own errors are hidden, because the failed job reports them.

    Args:
        parser: Beam's filter, which sets the level and the logger name of each record from Prism's JSON.
    """

    def __init__(self, parser: logging.Filter) -> None:
        super().__init__()
        self._parser = parser

    def filter(self, record: logging.LogRecord) -> bool:
        self._parser.filter(record)
        if record.name == "PrismRunner":
            is_shown = record.levelno == logging.WARNING
        else:
            is_shown = not record.name.startswith("SdkWorker") or record.levelno >= logging.WARNING
        return is_shown and is_no_user_error(record)
