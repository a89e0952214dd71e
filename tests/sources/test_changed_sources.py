"""Tests that a run fails and names the file if a source file changes during the run or before `--resume`."""

import os
import pathlib
import shutil
import signal

import pytest

import made_sources
from beam_pipelines.__main__ import main
from beam_pipelines.sources.listing import list_images
from beam_pipelines.storage.files import files_at
from engines import digest
from forked_runs import ForkedRun
from made_sources import CASES
from object_stores import connected_to, shared_server, upload_files

# Maps each case to the pattern of its files that store many examples. Other cases store each image in its own file.
PACKED = {
    "table csv, class": "*.csv",
    "table jsonl, dense": "*.jsonl",
    "table parquet, regression": "*.parquet",
    "table parquet, embedded images": "*.parquet",
    "table hugging face, class": "metadata.jsonl",
    "text, class": "*.txt",
    "coco, detection and segmentation": "*.json",
    "arrays npz deflated, class": "*.npz",
    "arrays npz, raw": "*.npz",
    "arrays npy, class": "*.npy",
    "arrays idx gz, class": "*.gz",
    "arrays idx, raw": "*ubyte",
    "fixed_length, class": "*.bin",
    "tfrecord slim gzip, class": "*",
    "tfrecord detection": "*",
    "webdataset, class": "*.tar",
    "webdataset gz, class": "*.tar.gz",
    "webdataset json, multi-label and extra": "*.tar",
}
# Cases whose records are read by their offset in an uncompressed file when the shards are written.
BY_OFFSET = ("arrays npz, raw", "arrays npy, class", "arrays idx, raw", "fixed_length, class", "tfrecord detection", "webdataset, class")


def prepare_command(source: pathlib.Path | str, output: pathlib.Path | str, name: str, *options: str) -> list[str]:
    return ["prepare", f"--input={source}", f"--output={output}", *CASES[name].command, "--no_report", *options]


def packed_file(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the first source file that contains several examples."""
    return min(path for path in folder.rglob(PACKED[name]) if path.is_file())


def touch(path: pathlib.Path) -> None:
    """Changes only the modification time of a file, as if the file had been rewritten with the same length."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def call_after_listing(monkeypatch, change) -> None:
    """Makes each run call `change` after it has listed the source."""
    original = list_images.join_listings

    def join_listings(*arguments):
        listing = original(*arguments)
        change()
        return listing

    monkeypatch.setattr(list_images, "join_listings", join_listings)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_file_changed_after_the_listing_fails_the_run(name, tmp_path, monkeypatch, capfd):
    source = tmp_path / "in" / CASES[name].write(tmp_path / "in")
    changed = packed_file(tmp_path / "in", name)
    call_after_listing(monkeypatch, lambda: touch(changed))
    assert main(prepare_command(source, tmp_path / "out", name)) == 2
    reported = capfd.readouterr().err
    assert changed.name in reported and "--restart" in reported and "Traceback" not in reported
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    assert main(prepare_command(source, tmp_path / "out", name, "--restart")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed_length, class", "arrays idx, raw"])
def test_file_changed_before_its_parts_are_listed_fails_the_run(name, tmp_path, monkeypatch, capfd):
    source = tmp_path / "in" / CASES[name].write(tmp_path / "in")
    changed, list_parts = packed_file(tmp_path / "in", name), list_images.list_parts

    def list_and_change(*arguments):
        parts = list_parts(*arguments)
        touch(changed)
        return parts

    monkeypatch.setattr(list_images, "list_parts", list_and_change)
    assert main(prepare_command(source, tmp_path / "out", name)) == 2
    reported = capfd.readouterr().err
    assert changed.name in reported and "Traceback" not in reported


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_file_changed_before_resume_fails_the_run(name, tmp_path, capfd):
    source = tmp_path / "in" / CASES[name].write(tmp_path / "in")
    changed = packed_file(tmp_path / "in", name)
    run = ForkedRun(
        *prepare_command(source, tmp_path / "out", name), signalled=f"{signal.SIGKILL.value}:beam_pipelines.shards.shard_files:write_done:2"
    )
    assert run.wait() == -signal.SIGKILL, run.reported()
    status = changed.stat()
    touch(changed)
    assert main(prepare_command(source, tmp_path / "out", name, "--resume")) == 2
    reported = capfd.readouterr().err
    assert changed.name in reported and "--restart" in reported and "Traceback" not in reported
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert main(prepare_command(source, tmp_path / "out", name, "--resume")) == 0
    assert main(prepare_command(source, tmp_path / "again", name)) == 0
    assert digest(tmp_path / "out") == digest(tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_OFFSET)
def test_file_with_other_labels_and_same_length_fails_the_run(name, tmp_path, monkeypatch, capfd):
    source = tmp_path / "in" / CASES[name].write(tmp_path / "in")
    with pytest.MonkeyPatch.context() as patch:
        for values in ("PICTURES", "PNGS", "GREYS"):
            patch.setattr(made_sources, values, getattr(made_sources, values)[::-1])
        CASES[name].write(tmp_path / "other")
    call_after_listing(monkeypatch, lambda: shutil.copytree(tmp_path / "other", tmp_path / "in", dirs_exist_ok=True, copy_function=shutil.copyfile))
    assert main(prepare_command(source, tmp_path / "out", name)) == 2
    reported = capfd.readouterr().err
    assert "--restart" in reported and "Traceback" not in reported and not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["webdataset, class", "arrays npz deflated, class"])
def test_file_changed_during_repair_fails_the_repair(name, tmp_path, monkeypatch, capfd):
    source = tmp_path / "in" / CASES[name].write(tmp_path / "in")
    assert main(prepare_command(source, tmp_path / "out", name)) == 0
    min((tmp_path / "out").glob("*.tfrecord-*")).unlink()
    changed = packed_file(tmp_path / "in", name)
    call_after_listing(monkeypatch, lambda: touch(changed))
    assert main(["repair", str(tmp_path / "out")]) == 2
    reported = capfd.readouterr().err
    assert changed.name in reported and "Traceback" not in reported


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("name", ["webdataset, class", "tfrecord detection"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_object_changed_after_the_listing_fails_the_run(scheme, name, is_gone, tmp_path, monkeypatch, capfd):
    source = tmp_path / "in" / CASES[name].write(tmp_path / "in")
    files = {f"in/{file.relative_to(tmp_path / 'in')}": file.read_bytes() for file in (tmp_path / "in").rglob("*") if file.is_file()}
    changed = min(files)
    with connected_to(shared_server(scheme)) as server:
        bucket = upload_files(server, files, folder="")
        def change() -> None:
            store = files_at(bucket)
            store.remove(f"{bucket}/{changed}") if is_gone else store.write(f"{bucket}/{changed}", files[changed][::-1])

        call_after_listing(monkeypatch, change)
        source = f"{bucket}/in/{source.relative_to(tmp_path / 'in')}".removesuffix("/.")
        assert main(prepare_command(source, f"{bucket}/out", name, *server.flags)) == 2
    reported = capfd.readouterr().err
    assert changed in reported and "--restart" in reported and "Traceback" not in reported
