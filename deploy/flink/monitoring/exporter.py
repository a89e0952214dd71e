"""Exports Recordmill's counters from a Flink cluster to Prometheus: `http://HOST:9260/metrics`.

    python deploy/flink/monitoring/exporter.py --flink_master localhost:8081

In Flink, Beam's counters are accumulators of the job. Flink's metric reporters omit accumulators, but Flink's REST
interface returns them. A worker updates the counters of a stage after it has finished the stage. `/healthz` responds
without a request to Flink. The exporter needs only Python.
"""

import argparse
import base64
import collections
import http.server
import json
import sys
import urllib.error
import urllib.request
from typing import Any, Iterator

_NAMESPACE = "recordmill"
_URN = "beam:metric:user:sum_int64:v1"
_SECONDS_TO_ANSWER = 10
_COUNTERS = ("listed", "written", "dead_letters", "written_bytes", "retries")  # The counters that do not belong to a single stage or reason.

# Name -> description.
METRICS = {
    "recordmill_job_running": "1 while the job is running, including restarts.",
    "recordmill_waiting_tasks": "Tasks of the job that wait for a free slot.",
    "recordmill_dead_letters_by_reason_total": "Rejected inputs, by reason.",
    "recordmill_stage_seconds_total": "Seconds of work in a stage, summed over all workers.",
    "recordmill_listed_total": "Listed inputs.",
    "recordmill_written_total": "Inputs that were written, or rejected by the writer.",
    "recordmill_dead_letters_total": "Rejected inputs.",
    "recordmill_written_bytes_total": "Bytes of written records.",
    "recordmill_retries_total": "Retried requests to object stores.",
}


def read_counters(accumulators: dict[str, Any]) -> dict[str, int]:
    """Returns the sum of each counter over all steps, from the response to `jobs/ID/accumulators`."""
    counters = collections.Counter()
    for accumulator in accumulators["user-task-accumulators"]:
        if accumulator["name"] == "__metricscontainers":
            for metric in json.loads(accumulator["value"])["metrics"].get("attempted", []):
                if metric["urn"] == _URN and metric["labels"]["NAMESPACE"] == _NAMESPACE:
                    counters[metric["labels"]["NAME"]] += _decode(base64.b64decode(metric["payload"]))
    return dict(counters)


def _decode(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(varint))


class Flink:
    """The REST interface of a cluster.

    Args:
        master: HOST:PORT of the interface.
    """

    def __init__(self, master: str) -> None:
        self._url = f"http://{master}"

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}", timeout=_SECONDS_TO_ANSWER) as response:
            return json.load(response)

    def metrics(self) -> str:
        """Returns the metrics of all jobs on the cluster, in the text format of Prometheus.

        Raises:
            OSError: The cluster does not respond.
        """
        lines: dict[str, list[str]] = {name: [] for name in METRICS}
        for job in self.ask("jobs/overview")["jobs"]:
            accumulators = self._accumulators(job["jid"])
            if accumulators is None:
                continue
            labels = {"job_name": job["name"], "job_id": job["jid"]}
            values = [("recordmill_job_running", {}, int(job["end-time"] < 0)), ("recordmill_waiting_tasks", {}, job["tasks"]["scheduled"])]
            # Counters start at 0, because a worker reports its counts all at once, and Prometheus detects an increase
            # only after a lower value.
            counters = dict.fromkeys(_COUNTERS, 0) | read_counters(accumulators)
            values += _named(counters)
            for name, value_labels, value in values:
                lines[name].append(_line(name, {**labels, **value_labels}, value))
        output = []
        for name, metric_lines in lines.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            output += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} {kind}", *metric_lines]
        return "\n".join(output) + "\n"

    def _accumulators(self, job_id: str) -> Any:
        """Returns the accumulators of a job, or None if Flink no longer knows the job."""
        try:
            return self.ask(f"jobs/{job_id}/accumulators")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None


def _named(counters: dict[str, int]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Converts counters to metrics. Yields the name, the labels and the value of each metric."""
    for counter, value in sorted(counters.items()):
        if counter.endswith("_msecs"):
            yield "recordmill_stage_seconds_total", {"stage": counter.removesuffix("_msecs")}, value / 1000
        elif counter.startswith("dead_letters_"):
            yield "recordmill_dead_letters_by_reason_total", {"reason": counter.removeprefix("dead_letters_")}, value
        elif f"recordmill_{counter}_total" in METRICS:
            yield f"recordmill_{counter}_total", {}, value


def _line(name: str, labels: dict[str, str], value: float) -> str:
    return f"{name}{{{','.join(f'{label}={_quote(text)}' for label, text in labels.items())}}} {value!r}"


def _quote(text: str) -> str:
    """Quotes the value of a label, and escapes the three special characters of Prometheus' text format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def serve(flink: Flink, port: int) -> http.server.ThreadingHTTPServer:
    """Returns an HTTP server that listens on the port. Port 0 selects a free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = 404, "not found; use /metrics or /healthz\n"
            try:
                if self.path == "/metrics":
                    status, text = 200, flink.metrics()
                elif self.path == "/healthz":
                    status, text = 200, "ok\n"
            except (OSError, ValueError) as error:
                status, text = 503, f"Flink does not respond: {error}\n"  # Sets `up` in Prometheus to 0.
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode(errors="replace"))

        def log_message(self, *unused: object) -> None:
            """Disables the log of requests."""

    return http.server.ThreadingHTTPServer(("", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flink_master", default="localhost:8081", help="HOST:PORT of the REST interface of the cluster. Default: %(default)s.")
    parser.add_argument("--port", type=int, default=9260, help="Port on which Prometheus reads the metrics. Default: %(default)s.")
    arguments = parser.parse_args()
    server = serve(Flink(arguments.flink_master), arguments.port)
    print(f"exporter.py: http://localhost:{server.server_port}/metrics", file=sys.stderr)
    server.serve_forever()


if __name__ == "__main__":
    main()
