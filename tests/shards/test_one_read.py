"""One read, shown from outside: which files a run opens, what it asks a store for, what it writes, and what goes through the runner."""

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
from object_stores import faulty, put, reached, shared_server
from tf_input.dataset_format import read_manifest

# Said to every Python process of a run before anything else: it notes which files are opened by name, and which large packages it imports.
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
    """Files of a photograph's size in class folders, about 80 KB each; some that are re-encoded, some that are refused."""
    folder = tmp_path_factory.mktemp("photographs")
    files = {f"{'ant' if seed % 2 else 'bee'}/{seed:03d}.jpg": jpeg(seed, 240, 320) for seed in range(NUM_IMAGES)}
    files |= {f"ant/flat{seed}.bmp": encode(noise(seed, 20, 20), "BMP") for seed in range(3)} | {"bee/page.jpg": b"<!DOCTYPE html>"}
    return write_files(folder, files)


def run(command: list[str | os.PathLike], source: pathlib.Path, output: pathlib.Path, *options: str, **environment: str) -> None:
    """`recordmill prepare`, in a process of its own, by way of another command."""
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
    """Each file of the source once, but for the sample, which was looked at before."""
    files = {str(path) for path in source.rglob("*.*")}
    counts = collections.Counter(opened[path] for path in files)
    assert counts == {1: len(files) - MIN_SAMPLE, 2: MIN_SAMPLE}


OPTIONS = ("--num_shards=train=3,validation=1", "--max_bad_fraction=0.1")


def note(folder: pathlib.Path) -> dict[str, str]:
    """The environment of a run whose Python processes write their notes into a folder."""
    write_files(folder / "site", {"sitecustomize.py": SITECUSTOMIZE.encode()})
    (folder / "notes").mkdir()
    return {"PYTHONPATH": f"{folder / 'site'}{os.pathsep}{TEST_PATH}", NOTES: str(folder / "notes")}


def check_notes(folder: pathlib.Path, source: pathlib.Path, by_light_ones: int) -> None:
    """Each file was opened once, and light processes, which import no Beam, opened so many of them."""
    opened, actual = collections.Counter(), 0
    for path in (folder / "notes").iterdir():
        lines = path.read_text().splitlines()
        here = collections.Counter(line.removeprefix("open ") for line in lines if line.startswith("open "))
        opened += here
        actual += 0 if "import apache_beam" in lines else sum(here[name] for name in here if name.startswith(f"{source}/"))
        assert "import tensorflow" not in lines
    check_opened(opened, source)
    assert actual == by_light_ones


@pytest.mark.slow(5)
def test_two_workers_open_each_file_once(photographs, tmp_path):
    run([], photographs, tmp_path / "out", *OPTIONS, "--direct_num_workers=2", "--direct_running_mode=multi_processing", **note(tmp_path))
    check_notes(tmp_path, photographs, by_light_ones=0)


class Traced(NamedTuple):
    """What all processes of a run asked of the kernel: files opened, by name; bytes written, by the name of the file."""

    opened: collections.Counter
    written: collections.Counter


_OPENED = re.compile(r'open(?:at)?\((?:AT_FDCWD<[^>]*>, )?"([^"]*)".* = \d')
_WRITTEN = re.compile(r"(?:write|pwrite64|writev|pwritev2?)\(\d+<([^>]*)>.* = (\d+)$")
_COPIED = re.compile(r"(?:copy_file_range|sendfile|splice)\(.*?<[^>]*>.* \d+<([^>]*)>.* = (\d+)$")
_CALLS = "open,openat,write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,splice"


def can_trace() -> bool:
    program = shutil.which("strace")
    return program is not None and subprocess.run([program, "-f", "-o", os.devnull, "true"], capture_output=True).returncode == 0


class LightRun(NamedTuple):
    """Where the notes and the dataset of a run lie that light processes have read for; and its trace, where processes may be traced."""

    folder: pathlib.Path
    traced: Traced | None


@pytest.fixture(scope="module")
def light_run(photographs, tmp_path_factory) -> LightRun:
    folder = tmp_path_factory.mktemp("light")
    if not can_trace():
        run([], photographs, folder / "out", *OPTIONS, **note(folder))
        return LightRun(folder, None)
    return LightRun(folder, trace(photographs, folder, *OPTIONS, **note(folder)))


def trace(source: pathlib.Path, folder: pathlib.Path, *options: str, **environment: str) -> Traced:
    """One file of the trace a process, so that no line is cut in two by another's."""
    (folder / "trace").mkdir()
    command = ["strace", "-ff", "-qq", "-y", "-s", "0", "--seccomp-bpf", "-e", f"trace={_CALLS}", "-e", "signal=none"]
    # A path is an argument that -s 0 would cut off: -y names it with the descriptor that comes of it.
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
def test_each_file_is_opened_once_by_light_processes_which_are_light(light_run, photographs):
    """They read all images, the sample too."""
    check_notes(light_run.folder, photographs, by_light_ones=sum(1 for _ in photographs.rglob("*.*")) + MIN_SAMPLE)


def test_the_kernel_is_asked_for_each_file_once_and_for_no_more_bytes_than_the_dataset_has(light_run, photographs):
    """Plan, spool, progress and what is done are counted too."""
    if light_run.traced is None:
        pytest.skip("strace is not installed, or may not trace processes here")
    check_opened(light_run.traced.opened, photographs)
    output = light_run.folder / "out"
    of_output = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    written = collections.Counter()
    for path, num_bytes in light_run.traced.written.items():
        if path.startswith(str(output)):
            written[path.removeprefix(f"{output}.incomplete/").partition("/")[2].partition("/")[0]] += num_bytes
    assert of_output > 10**7 and sum(written.values()) >= of_output, written
    assert sum(written.values()) <= 1.01 * of_output, written
    # References alone are in the spool, and none of the images: sorted when they are listed, and again as they are planned.
    assert 0 < written["spool"] <= 256 * (NUM_IMAGES + 4) < of_output / 100, written


NUM_OBJECTS, NUM_SHARDS = 120, 3


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_each_object_is_fetched_once(scheme):
    pytest.importorskip({"s3": "moto.server", "gs": "gcp_storage_emulator"}[scheme])
    with faulty(shared_server(scheme)) as (proxied, faults), reached(proxied):
        bucket = put(proxied, {f"in/{'ab'[seed % 2]}/{seed:03d}.jpg": jpeg(seed) for seed in range(NUM_OBJECTS)}, folder="")
        before = len(faults.seen)
        shards = f"--num_shards={NUM_SHARDS}"
        command = ["prepare", f"--input={bucket}/in", f"--output={bucket}/out", "--splits=train=1", "--no_report", shards, *proxied.flags]
        assert main(command) == 0
        seen = [(method, path) for method, path, _ in faults.seen[before:]]
    gets = collections.Counter(path for method, path in seen if method == "GET" and re.search(r"in(/|%2F)[ab](/|%2F)\d{3}\.jpg", path))
    assert collections.Counter(gets.values()) == {1: NUM_OBJECTS - MIN_SAMPLE, 2: MIN_SAMPLE}
    # Listings, the plan, the spool, what is done: some for each shard, whatever the number of images.
    others = [path for method, path in seen if method in ("GET", "HEAD") and path not in gets]
    assert len(others) <= 25 * NUM_SHARDS, collections.Counter(others).most_common(20)


# What goes through the runner, of few and of many images.
NUM_RECORDS = (3_000, 9_000)
MAX_BYTES = 64 * 20_000  # of histograms of keys mostly, which have as many buckets whatever the number of images
MAX_BYTES_OF_IMAGE = 2


@contextlib.contextmanager
def kept_results(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The results of the pipelines that the command runs."""
    results, wait_for_end = [], waiting.wait_for_end
    monkeypatch.setattr(waiting, "wait_for_end", lambda result: (results.append(result), wait_for_end(result))[1])
    yield results


class Shuffled(NamedTuple):
    """Bytes that the local runner had to hold: of PCollections between its stages, in its GroupByKeys, as side inputs."""

    between: list[int]
    grouped: list[int]
    side_inputs: list[int]


@pytest.fixture
def shuffled(monkeypatch) -> Shuffled:
    from apache_beam.runners.portability.fn_api_runner import execution

    counts = Shuffled([], [], [])
    buffers = (execution.ListBuffer, execution.GroupingBuffer, execution.WindowGroupingBuffer)
    for buffer, sizes in zip(buffers, counts):

        def append(self: Any, data: bytes, sizes: list[int] = sizes, append: Any = buffer.append) -> None:
            sizes.append(len(data))
            append(self, data)

        monkeypatch.setattr(buffer, "append", append)
    return counts


def write_records(path: pathlib.Path, num: int) -> pathlib.Path:
    """A file with so many images of four pixels: a real listing of them, in one part."""
    records = np.zeros(num, [("label", "u1"), ("image", "u1", (2, 2))])
    records["label"], records["image"] = np.arange(num) % 10, np.arange(num)[:, None, None] % 251
    path.write_bytes(records.tobytes())
    return path


def prepare_records(folder: pathlib.Path, num: int, *options: str) -> None:
    source = write_records(folder / f"{num}.bin", num)
    layout = ("--source=fixed_length", "--layout=label:uint8,image:uint8[2,2]", "--image_encoding=raw")
    assert main(["prepare", f"--input={source}", f"--output={folder / str(num)}", "--num_shards=16", *layout, *options]) == 0
    manifest = read_manifest(folder / str(num))
    assert sum(manifest.num_examples(split) for split in manifest.splits) == num


def element_counts(infos: Any) -> dict[str, int]:
    """PCollection -> its elements, as the workers counted them."""
    counts: collections.Counter = collections.Counter()
    for info in infos:
        if info.urn == monitoring_infos.ELEMENT_COUNT_URN:
            counts[info.labels["PCOLLECTION"]] += monitoring_infos.extract_counter_value(info)
    return counts


@pytest.mark.slow
def test_what_goes_through_the_runner_is_a_fraction_of_the_images(tmp_path, monkeypatch, shuffled):
    reserved, moved = {}, {}
    for num in NUM_RECORDS:
        for sizes in shuffled:
            sizes.clear()
        with kept_results(monkeypatch) as results:
            prepare_records(tmp_path, num)
        infos = [info for of_stage in results[0]._monitoring_infos_by_stage.values() for info in of_stage]
        counts = element_counts(infos)
        assert len(counts) > 20 and max(counts.values()) >= 16, counts
        assert max(counts.values()) <= 0.02 * num, counts
        reserved[num], moved[num] = sum(shuffled.side_inputs), sum(shuffled.between) + sum(shuffled.grouped)
    few, many = NUM_RECORDS
    assert 0 < moved[many] <= MAX_BYTES and moved[many] - moved[few] <= MAX_BYTES_OF_IMAGE * (many - few), moved
    # Histograms too; their counts compress a little worse.
    assert 0 < reserved[many] < 1.05 * reserved[few], reserved


@pytest.mark.slow(6)
@pytest.mark.skipif(not engines.has_go(), reason="Prism is built with go, which is not on the PATH")
def test_on_prism_too(tmp_path, monkeypatch):
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
        # Whatever goes from one step to another, shuffled or not, by the sizes of those elements that Prism has looked at.
        sizes = {
            info.labels["PCOLLECTION"]: monitoring_infos.extract_distribution(info)
            for info in metrics[-1]
            if info.urn == monitoring_infos.SAMPLED_BYTE_SIZE_URN
        }
        assert set(sizes) >= {name for name, count in counts.items() if count}
        num_bytes[num] = sum(counts[name] * of_sampled / sampled for name, (sampled, of_sampled, *_) in sizes.items() if sampled)
    few, many = NUM_RECORDS
    assert 0 < num_bytes[many] <= MAX_BYTES, num_bytes
    assert num_bytes[many] - num_bytes[few] <= MAX_BYTES_OF_IMAGE * (many - few), num_bytes
