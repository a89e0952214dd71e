"""A real Flink cluster on this machine, from packages alone: a JobManager, two TaskManagers, Python workers as processes.

    python deploy/flink/cluster.py up        # fetches what it needs the first time; prints what to add to `recordmill prepare`
    python deploy/flink/cluster.py status
    python deploy/flink/cluster.py down

Run it with the Python that recordmill is installed in: its workers run in the same one. It needs Linux, Java 11 or later, Maven.
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
    """A cluster whose configuration, logs and process ids lie in one folder.

    Args:
        folder: Where; each cluster has its own.
        rest_port: Of the JobManager's REST interface and page; 0: any free one. A cluster that is up keeps its own.
    """

    def __init__(self, folder: pathlib.Path, rest_port: int = 8081) -> None:
        self.folder = folder.resolve()
        self._settings = self.folder / "cluster.json"
        if self._settings.exists() and self.is_running():
            rest_port = json.loads(self._settings.read_text())["rest_port"]
        self.rest_port = rest_port

    @property
    def options(self) -> list[str]:
        """What `recordmill prepare` needs to run here."""
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
        """Starts it and waits until it can work.

        Raises:
            ClusterError: It cannot run here, or does not come up.
        """
        self._check()
        fetch()
        self.down()  # workers that a killed cluster left
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
            raise ClusterError("this needs Linux, where /proc tells which processes are the cluster's")
        for package in ("apache_beam", "beam_pipelines"):
            if not importlib.util.find_spec(package):
                raise ClusterError(f"{sys.executable} has no {package}; expected the Python that recordmill[beam] is installed in")
        if self.is_running():
            raise ClusterError(f"a cluster runs already in {self.folder}; take it down first")
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", self.rest_port)) == 0:
                raise ClusterError(f"something listens on port {self.rest_port} already; expected a free one: --rest_port")

    def _configure(self) -> None:
        from beam_pipelines.runners.job_servers import reserve_port  # which is there, as `_check` has seen

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
            # An analysis has dozens of stages at a time, and little in each: by default every one takes 16 MB of network memory.
            "taskmanager.network.sort-shuffle.min-buffers": 32,
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": self.rest_port,
            "parallelism.default": 2,
            "io.tmp.dirs": self.folder / "tmp",
            "blob.service.cleanup.interval": 60,  # seconds; by default a TaskManager keeps each job's copy of the job server for an hour
            # Without these the loss of one TaskManager fails the job.
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 10,  # the loss of one may cost two
            "restart-strategy.fixed-delay.delay": "2 s",
            # From the class path, where Beam's job server lies too, and not from the copy that comes with each job: its classes are loaded
            # and compiled once, and workers live on from stage to stage, which those of a job's own class loader never do.
            "classloader.resolve-order": "parent-first",
            "cluster.registration.error-delay": 500,  # of a TaskManager that is up before the JobManager is: by default it looks again after 10 s
            "heartbeat.timeout": 10000,
            "heartbeat.interval": 500,  # who is lost is known to be before the job starts again
        }
        conf, boot = self.folder / "conf", self.folder / "boot"
        (conf / "config.yaml").write_text("".join(f"{name}: {json.dumps(str(value))}\n" for name, value in settings.items()))
        (conf / "log4j.properties").write_text(_LOGGING)
        log = self.folder / "logs" / "workers.log"  # of those that do not start: Flink keeps nothing of what they say
        boot.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{_BOOT}" "--cluster={self.folder}" "$@" 2>>"{log}"\n')
        boot.chmod(0o755)
        self._settings.write_text(json.dumps({"rest_port": self.rest_port}))

    def start_task_manager(self, name: str) -> None:
        """Starts one more; its name is what `kill` takes."""
        java_options, settings = self._task_manager_options
        self._start(name, java_options, _TASK_MANAGER, [*settings, "-D", f"taskmanager.resource-id={name}"])

    @functools.cached_property
    def _task_manager_options(self) -> tuple[list[str], list[str]]:
        """What Flink makes of the configuration: Java's options, and settings."""
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
            # In a session of its own: Ctrl-C at the terminal is not for it.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        (self.folder / "pids" / name).write_text(str(process.pid))

    def wait_for_task_managers(self, count: int) -> None:
        """Until so many offer their slots."""
        deadline = time.monotonic() + _SECONDS_TO_START
        while self.overview().get("taskmanagers") != count:
            for name, pid in self.process_ids().items():
                if not belongs_to(self.folder, pid):
                    raise ClusterError(f"{name} ended while the cluster came up; see {self.folder / 'logs' / name}.log")
            if time.monotonic() > deadline:
                raise ClusterError(f"the cluster did not come up in {_SECONDS_TO_START} s; see {self.folder / 'logs'}")
            time.sleep(0.2)

    def overview(self) -> dict[str, Any]:
        """What the REST interface says of the cluster; empty where it does not answer."""
        try:
            return self.ask("overview")
        except OSError:
            return {}

    def ask(self, path: str) -> dict[str, Any]:
        """What the REST interface answers; OSError where it does not."""
        with urllib.request.urlopen(f"http://localhost:{self.rest_port}/{path}", timeout=5) as response:
            return json.load(response)

    def process_ids(self) -> dict[str, int]:
        """Name -> process id, of the JobManager and the TaskManagers that were started and not ended by us."""
        return {path.name: int(path.read_text()) for path in sorted((self.folder / "pids").glob("*"))}

    def worker_ids(self) -> list[int]:
        """Process ids of the Python workers, those too whose TaskManager is gone."""
        processes = (int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*"))
        return [pid for pid in processes if f"--cluster={self.folder}" in command_line(pid)]

    def is_running(self) -> bool:
        """Whether a JobManager or a TaskManager is there."""
        return any(belongs_to(self.folder, pid) for pid in self.process_ids().values())

    def kill(self, name: str) -> None:
        """Ends a JobManager or TaskManager as a power cut would."""
        end(self.folder, self.process_ids()[name], signal.SIGKILL)
        (self.folder / "pids" / name).unlink()

    def down(self) -> None:
        """Ends exactly the processes of this cluster, and removes what they kept beside their configuration and logs."""
        for name, pid in sorted(self.process_ids().items(), reverse=True):  # TaskManagers first
            end(self.folder, pid, signal.SIGTERM)
            (self.folder / "pids" / name).unlink()
        for pid in self.worker_ids():  # they may outlive a killed TaskManager
            end(self.folder, pid, signal.SIGKILL)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("fetch", "up", "status", "down"))
    parser.add_argument("--folder", type=pathlib.Path, default=CACHE / "flink-cluster", help="of its configuration, logs and ids")
    parser.add_argument("--rest_port", type=int, default=8081, help="of the JobManager's page; 0: any free one (default: 8081)")
    arguments = parser.parse_args()
    cluster = Cluster(arguments.folder, arguments.rest_port)
    try:
        if arguments.command == "fetch":
            fetch()
        elif arguments.command == "up":
            cluster.up()
            print(f"A Flink cluster is up: http://localhost:{cluster.rest_port}. Add to `recordmill prepare`:\n")
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
