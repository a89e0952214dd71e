"""Prism, `--runner=PrismRunner`: Beam's engine in Go, a process beside this one."""

from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, PrismRunnerOptions
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner
from apache_beam.version import __version__ as beam_version

from beam_pipelines.runners.engine import Engine, check_program
from beam_pipelines.runners.job_servers import JobServerRunner


class Prism(Engine):
    """A Prism on this machine."""

    @property
    def runs_here(self) -> bool:
        return self.environment != "DOCKER"

    def _check_needs(self, wait: bool) -> None:
        super()._check_needs(wait)
        check_program(
            "Prism",
            "--prism_location",
            self.options.view_as(PrismRunnerOptions).prism_location,
            lambda: PrismJobServer.local_bin(PrismJobServer(self.options).path_to_binary()),
            f" (go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam_version} builds it)",
        )

    def make_runner(self) -> PrismRunner:
        return _PrismRunner()


class _PrismRunner(JobServerRunner, PrismRunner):
    def default_job_server(self, options: PipelineOptions) -> JobServer:
        options.view_as(DebugOptions).add_experiment("disable_prism_server_singleton")  # each run's ends with it
        return super().default_job_server(options)
