"""Tests that a job server uses the reserved port and ends when the client of the server ends."""

import errno
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import JobServerOptions
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from beam_pipelines.__main__ import main
from beam_pipelines.runners.job_servers import _UNTIL_CLIENT_ENDS, TidyRunner, reserve_port
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
from made_images import write_class_folders

pytestmark = pytest.mark.xdist_group("waiting")

IP_LOCAL_PORT_RANGE = 51  # Socket option since Linux 6.3: the range of ports from which a socket is given one.


def bind_error(port: int) -> int:
    """Returns the error number of the exception that is raised when a socket is bound to `port`."""
    with socket.socket() as client:
        return pytest.raises(OSError, client.bind, ("localhost", port)).value.errno


def test_reserved_port_can_be_used_only_by_server_that_asks_for_it():
    ports = [reserve_port() for _ in range(20)]
    assert len(set(ports)) == len(ports)
    for port in ports:
        assert bind_error(port) == errno.EADDRINUSE
        for family, host in ((socket.AF_INET, "localhost"), (socket.AF_INET6, "::")):
            with socket.create_server((host, port), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
                with socket.create_connection(("localhost", port)):
                    server.accept()[0].close()


def test_reserved_port_is_not_assigned_automatically():
    port = reserve_port()
    with socket.create_server(("localhost", 0)) as other:
        for ask, address in ((socket.socket.bind, ("localhost", 0)), (socket.socket.connect, other.getsockname())):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    client.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port | port << 16))
                except OSError:
                    pytest.skip("this system does not let a socket say out of which ports it is given one")
                with pytest.raises(OSError) as error_info:
                    ask(client, address)
                assert error_info.value.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL), ask


@pytest.mark.parametrize("name, runner_class", [("FlinkRunner", FlinkRunner), ("PrismRunner", PrismRunner)])
def test_job_server_uses_reserved_port_or_the_job_port_option(name, runner_class, tmp_path):
    for flags, expected in (([], None), (["--job_port=7077"], 7077)):
        options = parse_pipeline_options([f"--runner={name}", *flags])
        runner = choose_engine(options).make_runner()
        runner.folder = str(tmp_path)
        assert isinstance(runner, runner_class)
        runner.default_job_server(options)
        port = options.view_as(JobServerOptions).job_port
        if expected is None:
            assert bind_error(port) == errno.EADDRINUSE
        else:
            assert port == expected


def test_job_server_uses_java_home_or_the_launcher_option(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    (tmp_path / "server.jar").touch()
    for flags, expected in (([], "/opt/java/bin/java"), (["--job_server_java_launcher=/my/java"], "/my/java")):
        options = parse_pipeline_options(["--runner=FlinkRunner", f"--flink_job_server_jar={tmp_path}/server.jar", *flags])
        runner = choose_engine(options).make_runner()
        runner.folder = str(tmp_path)
        command, _ = runner.default_job_server(options)._job_server.subprocess_cmd_and_endpoint()
        assert expected in command and "java" not in command


# The client reads the output of its server as Beam does. The server ends only with SIGKILL.
CLIENT = """
import subprocess, sys, time
server = [sys.executable, "-c", "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"]
watched = subprocess.Popen([sys.executable, "-I", *sys.argv[1:3], *server], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
print(watched.pid, watched.stdout.readline().decode().strip(), flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(is_so, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow(3)
@pytest.mark.parametrize("killed", ["client", "watcher"])
def test_server_ends_with_its_client(tmp_path, killed):
    """Either the client is killed, or the program that watches the client receives the signal that Beam sends."""
    folder = tmp_path / "client"
    (folder / "artifacts").mkdir(parents=True)
    client = subprocess.Popen([sys.executable, "-c", CLIENT, _UNTIL_CLIENT_ENDS, folder], stdout=subprocess.PIPE, text=True)
    try:
        watcher, server = map(int, client.stdout.readline().split())
        assert is_alive(watcher) and is_alive(server)
        if killed == "client":
            client.kill()
            client.wait()
        else:
            os.kill(watcher, signal.SIGINT)
        wait_until(lambda: not (is_alive(watcher) or is_alive(server)))
        assert folder.exists() == (killed == "watcher"), "a live client removes its own files"
    finally:
        client.kill()
        client.wait()
        client.stdout.close()


@pytest.mark.slow
def test_temporary_files_of_submission_are_removed_with_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    created = []

    class Runner(TidyRunner, FlinkRunner):
        def run_portable_pipeline(self, *unused):
            created.extend(path.name for path in tmp_path.rglob("*"))

    options = parse_pipeline_options(["--runner=FlinkRunner", "--environment_type=PROCESS", '--environment_config={"command": "/boot"}'])
    pipeline = beam.Pipeline(runner=Runner(), options=options)
    pipeline | beam.Impulse()
    with choose_engine(options).closing(pipeline.runner):
        pipeline.run()
    assert "submission_environment_dependencies.txt" in created
    assert os.listdir(tmp_path) == ["beam-requirements-cache"], "the next job uses the cache"


@pytest.mark.slow(4)
def test_failing_job_server_is_reported_in_one_line(tmp_path, capsys):
    write_class_folders(tmp_path / "in", {"rose": 2, "tulip": 2})
    (tmp_path / "broken.jar").touch()
    flink = ["--runner=FlinkRunner", "--environment_type=LOOPBACK", f"--flink_job_server_jar={tmp_path}/broken.jar"]
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nexit 3\n")
    java.chmod(0o755)
    command = ["prepare", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *flink, f"--job_server_java_launcher={java}"]
    assert main(command) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("recordmill: --runner=FlinkRunner: ") and "(Service failed to start up with error 3)" in error
    assert not os.path.exists(tmp_path / "out") and not list(tmp_path.glob("*.incomplete"))
