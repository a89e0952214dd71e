"""Flink, `--runner=FlinkRunner`: a cluster, or without one the job server's own.

A job is found and stopped by a name of its own, through the cluster's REST interface: the job server that submits it is this process's
child. Ctrl-C ends that one too, and Beam takes it down before it could be asked.
"""

import argparse
import contextlib
import http.client
import json
import re
import shutil
import urllib.error
import urllib.request
import uuid
from typing import Any, Callable, Iterator

from apache_beam.options.pipeline_options import FlinkRunnerOptions, GoogleCloudOptions, PipelineOptions, PortableOptions
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkJarJobServer, FlinkRunner
from apache_beam.runners.runner import PipelineResult
from apache_beam.utils.subprocess_server import JavaHelper, JavaJarServer

from beam_pipelines.errors import EngineError, RunError, UserError
from beam_pipelines.runners.engine import Engine, Job, check_program, job_name
from beam_pipelines.runners.flink_watch import JobWatch
from beam_pipelines.runners.job_servers import JobServerRunner

_KEPT_MILLISECONDS = 1000  # of workers without work; with TensorFlow:
_KEPT_WITH_TENSORFLOW = 60_000
_ENDED = ("CANCELED", "FINISHED", "FAILED")
_SECONDS_TO_ANSWER = 10
_JAVA_ERROR = re.compile(r"\b(java|org\.apache)\.[\w.$]+(Exception|Error)\b.*")


class FlinkExchangeOptions(PipelineOptions):
    """An option of Flink's that Beam passes on, and that its Python does not know."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--execution_mode_for_batch",
            choices=("PIPELINED", "PIPELINED_FORCED", "BATCH", "BATCH_FORCED"),
            help="How Flink hands on what a stage gives; PIPELINED if not said otherwise; see `Flink.set_defaults`.",
        )


class Flink(Engine):
    """Runs pipelines on a Flink cluster, or in Flink within its job server where no cluster is named."""

    runs_tensorflow = True
    poll_seconds = 0.2

    @property
    def runs_here(self) -> bool:
        return super().runs_here or (not self.environment and not self._has_master)

    @property
    def _has_master(self) -> bool:
        """Whether the job goes to a cluster; without one it runs within the job server."""
        return self._master not in MAGIC_HOST_NAMES

    @property
    def _master(self) -> str:
        return self.options.view_as(FlinkRunnerOptions).flink_master

    def _check_needs(self, wait: bool) -> None:
        super()._check_needs(wait)
        if self._has_master:
            self._ask("config")
        flink = self.options.view_as(FlinkRunnerOptions)
        if self.options.view_as(PortableOptions).job_endpoint or flink.flink_submit_uber_jar:
            return
        java = JavaHelper.get_java()
        if not shutil.which(java):
            raise UserError(f"--runner=FlinkRunner submits by a Java program, and {java} was not found; expected Java 11 or later")
        check_program(
            "Beam's Flink job server",
            "--flink_job_server_jar",
            flink.flink_job_server_jar,
            lambda: JavaJarServer.local_jar(FlinkJarJobServer(self.options).path_to_jar()),
        )

    def set_defaults(self, name: str, *, output: str = "", run_id: str = "", has_tensorflow: bool = False) -> None:
        """Gives the job a name that no other one has, and lets stages run side by side.

        Who loses a TaskManager then lists and plans again, and writes the shards that were not finished; those that were are found by what
        lies beside them. BATCH_FORCED would keep the plan too, and takes half as long again, since each stage waits for the one before.

        A job's workers live on from stage to stage, unless the user says for how long: each would import Beam anew, and TensorFlow. One
        that is killed is replaced only when its time is over. It needs a cluster that has Beam's job server on its class path, as that of
        `deploy/flink/cluster.py`; others end them at each stage.
        """
        cloud = self.options.view_as(GoogleCloudOptions)  # Flink takes the same option
        cloud.job_name = job_name(cloud.job_name or f"recordmill-{name}", output, run_id or uuid.uuid4().hex)
        exchange = self.options.view_as(FlinkExchangeOptions)
        exchange.execution_mode_for_batch = exchange.execution_mode_for_batch or "PIPELINED"
        portable, kept = self.options.view_as(PortableOptions), _KEPT_WITH_TENSORFLOW if has_tensorflow else _KEPT_MILLISECONDS
        portable.environment_cache_millis = portable.environment_cache_millis or kept

    def make_runner(self) -> FlinkRunner:
        return _FlinkRunner()

    @contextlib.contextmanager
    def watching(self, interrupt: Callable[[UserError | RunError], None]) -> Iterator[None]:
        if not self._has_master:
            yield
            return
        name = self.options.view_as(GoogleCloudOptions).job_name
        watch = JobWatch(self._ask, name, f"--flink_master={self._master}", self._worker_logs, interrupt)
        watch.start()
        try:
            yield
        except BaseException:
            watch.stop()
            raise
        watch.finish()

    @property
    def _worker_logs(self) -> str:
        """Where it stands why a Python worker does not start: Flink hears nothing of that."""
        if self.environment == "EXTERNAL":
            return f"the log of the pool of workers there (--environment_config={self.options.view_as(PortableOptions).environment_config})"
        return "the log of the program in --environment_config" if self.environment == "PROCESS" else "the log of its container there"

    def stop(self, result: PipelineResult | None) -> None:
        if not self._has_master:
            return super().stop(result)
        with contextlib.suppress(Exception):  # Ctrl-C has ended the job server; without it, it must not submit from now on
            result.cancel()
        name = self.options.view_as(GoogleCloudOptions).job_name
        self._cancel_until_none(lambda job: job.name == name)

    def explain(self, error: Exception) -> UserError | RunError | None:
        """What Java tells of the cluster; what Python tells is of the job, and a fault of ours keeps its traceback."""
        told = _JAVA_ERROR.search(str(error))
        if told and "Traceback (most recent call last)" not in str(error):
            return EngineError(f"--flink_master={self._master}: Flink gave up the job ({' '.join(told[0].split())[:300]})")
        return super().explain(error)

    def _list_jobs(self) -> list[Job]:
        if not self._has_master:
            return []
        jobs = self._ask("jobs/overview")["jobs"]
        return [
            Job(job["jid"], job["name"], job["state"], f"{self._url}/#/job/running/{job['jid']}")
            for job in jobs
            if job["state"] not in _ENDED
        ]

    def _cancel_job(self, job_id: str) -> None:
        self._ask(f"jobs/{job_id}?mode=cancel", "PATCH")

    @property
    def _url(self) -> str:
        return FlinkRunner.add_http_scheme(self._master)

    def _ask(self, path: str, method: str = "GET") -> Any:
        """What the cluster's REST interface answers; EngineError where it does not, UserError where it is none."""
        try:
            request = urllib.request.Request(f"{self._url}/{path}", method=method)
            with urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER) as response:
                return json.load(response)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            told = f"--flink_master={self._master}: no answer ({getattr(reason, 'strerror', None) or reason})"
            if isinstance(error, OSError) and not isinstance(error, urllib.error.HTTPError):
                raise EngineError(f"{told}: is the cluster's JobManager up, and is that its REST interface?") from error
            raise UserError(f"{told}; expected HOST:PORT of a Flink cluster's REST interface") from None


class _FlinkRunner(JobServerRunner, FlinkRunner):
    pass
