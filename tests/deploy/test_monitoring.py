"""Tests that the dashboard and the alerts in deploy/flink/monitoring use only metrics that exist."""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
import zipfile

import pytest
import yaml

import engines

FOLDER = pathlib.Path(engines.FLINK, "monitoring")
exporter = engines.flink_exporter()

# The metrics of Flink that the dashboard and the alerts use, from the section JobManager of Flink's page "Metrics".
FLINK_METRICS = {
    "flink_jobmanager_job_numRestarts",
    "flink_jobmanager_taskSlotsAvailable",
    "flink_jobmanager_taskSlotsTotal",
}


def test_every_metric_in_dashboard_and_alerts_exists():
    alerts = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    expressions = [rule["expr"] for rule in alerts] + [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for expression in expressions for name in re.findall(r"\b(?:recordmill|flink)_\w+", expression)}
    assert used <= FLINK_METRICS | set(exporter.METRICS)
    assert set(exporter.METRICS) <= used, "unused metrics"
    for expression in expressions:
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}"), expression


def test_prometheus_scrapes_exporter_and_reporter():
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert config["rule_files"] == ["alerts.yml"]
    first, last = yaml.safe_load((FOLDER / "flink-conf.yaml").read_text())["metrics.reporter.prom.port"].split("-")
    assert targets["flink"] == [f"localhost:{port}" for port in range(int(first), int(last) + 1)]
    assert targets["recordmill"] == ["localhost:9260"]


def test_reporter_is_part_of_flink():
    jars = list(engines.flink_cluster().LIBRARIES.glob("plugins/metrics-prometheus/*.jar"))
    if not jars:
        pytest.skip("Flink is not installed: python deploy/flink/cluster.py fetch")
    name = yaml.safe_load((FOLDER / "flink-conf.yaml").read_text())["metrics.reporter.prom.factory.class"]
    with zipfile.ZipFile(jars[0]) as classes:
        assert f"{name.replace('.', '/')}.class" in classes.namelist()


def accumulators(*counters: tuple[str, bytes]) -> dict:
    """Returns a response of Flink's REST interface in which each counter is reported by two steps."""
    metrics = [
        {"urn": "beam:metric:user:sum_int64:v1", "payload": payload, "labels": {"NAMESPACE": "recordmill", "NAME": name, "PTRANSFORM": step}}
        for name, payload in counters
        for step in ("a", "b")
    ]
    metrics.append({"urn": "beam:metric:element_count:v1", "payload": "AQ==", "labels": {"PCOLLECTION": "c"}})
    value = json.dumps({"metrics": {"attempted": metrics}})
    return {"user-task-accumulators": [{"name": "__metricscontainers", "value": value}, {"name": "another", "value": "1"}]}


def test_counters_are_summed_over_steps_and_named_for_prometheus(monkeypatch):
    given = accumulators(("listed", "kgE="), ("dead_letters_bad_image", "Ag=="), ("write_msecs", "kE4="))
    assert exporter.read_counters(given) == {"listed": 292, "dead_letters_bad_image": 4, "write_msecs": 20000}
    answers = {"jobs/overview": {"jobs": [{"name": "n", "jid": "j", "end-time": -1, "tasks": {"scheduled": 3}}]}, "jobs/j/accumulators": given}
    flink = exporter.Flink("made")
    monkeypatch.setattr(flink, "ask", answers.__getitem__)
    lines = flink.metrics().splitlines()
    labels = 'job_name="n",job_id="j"'
    assert f"recordmill_listed_total{{{labels}}} 292" in lines and f"recordmill_job_running{{{labels}}} 1" in lines
    assert f"recordmill_waiting_tasks{{{labels}}} 3" in lines
    assert f'recordmill_stage_seconds_total{{{labels},stage="write"}} 20.0' in lines
    assert f'recordmill_dead_letters_by_reason_total{{{labels},reason="bad_image"}} 4' in lines


def metrics_page(monkeypatch, names: dict[str, str], **counters: int) -> str:
    """Returns the metrics page for jobs with the given IDs and names. Flink does not find the job `gone`."""
    jobs = [{"name": name, "jid": job_id, "end-time": -1, "tasks": {"scheduled": 0}} for job_id, name in names.items()]

    def ask(path: str) -> dict:
        if "gone" in path:
            raise urllib.error.HTTPError(path, 404, "Not Found", None, None)
        return {"jobs": jobs} if path == "jobs/overview" else {"user-task-accumulators": []}

    flink = exporter.Flink("made")
    monkeypatch.setattr(flink, "ask", ask)
    monkeypatch.setattr(exporter, "read_counters", lambda accumulators: counters)
    return flink.metrics()


@pytest.mark.parametrize(
    "name", ["täglich", 'a "quoted" name', "back\\slash", "\\n", "two\nlines", "日次 🚀", "\ttab", "a}b,c=d"]
)
def test_job_names_are_escaped_for_prometheus(monkeypatch, name):
    """The text format of Prometheus requires that backslashes, quotation marks and newlines are escaped."""
    lines = [line for line in metrics_page(monkeypatch, {"j": name}).split("\n") if line and not line.startswith("#")]
    assert len(lines) > 5
    for line in lines:
        label = re.fullmatch(r'\w+\{job_name="((?:[^"\\]|\\["\\n])*)",job_id="j"\} \d+', line)[1]
        assert re.sub(r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), label) == name


def test_job_that_disappears_is_left_out(monkeypatch):
    page = metrics_page(monkeypatch, {"1": "stays", "gone": "goes"}, listed=3)
    assert 'job_name="stays"' in page and 'job_name="goes"' not in page


def test_seconds_have_all_digits(monkeypatch):
    page = metrics_page(monkeypatch, {"j": "n"}, write_msecs=1234567891, listed=12345678901234567)
    assert {line.rpartition(" ")[2] for line in page.splitlines() if "stage=" in line} == {"1234567.891"}
    assert "} 12345678901234567\n" in page


def test_health_does_not_depend_on_flink(monkeypatch):
    server = exporter.serve(exporter.Flink("localhost:1"), 0)  # no server listens on this port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://localhost:{server.server_port}"
    with contextlib.closing(server.socket):
        assert urllib.request.urlopen(f"{url}/healthz", timeout=60).status == 200
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"{url}/metrics", timeout=60)
        assert error.value.code == 503
        server.shutdown()


def test_alerts_are_raised_under_their_conditions():
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not installed: GOBIN=… go install github.com/prometheus/prometheus/cmd/promtool@latest")
    for command in (["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *command], cwd=FOLDER, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.y*ml")), ids=lambda path: path.name)
def test_file_is_valid_yaml(path):
    assert yaml.safe_load(path.read_text())
