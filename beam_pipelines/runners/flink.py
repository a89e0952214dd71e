"""Runs jobs on a Flink cluster, or inside Beam's Flink job server (`--runner=FlinkRunner`).

Each job on a cluster has a unique name. This module uses the name to find and cancel the job through the cluster's REST
interface. The job server cannot cancel the job after Ctrl-C, because Ctrl-C also ends the job server.
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

_KEPT_MILLISECONDS = 1000  # Time after which an idle worker process ends.
_KEPT_WITH_TENSORFLOW = 60_000
_ENDED = ("CANCELED", "FINISHED", "FAILED")
_SECONDS_TO_ANSWER = 10
_JAVA_ERROR = re.compile(r"\b(java|org\.apache)\.[\w.$]+(Exception|Error)\b.*")


class FlinkExchangeOptions(PipelineOptions):
    """An option of the Flink job server that Beam's Python SDK does not define."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--execution_mode_for_batch",
            choices=("PIPELINED", "PIPELINED_FORCED", "BATCH", "BATCH_FORCED"),
            help="How Flink exchanges data between stages. Default: PIPELINED.",
        )


class Flink(Engine):
    """Runs pipelines on a Flink cluster, or inside Beam's Flink job server if no cluster is given."""

    runs_tensorflow = True
    poll_seconds = 0.2

    @property
    def is_local(self) -> bool:
        return super().is_local or (not self.environment and not self._has_master)

    @property
    def _has_master(self) -> bool:
        """Whether the job runs on a cluster. Otherwise, it runs inside the job server."""
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
            raise UserError(f"--runner=FlinkRunner needs Java, but {java} was not found. Install Java 11 or later.")
        check_program(
            "Beam's Flink job server",
            "--flink_job_server_jar",
            flink.flink_job_server_jar,
            lambda: JavaJarServer.local_jar(FlinkJarJobServer(self.options).path_to_jar()),
        )

    def set_defaults(self, name: str, *, output: str = "", run_id: str = "", has_tensorflow: bool = False) -> None:
        """Sets a unique job name, the execution mode and the lifetime of idle workers.

        By default, stages run in parallel (PIPELINED). If a TaskManager is lost, the restarted job repeats the listing
        and planning, but writes only unfinished shards. The execution mode BATCH_FORCED would keep the plan, but would
        take 50% longer.

        Idle workers stay alive between stages, so that they do not import Beam and TensorFlow again. This lifetime
        has an effect only if Beam's job server is on the class path of the Flink cluster.
        """
        cloud = self.options.view_as(GoogleCloudOptions)  # Flink also uses the option --job_name.
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
        """Names the log that explains why a Python worker does not start. Flink does not report the reason."""
        if self.environment == "EXTERNAL":
            return (
                "the log of the worker pool on that machine "
                f"(--environment_config={self.options.view_as(PortableOptions).environment_config})"
            )
        if self.environment == "PROCESS":
            return "the log of the program in --environment_config"
        return "the log of the worker container on that machine"

    def stop(self, result: PipelineResult | None) -> None:
        if not self._has_master:
            return super().stop(result)
        with contextlib.suppress(Exception):  # A job server that has not ended must not submit the job later.
            result.cancel()
        name = self.options.view_as(GoogleCloudOptions).job_name
        self._cancel_until_none(lambda job: job.name == name)

    def explain(self, error: Exception) -> UserError | RunError | None:
        """Converts Java exceptions of the cluster to `EngineError`.

        Exceptions with a Python traceback are not converted, because they come from the code of the job.
        """
        java_error = _JAVA_ERROR.search(str(error))
        if java_error and "Traceback (most recent call last)" not in str(error):
            return EngineError(
                f"--flink_master={self._master}: the Flink job failed ({' '.join(java_error[0].split())[:300]})"
            )
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
        """Sends a request to the cluster's REST interface and returns the JSON response.

        Raises:
            EngineError: The cluster does not respond.
            UserError: The response is invalid, so `--flink_master` is probably not a Flink REST interface.
        """
        try:
            request = urllib.request.Request(f"{self._url}/{path}", method=method)
            with urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER) as response:
                return json.load(response)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            problem = f"--flink_master={self._master}: no valid response ({getattr(reason, 'strerror', None) or reason})"
            if isinstance(error, OSError) and not isinstance(error, urllib.error.HTTPError):
                raise EngineError(
                    f"{problem}. Check that the JobManager is running, and that this is the address of its REST interface."
                ) from error
            raise UserError(f"{problem}. Give HOST:PORT of the REST interface of a Flink cluster.") from None


class _FlinkRunner(JobServerRunner, FlinkRunner):
    pass
