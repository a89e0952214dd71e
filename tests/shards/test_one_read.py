"""Tests that a run opens each input once, and limits the bytes that it writes and passes between pipeline stages."""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any, Iterator, NamedTuple

import numpy as np
import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.portability.api import beam_job_api_pb2

import engines
from beam_pipelines.__main__ import main
from beam_pipelines.runners import waiting
from beam_pipelines.shuffle.sample import MIN_SAMPLE
from engines import TEST_PATH
from made_images import encode, jpeg, noise, write_files
from object_stores import connected_to, fault_proxy, shared_server, upload_files
from tf_input.dataset_format import read_manifest

# Loaded by each Python process of a run before other code. Records opened files and imports of large packages.
NOTES = "RECORDMILL_TEST_NOTES"
SITECUSTOMIZE = f"""
import os, sys

notes, big = os.environ.get("{NOTES}"), ("apache_beam", "tensorflow", "pyarrow", "pandas")
if notes:
    file = os.open(os.path.join(notes, str(os.getpid())), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            os.write(file, b"open " + os.fsencode(arguments[0]) + b"\\n")
        elif event == "import" and arguments[0] in big:
            os.write(file, b"import " + arguments[0].encode() + b"\\n")

    sys.addaudithook(note)
"""
NUM_IMAGES = 150


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> pathlib.Path:
    """Writes class folders with images of about 80 KB each, some of which `prepare` must re-encode or reject."""
    folder = tmp_path_factory.mktemp("photographs")
    files = {f"{'ant' if seed % 2 else 'bee'}/{seed:03d}.jpg": jpeg(seed, 240, 320) for seed in range(NUM_IMAGES)}
    files |= {f"ant/flat{seed}.bmp": encode(noise(seed, 20, 20), "BMP") for seed in range(3)} | {"bee/page.jpg": b"<!DOCTYPE html>"}
    return write_files(folder, files)


def run(command: list[str | os.PathLike], source: pathlib.Path, output: pathlib.Path, *options: str, **environment: str) -> None:
    """Runs `recordmill prepare` in a separate process that `command` starts."""
    arguments = [sys.executable, "-m", "beam_pipelines", "prepare", "--input", source, "--output", output, *options]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "PYTHONPATH": TEST_PATH, **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check_opened(opened: collections.Counter, source: pathlib.Path) -> None:
    """Checks that each source file was opened once, except for the sampled files, which are opened twice."""
    files = {str(path) for path in source.rglob("*.*")}
    counts = collections.Counter(opened[path] for path in files)
    assert counts == {1: len(files) - MIN_SAMPLE, 2: MIN_SAMPLE}


OPTIONS = ("--num_shards=train=3,validation=1", "--max_bad_fraction=0.1")


def recording_environment(folder: pathlib.Path) -> dict[str, str]:
    """Returns environment variables that make Python processes log the files that they open."""
    write_files(folder / "site", {"sitecustomize.py": SITECUSTOMIZE.encode()})
    (folder / "notes").mkdir()
    return {"PYTHONPATH": f"{folder / 'site'}{os.pathsep}{TEST_PATH}", NOTES: str(folder / "notes")}


def check_records(folder: pathlib.Path, source: pathlib.Path, by_worker_processes: int) -> None:
    """Checks how often files were opened. Processes without Beam opened source files `by_worker_processes` times."""
    opened, actual = collections.Counter(), 0
    for path in (folder / "notes").iterdir():
        lines = path.read_text().splitlines()
        here = collections.Counter(line.removeprefix("open ") for line in lines if line.startswith("open "))
        opened += here
        actual += 0 if "import apache_beam" in lines else sum(here[name] for name in here if name.startswith(f"{source}/"))
        assert "import tensorflow" not in lines
    check_opened(opened, source)
    assert actual == by_worker_processes


@pytest.mark.slow(5)
def test_two_beam_workers_open_each_file_once(photographs, tmp_path):
    run([], photographs, tmp_path / "out", *OPTIONS, "--direct_num_workers=2", "--direct_running_mode=multi_processing", **recording_environment(tmp_path))
    check_records(tmp_path, photographs, by_worker_processes=0)


class Traced(NamedTuple):
    """For each file in a run, how often the file was opened and how many bytes were written to it."""

    opened: collections.Counter
    written: collections.Counter


_OPENED = re.compile(r'open(?:at)?\((?:AT_FDCWD<[^>]*>, )?"([^"]*)".* = \d')
_WRITTEN = re.compile(r"(?:write|pwrite64|writev|pwritev2?)\(\d+<([^>]*)>.* = (\d+)$")
_COPIED = re.compile(r"(?:copy_file_range|sendfile|splice)\(.*?<[^>]*>.* \d+<([^>]*)>.* = (\d+)$")
_CALLS = "open,openat,write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,splice"


def can_trace() -> bool:
    program = shutil.which("strace")
    return program is not None and subprocess.run([program, "-f", "-o", os.devnull, "true"], capture_output=True).returncode == 0


class RecordedRun(NamedTuple):
    """The folder of a run with worker processes, and the counts from strace if strace is available."""

    folder: pathlib.Path
    traced: Traced | None


@pytest.fixture(scope="module")
def recorded_run(photographs, tmp_path_factory) -> RecordedRun:
    folder = tmp_path_factory.mktemp("recorded")
    if not can_trace():
        run([], photographs, folder / "out", *OPTIONS, **recording_environment(folder))
        return RecordedRun(folder, None)
    return RecordedRun(folder, trace(photographs, folder, *OPTIONS, **recording_environment(folder)))


def trace(source: pathlib.Path, folder: pathlib.Path, *options: str, **environment: str) -> Traced:
    """Runs `recordmill prepare` with strace, and counts the opened files and the written bytes."""
    (folder / "trace").mkdir()
    command = ["strace", "-ff", "-qq", "-y", "-s", "0", "--seccomp-bpf", "-e", f"trace={_CALLS}", "-e", "signal=none"]
    # With -s 0, paths in arguments are truncated. With -y, the path follows the returned file descriptor.
    run([*command, "-o", folder / "trace" / "t"], source, folder / "out", *options, **environment)
    opened, written = collections.Counter(), collections.Counter()
    for path in (folder / "trace").iterdir():
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("open") and (actual := re.search(r" = \d+<([^>]*)>$", line)):
                opened[actual[1]] += 1
            elif actual := _WRITTEN.match(line) or _COPIED.match(line):
                written[actual[1]] += int(actual[2])
    return Traced(opened, written)


@pytest.mark.slow(4)
def test_worker_processes_open_each_file_once_without_importing_beam(recorded_run, photographs):
    """Worker processes read all images, including the sample."""
    check_records(recorded_run.folder, photographs, by_worker_processes=sum(1 for _ in photographs.rglob("*.*")) + MIN_SAMPLE)


def test_run_opens_each_file_once_and_writes_little_more_than_the_dataset(recorded_run, photographs):
    """The written bytes include temporary files, such as the plan, the spool and the progress."""
    if recorded_run.traced is None:
        pytest.skip("strace cannot trace processes here")
    check_opened(recorded_run.traced.opened, photographs)
    output = recorded_run.folder / "out"
    output_bytes = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    written = collections.Counter()
    for path, num_bytes in recorded_run.traced.written.items():
        if path.startswith(str(output)):
            written[path.removeprefix(f"{output}.incomplete/").partition("/")[2].partition("/")[0]] += num_bytes
    assert output_bytes > 10**7 and sum(written.values()) >= output_bytes, written
    assert sum(written.values()) <= 1.01 * output_bytes, written
    # The spool has only references, which are sorted once during the listing and once during planning.
    assert 0 < written["spool"] <= 256 * (NUM_IMAGES + 4) < output_bytes / 100, written


NUM_OBJECTS, NUM_SHARDS = 120, 3


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_each_object_is_fetched_once(scheme):
    with fault_proxy(shared_server(scheme)) as (proxied, faults), connected_to(proxied):
        bucket = upload_files(proxied, {f"in/{'ab'[seed % 2]}/{seed:03d}.jpg": jpeg(seed) for seed in range(NUM_OBJECTS)}, folder="")
        before = len(faults.seen)
        shards = f"--num_shards={NUM_SHARDS}"
        command = ["prepare", f"--input={bucket}/in", f"--output={bucket}/out", "--splits=train=1", "--no_report", shards, *proxied.flags]
        assert main(command) == 0
        seen = [(method, path) for method, path, _ in faults.seen[before:]]
    gets = collections.Counter(path for method, path in seen if method == "GET" and re.search(r"in/[ab]/\d{3}\.jpg", path))
    assert collections.Counter(gets.values()) == {1: NUM_OBJECTS - MIN_SAMPLE, 2: MIN_SAMPLE}
    # Listings, the plan, the spool and records of finished shards need a number of requests per shard, not per image.
    others = [path for method, path in seen if method in ("GET", "HEAD") and path not in gets]
    assert len(others) <= 25 * NUM_SHARDS, collections.Counter(others).most_common(20)


# Traffic through the runner, for few and for many images
NUM_RECORDS = (3_000, 9_000)
MAX_BYTES = 64 * 20_000  # mostly key histograms, whose number of buckets is fixed
MAX_BYTES_OF_IMAGE = 2


@contextlib.contextmanager
def record_results(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Context manager that collects the results of all pipelines that the command runs."""
    results, wait_for_end = [], waiting.wait_for_end
    monkeypatch.setattr(waiting, "wait_for_end", lambda result: (results.append(result), wait_for_end(result))[1])
    yield results


class BufferedBytes(NamedTuple):
    """The numbers of bytes that the local runner buffers between stages, in GroupByKeys and in side inputs."""

    between: list[int]
    grouped: list[int]
    side_inputs: list[int]


@pytest.fixture
def buffered_bytes(monkeypatch) -> BufferedBytes:
    from apache_beam.runners.portability.fn_api_runner import execution

    counts = BufferedBytes([], [], [])
    buffers = (execution.ListBuffer, execution.GroupingBuffer, execution.WindowGroupingBuffer)
    for buffer, sizes in zip(buffers, counts):

        def append(self: Any, data: bytes, sizes: list[int] = sizes, append: Any = buffer.append) -> None:
            sizes.append(len(data))
            append(self, data)

        monkeypatch.setattr(buffer, "append", append)
    return counts


def write_records(path: pathlib.Path, num: int) -> pathlib.Path:
    """Writes one file that contains `num` images of four pixels each."""
    records = np.zeros(num, [("label", "u1"), ("image", "u1", (2, 2))])
    records["label"], records["image"] = np.arange(num) % 10, np.arange(num)[:, None, None] % 251
    path.write_bytes(records.tobytes())
    return path


def prepare_records(folder: pathlib.Path, num: int, *options: str) -> None:
    source = write_records(folder / f"{num}.bin", num)
    layout = ("--source=fixed_length", "--record_layout=label:uint8,image:uint8[2,2]", "--image_encoding=raw")
    assert main(["prepare", f"--input={source}", f"--output={folder / str(num)}", "--num_shards=16", *layout, *options]) == 0
    manifest = read_manifest(folder / str(num))
    assert sum(manifest.num_examples(split) for split in manifest.splits) == num


def element_counts(infos: Any) -> dict[str, int]:
    """Returns the number of elements that the workers counted in each PCollection."""
    counts: collections.Counter = collections.Counter()
    for info in infos:
        if info.urn == monitoring_infos.ELEMENT_COUNT_URN:
            counts[info.labels["PCOLLECTION"]] += monitoring_infos.extract_counter_value(info)
    return counts


@pytest.mark.slow
def test_traffic_through_the_local_runner_is_small(tmp_path, monkeypatch, buffered_bytes):
    side_input_bytes, moved_bytes = {}, {}
    for num in NUM_RECORDS:
        for sizes in buffered_bytes:
            sizes.clear()
        with record_results(monkeypatch) as results:
            prepare_records(tmp_path, num)
        infos = [info for stage_infos in results[0]._monitoring_infos_by_stage.values() for info in stage_infos]
        counts = element_counts(infos)
        assert len(counts) > 20 and max(counts.values()) >= 16, counts
        assert max(counts.values()) <= 0.02 * num, counts
        side_input_bytes[num] = sum(buffered_bytes.side_inputs)
        moved_bytes[num] = sum(buffered_bytes.between) + sum(buffered_bytes.grouped)
    few, many = NUM_RECORDS
    assert 0 < moved_bytes[many] <= MAX_BYTES, moved_bytes
    assert moved_bytes[many] - moved_bytes[few] <= MAX_BYTES_OF_IMAGE * (many - few), moved_bytes
    # Side inputs include the histograms, whose larger counts compress slightly worse.
    assert 0 < side_input_bytes[many] < 1.05 * side_input_bytes[few], side_input_bytes


@pytest.mark.slow(6)
@pytest.mark.skipif(not engines.has_go(), reason="Prism needs go on the PATH")
def test_traffic_through_prism_is_small(tmp_path, monkeypatch):
    metrics, wait_for_end = [], waiting.wait_for_end

    def wait_and_ask(result: Any) -> str:
        state = wait_for_end(result)
        request = beam_job_api_pb2.GetJobMetricsRequest(job_id=result._job_id)
        metrics.append(result._job_service.GetJobMetrics(request).metrics.committed)
        return state

    monkeypatch.setattr(waiting, "wait_for_end", wait_and_ask)
    num_bytes = {}
    for num in NUM_RECORDS:
        prepare_records(
            tmp_path, num, "--runner=PrismRunner", f"--prism_location={engines.prism()}", "--environment_type=LOOPBACK", "--check=header"
        )
        counts = element_counts(metrics[-1])
        assert len(counts) > 20 and max(counts.values()) >= 16, counts
        assert max(counts.values()) <= 0.02 * num, counts
        # The traffic between steps is estimated from the sizes of the elements that Prism sampled.
        sizes = {
            info.labels["PCOLLECTION"]: monitoring_infos.extract_distribution(info)
            for info in metrics[-1]
            if info.urn == monitoring_infos.SAMPLED_BYTE_SIZE_URN
        }
        assert set(sizes) >= {name for name, count in counts.items() if count}
        num_bytes[num] = sum(counts[name] * sampled_bytes / sampled for name, (sampled, sampled_bytes, *_) in sizes.items() if sampled)
    few, many = NUM_RECORDS
    assert 0 < num_bytes[many] <= MAX_BYTES, num_bytes
    assert num_bytes[many] - num_bytes[few] <= MAX_BYTES_OF_IMAGE * (many - few), num_bytes
