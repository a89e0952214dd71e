"""A real Flink cluster gives the bytes of the local runner, and gives them still when its parts are killed in mid-run.

And the manifests for Kubernetes agree with each other and with the command.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tomllib
from typing import Any, Callable, Iterator

import psutil
import pytest
import yaml

import engines
from beam_pipelines.__main__ import make_parser
from beam_pipelines.runners.jobs import parse_pipeline_options
from engines import (
    FLINK,
    ROOT,
    cluster_command,
    digest,
    finish,
    gates_of,
    processes_of,
    running_flink,
    start_prepare,
    write_source,
)
from held_stages import Gate
from made_sources import CASES

flink_cluster = engines.flink_cluster()
Cluster, ClusterError = flink_cluster.Cluster, flink_cluster.ClusterError
MISSING = flink_cluster.missing_tools()
SECONDS = 600

needs_flink = pytest.mark.skipif(bool(MISSING), reason=f"Flink needs {' and '.join(MISSING)}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with running_flink(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("source") / "in", num_images=3000)


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("local") / "out"
    finish(start_prepare(source, output))
    return digest(output)


@pytest.fixture
def start(cluster, source, tmp_path) -> Callable[..., subprocess.Popen]:
    """Starts the command on the cluster, with both TaskManagers there."""
    cluster.wait_for_task_managers(2)
    return lambda *options: start_prepare(source, tmp_path / "out", *cluster.options, *options)


@contextlib.contextmanager
def held_run(cluster: Cluster, start: Callable[..., subprocess.Popen], stage: str) -> Iterator[tuple[subprocess.Popen, Gate, list[int]]]:
    """A run, the gate at which its workers wait once they have done something in a stage, and who of them waits there."""
    with Gate(gates_of(cluster.folder), stage) as gate:
        run = start("--beam_plugin=held_stages")
        try:
            held = gate.wait_for_arrivals(run)
            assert latest_job(cluster)["state"] == "RUNNING" and set(held) <= set(cluster.worker_ids())
            yield run, gate, held
        finally:
            run.kill()
            run.wait()


def latest_job(cluster: Cluster) -> dict[str, Any]:
    return max(cluster.ask("jobs/overview")["jobs"], key=lambda job: job["start-time"])


def failures(cluster: Cluster) -> list[str]:
    """What Flink recovered from in its latest job."""
    job = latest_job(cluster)
    assert job["state"] == "FINISHED"
    history = cluster.ask(f"jobs/{job['jid']}/exceptions")["exceptionHistory"]
    return [entry["exceptionName"] for entry in history["entries"]]


@needs_flink
@pytest.mark.slow
def test_boxes_and_masks_have_the_same_bytes(cluster, tmp_path):
    case = CASES["coco, detection and segmentation"]
    source = tmp_path / "in" / case.write(tmp_path / "in")
    options = [*case.options, "--splits=train=0.5,test=0.5"]
    finish(start_prepare(source, tmp_path / "local", *options))
    cluster.wait_for_task_managers(2)
    finish(start_prepare(source, tmp_path / "out", *cluster.options, *options))
    assert digest(tmp_path / "out") == digest(tmp_path / "local")


@pytest.mark.slow
@needs_flink
def test_the_bytes_are_those_of_the_local_runner(cluster, start, expected, tmp_path):
    finish(start())
    assert digest(tmp_path / "out") == expected
    assert os.listdir(tmp_path) == ["out"]
    assert failures(cluster) == []


def as_written(path: pathlib.Path) -> tuple[int, int]:
    """Of one file, another for each time that it is written."""
    return path.stat().st_ino, path.stat().st_mtime_ns


def finished_shards(directory: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Shards that are done, all files of theirs."""
    places = [path.stem for path in directory.glob("done/*.json")]
    return {
        str(path.relative_to(directory)): as_written(path)
        for path in directory.rglob("made-*")
        if any(path.name.replace(".tfrecord", "").removeprefix("made-").startswith(place) for place in places)
    }


@pytest.mark.slow
@needs_flink
@pytest.mark.parametrize("stage", ["listed", "planned", "written", "finished"])
def test_a_task_manager_that_is_killed_changes_nothing_and_costs_no_finished_shard(cluster, start, expected, tmp_path, stage):
    with held_run(cluster, start, stage) as (run, gate, held):
        done = finished_shards(tmp_path / "out.incomplete")
        parents = {psutil.Process(worker).ppid() for worker in held}
        name = next(name for name, pid in cluster.process_ids().items() if pid in parents)
        cluster.kill(name)
        cluster.start_task_manager(f"{name}-again")
        gate.open()
        finish(run)
    assert failures(cluster), "the job was not hit"
    assert digest(tmp_path / "out") == expected
    after = {name: as_written(tmp_path / "out" / name) for name in done}
    assert after == done and bool(done) == (stage == "finished")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow
@needs_flink
def test_worker_processes_killed_while_shards_are_written_change_nothing(cluster, start, expected, tmp_path):
    with held_run(cluster, start, "written") as (run, gate, held):
        for worker in held:
            os.kill(worker, signal.SIGKILL)
        gate.open()
        finish(run)
    assert failures(cluster), "the job was not hit"
    assert digest(tmp_path / "out") == expected
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow
@needs_flink
def test_a_fault_of_the_input_is_one_line_and_can_be_gone_on_from(start, source, expected, tmp_path):
    run = start("--max_bad_fraction=0")
    printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 1, printed[-3000:]
    assert "recordmill: 2 of 3042 inputs are dead letters, more than --max_bad_fraction=0 allows" in printed
    assert "Traceback" not in printed
    assert_resumes_here(source, expected, tmp_path)


@pytest.mark.slow
@needs_flink
@pytest.mark.parametrize("sent, to_all", [(signal.SIGTERM, False), (signal.SIGINT, True)], ids=["terminated", "Ctrl-C"])
def test_an_interrupted_run_stops_its_job_and_can_be_gone_on_from(cluster, start, source, expected, tmp_path, sent, to_all):
    """Ctrl-C at a terminal goes to the job server too, which is a child of the command."""
    with held_run(cluster, start, "written") as (run, gate, _):
        (os.killpg if to_all else os.kill)(run.pid, sent)
        printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 130, printed[-3000:]
    assert "recordmill: interrupted; " in printed and "--resume goes on" in printed and "Traceback" not in printed
    assert latest_job(cluster)["state"] == "CANCELED"
    assert_resumes_here(source, expected, tmp_path)


def assert_resumes_here(source: pathlib.Path, expected: dict[str, str], directory: pathlib.Path) -> None:
    """What a run on the cluster has left is finished by the local runner, to the same bytes."""
    assert os.listdir(directory) == ["out.incomplete"]
    finish(start_prepare(source, directory / "out", "--resume"))
    assert digest(directory / "out") == expected
    assert os.listdir(directory) == ["out"]


@pytest.mark.slow
@needs_flink
def test_a_second_cluster_is_refused_where_one_runs(cluster, tmp_path):
    again = cluster_command("up", "--folder", str(cluster.folder))
    assert (again.returncode, again.stderr) == (1, f"cluster.py: a cluster runs already in {cluster.folder}; take it down first\n")
    taken = cluster_command("up", "--folder", str(tmp_path), "--rest_port", str(cluster.rest_port))
    assert taken.returncode == 1 and f"something listens on port {cluster.rest_port} already" in taken.stderr
    told = json.loads(cluster_command("status", "--folder", str(cluster.folder)).stdout)
    assert told["processes"] == cluster.process_ids() and told["taskmanagers"] == 2


@pytest.mark.slow
@needs_flink
def test_no_process_is_left_when_the_cluster_is_down(cluster):
    """Runs last."""
    assert processes_of(cluster.folder)
    assert cluster_command("down", "--folder", str(cluster.folder)).returncode == 0
    assert processes_of(cluster.folder) == []
    assert cluster_command("status", "--folder", str(cluster.folder)).returncode == 1


def test_what_a_cluster_lacks_is_said_in_one_line(tmp_path):
    cases = [
        ({"PATH": str(tmp_path), "JAVA_HOME": ""}, [], "java was not found; expected Java 11 or later"),
        ({"JAVA_HOME": str(tmp_path)}, [], f"{tmp_path}/bin/java was not found"),
    ]
    for environment, arguments, message in cases:
        run = cluster_command("up", "--folder", str(tmp_path / "c"), "--rest_port", "0", *arguments, **environment)
        assert run.returncode == 1 and message in run.stderr and run.stderr.count("\n") == 1, run.stderr


def manifests() -> dict[str, dict]:
    """Kind -> manifest."""
    paths = sorted(FLINK.glob("kubernetes/*.yaml"))
    return {document["kind"]: document for path in paths for document in yaml.safe_load_all(path.read_text())}


def test_the_manifests_submit_to_the_cluster_that_they_bring_up():
    found = manifests()
    assert set(found) == {"PersistentVolumeClaim", "FlinkDeployment", "Job"}
    spec = found["FlinkDeployment"]["spec"]
    (submit,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    command, name, *flags = submit["command"]
    assert command == "recordmill"
    arguments, beam_flags = make_parser().parse_known_args([name, *flags])
    options = parse_pipeline_options(beam_flags).get_all_options()
    assert arguments.shared_filesystem

    (workers,) = spec["taskManager"]["podTemplate"]["spec"]["containers"]
    port = workers["ports"][0]["containerPort"]
    assert (options["environment_type"], options["environment_config"]) == ("EXTERNAL", f"localhost:{port}")
    assert workers["args"] == ["--worker_pool"] and port == 50000
    assert workers["image"] == submit["image"]
    assert options["flink_master"] == f"{found['FlinkDeployment']['metadata']['name']}-rest:8081"
    slots = int(spec["flinkConfiguration"]["taskmanager.numberOfTaskSlots"]) * spec["taskManager"]["replicas"]
    assert int(options["parallelism"]) == slots
    assert "restart-strategy.type" in spec["flinkConfiguration"]


def test_the_flink_version_is_the_same_everywhere():
    minor = flink_cluster.FLINK.rpartition(".")[0]
    spec = manifests()["FlinkDeployment"]["spec"]
    assert spec["image"].startswith(f"flink:{flink_cluster.FLINK}-")
    assert spec["flinkVersion"] == f"v{minor.replace('.', '_')}"
    flags = manifests()["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert f"--flink_version={minor}" in flags
    assert f"beam-runners-flink-{minor}<" in (FLINK / "job_server" / "pom.xml").read_text()


def test_what_uses_the_data_mounts_the_claim_that_there_is():
    found = manifests()
    claim = found["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    common = found["FlinkDeployment"]["spec"]["podTemplate"]["spec"]
    pods = [found["Job"]["spec"]["template"]["spec"], common]
    for pod in pods:
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    workers = found["FlinkDeployment"]["spec"]["taskManager"]["podTemplate"]["spec"]["containers"]
    mounts = [mount for container in [*pods[0]["containers"], *workers] for mount in container["volumeMounts"]]
    assert mounts == [{"name": volume["name"], "mountPath": "/data"}] * 2


def requirements_of(extras):
    command = [sys.executable, str(FLINK / "requirements.py"), *extras]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())


def test_the_image_has_the_pinned_beam_the_extras_that_there_are_and_the_jar_that_is_submitted_with():
    text = (FLINK / "Dockerfile").read_text()
    (beam,) = re.findall(r"^ARG BEAM=(.*)$", text, re.MULTILINE)
    assert f"apache-beam=={beam}" in (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "python requirements.py ${EXTRAS} >" in text
    (names,) = re.findall(r'^ARG EXTRAS="(.*)"$', text, re.MULTILINE)
    assert requirements_of(names.split()) == set(extras["beam"]) | {"apache-beam[gcp]", "apache-beam[aws]"}
    (wider,) = re.findall(r'--build-arg EXTRAS="(.*)" --tag', (FLINK / "README.md").read_text())
    added = requirements_of(wider.split()) - requirements_of(names.split())
    assert added == {requirement for requirement in extras["transform"] if not requirement.startswith("recordmill")}
    for source in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE):
        for path in source.split():
            assert (ROOT / path).exists(), path
    (jar,) = re.findall(r"^COPY --from=job_server \S+ (\S+)$", text, re.MULTILINE)
    flags = manifests()["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert f"--flink_job_server_jar={jar}" in flags
