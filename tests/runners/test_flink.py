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
    write_source,
)
from forked_python import ForkedPython
from held_stages import Gate
from made_sources import CASES
from prepared import prepare_images
from tf_input import dataset_format
from tf_input.decoding.schema import parse_examples
from tf_input.transform.transform_format import TRANSFORM_FN
from tf_input.transform.transform_graph import TransformGraph

flink_cluster = engines.flink_cluster()
Cluster, ClusterError = flink_cluster.Cluster, flink_cluster.ClusterError
MISSING = flink_cluster.missing_tools()
SECONDS = 600

# Workers live on from stage to stage: each would import Beam anew. One that is killed then is not replaced.
KEEP_WORKERS = "--environment_cache_millis=60000"

needs_flink = pytest.mark.skipif(bool(MISSING), reason=f"Flink needs {' and '.join(MISSING)}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with running_flink(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("source") / "in", num_images=300)


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("local") / "out"
    prepare_here(source, output)
    return digest(output)


@pytest.fixture(scope="module")
def submits(cluster) -> Iterator[str]:
    """The option of a run that submits to the cluster by a job server that is there already: its Java takes seconds to come up."""
    server = FlinkJarJobServer(PipelineOptions([*cluster.options, f"--job_port={reserve_port()}"]))
    server.start()
    yield f"--job_endpoint={server.subprocess_cmd_and_endpoint()[1]}"
    server.stop()


@pytest.fixture
def start(cluster, source, tmp_path) -> Callable[..., ForkedPython]:
    """Starts the command on the cluster, with both TaskManagers there."""
    cluster.wait_for_task_managers(2)
    return lambda *options: start_prepare(source, tmp_path / "out", *cluster.options, *options)


@contextlib.contextmanager
def held_run(
    cluster: Cluster, start: Callable[..., ForkedPython], stage: str, *options: str
) -> Iterator[tuple[ForkedPython, Gate, list[int]]]:
    """A run, the gate at which its workers wait once they have done something in a stage, and who of them waits there."""
    with Gate(gates_of(cluster.folder), stage) as gate:
        run = start("--beam_plugin=held_stages", *options)
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


@pytest.mark.slow(15)
@needs_flink
def test_the_bytes_are_those_of_the_local_runner_with_boxes_and_masks_too(cluster, tmp_path):
    case = CASES["coco, detection and segmentation"]
    source = tmp_path / "in" / case.write(tmp_path / "in")
    options = [*case.options, "--splits=train=0.5,test=0.5"]
    local = ["prepare", "--input", str(source), "--output", str(tmp_path / "local"), *engines.OPTIONS, *options]
    assert main(local) == 0
    cluster.wait_for_task_managers(2)
    finish(start_prepare(source, tmp_path / "out", *cluster.options, KEEP_WORKERS, *options))
    assert digest(tmp_path / "out") == digest(tmp_path / "local")
    assert sorted(os.listdir(tmp_path)) == ["in", "local", "out"]
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


@pytest.mark.slow(15)
@needs_flink
@pytest.mark.parametrize("stage", ["listed", "planned", "written", "finished"])
def test_a_task_manager_that_is_killed_changes_nothing_and_costs_no_finished_shard(
    cluster, submits, start, expected, tmp_path, stage
):
    with held_run(cluster, start, stage, submits, KEEP_WORKERS) as (run, gate, held):
        done = finished_shards(next((tmp_path / "out.incomplete").glob("*/")))
        parents = {psutil.Process(worker).ppid() for worker in held}
        name = next(name for name, pid in cluster.process_ids().items() if pid in parents)
        cluster.kill(name)
        cluster.start_task_manager(f"{name}-again")
        gate.open()
        printed = finish(run)
    assert failures(cluster), "the job was not hit"
    assert "Flink restarted the job (1): " in printed
    assert digest(tmp_path / "out") == expected
    after = {name: as_written(tmp_path / "out" / name) for name in done}
    assert after == done and bool(done) == (stage == "finished")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow(15)
@needs_flink
def test_worker_processes_killed_while_shards_are_written_change_nothing(cluster, submits, start, expected, tmp_path):
    with held_run(cluster, start, "written", submits) as (run, gate, held):
        for worker in held:
            os.kill(worker, signal.SIGKILL)
        gate.open()
        finish(run)
    assert failures(cluster), "the job was not hit"
    assert digest(tmp_path / "out") == expected
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow(15)
@needs_flink
def test_a_fault_of_the_input_is_one_line_and_can_be_gone_on_from(submits, start, source, expected, tmp_path):
    run = start("--max_bad_fraction=0", submits, KEEP_WORKERS)
    printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 2, printed[-3000:]
    assert "recordmill: 2 of 342 inputs are dead letters, more than --max_bad_fraction=0 allows" in printed
    assert "Traceback" not in printed
    assert_resumes_here(source, expected, tmp_path)


@pytest.mark.slow(15)
@needs_flink
@pytest.mark.parametrize("sent, to_all", [(signal.SIGTERM, False), (signal.SIGINT, True)], ids=["terminated", "Ctrl-C"])
def test_an_interrupted_run_stops_its_job_and_can_be_gone_on_from(cluster, start, source, expected, tmp_path, sent, to_all):
    """Ctrl-C at a terminal goes to the job server too, which is a child of the command."""
    with held_run(cluster, start, "written", KEEP_WORKERS) as (run, gate, _):
        (os.killpg if to_all else os.kill)(run.pid, sent)
        printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 128 + sent, printed[-3000:]
    assert "recordmill: interrupted; " in printed and "--resume goes on" in printed and "Traceback" not in printed
    assert latest_job(cluster)["state"] == "CANCELED"
    assert_resumes_here(source, expected, tmp_path)


def assert_resumes_here(source: pathlib.Path, expected: dict[str, str], directory: pathlib.Path) -> None:
    """What a run on the cluster has left is finished by the local runner, to the same bytes."""
    assert os.listdir(directory) == ["out.incomplete"]
    prepare_here(source, directory / "out", "--resume")
    assert digest(directory / "out") == expected
    assert os.listdir(directory) == ["out"]


def transformed(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """All that the transform gives for the training split."""
    manifest = dataset_format.read_manifest(directory)
    paths = [str(directory / shard.name) for shard in manifest.splits["train"]]
    graph = TransformGraph(directory / TRANSFORM_FN)
    examples = tf.data.TFRecordDataset(paths).batch(1000).map(lambda batch: parse_examples(batch, manifest.schema))
    (outputs,) = examples.map(lambda batch: graph.apply(batch, graph.output_names)).as_numpy_iterator()
    return outputs


@pytest.mark.slow(15)
@needs_flink
def test_an_analysis_and_a_transform_give_what_the_local_runner_does(cluster, submits, tmp_path):
    here = prepare_images(tmp_path, "--splits=train=0.8,test=0.2", "--num_shards=4")
    there = shutil.copytree(here, tmp_path / "flink")
    cluster.wait_for_task_managers(2)
    assert main(["analyze", str(here)]) == 0
    assert main(["analyze", str(there), *cluster.options, submits]) == 0
    outputs, expected = transformed(there), transformed(here)
    assert outputs.keys() == expected.keys()
    for name, values in expected.items():
        if values.dtype == object:  # strings
            np.testing.assert_array_equal(outputs[name], values, err_msg=name)
        else:
            np.testing.assert_allclose(outputs[name], values, rtol=1e-6, atol=1e-6, err_msg=name)
    for path in (here / TRANSFORM_FN / "assets").iterdir():
        assert (there / TRANSFORM_FN / "assets" / path.name).read_bytes() == path.read_bytes()

    # And the examples that the same transform makes have the same bytes.
    assert main(["transform", str(here), str(tmp_path / "here2"), "--name=made"]) == 0
    assert main(["transform", str(here), str(tmp_path / "flink2"), "--name=made", *cluster.options, submits]) == 0
    assert digest(tmp_path / "flink2") == digest(tmp_path / "here2")


@pytest.mark.slow(15)
@needs_flink
def test_a_second_cluster_is_refused_where_one_runs(cluster, tmp_path):
    again = cluster_command("up", "--folder", str(cluster.folder))
    assert (again.returncode, again.stderr) == (1, f"cluster.py: a cluster runs already in {cluster.folder}; take it down first\n")
    taken = cluster_command("up", "--folder", str(tmp_path), "--rest_port", str(cluster.rest_port))
    assert taken.returncode == 1 and f"something listens on port {cluster.rest_port} already" in taken.stderr
    told = json.loads(cluster_command("status", "--folder", str(cluster.folder)).stdout)
    assert told["processes"] == cluster.process_ids() and told["taskmanagers"] == 2


@pytest.mark.slow(30)
@needs_flink
def test_the_job_of_a_command_that_was_killed_is_cancelled_by_the_next_and_publishes_nothing(cluster, submits, start, source, tmp_path):
    prepare_here(source, tmp_path / "local", "--seed=5")
    with held_run(cluster, start, "written") as (run, gate, held):
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
        other = start("--seed=5", "--restart", submits, KEEP_WORKERS)
        while cluster.ask(f"jobs/{orphan['jid']}")["state"] == "RUNNING":
            assert other.poll() is None, other.communicate()
            time.sleep(0.1)
        gate.open()  # to a job that is being cancelled
        printed = finish(other)
    assert f"{orphan['name']}: left by a command that was killed; it is cancelled" in printed
    assert cluster.ask(f"jobs/{orphan['jid']}")["state"] == "CANCELED"
    assert digest(tmp_path / "out") == digest(tmp_path / "local")
    assert sorted(os.listdir(tmp_path)) == ["local", "out"]


def counters(cluster: Cluster, job: dict[str, Any]) -> dict[str, int]:
    """What is counted of a job in Beam's metrics."""
    return engines.flink_exporter().read_counters(cluster.ask(f"jobs/{job['jid']}/accumulators"))


def wait_until(is_so: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow(30)
@needs_flink
def test_a_job_that_lacks_a_slot_says_so_and_what_it_counts_is_there_for_prometheus(cluster, submits, start, expected, tmp_path):
    name = next(name for name in cluster.process_ids() if name.startswith("task-manager"))
    run = start(submits, KEEP_WORKERS)
    cluster.kill(name)
    cluster.wait_for_task_managers(1)
    printed = ""
    while "tasks wait for slots" not in printed:
        line = run.stdout.readline()
        assert line, printed
        printed += line
    assert f"of --flink_master=localhost:{cluster.rest_port} (TaskManagers: 1, slots: 1, free slots: 0); expected more TaskManagers" in printed
    cluster.start_task_manager(f"{name}-again")
    finish(run)
    assert digest(tmp_path / "out") == expected

    job, exporter = latest_job(cluster), engines.flink_exporter()
    counted = counters(cluster, job)
    assert (counted["listed"], counted["written"], counted["dead_letters"]) == (342, 342, 2)
    assert {name for name in counted if name.endswith("_msecs")} == {"list_msecs", "plan_msecs", "write_msecs", "publish_msecs"}
    manifest = dataset_format.read_manifest(tmp_path / "out")
    assert counted["written_bytes"] == sum(shard.num_bytes for shards in manifest.splits.values() for shard in shards)
    server = exporter.serve(exporter.Flink(f"localhost:{cluster.rest_port}"), 0)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with server, urllib.request.urlopen(f"http://localhost:{server.server_port}/metrics") as response:
        lines = response.read().decode().splitlines()
        server.shutdown()
    labels = f'job_name="{job["name"]}",job_id="{job["jid"]}"'
    assert f"recordmill_listed_total{{{labels}}} 342" in lines
    assert f'recordmill_dead_letters_by_reason_total{{{labels},reason="bad_image"}} 2' in lines
    assert f"recordmill_job_running{{{labels}}} 0" in lines


@pytest.mark.slow(15)
@needs_flink
def test_a_job_that_takes_too_long_is_stopped_with_one_line_and_can_be_gone_on_from(cluster, submits, start, source, expected, tmp_path):
    with held_run(cluster, start, "written", submits, "--job_timeout=60") as (run, gate, _):
        printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 1, printed[-3000:]
    assert "recordmill: the job was not done after --job_timeout=60 seconds, and was stopped; " in printed and "Traceback" not in printed
    assert latest_job(cluster)["state"] == "CANCELED"
    assert_resumes_here(source, expected, tmp_path)


@pytest.mark.slow(60)
@needs_flink
def test_a_job_manager_that_is_killed_is_one_line_with_what_to_do(cluster, submits, start, tmp_path):
    """It is not started again, so this is the last one of them that submits a job."""
    with held_run(cluster, start, "written", submits) as (run, gate, _):
        cluster.kill("job-manager")
        printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 1, printed[-3000:]
    lost = f"--flink_master=localhost:{cluster.rest_port}: "
    assert f"recordmill: warning: {lost}no answer (Connection refused)" in printed
    told = printed.splitlines()[-1]
    assert told.startswith(f"recordmill: {lost}") and "and what it has written was left there" in told
    assert told.endswith(f"the same command with --resume goes on from {tmp_path / 'out.incomplete'}")
    assert "Traceback" not in printed and "ERROR" not in printed


@pytest.mark.slow(15)
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
