"""Tests the demo that `make demo` runs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from PIL import Image

import forked_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "deploy" / "demo"


def run_demo(directory: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo in `directory`. The demo must work from any working directory."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(DEMO / "demo.py"), *options]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)


def run_demo_forked(directory: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo in a process that has already imported TensorFlow and Beam, so it can't hide their log messages."""
    # The same modules as for the programs in docs
    preloaded = (*forked_python.TENSORFLOW, *forked_python.BEAM, "sklearn.datasets")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return forked_python.run(DEMO / "demo.py", *options, cwd=directory, env=environment, preloaded=preloaded)


def parse_accuracies(output: str) -> tuple[float, float]:
    """Returns the accuracy with a shuffle buffer and the accuracy with the prepared dataset, in percent."""
    actual = re.search(r"^ +with shuffle\(256\) .* (\d+\.\d)%.*\nprepared, no buffer .* (\d+\.\d)%", output, re.MULTILINE)
    assert actual, output
    return float(actual[1]), float(actual[2])


@pytest.mark.slow(14)
def test_demo_shows_the_benefit_of_the_global_shuffle_and_can_be_rerun(tmp_path: pathlib.Path) -> None:
    first = run_demo(tmp_path)
    assert first.returncode == 0 and [line for line in first.stderr.splitlines() if "--source=" not in line] == []
    buffered, prepared = parse_accuracies(first.stdout)
    assert prepared > 85 and prepared - buffered > 20, first.stdout
    assert "prepare --input demo-out/digits --output demo-out/prepared" in first.stdout
    assert (tmp_path / "demo-out/prepared/manifest.json").is_file()
    with Image.open(tmp_path / "demo-out/shuffle.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (1200, 700))

    second = run_demo_forked(tmp_path, "--steps", "7")
    errors = re.sub(r"^(WARNING: All log messages before absl|[IWE]\d{4} ).*\n", "", second.stderr, flags=re.MULTILINE)
    assert second.returncode == 0 and [line for line in errors.splitlines() if "--source=" not in line] == []
    assert "7 steps" in second.stdout
    parse_accuracies(second.stdout)


@pytest.mark.slow
def test_demo_keeps_files_of_the_user(tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "out" / "digits" / "7" / "mine.png"
    mine.parent.mkdir(parents=True)
    mine.touch()
    rejected = run_demo(tmp_path, "--output", "out")
    assert rejected.returncode == 2
    assert rejected.stderr.startswith("demo: out/digits/7/mine.png ") and "--output" in rejected.stderr
    assert list(tmp_path.rglob("*.*")) == [mine]


def test_demo_rejects_an_invalid_option(tmp_path: pathlib.Path) -> None:
    rejected = run_demo(tmp_path, "--steps", "0")
    assert rejected.returncode == 2
    assert "--steps=0 " in rejected.stderr


def test_picture_in_the_repository_is_small() -> None:
    path = DEMO / "shuffle.png"
    assert path.stat().st_size < 120_000
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == ("PNG", (1200, 700))
