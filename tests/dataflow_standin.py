"""Runs a local server that emulates the REST interface of Dataflow and the metadata server for credentials.

The command `dataflow_standin.py gs://…/pipeline.pb` executes the pipeline of a submitted job, as Dataflow's workers do.
"""

import contextlib
import dataclasses
import http.server
import json
import re
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from typing import Any, Callable, Iterator

PROJECT, REGION = "made-project", "europe-west1"

_LOCATION = f"/v1b3/projects/{PROJECT}/locations/{REGION}"
_TOKEN = "made-token"
_METADATA = {
    "project/project-id": PROJECT,
    "universe/universe-domain": "googleapis.com",
    "instance/service-accounts/default/": {"aliases": ["default"], "email": "made@made-project", "scopes": ["all"]},
    "instance/service-accounts/default/email": "made@made-project",
    "instance/service-accounts/default/token": {"access_token": _TOKEN, "expires_in": 3600, "token_type": "Bearer"},
}
_REASONS = {403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}


class Job:
    """A job of the service.
    Attributes:
        id: ID that the service assigns.
        request: Request that created the job.
    """

    def __init__(self, job_id: str, request: dict[str, Any], work: Callable[[dict[str, Any]], str]) -> None:
        self.id, self.request = job_id, request
        self._end: Future[str] = Future()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[dict[str, Any]], str]) -> None:
        try:
            end = work(self.request)
        except Exception as error:
            with contextlib.suppress(Exception):  # the job was cancelled
                self._end.set_exception(error)
        else:
            with contextlib.suppress(Exception):
                self._end.set_result(end)

    def cancel(self) -> None:
        self._end.set_result("JOB_STATE_CANCELLED")

    @property
    def state(self) -> str:
        if not self._end.done():
            return "JOB_STATE_RUNNING"
        return "JOB_STATE_FAILED" if self._end.exception() else self._end.result()

    @property
    def error(self) -> str:
        """The traceback of a failed worker, which the service reports as the error message of the job."""
        error = self._end.exception() if self._end.done() else None
        return "".join(traceback.format_exception(error)).strip() if error else ""


@dataclasses.dataclass
class DataflowStandin:
    """A fake Dataflow service, which records all calls.
    Attributes:
        url: `http://localhost:PORT`. Beam uses REST without TLS only for the host name localhost.
        work: Function that runs a job in a thread: it takes the request and returns the final state, or raises.
        refusal: HTTP status and message of the response to a new job, or None to accept the job.
        jobs: All jobs that were created.
        launches: Parameters of all launches of a Flex Template.
        calls: Method and path of every call.
        authorized: Whether the call had the token of the metadata server, for every call.
    """

    url: str = ""
    work: Callable[[dict[str, Any]], str] = lambda job: "JOB_STATE_DONE"
    refusal: tuple[int, str] | None = None
    jobs: list[Job] = dataclasses.field(default_factory=list)
    launches: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    calls: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    authorized: list[bool] = dataclasses.field(default_factory=list)

    @property
    def flags(self) -> list[str]:
        """The options that make `recordmill` run its pipelines on this service."""
        location = (f"--project={PROJECT}", f"--region={REGION}")
        return ["--runner=DataflowRunner", *location, "--service_account_email=a@b", "--max_num_workers=9", f"--dataflow_endpoint={self.url}"]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make Google's libraries request credentials only from this service."""
        address = self.url.removeprefix("http://")
        return {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address, "NO_GCE_CHECK": "False"}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Returns the HTTP status and the JSON content of the response to a call."""
        if path.startswith("/computeMetadata/v1/"):
            actual = _METADATA.get(path.removeprefix("/computeMetadata/v1/"))
            return (404, {}) if actual is None else (200, actual)
        if (method, path) == ("GET", "/"):  # Google's libraries detect a metadata server with this request
            return 200, ""
        if (method, path) == ("POST", f"{_LOCATION}/flexTemplates:launch"):
            self.launches.append(body["launchParameter"])
            return 200, {"job": {"id": "launched", "projectId": PROJECT, "location": REGION}}
        if (method, path) == ("POST", f"{_LOCATION}/jobs"):
            return self._create(body)
        if (method, path) == ("GET", f"{_LOCATION}/jobs"):
            return 200, {"jobs": [self._describe(job) for job in self._active()]}
        match = re.fullmatch(rf"{_LOCATION}/jobs/job-(\d+)(/messages|/metrics)?", path)
        if not match or int(match[1]) >= len(self.jobs):
            return 404, {"error": {"code": 404, "message": f"{method} {path}"}}
        job = self.jobs[int(match[1])]
        if method == "PUT" and body["requestedState"] in ("JOB_STATE_CANCELLED", 5):
            job.cancel()
        if match[2]:
            return 200, self._messages(job) if match[2] == "/messages" else {"metrics": []}
        return 200, self._describe(job)

    def _create(self, request: dict[str, Any]) -> tuple[int, Any]:
        if self.refusal:
            status, message = self.refusal
            return status, {"error": {"code": status, "message": message, "status": _REASONS[status]}}
        for job in self._active():
            if job.request["name"] == request["name"]:
                return 200, self._describe(job)  # Beam recognizes an existing job by its different clientRequestId
        self.jobs.append(Job(f"job-{len(self.jobs)}", request, self.work))
        return 200, {**self._describe(self.jobs[-1]), "currentState": "JOB_STATE_PENDING"}

    def _active(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "JOB_STATE_RUNNING"]

    def _describe(self, job: Job) -> dict[str, Any]:
        return {
            "id": job.id,
            "name": job.request["name"],
            "clientRequestId": job.request["clientRequestId"],
            "projectId": PROJECT,
            "location": REGION,
            "currentState": job.state,
        }

    def _messages(self, job: Job) -> dict[str, Any]:
        if not job.error:
            return {}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"jobMessages": [{"time": now, "messageText": job.error, "messageImportance": "JOB_MESSAGE_ERROR"}]}


@contextlib.contextmanager
def dataflow_standin() -> Iterator[DataflowStandin]:
    """Context manager that starts and stops the service."""
    standin = DataflowStandin()

    class Handler(_Handler):
        service = standin

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    standin.url = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield standin
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    service: DataflowStandin

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        if path.startswith("/v1b3/"):
            self.service.calls.append((self.command, path))
            self.service.authorized.append(self.headers.get("Authorization") == f"Bearer {_TOKEN}")
        status, content = self.service.answer(self.command, path, json.loads(body) if body else {})
        is_text = isinstance(content, str)
        data = (content if is_text else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if is_text else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *unused: object) -> None:
        """Suppresses log messages."""

    do_GET = do_POST = do_PUT = _serve


def run_staged(path: str) -> None:
    """Runs a staged pipeline in this process and prints the imported Recordmill modules and the job state."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability import common_urns
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.transforms.environments import EmbeddedPythonEnvironment

    options = PipelineOptions(["--no_auth", f"--project={PROJECT}"])
    FileSystems.set_options(options)
    with FileSystems.open(path) as file:
        graph = beam_runner_api_pb2.Pipeline.FromString(file.read())
    here = EmbeddedPythonEnvironment.default().to_runner_api(None)
    for environment in graph.components.environments.values():
        if environment.urn == common_urns.environments.DOCKER.urn:
            environment.CopyFrom(here)
    state = fn_runner.FnApiRunner().run_via_runner_api(graph, options).wait_until_finish()
    assert "tensorflow" not in sys.modules
    print(*(module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] in ("beam_pipelines", "tf_input")), state, sep="\n")


if __name__ == "__main__":
    run_staged(sys.argv[1])
