"""Runs a real Flink cluster on this machine: a JobManager, two TaskManagers, and Python workers as processes.

    python deploy/flink/cluster.py up        # download packages at first use; print options for `recordmill prepare`
    python deploy/flink/cluster.py status
    python deploy/flink/cluster.py down

Run the script with the Python in which recordmill is installed, because the workers use the same Python. The script
requires Linux, Java 11 or later, and Maven.
"""

import argparse
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

from flink_packages import CACHE, FLINK, JAR, LIBRARIES, STAYING_JAR, ClusterError, call, fetch, java, missing_tools  # noqa: F401
from processes import belongs_to, command_line, end

_BOOT = pathlib.Path(__file__).resolve().parent / "boot.py"
_SECONDS_TO_START = 300

_OPENED = ("lang", "net", "io", "nio", "lang.reflect", "text", "time", "util", "util.concurrent")
_JAVA_MODULES = [
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]
_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c{1} - %m%n
"""


class Cluster:
    """A Flink cluster whose configuration, logs and process ids are in one folder.

    Args:
        folder: The folder of this cluster. Each cluster needs its own folder.
        rest_port: The port of the JobManager's REST interface and web page. 0 selects a free port. A running cluster
            keeps its port.
    """

    def __init__(self, folder: pathlib.Path, rest_port: int = 8081) -> None:
        self.folder = folder.resolve()
        self._settings = self.folder / "cluster.json"
        if self._settings.exists() and self.is_running():
            rest_port = json.loads(self._settings.read_text())["rest_port"]
        self.rest_port = rest_port

    @property
    def options(self) -> list[str]:
        """Returns the options of `recordmill prepare` that select this cluster."""
        return [
            "--runner=FlinkRunner",
            f"--flink_master=localhost:{self.rest_port}",
            f"--flink_version={FLINK.rpartition('.')[0]}",
            f"--flink_job_server_jar={STAYING_JAR}",
            "--environment_type=PROCESS",
            f"--environment_config={json.dumps({'command': str(self.folder / 'boot')})}",
            "--parallelism=2",
            "--shared_filesystem",
        ]

    def up(self) -> None:
        """Starts the cluster and waits until it is ready.

        Raises:
            ClusterError: The cluster cannot run on this machine, or does not start.
        """
        self._check()
        fetch()
        self.down()  # Ends workers of a killed cluster.
        self._configure()
        try:
            self._start("job-manager", [], _JOB_MANAGER, [])
            for number in (1, 2):
                self.start_task_manager(f"task-manager-{number}")
            self.wait_for_task_managers(2)
        except BaseException:
            self.down()
            raise

    def _check(self) -> None:
        if not os.path.exists("/proc/self/cmdline"):
            raise ClusterError("this program needs Linux, because it finds the processes of the cluster in /proc")
        for package in ("apache_beam", "beam_pipelines"):
            if not importlib.util.find_spec(package):
                raise ClusterError(
                    f"{sys.executable} has no package {package}. Run this program with the Python that has "
                    "recordmill[beam]."
                )
        if self.is_running():
            raise ClusterError(f"a cluster is already running in {self.folder}. Stop it first with `cluster.py down`.")
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", self.rest_port)) == 0:
                raise ClusterError(f"port {self.rest_port} is in use. Pass a free port with --rest_port.")

    def _configure(self) -> None:
        # `_check` has verified that the package is installed.
        from beam_pipelines.runners.job_servers import reserve_port

        self.rest_port = self.rest_port or reserve_port()
        for name in ("conf", "logs", "pids", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        settings = {
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": reserve_port(),
            "jobmanager.bind-host": "localhost",
            "jobmanager.memory.process.size": "1600m",
            "taskmanager.bind-host": "localhost",
            "taskmanager.host": "localhost",
            "taskmanager.memory.process.size": "1728m",
            "taskmanager.numberOfTaskSlots": 1,
            # An analysis has dozens of small concurrent stages. By default, each takes 16 MB of network memory.
            "taskmanager.network.sort-shuffle.min-buffers": 32,
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": self.rest_port,
            "parallelism.default": 2,
            "io.tmp.dirs": self.folder / "tmp",
            # Seconds. By default, each job's copy of the job server is kept for an hour.
            "blob.service.cleanup.interval": 60,
            # Without a restart strategy, the loss of one TaskManager fails the job.
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 10,  # The loss of one TaskManager can cause two restarts.
            "restart-strategy.fixed-delay.delay": "2 s",
            # Loads Beam's job server from the class path instead of the copy in each job. Its classes are then loaded
            # and compiled once, and workers survive from stage to stage, which is impossible with the class loader of a
            # job.
            "classloader.resolve-order": "parent-first",
            # Retry delay (ms) of a TaskManager that starts before the JobManager. The default is 10 s.
            "cluster.registration.error-delay": 500,
            "heartbeat.timeout": 10000,
            "heartbeat.interval": 500,  # A lost TaskManager is detected before the job restarts.
        }
        conf, boot = self.folder / "conf", self.folder / "boot"
        (conf / "config.yaml").write_text("".join(f"{name}: {json.dumps(str(value))}\n" for name, value in settings.items()))
        (conf / "log4j.properties").write_text(_LOGGING)
        log = self.folder / "logs" / "workers.log"  # Flink discards the output of workers that fail to start.
        boot.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{_BOOT}" "--cluster={self.folder}" "$@" 2>>"{log}"\n')
        boot.chmod(0o755)
        self._settings.write_text(json.dumps({"rest_port": self.rest_port}))

    def start_task_manager(self, name: str) -> None:
        """Starts a further TaskManager. `kill` accepts its name."""
        java_options, settings = self._task_manager_options
        self._start(name, java_options, _TASK_MANAGER, [*settings, "-D", f"taskmanager.resource-id={name}"])

    @functools.cached_property
    def _task_manager_options(self) -> tuple[list[str], list[str]]:
        """The Java options and the settings that Flink computes from the cluster's configuration."""
        tool = "org.apache.flink.runtime.util.bash.BashJavaUtils"
        classpath = f"{LIBRARIES}/bin/bash-java-utils.jar:{LIBRARIES}/lib/*"
        command = [java(), "-cp", classpath, tool, "GET_TM_RESOURCE_PARAMS", "--configDir", self.folder / "conf"]
        printed = call(command, stderr=subprocess.DEVNULL)
        marked = [line.partition("BASH_JAVA_UTILS_EXEC_RESULT:")[2] for line in printed.splitlines()]
        java_options, settings = (line.split() for line in marked if line)
        return java_options, settings

    def _start(self, name: str, java_options: list[str], main_class: str, arguments: list[str]) -> None:
        conf = self.folder / "conf"
        command = [java(), *java_options, *_JAVA_MODULES, f"-Dlog4j.configurationFile={conf / 'log4j.properties'}"]
        command += [f"-Djava.io.tmpdir={self.folder / 'tmp'}", "-cp", f"{LIBRARIES}/lib/*:{JAR}", main_class, "--configDir", str(conf), *arguments]
        environment = {**os.environ, "FLINK_PLUGINS_DIR": str(LIBRARIES / "plugins")}
        with open(self.folder / "logs" / f"{name}.log", "wb") as log:
            # A separate session, so that Ctrl-C in the terminal does not reach the process.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        (self.folder / "pids" / name).write_text(str(process.pid))

    def wait_for_task_managers(self, count: int) -> None:
        """Waits until `count` TaskManagers are registered."""
        deadline = time.monotonic() + _SECONDS_TO_START
        while self.overview().get("taskmanagers") != count:
            for name, pid in self.process_ids().items():
                if not belongs_to(self.folder, pid):
                    raise ClusterError(
                        f"{name} ended while the cluster was starting. See {self.folder / 'logs' / name}.log."
                    )
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the cluster did not start within {_SECONDS_TO_START} s. See {self.folder / 'logs'}."
                )
            time.sleep(0.2)

    def overview(self) -> dict[str, Any]:
        """Returns Flink's cluster overview, or an empty dictionary if Flink does not respond."""
        try:
            return self.ask("overview")
        except OSError:
            return {}

    def ask(self, path: str) -> dict[str, Any]:
        """Returns a response of the REST interface. Raises OSError if Flink does not respond."""
        with urllib.request.urlopen(f"http://localhost:{self.rest_port}/{path}", timeout=5) as response:
            return json.load(response)

    def process_ids(self) -> dict[str, int]:
        """Returns the process ID of each JobManager and TaskManager that this object started, by name."""
        return {path.name: int(path.read_text()) for path in sorted((self.folder / "pids").glob("*"))}

    def worker_ids(self) -> list[int]:
        """Returns the process IDs of the Python workers, including workers whose TaskManager has ended."""
        processes = (int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*"))
        return [pid for pid in processes if f"--cluster={self.folder}" in command_line(pid)]

    def is_running(self) -> bool:
        """Returns whether a JobManager or a TaskManager is running."""
        return any(belongs_to(self.folder, pid) for pid in self.process_ids().values())

    def kill(self, name: str) -> None:
        """Kills a JobManager or TaskManager immediately, as a power failure would."""
        end(self.folder, self.process_ids()[name], signal.SIGKILL)
        (self.folder / "pids" / name).unlink()

    def down(self) -> None:
        """Stops the processes of this cluster, and removes their temporary files. Keeps configuration and logs."""
        for name, pid in sorted(self.process_ids().items(), reverse=True):  # TaskManagers end first.
            end(self.folder, pid, signal.SIGTERM)
            (self.folder / "pids" / name).unlink()
        for pid in self.worker_ids():  # Workers can outlive a killed TaskManager.
            end(self.folder, pid, signal.SIGKILL)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("fetch", "up", "status", "down"))
    parser.add_argument("--folder", type=pathlib.Path, default=CACHE / "flink-cluster", help="Folder for configuration, logs and process IDs. Default: %(default)s.")
    parser.add_argument("--rest_port", type=int, default=8081, help="Port of the REST interface. 0 selects a free port. Default: 8081.")
    arguments = parser.parse_args()
    cluster = Cluster(arguments.folder, arguments.rest_port)
    try:
        if arguments.command == "fetch":
            fetch()
        elif arguments.command == "up":
            cluster.up()
            print(
                f"A Flink cluster is running: http://localhost:{cluster.rest_port}. Add these options to `recordmill "
                "prepare`:\n"
            )
            print(" \\\n".join(f"  '{option}'" for option in cluster.options))
        elif arguments.command == "status":
            overview = cluster.overview()
            print(json.dumps({**overview, "processes": cluster.process_ids(), "workers": cluster.worker_ids()}, indent=2))
            return 0 if overview else 1
        else:
            cluster.down()
    except ClusterError as error:
        print(f"cluster.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
