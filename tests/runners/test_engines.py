"""Tests the default options of each runner, and that missing requirements are reported before a job starts."""

import dataclasses
import http.server
import os
import pathlib
import shutil
import threading
from typing import Iterator

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, WorkerOptions
from google.api_core.exceptions import ServiceUnavailable, TooManyRequests

import beam_pipelines.runners.engine
from beam_pipelines import launch
from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.errors import EngineError, StillRunningError, UserError
from beam_pipelines.publish.run_info import make_run_info
from beam_pipelines.runners.engine import Job, output_digest
from beam_pipelines.runners.flink import Flink
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
from made_images import write_class_folders

PROCESS = ["--environment_type=PROCESS", '--environment_config={"command": "/boot"}']
needs_java = pytest.mark.skipif(not shutil.which("java"), reason="java is not installed")
FLINK = ["--runner=FlinkRunner", "--shared_filesystem", *PROCESS]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    write_class_folders(tmp_path / "flowers", {"rose": 2, "tulip": 2})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def flink_master() -> Iterator[str]:
    """Yields the address of a fake Flink REST server that answers only requests for /config."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/config" else 404)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *unused: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"localhost:{server.server_port}"
    server.shutdown()


def rejection(capsys: pytest.CaptureFixture, *options: str, code: int = 2) -> str:
    """Runs a command, checks that it fails with the exit code `code`, and returns its one-line error message."""
    returned = main(["prepare", "--input", "flowers", "--output", "out", *options])
    printed = capsys.readouterr()
    assert (returned, printed.out) == (code, ""), printed.err
    assert not os.path.exists("out") and not os.path.exists("out.incomplete")
    (line,) = printed.err.splitlines()
    return line


def test_rejects_unknown_and_unsupported_runners(folder, capsys):
    for runner in ("SparkleRunner", "DaskRunner"):
        line = rejection(capsys, f"--runner={runner}")
        assert f"--runner={runner}" in line and "DirectRunner" in line and "FlinkRunner" in line


def test_rejects_local_paths_without_shared_filesystem(folder, capsys):
    for runner in ("FlinkRunner", "PortableRunner"):
        line = rejection(capsys, f"--runner={runner}", "--flink_master=localhost:1", *PROCESS)
        assert "--input=flowers: " in line and "--shared_filesystem" in line, runner
    assert "gs://" in rejection(capsys, "--runner=DataflowRunner", "--shared_filesystem")


def test_names_flink_master_that_does_not_answer(folder, capsys, flink_master):
    for master, reason, code, expected in (
        ("localhost:1", "Connection refused", 1, "JobManager"),  # The JobManager may be available at the next attempt.
        ("no.such.host:8081", "", 1, "JobManager"),
        ("localhost:x", "", 2, "HOST:PORT"),
        (flink_master + "/no", "", 2, "HOST:PORT"),
    ):
        line = rejection(capsys, *FLINK, f"--flink_master={master}", code=code)
        assert f"--flink_master={master}" in line and reason in line and expected in line


@needs_java
def test_names_missing_job_server_jar(folder, capsys, flink_master):
    line = rejection(capsys, *FLINK, f"--flink_master={flink_master}", "--flink_job_server_jar=missing.jar")
    assert "--flink_job_server_jar=missing.jar does not exist" in line


@needs_java
def test_names_job_server_jar_that_cannot_be_downloaded(folder, capsys, flink_master):
    url = f"http://{flink_master}/job-server.jar"
    line = rejection(capsys, *FLINK, f"--flink_master={flink_master}", f"--flink_job_server_jar={url}")
    assert url in line and "--flink_job_server_jar" in line


def test_flink_runner_requires_java(folder, capsys, flink_master, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    for home in ("", str(folder)):
        monkeypatch.setenv("JAVA_HOME", home)
        line = rejection(capsys, *FLINK, f"--flink_master={flink_master}")
        assert "java" in line and "Java 11" in line


def test_flink_runner_requires_package_on_workers(folder, capsys, flink_master):
    options = ["--runner=FlinkRunner", f"--flink_master={flink_master}", "--shared_filesystem"]
    for environment in ([], ["--environment_type=DOCKER"]):
        for package_options in ([], ["--requirements_file=r.txt"], [f"--setup_file={__file__}"]):
            line = rejection(capsys, *options, *environment, *package_options)
            assert "--sdk_container_image=" in line


def test_names_missing_prism_binary(folder, capsys):
    line = rejection(capsys, "--runner=PrismRunner", "--prism_location=prism")
    assert "--prism_location=prism does not exist" in line


def test_names_prism_binary_that_cannot_be_downloaded(folder, capsys, monkeypatch):
    release = "http://localhost:1/releases/"
    monkeypatch.setattr("apache_beam.runners.portability.prism_runner.GITHUB_DOWNLOAD_PREFIX", release)
    monkeypatch.setattr("apache_beam.runners.portability.prism_runner.PrismJobServer.BIN_CACHE", str(folder / "cache"))
    line = rejection(capsys, "--runner=PrismRunner")
    assert f"Unable to fetch remote prism binary at {release}" in line and "--prism_location" in line


def test_dataflow_runner_names_each_missing_option(folder, capsys):
    paths = ["prepare", "--input", "gs://bucket/in", "--output", "gs://bucket/out", "--runner=DataflowRunner"]
    given, needs = [], {"--project": "made", "--region": "europe-west1", "--service_account_email": "a@b", "--max_num_workers": "9"}
    for option, value in (needs | {"--temp_location": "tmp"}).items():
        assert main([*paths, *given]) == 2
        assert f"--runner=DataflowRunner needs {option}" in capsys.readouterr().err
        given.append(f"{option}={value}")
    assert main([*paths, *given]) == 2
    assert "--temp_location=tmp" in capsys.readouterr().err
    given[-1] = "--temp_location=gs://bucket/tmp"
    assert main([*paths, *given]) == 2
    assert "--sdk_container_image" in capsys.readouterr().err
    assert main([*paths, *given, "--sdk_container_image=made", "--template_location=gs://bucket/t", "--wait"]) == 2
    assert "--wait" in capsys.readouterr().err


def test_worker_processes_are_used_for_files_and_stores(monkeypatch):
    monkeypatch.setattr(launch, "is_new", lambda path: True)  # The real function would access the stores.
    engine = choose_engine(parse_pipeline_options([]))
    for source, output in (("in", "out"), ("s3://a/in", "out"), ("in", "s3://a/out")):
        run = launch.make_paths(PrepareOptions(source, output, "made"), engine)
        assert run.num_processes, (source, output)
        assert run.lists_in_threads == source.startswith("s3"), (source, output)


def test_run_info_has_options_without_secrets():
    options = parse_pipeline_options(["--s3_access_key_id=AKIA", "--s3_secret_access_key=hush", "--s3_region_name=eu"])
    reported = str(make_run_info(PrepareOptions("in", "out", "made"), options, "1a2b"))
    assert "s3_region_name" in reported and "AKIA" not in reported and "hush" not in reported


def test_workers_log_warnings_by_default():
    for flags, expected in (([], "WARN"), (["--default_sdk_harness_log_level=DEBUG"], "DEBUG")):
        assert parse_pipeline_options(flags).view_as(WorkerOptions).default_sdk_harness_log_level == expected


def test_flink_job_name_has_dataset_output_and_run():
    flink = choose_engine(parse_pipeline_options(["--runner=FlinkRunner"]))
    flink.set_defaults("flowers", output="/data/out", run_id="0123456789abcdef")
    name = flink.options.view_as(GoogleCloudOptions).job_name
    assert name == f"recordmill-flowers-{output_digest('/data/out')}-01234567"
    flink.set_defaults("flowers", output="/data/out", run_id="0123456789abcdef")
    assert flink.options.view_as(GoogleCloudOptions).job_name.startswith(f"{name}-"), "a name given by the user is a prefix"


def test_find_jobs_matches_jobs_by_output(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    digest = output_digest("out")
    names = [f"recordmill-flowers-{digest}-01234567", f"nightly-{digest}", f"a-{digest}-b", f"a-{output_digest('other')}-01234567"]
    jobs = [Job(str(number), name, "RUNNING", "") for number, name in enumerate(names)]
    monkeypatch.setattr(Flink, "_list_jobs", lambda self: jobs)
    flink = choose_engine(parse_pipeline_options(["--runner=FlinkRunner"]))
    for output in ("out", "link", "out/", str(tmp_path / "out")):
        assert flink.find_jobs(output) == jobs[:2], output
    for name in ("DirectRunner", "PrismRunner", "PortableRunner"):
        engine = choose_engine(parse_pipeline_options([f"--runner={name}"]))
        assert engine.find_jobs("out") == []


def test_engine_errors_are_explained_in_one_line():
    dataflow = choose_engine(parse_pipeline_options(["--runner=DataflowRunner", "--project=made", "--region=made"]))
    flink = choose_engine(parse_pipeline_options(["--runner=FlinkRunner", "--flink_master=made:8081"]))
    java = "java.util.concurrent.TimeoutException: no heartbeat\n\tat org.apache.flink.Task.run(Task.java:1)"
    cases = [
        (dataflow, ServiceUnavailable("try later,\nor not"), EngineError, "try later, or not"),
        (dataflow, TooManyRequests("too fast"), EngineError, "too fast"),
        (dataflow, RuntimeError("Pipeline has validations errors:\nno region"), UserError, "Pipeline has validations errors: no region"),
        (dataflow, KeyError("a bug"), type(None), "None"),
        (flink, RuntimeError(f"FAILED: {java}"), EngineError, java.splitlines()[0]),
        (flink, RuntimeError(f"{java}\nTraceback (most recent call last)"), type(None), "None"),
    ]
    for engine, error, cls, reported in cases:
        actual = engine.explain(error)
        assert type(actual) is cls and reported in str(actual) and "\n" not in str(actual), error


def test_cancel_jobs_waits_for_the_end_of_the_job(monkeypatch):
    monkeypatch.setattr(Flink, "poll_seconds", 0)
    flink = choose_engine(parse_pipeline_options(["--runner=FlinkRunner"]))
    mine, other = (Job(name, name, "RUNNING", f"http://made/{name}") for name in ("mine", "other"))
    reported = iter([[mine, other], [dataclasses.replace(mine, state="CANCELLING"), other], [other]])
    cancelled = []
    monkeypatch.setattr(Flink, "_list_jobs", lambda self: next(reported))
    monkeypatch.setattr(Flink, "_cancel_job", lambda self, job_id: cancelled.append(job_id))
    flink.cancel_jobs([mine])
    assert cancelled == ["mine"]

    monkeypatch.setattr(Flink, "_list_jobs", lambda self: [mine])
    monkeypatch.setattr(beam_pipelines.runners.engine, "_STOP_SECONDS", -1)
    with pytest.raises(StillRunningError, match="RUNNING.* mine, http://made/mine"):
        flink.cancel_jobs([mine])
