"""The port that is told to a job server, which listens there only some seconds later."""

import errno
import socket
import struct

import pytest
from apache_beam.options.pipeline_options import JobServerOptions
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from beam_pipelines.runners.job_servers import reserve_port
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options

IP_LOCAL_PORT_RANGE = 51  # Linux 6.3: out of which ports a socket is given any


def error_of_binding(port: int) -> int:
    """What a socket gets that asks for a port and does not share it; this is what the system asks of a port before it gives it out."""
    with socket.socket() as one:
        return pytest.raises(OSError, one.bind, ("localhost", port)).value.errno


def test_a_reserved_port_is_had_by_a_server_alone_that_asks_for_it():
    ports = [reserve_port() for _ in range(20)]
    assert len(set(ports)) == len(ports)
    for port in ports:
        assert error_of_binding(port) == errno.EADDRINUSE
        for family, host in ((socket.AF_INET, "localhost"), (socket.AF_INET6, "::")):  # as Beam's, and as Java's
            with socket.create_server((host, port), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
                with socket.create_connection(("localhost", port)):
                    server.accept()[0].close()


def test_a_reserved_port_is_given_to_nobody_who_asks_for_any():
    port = reserve_port()
    with socket.create_server(("localhost", 0)) as other:
        for ask, address in ((socket.socket.bind, ("localhost", 0)), (socket.socket.connect, other.getsockname())):
            with socket.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    one.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port | port << 16))
                except OSError:
                    pytest.skip("this system does not let a socket say out of which ports it is given one")
                with pytest.raises(OSError) as refused:
                    ask(one, address)
                assert refused.value.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL), ask


@pytest.mark.parametrize("name, runner_class", [("FlinkRunner", FlinkRunner), ("PrismRunner", PrismRunner)])
def test_a_job_server_is_told_a_reserved_port_or_the_one_that_the_user_wants(name, runner_class):
    for flags, expected in (([], None), (["--job_port=7077"], 7077)):
        options = parse_pipeline_options([f"--runner={name}", "--experiments=disable_prism_server_singleton", *flags])
        runner = choose_engine(options).make_runner()
        assert isinstance(runner, runner_class)
        runner.default_job_server(options)
        port = options.view_as(JobServerOptions).job_port
        if expected is None:
            assert error_of_binding(port) == errno.EADDRINUSE
        else:
            assert port == expected
