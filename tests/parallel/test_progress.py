"""Tests that progress counts are summed over all processes and displayed as progress bars."""

import errno
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from beam_pipelines.parallel import progress
from beam_pipelines.parallel.progress import Counts, count, read_counts
from object_stores import connected_to, shared_server


def test_counts_of_all_processes_are_summed(tmp_path):
    directory = str(tmp_path / "progress")
    progress.count(directory, listed=5)
    progress.count(directory, listed=2, listing_done=1)
    code = f"from beam_pipelines.parallel import progress; progress.count({directory!r}, written=3, dead_letters=1)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=_environment())
    assert read_counts(directory) == Counts(listed=7, listing_done=1, written=6, dead_letters=2)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(pathlib.Path(progress.__file__).parents[2])}


def test_second_run_in_a_process_counts_from_zero(tmp_path):
    directory = tmp_path / "progress"
    for run in range(2):
        progress.count(str(directory), written=3)
        assert read_counts(str(directory)).written == 3, run
        shutil.rmtree(directory)


@pytest.mark.parametrize("function", ["open", "pwrite", "mkdir"])
def test_full_disk_loses_counts_but_does_not_fail(tmp_path, monkeypatch, function):
    def raise_no_space(*unused: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, raise_no_space)
        count(str(tmp_path / "progress"), written=3)
    count(str(tmp_path / "progress"), written=4)
    assert read_counts(str(tmp_path / "progress")).written in (4, 7)


def test_counts_of_missing_directory_are_zero(tmp_path):
    assert read_counts(str(tmp_path / "nowhere")) == Counts()


def test_total_is_shown_only_after_listing():
    cases = {
        "while listing": (Counts(listed=5), [(5, None), (0, None)]),
        "while writing during listing": (Counts(listed=5, written=3), [(5, None), (3, None)]),
        "while writing after listing": (Counts(listed=9, listing_done=1, dead_letters=2, written=3), [(9, 9), (3, 9)]),
    }
    for case, (counts, expected) in cases.items():
        assert [(stage.done, stage.total) for stage in progress._stages(counts)] == expected, case
        hashed = progress.stages_with_hashing(counts._replace(hashed=4))[1]
        assert (hashed.name, hashed.done, hashed.total) == ("hashed", 4, expected[0][1]), case
    assert progress._stages(Counts(dead_letters=2))[1].note == "2 dead letters"


def test_workers_without_shared_disk_count_in_an_object_store(monkeypatch):
    with connected_to(shared_server("s3")) as server:
        directory = f"{server.make_bucket()}/out.incomplete/progress"
        assert read_counts(directory) == Counts()
        count(directory, written=3)
        count(directory, written=4, dead_letters=1)  # too soon after the previous upload
        assert read_counts(directory) == Counts(written=3)
        monkeypatch.setattr(progress, "OBJECT_SECONDS", 0)
        count(directory, written=5)
        assert read_counts(directory) == Counts(written=12, dead_letters=1)
        progress._counted.clear()  # simulates another process
        count(directory, written=100)
        assert read_counts(directory) == Counts(written=112, dead_letters=1)


def test_nothing_is_counted_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    count("", written=1)
    assert not list(tmp_path.iterdir())
