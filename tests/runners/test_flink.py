"""A real Flink cluster, one for all that is tested on it: `recordmill prepare`, `analyze` and `transform` give what the local runner does.

So they do where parts of the cluster are killed in mid-run.
"""

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
from object_stores import objects, put, reached, silenced, store_server
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

# Code that runs before a command: its watch over the job waits less, and its time is up with a signal.
IMPATIENT = """
from beam_pipelines.runners import flink_watch
flink_watch.POLL_SECONDS, flink_watch._PATIENCE, flink_watch._SECONDS_TO_COME_BACK = 0.5, 1, 3
"""
TIME_IS_UP = """
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
    """From now on its workers are forked off a process that has imported Beam and TensorFlow: to each that takes seconds."""
    preloaded = (*forked_python.TENSORFLOW, *forked_python.BEAM)
    forked_python.write_command(cluster.folder / "boot", engines.FLINK / "boot.py", f"--cluster={cluster.folder}", preloaded=preloaded)


@pytest.fixture(scope="module")
def submits(cluster, forked_workers) -> Iterator[str]:
    """The option of a run that submits to the cluster by a job server that is there already: its Java takes seconds to come up."""
    server = FlinkJarJobServer(PipelineOptions([*cluster.options, f"--job_port={reserve_port()}"]))
    server.start()
    yield f"--job_endpoint={server.subprocess_cmd_and_endpoint()[1]}"
    server.stop()


@pytest.fixture
def start(cluster, forked_workers, source, tmp_path) -> Callable[..., ForkedPython]:
    """Starts the command on the cluster, with both TaskManagers there."""
    cluster.wait_for_task_managers(2)
    return lambda *options, **how: start_prepare(source, tmp_path / "out", *cluster.options, *options, **how)


@contextlib.contextmanager
def held_run(
    cluster: Cluster, start: Callable[..., ForkedPython], stage: str, *options: str, before: str = ""
) -> Iterator[tuple[ForkedPython, Gate, list[int]]]:
    """A run, the gate at which its workers wait once they have done something in a stage, and who of them waits there."""
    with Gate(gates_of(cluster.folder), stage) as gate:
        run = start("--beam_plugin=paused_stages", *options, before=before)
        try:
            yield run, gate, held_at(cluster, gate, run)
        finally:
            run.kill()
            run.wait()


def held_at(cluster: Cluster, gate: Gate, run: ForkedPython) -> list[int]:
    """Who waits at a gate: workers of a job that goes on, and is not just being started again."""
    wait_until(lambda: gate.wait_for_arrivals(run) and latest_job(cluster)["state"] == "RUNNING")
    reserved = set(gate.wait_for_arrivals(run)) & set(cluster.worker_ids())
    assert reserved, "none of them is a worker of the cluster"
    return sorted(reserved)


def latest_job(cluster: Cluster) -> dict[str, Any]:
    return max(cluster.ask("jobs/overview")["jobs"], key=lambda job: job["start-time"])


def failures(cluster: Cluster) -> list[str]:
    """What Flink recovered from in its latest job."""
    job = latest_job(cluster)
    assert job["state"] == "FINISHED"
    history = cluster.ask(f"jobs/{job['jid']}/exceptions")["exceptionHistory"]
    return [entry["exceptionName"] for entry in history["entries"]]


@pytest.mark.slow(25)
@needs_flink
def test_the_bytes_are_those_of_the_local_runner_with_boxes_and_masks_too_and_prometheus_has_the_counts(cluster, tmp_path):
    """Of a run with the cluster's options alone."""
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
    # For three seconds the JobManager tells what it told while the job ran. What publishing took is counted last.
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


def counters(cluster: Cluster, job: dict[str, Any]) -> dict[str, int]:
    """What is counted of a job in Beam's metrics."""
    return engines.flink_exporter().read_counters(cluster.ask(f"jobs/{job['jid']}/accumulators"))


def as_written(path: pathlib.Path) -> tuple[int, int]:
    """Of one file, another for each time that it is written."""
    return path.stat().st_ino, path.stat().st_mtime_ns


def finished_shards(directory: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Shards that are done, all files of theirs."""
    locations = [path.stem for path in directory.glob("done/*.json")]
    return {
        str(path.relative_to(directory)): as_written(path)
        for path in directory.rglob("made-*")
        if any(path.name.replace(".tfrecord", "").removeprefix("made-").startswith(location) for location in locations)
    }


def task_manager_of(cluster: Cluster, worker: int) -> str:
    """The name of the one that has started a worker, by a command that stands for it."""

    def reported(process: psutil.Process) -> list[str]:
        return [item for item in process.cmdline() if item.startswith(("--id=", "--provision_endpoint="))]

    actual, started = reported(psutil.Process(worker)), set()
    for name, pid in cluster.process_ids().items():
        with contextlib.suppress(psutil.Error):  # which has ended by itself
            for child in psutil.Process(pid).children():
                with contextlib.suppress(psutil.Error):
                    started |= {name} if reported(child) == actual else set()
    (name,) = started
    return name


def task_managers(cluster: Cluster) -> set[str]:
    """Names of those that the JobManager counts on."""
    return {item["id"] for item in cluster.ask("taskmanagers")["taskmanagers"]}


def read_until(run: ForkedPython, text: str) -> str:
    """What a run prints, with the line that has the text."""
    printed = ""
    while text not in printed:
        line = run.stdout.readline()
        assert line, printed
        printed += line
    return printed


@pytest.mark.slow(35)
@needs_flink
def test_task_managers_that_are_killed_change_nothing_and_cost_no_finished_shard(cluster, submits, start, expected, tmp_path):
    """One at each stage of a run; after the first one the job lacks a slot for a while, and says so."""
    printed, has = "", f"--flink_master=localhost:{cluster.rest_port} (TaskManagers: 1, slots: 1, free slots: 0)"
    with held_run(cluster, start, "listed", submits, before=IMPATIENT) as (run, listed, _), contextlib.ExitStack() as later:
        gates = [listed, *(later.enter_context(Gate(gates_of(cluster.folder), stage)) for stage in ("planned", "written", "finished"))]
        for gate in gates:
            reserved = held_at(cluster, gate, run)
            done = finished_shards(next((tmp_path / "out.incomplete").glob("*/")))
            assert bool(done) == (gate is gates[-1])
            cluster.kill(name := task_manager_of(cluster, reserved[0]))
            if gate is listed:
                gate.open()
                printed += read_until(run, has)
                assert printed.endswith("lower --parallelism.\n")
            cluster.start_task_manager(f"{name}-again")
            wait_until(lambda: task_managers(cluster) == set(cluster.process_ids()) - {"job-manager"})  # who is lost is known to be
            gate.open()
        printed += finish(run)
    assert len(failures(cluster)) >= len(gates), "the job was not hit"
    assert "Flink restarted the job (1): " in printed and f"Flink restarted the job ({len(gates)}): " in printed
    assert digest(tmp_path / "out") == expected
    assert {name: as_written(tmp_path / "out" / name) for name in done} == done
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow(30)
@needs_flink
def test_a_run_that_is_ended_stops_its_job_and_can_be_gone_on_from(cluster, submits, start, source, expected, tmp_path):
    """Each goes on from the one before. Ctrl-C at a terminal goes to the job server too, which is a child of the command."""
    limit = "--job_timeout=3600"
    late = f"{limit} seconds"
    ends = [
        (signal.SIGINT, os.killpg, (), 130, "recordmill: Interrupted. "),
        (signal.SIGTERM, os.kill, ("--resume", submits), 143, "recordmill: Interrupted. "),
        (signal.SIGUSR1, os.kill, ("--resume", submits, limit), 1, late),
    ]
    for sent, send, options, code, reported in ends:
        with held_run(cluster, start, "written", *options, before=TIME_IS_UP) as (run, *_):
            wait_until(lambda: [*tmp_path.glob("out.incomplete/*/plan/plan.json")])  # which others may still be at
            send(run.pid, sent)
            printed, _ = run.communicate(timeout=SECONDS)
        assert run.returncode == code, printed[-3000:]
        assert reported in printed and "--resume" in printed and "Traceback" not in printed
        assert latest_job(cluster)["state"] == "CANCELED"
        assert os.listdir(tmp_path) == ["out.incomplete"]

    # So is one that ends by a fault of the input.
    run = start("--max_bad_fraction=0", "--resume", submits, before=IMPATIENT)
    printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 2, printed[-3000:]
    assert "recordmill: 2 of 342 inputs are dead letters, more than --max_bad_fraction=0 allows" in printed
    assert "Traceback" not in printed
    assert os.listdir(tmp_path) == ["out.incomplete"]
    prepare_here(source, tmp_path / "out", "--resume")
    assert digest(tmp_path / "out") == expected
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow(10)
@needs_flink
def test_a_store_that_dies_ends_the_job_however_often_flink_would_try_again(cluster, submits, tmp_path):
    source = write_class_folders(tmp_path / "in", {"ant": 25, "bee": 35})
    prepare_here(source, tmp_path / "local")
    before = "from beam_pipelines.storage.object_stores import store_watch\nstore_watch._LOOK_SECONDS = 1"
    cluster.wait_for_task_managers(2)
    with store_server("s3") as server, reached(server), Gate(gates_of(cluster.folder), "finished") as gate:
        bucket = put(server, {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*")}, "")
        options = (*cluster.options, submits, *server.flags, "--store_timeout=3", "--beam_plugin=paused_stages")
        run = start_prepare(f"{bucket}/in", f"{bucket}/out", *options, before=before)
        held_at(cluster, gate, run)
        with silenced(server):
            gate.open()
            printed, _ = run.communicate(timeout=SECONDS)
        reported = printed.splitlines()[-1]
        assert run.returncode == 1, printed[-3000:]
        assert "for 3 s (--store_timeout)" in reported and "--resume" in reported, reported
        assert latest_job(cluster)["state"] in ("CANCELED", "FAILED")
        prepare_here(f"{bucket}/in", f"{bucket}/out", *server.flags, "--resume")
        assert objects(server, f"{bucket}/out") == digest(tmp_path / "local") and not objects(server, f"{bucket}/out.incomplete")


def transformed(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """All that the transform gives for the training split."""
    manifest = dataset_format.read_manifest(directory)
    paths = [str(directory / shard.name) for shard in manifest.splits["train"]]
    graph = TransformGraph(directory / TRANSFORM_FN)
    examples = tf.data.TFRecordDataset(paths).batch(1000).map(lambda batch: parse_examples(batch, manifest.schema))
    (outputs,) = examples.map(lambda batch: graph.apply(batch, graph.output_names)).as_numpy_iterator()
    return outputs


@pytest.mark.slow(36)
@needs_flink
def test_an_analysis_a_transform_and_what_is_done_with_their_dataset_give_what_the_local_runner_does(cluster, submits, tmp_path, capfd):
    here = prepare_images(tmp_path, "--splits=train=0.8,test=0.2", "--num_shards=4")
    existing = shutil.copytree(here, tmp_path / "flink")
    cluster.wait_for_task_managers(2)
    assert main(["analyze", str(here)]) == 0
    assert main(["analyze", str(existing), *cluster.options, submits]) == 0
    outputs, expected = transformed(existing), transformed(here)
    assert outputs.keys() == expected.keys()
    for name, values in expected.items():
        if values.dtype == object:  # strings
            np.testing.assert_array_equal(outputs[name], values, err_msg=name)
        else:
            np.testing.assert_allclose(outputs[name], values, rtol=1e-6, atol=1e-6, err_msg=name)
    for path in (here / TRANSFORM_FN / "assets").iterdir():
        assert (existing / TRANSFORM_FN / "assets" / path.name).read_bytes() == path.read_bytes()

    # And the examples that the same transform makes have the same bytes.
    assert main(["transform", str(here), str(tmp_path / "here2"), "--name=made"]) == 0
    assert main(["transform", str(here), str(tmp_path / "flink2"), "--name=made", *cluster.options, submits]) == 0
    assert digest(tmp_path / "flink2") == digest(tmp_path / "here2")

    # So is an export, and of a damaged record each says where it is.
    assert main(["export", str(here), str(tmp_path / "tars"), "--to=webdataset"]) == 0
    assert main(["export", str(here), str(tmp_path / "flink_tars"), "--to=webdataset", *cluster.options, submits]) == 0
    tars = [{name: entry for name, entry in digest(tmp_path / folder).items() if name.endswith(".tar")} for folder in ("tars", "flink_tars")]
    assert tars[0] == tars[1] and len(tars[0]) == 4
    shard = here / dataset_format.read_manifest(here).splits["train"][1].name
    with open(shard, "r+b") as file:
        file.seek(shard.stat().st_size // 2)
        file.write(b"damaged")
    actual = []
    for options in ((), (*cluster.options, submits, f"--report={tmp_path / 'report.json'}")):
        capfd.readouterr()
        assert main(["verify", str(here), "--json", *options]) == 1
        actual.append(json.loads(capfd.readouterr().out))
    assert actual[0] == actual[1] == json.loads((tmp_path / "report.json").read_text()) and {item["file"] for item in actual[0]["problems"]} == {shard.name}


@pytest.mark.slow(1)
@needs_flink
def test_a_second_cluster_is_refused_where_one_runs(cluster, tmp_path):
    again = cluster_command("up", "--folder", str(cluster.folder))
    assert again.returncode == 1 and str(cluster.folder) in again.stderr and again.stderr.count("\n") == 1
    taken = cluster_command("up", "--folder", str(tmp_path), "--rest_port", str(cluster.rest_port))
    assert taken.returncode == 1 and f"port {cluster.rest_port} " in taken.stderr
    reported = json.loads(cluster_command("status", "--folder", str(cluster.folder)).stdout)
    assert reported["processes"] == cluster.process_ids() and reported["taskmanagers"] == 2


@pytest.mark.slow(20)
@needs_flink
def test_the_job_of_a_command_that_was_killed_is_cancelled_by_the_next_and_publishes_nothing(cluster, submits, start, source, tmp_path):
    """And the next one, which settles splits by what is alike, loses its worker processes while they write shards, which changes nothing."""
    near_duplicates = write_files(shutil.copytree(source, tmp_path / "in"), {"bee/same.jpg": (source / "ant/000.jpg").read_bytes()})
    resolved = ("--duplicates=group", "--stratify", "--splits=train=0.6,test=0.4")
    prepare_here(near_duplicates, tmp_path / "local", *resolved)
    with held_run(cluster, start, "planned") as (run, gate, _), Gate(gates_of(cluster.folder), "written") as written:
        orphan = latest_job(cluster)
        wait_until(lambda: counters(cluster, orphan).get("listed") == 342)  # of a stage that has ended, while another goes on
        children = psutil.Process(run.pid).children(recursive=True)
        (folder,) = {argument.partition("=")[2] for child in children for argument in child.cmdline() if "java.io.tmpdir" in argument}
        assert os.path.exists(folder)
        run.kill()
        run.wait()
        assert psutil.wait_procs(children, timeout=60)[1] == [], "a job server outlives its client"
        wait_until(lambda: not os.path.exists(folder))
        assert cluster.ask(f"jobs/{orphan['jid']}")["state"] == "RUNNING", "nobody has told the cluster"
        options = (*cluster.options, submits, *resolved, "--restart", "--beam_plugin=paused_stages")
        other = start_prepare(near_duplicates, tmp_path / "out", *options)
        while cluster.ask(f"jobs/{orphan['jid']}")["state"] == "RUNNING":
            assert other.poll() is None, other.communicate()
            time.sleep(0.1)
        gate.open()  # to a job that is being cancelled
        workers, job = held_at(cluster, written, other), latest_job(cluster)
        wait_until(lambda: counters(cluster, job).get("dead_letters") == 2)  # which were found as images were hashed
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        written.open()
        printed = finish(other)
    assert f"canceling {orphan['name']}" in printed
    assert cluster.ask(f"jobs/{orphan['jid']}")["state"] == "CANCELED"
    assert failures(cluster), "the job was not hit"
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
def test_a_job_manager_that_is_killed_is_one_line_with_what_to_do(cluster, submits, start, tmp_path):
    """It is not started again, so this is the last one of them that submits a job."""
    with held_run(cluster, start, "written", submits, before=IMPATIENT) as (run, *_):
        cluster.kill("job-manager")
        printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 1, printed[-3000:]
    lost = f"--flink_master=localhost:{cluster.rest_port}: "
    assert f"recordmill: warning: {lost}" in printed and "(Connection refused)" in printed
    reported = printed.splitlines()[-1]
    assert reported.startswith(f"recordmill: {lost}")
    assert reported.endswith(f"Rerun with --resume to continue from {tmp_path / 'out.incomplete'}.")
    assert "Traceback" not in printed and "ERROR" not in printed


@pytest.mark.slow(2)
@needs_flink
def test_no_process_is_left_when_the_cluster_is_down(cluster):
    """Runs last."""
    assert processes_of(cluster.folder)
    assert cluster_command("down", "--folder", str(cluster.folder)).returncode == 0
    assert processes_of(cluster.folder) == []
    assert cluster_command("status", "--folder", str(cluster.folder)).returncode == 1


@pytest.mark.slow
def test_what_a_cluster_lacks_is_said_in_one_line(tmp_path):
    cases = [
        ({"PATH": str(tmp_path), "JAVA_HOME": ""}, [], "java was not found"),
        ({"JAVA_HOME": str(tmp_path)}, [], f"{tmp_path}/bin/java was not found"),
    ]
    for environment, arguments, message in cases:
        run = cluster_command("up", "--folder", str(tmp_path / "c"), "--rest_port", "0", *arguments, **environment)
        assert run.returncode == 1 and message in run.stderr and run.stderr.count("\n") == 1, run.stderr
