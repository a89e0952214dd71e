"""Tests that commands reject missing, corrupt, newer and hostile datasets with a one-line error and change no file."""

import json
import os
import pathlib
import re
import shutil
from typing import Callable

import pytest

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.options.arguments import make_parser
from made_images import write_class_folders
from made_records import example, write_records
from tf_input.dataset_format import MANIFEST, RUN, STATISTICS

HTML = "<script>alert(1)</script>"
TRAINING = ("--epoch=0", "--step=0", "--batch_size=2")

# Maps each command that reads a dataset to its arguments. OUT stands for the dataset, and NEW for a new path.
COMMANDS = {
    "verify": ["verify", "OUT"],
    "verify --quick": ["verify", "OUT", "--quick"],
    "inspect": ["inspect", "OUT"],
    "inspect --where": ["inspect", "OUT", "--where", "label == 'ant'"],
    "inspect --example": ["inspect", "OUT", "--example", "train:0"],
    "quality": ["quality", "OUT"],
    "leaks": ["leaks", "OUT"],
    "report": ["report", "OUT"],
    "repair": ["repair", "OUT"],
    "repair --dry_run": ["repair", "OUT", "--dry_run"],
    "status": ["status", "OUT"],
    **{f"export --to {to}": ["export", "OUT", "NEW", f"--to={to}"] for to in ("parquet", "webdataset", "image_folder", "tfrecord", "dali_index")},
    "analyze": ["analyze", "OUT"],
    "transform": ["transform", "OUT", "NEW"],
    "which": ["which", "OUT", *TRAINING],
    "benchmark": ["benchmark", "OUT", "--seconds=0.01"],
    "prepare --splits_from": ["prepare", "--input", "in", "--source=image_folder", "--output", "NEW", "--splits_from", "OUT"],
    "prepare --label_names_from": ["prepare", "--input", "in", "--source=image_folder", "--output", "NEW", "--label_names_from", "OUT"],
}


def test_all_commands_are_covered() -> None:
    commands = set(make_parser()._subparsers._group_actions[0].choices)
    assert {command.partition(" ")[0] for command in COMMANDS} == commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a folder with the dataset `made`, its source `in`, and the output of a failed run, `half.incomplete`."""
    folder = tmp_path_factory.mktemp("corrupt")
    write_class_folders(folder / "in", {"ant": 30, "bee": 20})
    command = ["prepare", "--input", str(folder / "in"), "--splits=train=0.75,test=0.25", "--num_shards=2"]
    assert main([*command, "--output", str(folder / "made")]) == 0
    (folder / "in/ant/bad.jpg").write_bytes(b"no image")
    assert main([*command, "--output", str(folder / "half"), "--max_bad_fraction=0"]) == 2
    (folder / "in/ant/bad.jpg").unlink()
    assert (folder / "half.incomplete").is_dir()
    return folder


def change_manifest(**changes: object) -> Callable[[pathlib.Path], None]:
    """Returns a function that replaces top-level fields of a manifest."""

    def change(out: pathlib.Path) -> None:
        (out / MANIFEST).write_text(json.dumps(json.loads((out / MANIFEST).read_text()) | changes))

    return change


def change_shards(**changes: object) -> Callable[[pathlib.Path], None]:
    """Returns a function that replaces fields of each shard in a manifest."""

    def change(out: pathlib.Path) -> None:
        fields = json.loads((out / MANIFEST).read_text())
        for split in fields["splits"].values():
            for shard in split["shards"]:
                shard |= changes
        (out / MANIFEST).write_text(json.dumps(fields))

    return change


def truncate(name: str) -> Callable[[pathlib.Path], None]:
    """Returns a function that cuts off the second half of each file that matches a pattern."""

    def change(out: pathlib.Path) -> None:
        for path in out.glob(name):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return change


def replace_by_pipes(*names: str) -> Callable[[pathlib.Path], None]:
    """Returns a function that replaces each file that matches a pattern with a named pipe."""

    def change(out: pathlib.Path) -> None:
        for path in [path for name in names for path in out.glob(name) if path.is_file()]:
            path.unlink()
            os.mkfifo(path)

    return change


def replace_by_endless_device(name: str) -> Callable[[pathlib.Path], None]:
    """Returns a function that replaces a file with a link to /dev/zero."""

    def change(out: pathlib.Path) -> None:
        (out / name).unlink()
        (out / name).symlink_to("/dev/zero")

    return change


def replace_by_plain_records(out: pathlib.Path) -> None:
    shutil.rmtree(out)
    write_records(out / "train.tfrecord", [example({"image/encoded": b"\xff\xd8\xff", "image/class/label": index % 2}) for index in range(40)])


def remove_all_files(out: pathlib.Path) -> None:
    shutil.rmtree(out)
    out.mkdir()


def leave_incomplete_run(out: pathlib.Path) -> None:
    """Removes the dataset and creates the working directory of a failed run beside the path of the dataset."""
    shutil.rmtree(out)
    shutil.copytree(out.parent.parent / "half.incomplete", f"{out}.incomplete")


def replace_by_incomplete_run(out: pathlib.Path) -> None:
    shutil.rmtree(out)
    shutil.copytree(out.parent.parent / "half.incomplete", out)


# Maps each kind of invalid dataset to a change and to the exit codes of commands. The exit code of other commands is 2.
INVALID_DATASETS = {
    "empty directory": (remove_all_files, {}),
    "working directory beside the path": (leave_incomplete_run, {"status": 0}),
    "working directory of a failed run": (replace_by_incomplete_run, {}),
    "records of another program": (replace_by_plain_records, {"quality": 0, "leaks": 0}),
    "no manifest": (lambda out: (out / MANIFEST).unlink(), {"quality": 0, "leaks": 0}),
    "named pipe as manifest": (replace_by_pipes(MANIFEST), {"quality": 0, "leaks": 0}),
    "endless device as manifest": (replace_by_endless_device(MANIFEST), {"quality": 0, "leaks": 0}),
    "newer format version": (change_manifest(format_version=5), {}),
    "truncated manifest": (truncate(MANIFEST), {}),
    "manifest without an object": (lambda out: (out / MANIFEST).write_text("[1]"), {}),
    "deeply nested manifest": (lambda out: (out / MANIFEST).write_text("[" * 100_000), {}),
    "manifest without fields": (lambda out: (out / MANIFEST).write_text('{"format": "recordmill", "format_version": 4}'), {}),
    "wrong types": (change_manifest(splits={"train": 5}, schema=[[]]), {}),
    "relative paths outside the dataset": (change_shards(name="../../in/ant/000.jpg", index="../../in", catalog="../x"), {}),
    "absolute paths": (change_shards(index="/etc/passwd"), {}),
    "impossible file size": (change_shards(num_bytes=1 << 70), {}),
    "negative number of examples": (change_shards(num_examples=-1), {}),
}

# Maps each kind of corrupt dataset to a change and to the commands that read the changed files.
SIZE_COMMANDS = "verify, verify --quick, inspect, inspect --example, quality, report, repair --dry_run, export --to parquet"
READ_COMMANDS = "verify, inspect --where, inspect --example, quality, leaks, report, repair, export --to parquet, export --to dali_index, which"
CORRUPT_DATASETS = {
    "sizes of exabytes": (change_shards(num_bytes=1 << 62, index_bytes=1 << 62, catalog_bytes=1 << 62), SIZE_COMMANDS),
    "many examples": (change_shards(num_examples=1 << 60), SIZE_COMMANDS),
    "HTML in the name": (change_manifest(name=HTML), "inspect, report, export --to parquet, prepare --label_names_from"),
    "HTML in class names": (change_manifest(label_names=[HTML, "\x1b[31m"], about={"description": HTML}), "inspect, inspect --example, report, export --to parquet"),
    "missing class name": (change_manifest(label_names=["ant"]), "verify, inspect, quality, report, leaks, export --to webdataset"),
    "no statistics": (lambda out: (out / STATISTICS).unlink(), "verify --quick, inspect, report, leaks, export --to parquet"),
    "empty statistics": (lambda out: (out / STATISTICS).write_text("{}"), "verify --quick, inspect, report, leaks, export --to parquet"),
    "empty run.json": (lambda out: (out / RUN).write_text("{}"), "inspect, repair, report, status"),
    "truncated shards": (truncate("*.tfrecord-*"), "verify --quick, inspect --example, repair --dry_run, export --to tfrecord, report"),
    "truncated indexes": (truncate("index/*"), "inspect --example, quality, export --to dali_index, report, which"),
    "truncated catalogs": (truncate("catalog/*"), "inspect --where, leaks, quality, report, prepare --splits_from"),
    "named pipes as shards": (replace_by_pipes("*.tfrecord-*"), READ_COMMANDS),
    "named pipes as indexes and catalogs": (replace_by_pipes("index/*", "catalog/*"), READ_COMMANDS),
    "named pipes as metadata": (replace_by_pipes(STATISTICS, RUN, "*.jsonl", "croissant.json", "*.md"), READ_COMMANDS),
    "endless device as statistics": (replace_by_endless_device(STATISTICS), READ_COMMANDS),
    "endless device as run.json": (replace_by_endless_device(RUN), READ_COMMANDS),
    "no shards": (lambda out: [path.unlink() for path in out.glob("*.tfrecord-*")], "inspect --example, leaks, export --to image_folder, report"),
}


def run(command: str, out: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Runs a command and returns its exit code, output and error messages. The command must not change other files."""
    monkeypatch.chdir(out.parent.parent)
    before = list_other_paths(out)
    capfd.readouterr()
    words = [{"OUT": str(out), "NEW": str(out.parent / "new")}.get(word, word) for word in COMMANDS[command]]
    code = main(words)
    printed, err = capfd.readouterr()
    assert list_other_paths(out) == before and "Traceback" not in err, (command, err)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", err), (command, err)
    shutil.rmtree(out.parent / "new", ignore_errors=True)
    return code, printed, err


def list_other_paths(out: pathlib.Path) -> set[str]:
    """Returns all paths in the parent folder of a dataset, except the dataset and the output of the command."""
    return {str(path) for path in out.parent.parent.rglob("*") if {out, out.parent / "new"}.isdisjoint((path, *path.parents))}


def copy_dataset(folder: pathlib.Path, change: Callable[[pathlib.Path], None]) -> pathlib.Path:
    shutil.rmtree(folder / "copy", ignore_errors=True)
    out = folder / "copy" / "out"
    shutil.copytree(folder / "made", out)
    change(out)
    return out


@pytest.mark.slow(0.3)
@pytest.mark.parametrize("case", INVALID_DATASETS)
def test_command_rejects_an_invalid_dataset_with_one_line(
    case: str, folder: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the manifest is unreadable, the test runs all commands. Otherwise, the test runs a third of all commands."""
    change, codes = INVALID_DATASETS[case]
    out = copy_dataset(folder, change)
    start = [*INVALID_DATASETS].index(case) % 3
    chosen = [*COMMANDS] if case in ("no manifest", "truncated manifest", "wrong types") else [*COMMANDS][start::3]
    for command in dict.fromkeys((*chosen, *codes)):
        code, printed, err = run(command, out, capfd, monkeypatch)
        assert code == codes.get(command, 2), (command, code, err)
        assert code == 0 or (err.count("\n") == 1 and err.startswith("recordmill: ") and not printed), (command, printed, err)
    with pytest.raises((OSError, ValueError)) as error:
        tf_input.open(out)
    assert str(out) in str(error.value)


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", CORRUPT_DATASETS)
def test_command_reads_or_rejects_a_corrupt_dataset(
    case: str, folder: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, commands = CORRUPT_DATASETS[case]
    for command in commands.split(", "):
        out = copy_dataset(folder, change)
        code, printed, err = run(command, out, capfd, monkeypatch)
        assert code in (0, 1, 2), (command, code, err)
        assert code != 2 or (err.count("\n") == 1 and err.startswith("recordmill: ") and not printed), (command, printed, err)
        page = out / "report.html"
        assert HTML not in page.read_text(), command
