"""Runners that start a job server, which is a process of its own, at a port that nobody takes before it listens there.

Beam chooses a port that is free, and the server listens there when its Java has come up, seconds later. A worker, a cluster or another
run may have been given that port by then; Beam would send the job to whoever that is.
"""

import socket

from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.runner import PipelineRunner


def reserve_port() -> int:
    """A port of this machine at which a server can listen that is told of it.

    Its last connection was closed on its side, so the system keeps it for a while (RFC 9293, TIME-WAIT: a minute on Linux): it gives it
    to nobody who asks for any port. Who asks for this one gets it, with SO_REUSEADDR, as servers do.
    """
    with socket.create_server(("localhost", 0)) as listener:
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()
        return listener.getsockname()[1]


class ReservesJobPort(PipelineRunner):
    """A runner whose job server listens at a port that is reserved for it, unless the user chose one."""

    def default_job_server(self, options: PipelineOptions) -> JobServer:
        server = options.view_as(JobServerOptions)
        server.job_port = server.job_port or reserve_port()
        return super().default_job_server(options)
