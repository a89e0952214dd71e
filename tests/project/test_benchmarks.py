"""Tests that each benchmark runs to completion on tiny inputs. The measured values are not checked."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

import forked_python
from made_images import write_class_folders
from prepared import prepare_images

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # `pytest` alone does not look there

from benchmarks import gpu_benchmark, python_rivals, read_benchmark  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = r"^\.venv/bin/python -m benchmarks\.(\w+) *([^#\n]*)"

# Maps each benchmark to options that shorten its documented command and to a pattern for the end of its output.
SHORTENED = {
    "duplicates_benchmark": ("--photos= --num_tiny 40 --rounds=0 --runs=1", r"^ +lowest of 1: .* by clock, .* by CPU"),
    "object_store_benchmark": ("--files=3 --objects=20", r"^ +20 +[\d.]+ +\d+$"),
    "prepare_benchmark": ("--scale=0.0001 --rounds=0 --case=tiny-strict --case=photos-resized --case=memory", r"^ +16 photos +\d+ MB"),
    "shuffle_benchmark": ("--references 3000", r"^ +3,000 +\d+ "),
    "near_duplicates_benchmark": ("--hashes 3000", r"^ +3,000 +150 "),
    "verbatim_benchmark": ("--records 300", r"^ +300  memory +[\d.]+"),
    "transform_benchmark": ("--copies=1 --repeats=1 --seconds=0 --passes=one --image_size=32 --batch_size=8", r"^uint8 +[\d,]+ "),
    "storage_benchmark": (
        "--keep={folder}/made --runs 1 --turns 1 --seconds 0.001 --copies 1 --records 512 "
        "--case mount --case object-store --case shards-512 --case tiny-alone",
        "^tiny-alone +lowest of 1: .* by wall time, .* by CPU time",
    ),
}
# Benchmarks whose documented command runs in no test. Tests below call `main` of two of these benchmarks with other
# arguments. The engines benchmark needs a Flink cluster for several minutes and is run by hand.
NOT_RUN = {"engines_benchmark", "gpu_benchmark", "read_benchmark"}

# The modules that the compared libraries import in their own processes.
PRELOADED = (
    *(*forked_python.TENSORFLOW, "tensorflow_datasets", "tfx_bsl.public.tfxio", "tensorflow_transform.beam"),
    *(*forked_python.BEAM, "moto.s3.models"),
)
# Runs a module like `python -m` does, with another value of `sys.executable`.
RUN_MODULE = """
import runpy, sys
sys.executable, *sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# Calls `main` of a module and exits at once, because threads of the compared libraries can abort a normal exit.
RUN_MAIN = """
import importlib, os, sys
sys.executable, name, *arguments = sys.argv[1:]
code = importlib.import_module(name).main(arguments)
sys.stdout.flush()
os._exit(code)
"""

QUICK_OPTIONS = ["--runs=1", "--turns=1", "--seconds=0", "--batches=1", "--copies=1"]


def documented_arguments() -> dict[str, str]:
    """Returns the command-line arguments of each benchmark in docs/background/benchmarks.md."""
    actual = dict(re.findall(COMMAND, (ROOT / "docs/background/benchmarks.md").read_text(), re.MULTILINE))
    assert set(actual) == set(SHORTENED) | NOT_RUN == {path.stem for path in (ROOT / "benchmarks").glob("*_benchmark.py")}
    return actual


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> pathlib.Path:
    """Returns a folder that contains photographs and tiny images in class folders."""
    folder = tmp_path_factory.mktemp("images")
    write_class_folders(folder / "PHOTOGRAPHS", {"ant": 8, "bee": 8}, height=48, width=64)
    write_class_folders(folder / "TINY_JPEGS", {"ant": 8, "bee": 8}, height=32, width=32)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> pathlib.Path:
    """Returns a replacement for `python` that starts faster, because the benchmarks' modules are already imported."""
    return forked_python.write_command(tmp_path_factory.mktemp("commands") / "python", preloaded=PRELOADED)


def run_benchmark(python: pathlib.Path, name: str, arguments: list[str], cwd: pathlib.Path, code: str = RUN_MODULE) -> str:
    """Runs a benchmark, asserts that it succeeds, and returns its standard output."""
    # No query of Google's metadata server
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_GCE_CHECK": "true"}
    program = ("-c", code, python, f"benchmarks.{name}", *arguments)
    run = forked_python.run(*program, cwd=cwd, env=environment, preloaded=PRELOADED, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.mark.slow(7)
@pytest.mark.parametrize("name", sorted(SHORTENED))
def test_documented_command_runs_to_completion(images, python, name):
    shorter, end = SHORTENED[name]
    arguments = shlex.split(f"{documented_arguments()[name]} {shorter.format(folder=images)}")
    printed = run_benchmark(python, name, arguments, cwd=images)
    assert re.search(end, printed, re.MULTILINE), printed


@pytest.mark.slow(11)
def test_read_benchmark_compares_all_libraries(images, python):
    cases = ("photos", "tfds", "keras", "grain", "webdataset")
    if missing := [package for case in cases for package in read_benchmark.RACES[case].missing()]:
        pytest.skip(f"the extra benchmark is not installed: {', '.join(missing)}")
    chosen = [f"--case={case}" for case in (*cases, "resume")]
    arguments = [f"--photos={images / 'PHOTOGRAPHS'}", f"--keep={images / 'made'}", "--records=2000", *QUICK_OPTIONS, *chosen]
    _, *lines = run_benchmark(python, "read_benchmark", arguments, images, RUN_MAIN).splitlines()
    *races, local, exact, remote = lines
    assert "window" in local and "exact" in exact and "from a store, 30 ms" in remote
    for case, row, first, lowest in zip(cases, races[::3], races[1::3], races[2::3], strict=True):
        assert row.split()[0] == lowest.split()[0] == case
        assert row.count("/s") == 2 and "first batch after" in first, row
        assert "lowest of 1: " in lowest and ("reached" in lowest or "MISSED" in lowest)


@pytest.mark.parametrize("code", [0, 1])
def test_engines_benchmark_does_not_wait_for_a_finished_run(tmp_path, code):
    pytest.importorskip("psutil")
    from benchmarks import engines_benchmark

    with subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) as process:
        early = pytest.raises(RuntimeError, match="--copies")
        with contextlib.nullcontext() if code else early:
            engines_benchmark.kill_task_manager(None, tmp_path / "out")(process)
    assert process.returncode == code


def test_read_benchmark_reports_missing_packages(monkeypatch, capsys, tmp_path):
    race = dataclasses.replace(read_benchmark.RACES["tfds"], needs={"no_such_module": "no-such-package"})
    monkeypatch.setitem(read_benchmark.RACES, "tfds", race)
    assert read_benchmark.main([f"--photos={tmp_path}", "--case=tfds", "--case=tiny"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "tfds            not installed: pip install no-such-package",
        "tiny            not run: no --tiny",
    ]


def test_random_box_is_inside_the_image():
    random = np.random.default_rng(0)
    for height, width in ((48, 64), (300, 20), (1, 1), (2000, 1500)):
        for _ in range(50):
            top, left, rows, columns = python_rivals.random_box(height, width, random)
            assert 0 <= top <= top + rows <= height and 0 <= left <= left + columns <= width, (height, width)
            assert rows > 0 < columns, (height, width)


def test_merge_yields_items_of_all_sources_and_raises_their_errors():
    def fail_late():
        yield "b"
        raise OSError("no such shard")

    merged = python_rivals.merge([iter("aaa"), fail_late()])
    seen = []
    with pytest.raises(OSError, match="no such shard"):
        for item in merged:
            seen.append(item)
    assert "b" in seen and set(seen) <= {"a", "b"}


@pytest.mark.slow(4)
def test_gpu_benchmark_runs_without_a_gpu(tmp_path, capsys, monkeypatch):
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another backend")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # restores the value that the benchmark overwrites
    directory = prepare_images(tmp_path, num_images={"ant": 12, "bee": 12})
    sizes = ["--model=tiny", "--steps=3", "--batch_size=4", "--image_size=32", "--precision=float32"]
    assert gpu_benchmark.main([str(directory), "--backend=tensorflow", *sizes]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[-3:]] == ["uint8,", "float32,", "no"]
    if not gpu_benchmark.has_gpu("tensorflow"):
        assert rows[-1] == "no GPU: idle share not measured"
    for row in rows[-3:-1]:
        input_alone, training = (float(number.replace(",", "")) for number in row.split()[-4:-2])
        assert input_alone > 0 < training, row
