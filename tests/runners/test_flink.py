"""Tests that commands on a real Flink cluster give the results of the local runner, even if processes are killed."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import threading
import time
import urllib.request
from typing import Any, Callable, Iterator

import numpy as np
import psutil
import pytest
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer

import engines
import forked_python
from beam_pipelines.__main__ import main
from beam_pipelines.runners.job_servers import reserve_port
from engines import (
    cluster_command,
    digest,
    finish,
    gates_of,
    prepare_here,
    processes_of,
    running_flink,
    start_prepare,
)
from forked_python import ForkedPython
from paused_stages import Gate
from made_images import write_class_folders, write_files
from made_sources import CASES, NUM
from object_stores import connected_to, object_digests, store_server, unresponsive, upload_files
from prepared import prepare_images
from tf_input import dataset_format
from tf_input.decoding.schema import parse_examples
from tf_input.transform.transform_format import TRANSFORM_FN
from tf_input.transform.transform_graph import TransformGraph

flink_cluster = engines.flink_cluster()
pytestmark = pytest.mark.xdist_group("waiting")

Cluster, ClusterError = flink_cluster.Cluster, flink_cluster.ClusterError
MISSING = flink_cluster.missing_tools()
SECONDS = 600

# The first code shortens the waiting times of the job watch. The second code ends the job timeout with a signal.
SHORT_WAITS = """
from beam_pipelines.runners import flink_watch
flink_watch.POLL_SECONDS, flink_watch._PATIENCE, flink_watch._SECONDS_TO_COME_BACK = 0.5, 1, 3
"""
TIMEOUT_ON_SIGNAL = """
import signal
from beam_pipelines.runners import waiting
class Timer(waiting.threading.Timer):
    def start(self):
        signal.signal(signal.SIGUSR1, lambda *unused: self.function(*self.args))
waiting.threading.Timer = Timer
"""

needs_flink = pytest.mark.skipif(bool(MISSING), reason=f"Flink needs {' and '.join(MISSING)}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with running_flink(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def forked_workers(cluster) -> None:
    """Makes new workers fork from a process that has imported Beam and TensorFlow, which saves seconds per worker."""
    preloaded = (*forked_python.TENSORFLOW, *forked_python.BEAM)
    forked_python.write_command(cluster.folder / "boot", engines.FLINK / "boot.py", f"--cluster={cluster.folder}", preloaded=preloaded)


@pytest.fixture(scope="module")
def job_endpoint(cluster, forked_workers) -> Iterator[str]:
    """Yields the option that submits jobs to a running job server, because starting a job server takes seconds."""
    server = FlinkJarJobServer(PipelineOptions([*cluster.options, f"--job_port={reserve_port()}"]))
    server.start()
    yield f"--job_endpoint={server.subprocess_cmd_and_endpoint()[1]}"
    server.stop()


@pytest.fixture
def start(cluster, forked_workers, source, tmp_path) -> Callable[..., ForkedPython]:
    """Returns a function that starts a command on the Flink cluster with two TaskManagers."""
    cluster.wait_for_task_managers(2)
    return lambda *options, **how: start_prepare(source, tmp_path / "out", *cluster.options, *options, **how)


@contextlib.contextmanager
def paused_run(
    cluster: Cluster, start: Callable[..., ForkedPython], stage: str, *options: str, before: str = ""
) -> Iterator[tuple[ForkedPython, Gate, list[int]]]:
    """Starts a run that pauses in the stage `stage`, and yields the run, the lock and the IDs of the paused workers."""
    with Gate(gates_of(cluster.folder), stage) as gate:
        run = start("--beam_plugin=paused_stages", *options, before=before)
        try:
            yield run, gate, paused_workers(cluster, gate, run)
        finally:
            run.kill()
            run.wait()


def paused_workers(cluster: Cluster, gate: Gate, run: ForkedPython) -> list[int]:
    """Waits until the job is running and workers have paused, and returns the IDs of the paused workers."""
    wait_until(lambda: gate.wait_for_arrivals(run) and latest_job(cluster)["state"] == "RUNNING")
    paused = set(gate.wait_for_arrivals(run)) & set(cluster.worker_ids())
    assert paused, "no paused process is a worker of the cluster"
    return sorted(paused)


def latest_job(cluster: Cluster) -> dict[str, Any]:
    return max(cluster.ask("jobs/overview")["jobs"], key=lambda job: job["start-time"])


def failures(cluster: Cluster) -> list[str]:
    """Returns the names of the exceptions from which Flink recovered in the latest job."""
    job = latest_job(cluster)
    assert job["state"] == "FINISHED"
    history = cluster.ask(f"jobs/{job['jid']}/exceptions")["exceptionHistory"]
    return [entry["exceptionName"] for entry in history["entries"]]


@pytest.mark.slow(25)
@needs_flink
def test_flink_writes_the_same_bytes_and_exports_counters_to_prometheus(cluster, tmp_path):
    case = CASES["coco, detection and segmentation"]
    source = tmp_path / "in" / case.write(tmp_path / "in")
    (tmp_path / "in" / "images" / "07.png").write_bytes(b"<!DOCTYPE html>")
    options = [*case.options, "--splits=train=0.5,test=0.5"]
    local = ["prepare", "--input", str(source), "--output", str(tmp_path / "local"), *engines.OPTIONS, *options]
    assert main(local) == 0
    cluster.wait_for_task_managers(2)
    finish(start_prepare(source, tmp_path / "out", *cluster.options, *options))
    assert digest(tmp_path / "out") == digest(tmp_path / "local")
    assert sorted(os.listdir(tmp_path)) == ["in", "local", "out"]
    assert failures(cluster) == []

    job, exporter = latest_job(cluster), engines.flink_exporter()
    # The JobManager caches its answers for three seconds. The duration of publishing is counted last.
    wait_until(lambda: "publish_msecs" in counters(cluster, job))
    counted = counters(cluster, job)
    assert (counted["listed"], counted["written"], counted["dead_letters"]) == (NUM, NUM, 1)
    assert {name for name in counted if name.endswith("_msecs")} == {"list_msecs", "plan_msecs", "write_msecs", "publish_msecs"}
    manifest = dataset_format.read_manifest(tmp_path / "out")
    assert counted["written_bytes"] == sum(shard.num_bytes for shards in manifest.splits.values() for shard in shards)
    server = exporter.serve(exporter.Flink(f"localhost:{cluster.rest_port}"), 0)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with server, urllib.request.urlopen(f"http://localhost:{server.server_port}/metrics") as response:
        lines = response.read().decode().splitlines()
        server.shutdown()
    labels = f'job_name="{job["name"]}",job_id="{job["jid"]}"'
    assert f"recordmill_listed_total{{{labels}}} {NUM}" in lines
    assert f'recordmill_dead_letters_by_reason_total{{{labels},reason="bad_image"}} 1' in lines
    assert f"recordmill_job_running{{{labels}}} 0" in lines


@pytest.mark.slow(12)
@needs_flink
def test_flink_writes_the_same_bytes_of_records_of_any_kind(cluster, job_endpoint, tmp_path):
    source = engines.write_record_files(tmp_path / "in")
    prepare_here(source, tmp_path / "local", *engines.RECORDS)
    cluster.wait_for_task_managers(2)
    finish(start_prepare(source, tmp_path / "out", *cluster.options, job_endpoint, *engines.RECORDS))
    assert digest(tmp_path / "out") == digest(tmp_path / "local")


def counters(cluster: Cluster, job: dict[str, Any]) -> dict[str, int]:
    """Returns the counters of a job, which are read from Beam's metrics."""
    return engines.flink_exporter().read_counters(cluster.ask(f"jobs/{job['jid']}/accumulators"))


def file_state(path: pathlib.Path) -> tuple[int, int]:
    """Returns the inode and the modification time of a file, which change each time the file is written."""
    return path.stat().st_ino, path.stat().st_mtime_ns


def finished_shards(directory: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Returns a mapping from the file names of finished shards to their inodes and modification times."""
    locations = [path.stem for path in directory.glob("done/*.json")]
    return {
        str(path.relative_to(directory)): file_state(path)
        for path in directory.rglob("made-*")
        if any(path.name.replace(".tfrecord", "").removeprefix("made-").startswith(location) for location in locations)
    }


def task_manager_of(cluster: Cluster, worker: int) -> str:
    """Returns the name of the TaskManager that started a worker, according to the command line of the worker."""

    def reported(process: psutil.Process) -> list[str]:
        return [argument for argument in process.cmdline() if argument.startswith(("--id=", "--provision_endpoint="))]

    actual, started = reported(psutil.Process(worker)), set()
    for name, pid in cluster.process_ids().items():
        with contextlib.suppress(psutil.Error):  # The process may have ended.
            for child in psutil.Process(pid).children():
                with contextlib.suppress(psutil.Error):
                    started |= {name} if reported(child) == actual else set()
    (name,) = started
    return name


def task_managers(cluster: Cluster) -> set[str]:
    """Returns the IDs of all TaskManagers that are registered with the JobManager."""
    return {manager["id"] for manager in cluster.ask("taskmanagers")["taskmanagers"]}


def read_until(run: ForkedPython, text: str) -> str:
    """Returns the output of a run up to the line that contains `text`."""
    printed = ""
    while text not in printed:
        line = run.stdout.readline()
        assert line, printed
        printed += line
    return printed


@pytest.mark.slow(35)
@needs_flink
def test_killed_task_managers_lose_no_finished_shard(cluster, job_endpoint, start, expected, tmp_path):
    """One TaskManager is killed at each stage. The job waits for a task slot until a new TaskManager starts."""
    printed, slots_message = "", f"--flink_master=localhost:{cluster.rest_port} (TaskManagers: 1, slots: 1, free slots: 0)"
    with paused_run(cluster, start, "listed", job_endpoint, before=SHORT_WAITS) as (run, listed, _), contextlib.ExitStack() as later:
        gates = [listed, *(later.enter_context(Gate(gates_of(cluster.folder), stage)) for stage in ("planned", "written", "finished"))]
        for gate in gates:
            paused = paused_workers(cluster, gate, run)
            done = finished_shards(next((tmp_path / "out.incomplete").glob("*/")))
            assert bool(done) == (gate is gates[-1])
            cluster.kill(name := task_manager_of(cluster, paused[0]))
            if gate is listed:
                gate.open()
                printed += read_until(run, slots_message)
                assert printed.endswith("lower --parallelism.\n")
            cluster.start_task_manager(f"{name}-again")
            # The JobManager has noticed the loss.
            wait_until(lambda: task_managers(cluster) == set(cluster.process_ids()) - {"job-manager"})
            gate.open()
        printed += finish(run)
    assert len(failures(cluster)) >= len(gates), "the kills did not affect the job"
    assert "Flink restarted the job (1): " in printed and f"Flink restarted the job ({len(gates)}): " in printed
    assert digest(tmp_path / "out") == expected
    assert {name: file_state(tmp_path / "out" / name) for name in done} == done
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow(30)
@needs_flink
def test_ended_run_cancels_its_job_and_can_be_resumed(cluster, job_endpoint, start, source, expected, tmp_path):
    """Each run resumes the previous run. Ctrl-C in a terminal also interrupts the job server."""
    limit = "--job_timeout=3600"
    late = f"{limit} seconds"
    ends = [
        (signal.SIGINT, os.killpg, (), 130, "recordmill: Interrupted. "),
        (signal.SIGTERM, os.kill, ("--resume", job_endpoint), 143, "recordmill: Interrupted. "),
        (signal.SIGUSR1, os.kill, ("--resume", job_endpoint, limit), 1, late),
    ]
    for sent, send, options, code, reported in ends:
        with paused_run(cluster, start, "written", *options, before=TIMEOUT_ON_SIGNAL) as (run, *_):
            # Other workers may still be planning.
            wait_until(lambda: [*tmp_path.glob("out.incomplete/*/plan/plan.json")])
            send(run.pid, sent)
            printed, _ = run.communicate(timeout=SECONDS)
        assert run.returncode == code, printed[-3000:]
        assert reported in printed and "--resume" in printed and "Traceback" not in printed
        assert latest_job(cluster)["state"] == "CANCELED"
        assert os.listdir(tmp_path) == ["out.incomplete"]

    # A run that fails because of its input can be resumed too.
    run = start("--max_bad_fraction=0", "--resume", job_endpoint, before=SHORT_WAITS)
    printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 2, printed[-3000:]
    assert "recordmill: 2 of 342 inputs" in printed and "--max_bad_fraction=0" in printed
    assert "Traceback" not in printed
    assert os.listdir(tmp_path) == ["out.incomplete"]
    prepare_here(source, tmp_path / "out", "--resume")
    assert digest(tmp_path / "out") == expected
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow(10)
@needs_flink
def test_unresponsive_store_ends_job_despite_flink_restarts(cluster, job_endpoint, tmp_path):
    source = write_class_folders(tmp_path / "in", {"ant": 25, "bee": 35})
    prepare_here(source, tmp_path / "local")
    before = "from beam_pipelines.storage.object_stores import store_watch\nstore_watch._POLL_SECONDS = 1"
    cluster.wait_for_task_managers(2)
    with store_server("s3") as server, connected_to(server), Gate(gates_of(cluster.folder), "finished") as gate:
        bucket = upload_files(server, {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*")}, "")
        options = (*cluster.options, job_endpoint, *server.flags, "--store_timeout=3", "--beam_plugin=paused_stages")
        run = start_prepare(f"{bucket}/in", f"{bucket}/out", *options, before=before)
        paused_workers(cluster, gate, run)
        with unresponsive(server):
            gate.open()
            printed, _ = run.communicate(timeout=SECONDS)
        reported = printed.splitlines()[-1]
        assert run.returncode == 1, printed[-3000:]
        assert "for 3 s (--store_timeout)" in reported and "--resume" in reported, reported
        assert latest_job(cluster)["state"] in ("CANCELED", "FAILED")
        prepare_here(f"{bucket}/in", f"{bucket}/out", *server.flags, "--resume")
        assert object_digests(server, f"{bucket}/out") == digest(tmp_path / "local") and not object_digests(server, f"{bucket}/out.incomplete")


def transform_outputs(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns all outputs of the saved transform for the training split."""
    manifest = dataset_format.read_manifest(directory)
    paths = [str(directory / shard.name) for shard in manifest.splits["train"]]
    graph = TransformGraph(directory / TRANSFORM_FN)
    examples = tf.data.TFRecordDataset(paths).batch(1000).map(lambda batch: parse_examples(batch, manifest.schema))
    (outputs,) = examples.map(lambda batch: graph.apply(batch, graph.output_names)).as_numpy_iterator()
    return outputs


@pytest.mark.slow(36)
@needs_flink
def test_other_commands_give_the_same_results_as_local_runner(cluster, job_endpoint, tmp_path, capfd):
    here = prepare_images(tmp_path, "--splits=train=0.8,test=0.2", "--num_shards=4")
    existing = shutil.copytree(here, tmp_path / "flink")
    cluster.wait_for_task_managers(2)
    assert main(["analyze", str(here)]) == 0
    assert main(["analyze", str(existing), *cluster.options, job_endpoint]) == 0
    outputs, expected = transform_outputs(existing), transform_outputs(here)
    assert outputs.keys() == expected.keys()
    for name, values in expected.items():
        if values.dtype == object:  # strings
            np.testing.assert_array_equal(outputs[name], values, err_msg=name)
        else:
            np.testing.assert_allclose(outputs[name], values, rtol=1e-6, atol=1e-6, err_msg=name)
    for path in (here / TRANSFORM_FN / "assets").iterdir():
        assert (existing / TRANSFORM_FN / "assets" / path.name).read_bytes() == path.read_bytes()

    assert main(["transform", str(here), str(tmp_path / "here2"), "--name=made"]) == 0
    assert main(["transform", str(here), str(tmp_path / "flink2"), "--name=made", *cluster.options, job_endpoint]) == 0
    assert digest(tmp_path / "flink2") == digest(tmp_path / "here2")

    # An export has the same bytes too, and `verify` reports the same corrupt record.
    assert main(["export", str(here), str(tmp_path / "tars"), "--to=webdataset"]) == 0
    assert main(["export", str(here), str(tmp_path / "flink_tars"), "--to=webdataset", *cluster.options, job_endpoint]) == 0
    tars = [{name: entry for name, entry in digest(tmp_path / folder).items() if name.endswith(".tar")} for folder in ("tars", "flink_tars")]
    assert tars[0] == tars[1] and len(tars[0]) == 4
    shard = here / dataset_format.read_manifest(here).splits["train"][1].name
    with open(shard, "r+b") as file:
        file.seek(shard.stat().st_size // 2)
        file.write(b"corrupt")
    actual = []
    for options in ((), (*cluster.options, job_endpoint, f"--report={tmp_path / 'report.json'}")):
        capfd.readouterr()
        assert main(["verify", str(here), "--json", *options]) == 1
        actual.append(json.loads(capfd.readouterr().out))
    assert actual[0] == actual[1] == json.loads((tmp_path / "report.json").read_text()) and {problem["file"] for problem in actual[0]["problems"]} == {shard.name}


@pytest.mark.slow(1)
@needs_flink
def test_rejects_second_cluster_in_same_folder_or_on_same_port(cluster, tmp_path):
    again = cluster_command("up", "--folder", str(cluster.folder))
    assert again.returncode == 1 and str(cluster.folder) in again.stderr and again.stderr.count("\n") == 1
    taken = cluster_command("up", "--folder", str(tmp_path), "--rest_port", str(cluster.rest_port))
    assert taken.returncode == 1 and f"port {cluster.rest_port} " in taken.stderr
    reported = json.loads(cluster_command("status", "--folder", str(cluster.folder)).stdout)
    assert reported["processes"] == cluster.process_ids() and reported["taskmanagers"] == 2


@pytest.mark.slow(20)
@needs_flink
def test_next_command_cancels_orphaned_job(cluster, job_endpoint, start, source, tmp_path):
    """The result must not change if the workers of the next run are killed while they write shards."""
    near_duplicates = write_files(shutil.copytree(source, tmp_path / "in"), {"bee/same.jpg": (source / "ant/000.jpg").read_bytes()})
    split_options = ("--duplicates=group", "--stratify", "--splits=train=0.6,test=0.4")
    prepare_here(near_duplicates, tmp_path / "local", *split_options)
    with paused_run(cluster, start, "planned") as (run, gate, _), Gate(gates_of(cluster.folder), "written") as written:
        orphan = latest_job(cluster)
        # The counters belong to a stage that has ended while another one is running.
        wait_until(lambda: counters(cluster, orphan).get("listed") == 342)
        children = psutil.Process(run.pid).children(recursive=True)
        (folder,) = {argument.partition("=")[2] for child in children for argument in child.cmdline() if "java.io.tmpdir" in argument}
        assert os.path.exists(folder)
        run.kill()
        run.wait()
        assert psutil.wait_procs(children, timeout=60)[1] == [], "the job server must end with its client"
        wait_until(lambda: not os.path.exists(folder))
        assert cluster.ask(f"jobs/{orphan['jid']}")["state"] == "RUNNING", "the cluster is not notified"
        options = (*cluster.options, job_endpoint, *split_options, "--restart", "--beam_plugin=paused_stages")
        other = start_prepare(near_duplicates, tmp_path / "out", *options)
        while cluster.ask(f"jobs/{orphan['jid']}")["state"] == "RUNNING":
            assert other.poll() is None, other.communicate()
            time.sleep(0.1)
        gate.open()  # The job is being canceled.
        # Until then, a worker of the canceled job may pause at the second gate.
        wait_until(lambda: cluster.ask(f"jobs/{orphan['jid']}")["state"] == "CANCELED")
        workers, job = paused_workers(cluster, written, other), latest_job(cluster)
        # The dead letters were found when the images were hashed.
        wait_until(lambda: counters(cluster, job).get("dead_letters") == 2)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        written.open()
        printed = finish(other)
    assert f"canceling {orphan['name']}" in printed
    assert cluster.ask(f"jobs/{orphan['jid']}")["state"] == "CANCELED"
    assert failures(cluster), "the kills did not affect the job"
    assert digest(tmp_path / "out") == digest(tmp_path / "local")
    assert (tmp_path / "out" / dataset_format.NEAR_DUPLICATES).read_text().count("\n") == 2
    assert sorted(os.listdir(tmp_path)) == ["in", "local", "out"]


def wait_until(is_so: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow(8)
@needs_flink
def test_killed_job_manager_is_reported_with_advice(cluster, job_endpoint, start, tmp_path):
    """This must be the last test that submits a job, because the JobManager is not restarted."""
    with paused_run(cluster, start, "written", job_endpoint, before=SHORT_WAITS) as (run, *_):
        cluster.kill("job-manager")
        printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 1, printed[-3000:]
    lost = f"--flink_master=localhost:{cluster.rest_port}: "
    assert f"recordmill: warning: {lost}" in printed and "(Connection refused)" in printed
    reported = printed.splitlines()[-1]
    assert reported.startswith(f"recordmill: {lost}")
    assert reported.endswith(f"--resume to continue from {tmp_path / 'out.incomplete'}.")
    assert "Traceback" not in printed and "ERROR" not in printed


@pytest.mark.slow(2)
@needs_flink
def test_stopped_cluster_leaves_no_process(cluster):
    """This test must run last, because it shuts down the cluster."""
    assert processes_of(cluster.folder)
    assert cluster_command("down", "--folder", str(cluster.folder)).returncode == 0
    assert processes_of(cluster.folder) == []
    assert cluster_command("status", "--folder", str(cluster.folder)).returncode == 1


@pytest.mark.slow
def test_missing_java_is_reported_in_one_line(tmp_path):
    cases = [
        ({"PATH": str(tmp_path), "JAVA_HOME": ""}, [], "java was not found"),
        ({"JAVA_HOME": str(tmp_path)}, [], f"{tmp_path}/bin/java was not found"),
    ]
    for environment, arguments, message in cases:
        run = cluster_command("up", "--folder", str(tmp_path / "c"), "--rest_port", "0", *arguments, **environment)
        assert run.returncode == 1 and message in run.stderr and run.stderr.count("\n") == 1, run.stderr
