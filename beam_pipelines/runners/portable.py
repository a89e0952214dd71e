"""Runs jobs on any runner with a Beam job service (`--runner=PortableRunner --job_endpoint=HOST:PORT`)."""

from apache_beam.runners.portability.portable_runner import PortableRunner

from beam_pipelines.runners.engine import Engine
from beam_pipelines.runners.job_servers import TidyRunner


class Portable(Engine):
    """Runs pipelines through the Beam job service at `--job_endpoint`."""

    runs_tensorflow = True

    def make_runner(self) -> PortableRunner:
        return _PortableRunner()


class _PortableRunner(TidyRunner, PortableRunner):
    pass
