"""Runners that submit a job through a job server, which is a process of its own: at a port that nobody takes before it listens there.

Beam chooses a port that is free, and the server listens there when its Java has come up, seconds later. A worker, a cluster or another
run may have been given that port by then; Beam would send the job to whoever that is.

The server ends with this process, however that ends, and so do the files that Beam leaves for both.
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
    """A port of this machine at which a server can listen that is told of it.

    Its last connection was closed on its side, so the system keeps it for a while (RFC 9293, TIME-WAIT: a minute on Linux): it gives it
    to nobody who asks for any port. Who asks for this one gets it, with SO_REUSEADDR, as servers do.
    """
    with socket.create_server(("localhost", 0)) as listener:
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()
        return listener.getsockname()[1]


class TidyRunner(PipelineRunner):
    """A runner whose temporary files are gone once it is closed: what Beam makes for a submission, it would leave for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = ""

    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> PipelineResult:
        setup = options.view_as(SetupOptions)
        if setup.requirements_cache is None:  # packages that the next submission needs too, where Beam keeps them
            setup.requirements_cache = os.path.join(tempfile.gettempdir(), "beam-requirements-cache")
        self.folder = tempfile.mkdtemp(prefix="recordmill-job-")
        with _temporary_files_in(self.folder):
            return super().run_pipeline(pipeline, options)

    def close(self) -> None:
        """After the job's end; one that goes on without this process goes on without these files."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class JobServerRunner(TidyRunner):
    """A runner whose job server listens at a port that is reserved for it, unless the user chose one, and ends with this process."""

    def __init__(self) -> None:
        super().__init__()
        self._server: JobServer | None = None

    def default_job_server(self, options: PipelineOptions) -> JobServer:
        server = options.view_as(JobServerOptions)
        server.job_port = server.job_port or reserve_port()
        if server.job_server_java_launcher == "java":  # by default it is looked for in PATH alone
            server.job_server_java_launcher = JavaHelper.get_java()
        server.job_server_jvm_properties = [f"-Djava.io.tmpdir={self.folder}", *server.job_server_jvm_properties]  # of Java's libraries
        self._server = super().default_job_server(options)
        if isinstance(self._server, StopOnExitJobServer):  # else it is none of its own
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
    """Beam asks for no other place than the process's."""
    saved, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = saved
