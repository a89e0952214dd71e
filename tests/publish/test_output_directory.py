"""Tests how commands lock, clean up and publish their output and working directories."""

import concurrent.futures
import contextlib
import errno
import itertools
import json
import os
import pathlib
import shutil
import time
from typing import Any, Callable

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.errors import BusyError, RunError, StorageError, UserError
from beam_pipelines.publish import publishing as publish
from beam_pipelines.publish.resumable_run import ResumePolicy
from beam_pipelines.publish.output import working_directory
from beam_pipelines.publish.publishing import check_files, publish_directory
from beam_pipelines.storage import working_directory as directories
from beam_pipelines.storage.lease import LEASE, make_lease
from beam_pipelines.storage.working_directory import MARKER, MARKER_TEXT, WorkingDirectory, make_marked, remove_directory
from made_images import write_class_folders, write_files


def make_run(output: pathlib.Path, run_id: str = "run", **fields: Any) -> RunPaths:
    return RunPaths(str(output), run_id, f"{run_id}'s", **fields)


def publish_run(run: RunPaths, manifest: bytes = b"{}") -> None:
    """Publishes the output of a run in the same way as the last step of the pipeline."""
    write_files(pathlib.Path(run.working_directory), {"run.json": json.dumps({"run_id": run.id}).encode()})
    publish.publish(run, manifest)


def list_names(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_failed_run_removes_working_directory_and_created_parents(tmp_path):
    with pytest.raises(ZeroDivisionError), working_directory(make_run(tmp_path / "a" / "b" / "out")):
        (tmp_path / "a" / "b" / "out.incomplete" / "half").write_text("")
        1 / 0
    assert list_names(tmp_path) == []


def test_removes_leftovers_of_killed_run_at_any_stage(tmp_path):
    killed = {
        "after creating the directory": {},
        "while writing the marker": {MARKER: MARKER_TEXT[:9]},
        "while writing files": {MARKER: MARKER_TEXT, "half": b""},
    }
    for when, files in killed.items():
        (tmp_path / "out.incomplete" / "spool").mkdir(parents=True) if len(files) == 2 else (tmp_path / "out.incomplete").mkdir()
        for name, data in files.items():
            (tmp_path / "out.incomplete" / name).write_bytes(data)
        with working_directory(make_run(tmp_path / "out")):
            assert list_names(tmp_path / "out.incomplete") == [MARKER, LEASE, "run"] and not list_names(tmp_path / "out.incomplete/run"), when
            assert (tmp_path / "out.incomplete" / MARKER).read_bytes() == MARKER_TEXT, when
        assert list_names(tmp_path) == [], when


def snapshot(folder: pathlib.Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


FOREIGN = {
    "notes": ("out.incomplete", {"notes.txt": b"mine"}, "out.incomplete, which the run needs"),
    "marker of another program": ("out.incomplete", {MARKER: b"to do", "notes.txt": b"mine"}, "has files from elsewhere"),
    "incomplete marker": ("out.incomplete", {MARKER: MARKER_TEXT[:9], "notes.txt": b"mine"}, "has files from elsewhere"),
    "replaced dataset": ("out.replaced", {"manifest.json": b"{}"}, "Restore it (`mv "),
    "notes in out.replaced": ("out.replaced", {"notes.txt": b"mine"}, "out.replaced"),
}


@pytest.mark.slow(0.4)
@pytest.mark.parametrize("case", FOREIGN)
@pytest.mark.parametrize("source", ["images", "rubbish"])
def test_rejects_unexpected_files_and_keeps_them(tmp_path, capsys, monkeypatch, case, source):
    """The command rejects unexpected files before it reads inputs, so corrupt inputs do not change the message."""
    name, files, reported = FOREIGN[case]
    write_class_folders(tmp_path / "images", {"a": 2, "b": 2})
    write_files(tmp_path / "rubbish", {"a/1.jpg": b"no image", "b/1.jpg": b"no image"})
    write_files(tmp_path / name, files)
    before = snapshot(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", "--input", source, "--output", "out", "--overwrite"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("recordmill: --output=out: ") and reported in error and error.count("\n") == 1, error
    assert snapshot(tmp_path) == before
    (tmp_path / name).rename(tmp_path / "elsewhere")
    assert main(["prepare", "--input", source, "--output", "out", "--overwrite"]) == (0 if source == "images" else 2)


def test_rejects_symbolic_link_as_working_directory(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "out.incomplete").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="out.incomplete, "), working_directory(make_run(tmp_path / "out")):
        pass
    assert list_names(tmp_path) == ["mine", "out.incomplete"]


def test_keeps_output_that_appeared_during_the_run(tmp_path):
    run = make_run(tmp_path / "out", is_output_new=True)
    with pytest.raises(RunError, match="/out "), working_directory(run):
        write_files(tmp_path / "out", {"notes.txt": b"mine"})
        publish_run(run)
    assert snapshot(tmp_path) == {"out": None, "out/notes.txt": b"mine"}


def test_second_attempt_replaces_output_of_same_run(tmp_path):
    run = make_run(tmp_path / "out", is_output_new=True)
    with working_directory(run):
        publish_run(run)
        assert list_names(tmp_path) == ["out"] and list_names(tmp_path / "out") == ["manifest.json", "run.json"], "the marker is removed"
        make_marked(run.scratch_directory)  # The runner retries the whole job.
        write_files(pathlib.Path(run.working_directory), {"half": b""})
        publish.publish(run, b"{}")
    assert list_names(tmp_path / "out") == ["manifest.json", "run.json"]


def test_orphaned_job_publishes_nothing_after_another_run_takes_over(tmp_path):
    orphan = make_run(tmp_path / "out", is_output_new=True)
    context = working_directory(orphan)
    context.__enter__()
    write_files(pathlib.Path(orphan.working_directory), {"made-0": b"its own"})
    os.rename(tmp_path / "out.incomplete", tmp_path / "killed")  # The lock of the command moves with the directory.
    shutil.copytree(tmp_path / "killed", tmp_path / "out.incomplete")
    with working_directory(other := make_run(tmp_path / "out", "other", is_output_new=True)):
        assert list_names(tmp_path / "out.incomplete") == [MARKER, LEASE, "other"]
        with pytest.raises(OSError):  # The directory that the orphaned job writes to was removed.
            (pathlib.Path(orphan.working_directory) / "made-1").write_bytes(b"its own")
        with pytest.raises(RunError, match="another run .*taken over"):
            publish.publish(orphan, b"{}")
        publish_run(other, b"[]")
    assert (tmp_path / "out" / "manifest.json").read_bytes() == b"[]"


def test_orphaned_job_publishes_if_no_other_run_took_over(tmp_path):
    run = make_run(tmp_path / "out", is_output_new=True)
    with working_directory(run):
        shutil.copytree(tmp_path / "out.incomplete", tmp_path / "killed")
    os.rename(tmp_path / "killed", tmp_path / "out.incomplete")
    publish_run(run)
    assert list_names(tmp_path) == ["out"]


def test_second_run_to_the_same_output_is_rejected(tmp_path, capsys):
    with working_directory(make_run(tmp_path / "out")):
        (tmp_path / "out.incomplete" / "half").write_text("")
        with pytest.raises(BusyError, match=rf"--output=.*out: another run .* process {os.getpid()} on "), working_directory(make_run(tmp_path / "out")):
            pass
        assert list_names(tmp_path / "out.incomplete") == [MARKER, LEASE, "half", "run"]
        assert main(["status", str(tmp_path / "out")]) == 0
        reported = capsys.readouterr().out
        assert "run:      run: running (process " in reported and "next:" not in reported, reported


def test_resume_is_rejected_if_another_run_has_finished(tmp_path):
    busy_error = pytest.raises(BusyError, match="--output=.*out: another .*resumed")
    with busy_error, working_directory(make_run(tmp_path / "out"), ResumePolicy.RESUME):
        pass
    with working_directory(make_run(tmp_path / "out")):  # Nothing prevents a run without --resume.
        pass
    assert list_names(tmp_path) == []


def test_waits_until_cancelled_job_stops_writing(tmp_path, monkeypatch):
    directory, until = str(tmp_path / "out.incomplete"), time.monotonic() + 0.5
    make_marked(directory)
    left = tmp_path / "out.incomplete" / "left"
    left.mkdir()

    def write() -> None:
        for number in itertools.count():
            if time.monotonic() > until or not left.exists():
                return
            with contextlib.suppress(FileNotFoundError):
                (left / f"{number}").touch()

    def remove(path: str, remove: Callable[..., None] = os.rmdir, **options: Any) -> None:
        """Waits until another thread has written a file, so that the first attempt to remove the directory fails."""
        while time.monotonic() < until and not os.listdir(left):
            pass
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", remove)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        threads.submit(write)
        with WorkingDirectory(directory, make_lease("run", "mine"), "--output").hold():
            assert list_names(tmp_path / "out.incomplete") == [MARKER, LEASE]
    assert list_names(tmp_path) == [] and time.monotonic() > until


def test_reports_folder_that_cannot_be_emptied(tmp_path, monkeypatch):
    directory = str(tmp_path / "out.incomplete")
    make_marked(directory)
    (tmp_path / "out.incomplete" / "left").mkdir()
    reported = pytest.raises(StorageError, match="out.incomplete .*: Directory not empty")
    monkeypatch.setattr(directories, "_MAX_EMPTYING_S", 0.2)
    monkeypatch.setattr(os, "rmdir", lambda *unused, **options: (_ for _ in ()).throw(OSError(errno.ENOTEMPTY, "Directory not empty")))
    with reported, WorkingDirectory(directory, make_lease("run", "mine"), "--output").hold():
        pass


def test_rejects_file_in_place_of_working_directory_and_keeps_it(tmp_path):
    (tmp_path / "out.incomplete").write_text("mine")
    with pytest.raises(UserError, match="--output=.*out: .*out.incomplete: File exists"), working_directory(make_run(tmp_path / "out")):
        pass
    remove_directory(str(tmp_path / "out.incomplete"))
    assert list_names(tmp_path) == ["out.incomplete"] and (tmp_path / "out.incomplete").read_text() == "mine"


def test_check_files_names_truncated_and_missing_files(tmp_path):
    run = make_run(tmp_path / "out")
    write_files(pathlib.Path(run.working_directory), {"made-0": b"whole", "made-1": b"hal"})
    check_files(run, [("made-0", 5)])
    for expected, files in {
        "made-1 .*5 bytes.*3 bytes": [("made-0", 5), ("made-1", 5)],
        "made-2 .*7 bytes.*missing": [("made-2", 7)],
    }.items():
        with pytest.raises(RunError, match=f"^{expected}"):
            check_files(run, files)


def test_finished_run_keeps_working_directory_of_next_run(tmp_path):
    with working_directory(make_run(tmp_path / "out")):
        os.replace(tmp_path / "out.incomplete", tmp_path / "out")
        (tmp_path / "out.incomplete").mkdir()  # Another run with --overwrite creates this directory.
        (tmp_path / "out.incomplete" / "half").write_text("")
    assert list_names(tmp_path / "out.incomplete") == ["half"]


def make_directories(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Creates the working directory of a finished run and the output of an older run, and returns both paths."""
    new, output = folder / "out.incomplete", folder / "out"
    for directory, text in ((new, "new"), (output, "old")):
        directory.mkdir()
        (directory / "data").write_text(text)
    return new, output


def test_publishing_replaces_older_dataset(tmp_path):
    new, output = make_directories(tmp_path)
    publish_directory(new, output)
    assert (list_names(tmp_path), (output / "data").read_text()) == (["out"], "new")


def test_publishing_never_removes_existing_replaced_directory(tmp_path):
    new, output = make_directories(tmp_path)
    write_files(tmp_path / "out.replaced", {"notes.txt": b"mine"})
    with pytest.raises(RunError, match="/out.replaced "):
        publish_directory(new, output)
    assert (output / "data").read_text() == "old" and (tmp_path / "out.replaced/notes.txt").read_bytes() == b"mine"
    os.replace(output, tmp_path / "aside")  # An earlier attempt was killed between its two renames.
    publish_directory(new, output)
    assert (output / "data").read_text() == "new" and (tmp_path / "out.replaced/notes.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_restores_old_dataset_if_new_one_cannot_be_moved(tmp_path, monkeypatch, error):
    new, output = make_directories(tmp_path)
    replace = os.replace

    def fail_for_new_directory(source: pathlib.Path, target: pathlib.Path) -> None:
        if source == new:
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_for_new_directory)
    with pytest.raises(error):
        publish_directory(new, output)
    assert (output / "data").read_text() == "old" and list_names(tmp_path) == ["out", "out.incomplete"]
    shutil.rmtree(output)
    with pytest.raises(error):
        publish_directory(new, output)
    assert list_names(tmp_path) == ["out.incomplete"]
