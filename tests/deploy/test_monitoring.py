"""deploy/flink/monitoring: what is shown and what alarms are metrics that there are."""

import json
import pathlib
import re
import shutil
import subprocess
import zipfile

import pytest
import yaml

import engines

FOLDER = pathlib.Path(engines.FLINK, "monitoring")
exporter = engines.flink_exporter()

# Flink's own, of those that are used here: its page "Metrics", JobManager.
FLINK_METRICS = {
    "flink_jobmanager_job_numRestarts",
    "flink_jobmanager_taskSlotsAvailable",
    "flink_jobmanager_taskSlotsTotal",
}


def test_every_metric_that_is_shown_or_alarms_is_there():
    alerts = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    expressions = [rule["expr"] for rule in alerts] + [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for expression in expressions for name in re.findall(r"\b(?:recordmill|flink)_\w+", expression)}
    assert used <= FLINK_METRICS | set(exporter.METRICS)
    assert set(exporter.METRICS) <= used, "what is exported is looked at"
    for expression in expressions:
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}"), expression


def test_prometheus_asks_where_the_exporter_and_the_reporter_answer():
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert config["rule_files"] == ["alerts.yml"]
    first, last = yaml.safe_load((FOLDER / "flink-conf.yaml").read_text())["metrics.reporter.prom.port"].split("-")
    assert targets["flink"] == [f"localhost:{port}" for port in range(int(first), int(last) + 1)]
    assert targets["recordmill"] == ["localhost:9260"]


def test_the_reporter_is_one_that_comes_with_flink():
    jars = list(engines.flink_cluster().LIBRARIES.glob("plugins/metrics-prometheus/*.jar"))
    if not jars:
        pytest.skip("Flink has not been fetched: python deploy/flink/cluster.py fetch")
    name = yaml.safe_load((FOLDER / "flink-conf.yaml").read_text())["metrics.reporter.prom.factory.class"]
    with zipfile.ZipFile(jars[0]) as classes:
        assert f"{name.replace('.', '/')}.class" in classes.namelist()


def accumulators(*counters: tuple[str, bytes]) -> dict:
    """What Flink answers of counters in two steps each."""
    metrics = [
        {"urn": "beam:metric:user:sum_int64:v1", "payload": payload, "labels": {"NAMESPACE": "recordmill", "NAME": name, "PTRANSFORM": step}}
        for name, payload in counters
        for step in ("a", "b")
    ]
    metrics.append({"urn": "beam:metric:element_count:v1", "payload": "AQ==", "labels": {"PCOLLECTION": "c"}})
    value = json.dumps({"metrics": {"attempted": metrics}})
    return {"user-task-accumulators": [{"name": "__metricscontainers", "value": value}, {"name": "another", "value": "1"}]}


def test_counters_are_added_over_steps_and_named_as_prometheus_has_them(monkeypatch):
    given = accumulators(("listed", "kgE="), ("dead_letters_bad_image", "Ag=="), ("write_msecs", "kE4="))
    assert exporter.read_counters(given) == {"listed": 292, "dead_letters_bad_image": 4, "write_msecs": 20000}
    answers = {"jobs/overview": {"jobs": [{"name": "n", "jid": "j", "end-time": -1, "tasks": {"scheduled": 3}}]}, "jobs/j/accumulators": given}
    flink = exporter.Flink("made")
    monkeypatch.setattr(flink, "ask", answers.__getitem__)
    lines = flink.metrics().splitlines()
    labels = 'job_name="n",job_id="j"'
    assert f"recordmill_listed_total{{{labels}}} 292" in lines and f"recordmill_job_running{{{labels}}} 1" in lines
    assert f"recordmill_waiting_tasks{{{labels}}} 3" in lines
    assert f'recordmill_stage_seconds_total{{{labels},stage="write"}} 20' in lines
    assert f'recordmill_dead_letters_by_reason_total{{{labels},reason="bad_image"}} 4' in lines


def test_alarms_are_raised_when_they_should():
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("there is no promtool: GOBIN=… go install github.com/prometheus/prometheus/cmd/promtool@latest")
    for command in (["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *command], cwd=FOLDER, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.y*ml")), ids=lambda path: path.name)
def test_each_file_is_yaml(path):
    assert yaml.safe_load(path.read_text())
