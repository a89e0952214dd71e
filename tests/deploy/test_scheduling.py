"""Tests the scheduler commands and the Airflow DAG in deploy/scheduling."""

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import types

import pytest
import yaml

from beam_pipelines.options.arguments import make_parser
from beam_pipelines.runners.jobs import parse_pipeline_options
from beam_pipelines.runners.waiting import JobOptions
from dockerfiles import ROOT
from engines import flink_cluster

SCHEDULING = ROOT / "deploy" / "scheduling"
DAG = SCHEDULING / "airflow_dag.py"
CACHE = flink_cluster().CACHE


class AirflowError(Exception):
    """Replaces AirflowException."""


class AirflowFailError(AirflowError):
    """Replaces AirflowFailException."""


def load_dag(monkeypatch) -> types.ModuleType:
    """Imports the Airflow DAG with fake objects for all names that the DAG imports from Airflow."""
    exceptions, sdk = types.ModuleType("airflow.exceptions"), types.ModuleType("airflow.sdk")
    exceptions.AirflowException, exceptions.AirflowFailException = AirflowError, AirflowFailError
    sdk.task = lambda **options: lambda function: lambda: options
    sdk.dag = lambda **options: lambda function: lambda: (options, function())
    for name, module in {"airflow": types.ModuleType("airflow"), "airflow.exceptions": exceptions, "airflow.sdk": sdk}.items():
        monkeypatch.setitem(sys.modules, name, module)
    specification = importlib.util.spec_from_file_location("scheduled_dag", DAG)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def commands(monkeypatch) -> dict[str, list[str]]:
    """Returns the command that each scheduler runs, starting with `recordmill prepare`."""
    actual = {"airflow": load_dag(monkeypatch).command("gs://data/flowers/2026-01-31", "/tmp/error.json")}
    for path in sorted(SCHEDULING.glob("kubernetes/*job.yaml")):
        (item,) = yaml.safe_load_all(path.read_text())
        spec = item["spec"]["jobTemplate"]["spec"] if item["kind"] == "CronJob" else item["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        shell = shlex.split(container["args"][0]) if "args" in container else ["exec", *container["command"]]
        assert shell.pop(0) == "exec", "a shell would not pass on the signal that ends the command"
        actual[path.name] = shell
    lines = [line for line in (SCHEDULING / "crontab").read_text().splitlines() if re.match(r"[0-9*]", line)]
    for index, line in enumerate(lines):
        words = shlex.split(line.split(maxsplit=5)[5].replace("\\%", "%"))
        assert words[-3:] == ["||", "cat", "/var/tmp/flowers.json"], "cron mails the error"
        actual[f"crontab {index}"] = words[words.index("recordmill") : words.index(">/dev/null")]
    return actual


def test_scheduled_commands_can_be_repeated(monkeypatch):
    actual = commands(monkeypatch)
    assert len(actual) == 5
    for name, (program, command, *options) in actual.items():
        assert (program, command) == ("recordmill", "prepare"), name
        parsed, others = make_parser().parse_known_args([command, *options])
        others = [other for other in others if other != "-u" and not other.startswith("+%F)")]
        assert parsed.resume and not parsed.overwrite and not parsed.restart, name
        assert parse_pipeline_options(others).view_as(JobOptions).job_timeout and parsed.log_format == "json" and parsed.error_json, name


@pytest.mark.parametrize(("code", "error"), [(0, None), (1, AirflowError), (2, AirflowFailError), (130, AirflowError), (143, AirflowError)])
def test_dag_retries_retryable_errors(code, error, monkeypatch, tmp_path):
    module, reported = load_dag(monkeypatch), tmp_path / "error.json"
    reported.write_text(json.dumps({"message": "the store is away"}))
    program = [sys.executable, "-c", f"import sys; sys.exit({code})"]
    if error is None:
        assert module.run(program, str(reported)) is None
        return
    with pytest.raises(AirflowError) as caught:
        module.run(program, str(reported))
    assert type(caught.value) is error and str(caught.value) == f"exit code {code}: the store is away"


def test_task_timeout_is_longer_than_the_command_timeout(monkeypatch):
    module = load_dag(monkeypatch)
    options, _ = module.prepare_flowers()
    assert options["max_active_runs"] == 1 and options["default_args"]["retries"] > 0
    calls = [node for node in ast.walk(ast.parse(DAG.read_text())) if isinstance(node, ast.keyword) and node.arg == "execution_timeout"]
    assert ast.unparse(calls[0].value) == "datetime.timedelta(seconds=SECONDS + 900)"


@pytest.mark.slow(3)
def test_airflow_imports_the_dag(tmp_path):
    """Airflow needs its own environment, because it pins hundreds of packages."""
    python = CACHE / "airflow" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"Airflow is not installed: python -m venv {CACHE / 'airflow'}, and there pip install apache-airflow")
    code = f"from airflow.models.dagbag import DagBag as B; b = B({str(SCHEDULING)!r}, include_examples=False); print(b.import_errors, [*b.dags])"
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "PATH": f"{python.parent}:/usr/bin:/bin"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.stdout.splitlines()[-1] == "{} ['prepare_flowers']", done.stdout[-2000:] + done.stderr[-2000:]
