"""Tests that pipes and sockets in place of input files are rejected and never block a run."""

import os
import pathlib
import signal
import socket
from typing import Iterator

import pytest

from beam_pipelines.__main__ import main
from made_sources import CASES

# Case, pattern of a file and exit code. A bad file with many examples fails the run; others become dead letters.
FILES = [
    ("image_folder, class", "*/*.png", 0),
    ("table csv, class", "pictures/03.png", 0),
    ("table csv, segmentation", "masks/03.png", 0),
    ("table csv, dense", "heat/03.npy", 0),
    ("table csv, pairs", "right/03.png", 0),
    ("table csv, class", "rows.csv", 2),
    ("table jsonl, dense", "heat/03.npy", 0),
    ("table parquet, regression", "rows.parquet", 2),
    ("text, class", "pictures/03.png", 0),
    ("text, class", "*.txt", 2),
    ("voc, detection", "*.png", 0),
    ("voc, detection", "*.xml", 0),
    ("coco, detection and segmentation", "images/03.png", 0),
    ("coco, detection and segmentation", "*.json", 2),
    ("yolo, detection and segmentation", "labels/*.txt", 0),
    ("yolo, detection and segmentation", "*.yaml", 2),
    ("masks, segmentation", "**/*.png", 0),
    ("arrays npz, raw", "*.npz", 2),
    ("arrays npy, class", "*.npy", 2),
    ("arrays idx, raw", "*ubyte", 2),
    ("fixed_length, class", "*.bin", 2),
    ("tfrecord detection", "*record*", 0),
    ("webdataset, class", "*.tar", 0),
]


@pytest.fixture(autouse=True)
def fail_on_hang() -> Iterator[None]:
    """Fails a test that takes more than 60 seconds, for example because it waits for the writer of a pipe."""

    def fail(*unused: object) -> None:
        raise TimeoutError("the run hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put_pipe(path: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_socket(path: pathlib.Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        working_directory = os.getcwd()
        os.chdir(path.parent)  # a full path may be too long for a socket
        server.bind(path.name)
        os.chdir(working_directory)


@pytest.mark.slow
@pytest.mark.parametrize("put", [put_pipe, put_socket])
@pytest.mark.parametrize(("name", "files", "code"), FILES)
def test_pipe_or_socket_in_place_of_a_file_never_hangs_the_run(name, files, code, put, tmp_path, capfd):
    source = tmp_path / "in" / CASES[name].write(tmp_path / "in")
    path = min((tmp_path / "in").glob(files), default=None) or min((tmp_path / "in").rglob(files))
    put(path)
    command = ["prepare", f"--input={source}", f"--output={tmp_path / 'out'}", "--max_bad_fraction=0.5", "--no_report"]
    assert main([*command, *CASES[name].command]) == code
    reported = capfd.readouterr().err
    assert "Traceback" not in reported
    if code:
        assert "recordmill: " in reported
    else:
        assert path.stem in (tmp_path / "out/dead_letters.jsonl").read_text()
