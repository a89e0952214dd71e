"""Defines runners that submit jobs through a job server process.

Beam chooses a free port for the job server, but the server only starts listening seconds later. In the meantime,
another process could take the port and receive the job. Therefore, this module reserves the port.

The job server ends when this process ends, even if this process is killed. The temporary files are then deleted.
"""

import contextlib
import os
import pathlib
import shutil
import socket
import sys
import tempfile
from typing import Iterator

from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions, SetupOptions
from apache_beam.pipeline import Pipeline
from apache_beam.runners.portability.job_server import JobServer, StopOnExitJobServer, SubprocessJobServer
from apache_beam.runners.runner import PipelineResult, PipelineRunner
from apache_beam.utils.subprocess_server import JavaHelper

_UNTIL_CLIENT_ENDS = pathlib.Path(__file__).with_name("until_client_ends.py")


def reserve_port() -> int:
    """Reserves a TCP port on this machine and returns its number.

    The function opens and closes a connection, which leaves the port in the TIME-WAIT state. The system does not assign
    such a port to processes that request any free port. A server that requests this port can still use it with
    SO_REUSEADDR.
    """
    with socket.create_server(("localhost", 0)) as listener:
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()
        return listener.getsockname()[1]


class TidyRunner(PipelineRunner):
    """A runner that, unlike Beam's runners, deletes its temporary files when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = ""

    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> PipelineResult:
        setup = options.view_as(SetupOptions)
        if setup.requirements_cache is None:  # Beam's usual folder, which the next submission reuses.
            setup.requirements_cache = os.path.join(tempfile.gettempdir(), "beam-requirements-cache")
        self.folder = tempfile.mkdtemp(prefix="recordmill-job-")
        with _temporary_files_in(self.folder):
            return super().run_pipeline(pipeline, options)

    def close(self) -> None:
        """Deletes the temporary files."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class JobServerRunner(TidyRunner):
    """A runner whose job server listens on a reserved port, and ends together with this process."""

    def __init__(self) -> None:
        super().__init__()
        self._server: JobServer | None = None

    def default_job_server(self, options: PipelineOptions) -> JobServer:
        server = options.view_as(JobServerOptions)
        server.job_port = server.job_port or reserve_port()
        if server.job_server_java_launcher == "java":  # Beam finds its default launcher only through PATH.
            server.job_server_java_launcher = JavaHelper.get_java()
        server.job_server_jvm_properties = [f"-Djava.io.tmpdir={self.folder}", *server.job_server_jvm_properties]
        self._server = super().default_job_server(options)
        if isinstance(self._server, StopOnExitJobServer):  # Otherwise, it is an external server.
            _end_with_client(self._server._job_server, self.folder)
        return self._server

    def close(self) -> None:
        if self._server:
            self._server.stop()
        super().close()


def _end_with_client(server: SubprocessJobServer, folder: str) -> None:
    make_command = server.subprocess_cmd_and_endpoint

    def make_watched_command() -> tuple[list[str], str]:
        command, endpoint = make_command()
        return [sys.executable, "-I", str(_UNTIL_CLIENT_ENDS), folder, *command], endpoint

    server.subprocess_cmd_and_endpoint = make_watched_command


@contextlib.contextmanager
def _temporary_files_in(folder: str) -> Iterator[None]:
    """Context manager in which this process creates all temporary files in a given folder."""
    saved, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = saved
