"""What is no data set, or a damaged, a newer or a hostile one, is one clear line of every command, and reaches no other file."""

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

# Every command that is given a data set: what is typed, OUT being its path and NEW one that is not there.
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
    "prepare --splits_from": ["prepare", "--input", "in", "--output", "NEW", "--splits_from", "OUT"],
    "prepare --label_names_from": ["prepare", "--input", "in", "--output", "NEW", "--label_names_from", "OUT"],
}


def test_every_command_is_here() -> None:
    commands = set(make_parser()._subparsers._group_actions[0].choices)
    assert {command.partition(" ")[0] for command in COMMANDS} == commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A data set, `made`; its source, `in`; and what a run has left that failed: `half.incomplete`."""
    folder = tmp_path_factory.mktemp("damaged")
    write_class_folders(folder / "in", {"ant": 30, "bee": 20})
    command = ["prepare", "--input", str(folder / "in"), "--splits=train=0.75,test=0.25", "--num_shards=2"]
    assert main([*command, "--output", str(folder / "made")]) == 0
    (folder / "in/ant/bad.jpg").write_bytes(b"no image")
    assert main([*command, "--output", str(folder / "half"), "--max_bad_fraction=0"]) == 2
    (folder / "in/ant/bad.jpg").unlink()
    assert (folder / "half.incomplete").is_dir()
    return folder


def manifest(**changes: object) -> Callable[[pathlib.Path], None]:
    """Replaces what a manifest has at its top."""

    def change(out: pathlib.Path) -> None:
        (out / MANIFEST).write_text(json.dumps(json.loads((out / MANIFEST).read_text()) | changes))

    return change


def shards(**changes: object) -> Callable[[pathlib.Path], None]:
    """Replaces what a manifest has of each shard."""

    def change(out: pathlib.Path) -> None:
        fields = json.loads((out / MANIFEST).read_text())
        for split in fields["splits"].values():
            for shard in split["shards"]:
                shard |= changes
        (out / MANIFEST).write_text(json.dumps(fields))

    return change


def cut(name: str) -> Callable[[pathlib.Path], None]:
    """Leaves the first half of each file of a name."""

    def change(out: pathlib.Path) -> None:
        for path in out.glob(name):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return change


def pipes(*names: str) -> Callable[[pathlib.Path], None]:
    """Puts a named pipe in place of each file of some names."""

    def change(out: pathlib.Path) -> None:
        for path in [path for name in names for path in out.glob(name) if path.is_file()]:
            path.unlink()
            os.mkfifo(path)

    return change


def endless(name: str) -> Callable[[pathlib.Path], None]:
    """Puts a link to a device that never ends in place of a file."""

    def change(out: pathlib.Path) -> None:
        (out / name).unlink()
        (out / name).symlink_to("/dev/zero")

    return change


def only_records(out: pathlib.Path) -> None:
    shutil.rmtree(out)
    write_records(out / "train.tfrecord", [example({"image/encoded": b"\xff\xd8\xff", "image/class/label": index % 2}) for index in range(40)])


def emptied(out: pathlib.Path) -> None:
    shutil.rmtree(out)
    out.mkdir()


def half_written(out: pathlib.Path) -> None:
    """OUT is not there, and what is left lies beside it."""
    shutil.rmtree(out)
    shutil.copytree(out.parent.parent / "half.incomplete", f"{out}.incomplete")


def within_the_half_written(out: pathlib.Path) -> None:
    shutil.rmtree(out)
    shutil.copytree(out.parent.parent / "half.incomplete", out)


# What is no data set at all: the exit code is 2, but for commands that look for something else.
NONE = {
    "empty": (emptied, {}),
    "half-written": (half_written, {"status": 0}),
    "within what is half-written": (within_the_half_written, {}),
    "of others": (only_records, {"quality": 0, "leaks": 0}),
    "without a manifest": (lambda out: (out / MANIFEST).unlink(), {"quality": 0, "leaks": 0}),
    "a pipe": (pipes(MANIFEST), {"quality": 0, "leaks": 0}),
    "an endless device": (endless(MANIFEST), {"quality": 0, "leaks": 0}),
    "newer": (manifest(format_version=5), {}),
    "cut off": (cut(MANIFEST), {}),
    "another JSON": (lambda out: (out / MANIFEST).write_text("[1]"), {}),
    "deep JSON": (lambda out: (out / MANIFEST).write_text("[" * 100_000), {}),
    "of no fields": (lambda out: (out / MANIFEST).write_text('{"format": "recordmill", "format_version": 4}'), {}),
    "of other types": (manifest(splits={"train": 5}, schema=[[]]), {}),
    "paths that lead out": (shards(name="../../in/ant/000.jpg", index="../../in", catalog="../x"), {}),
    "absolute paths": (shards(index="/etc/passwd"), {}),
    "larger than any file": (shards(num_bytes=1 << 70), {}),
    "negative": (shards(num_examples=-1), {}),
}

# What may be one: a change, and the commands that look at what it changes. None of them breaks.
SIZES = "verify, verify --quick, inspect, inspect --example, quality, report, repair --dry_run, export --to parquet"
READING = "verify, inspect --where, inspect --example, quality, leaks, report, repair, export --to parquet, export --to dali_index, which"
DAMAGED = {
    "sizes of exabytes": (shards(num_bytes=1 << 62, index_bytes=1 << 62, catalog_bytes=1 << 62), SIZES),
    "many examples": (shards(num_examples=1 << 60), SIZES),
    "a name of HTML": (manifest(name=HTML), "inspect, report, export --to parquet, prepare --label_names_from"),
    "classes of HTML": (manifest(label_names=[HTML, "\x1b[31m"], about={"description": HTML}), "inspect, inspect --example, report, export --to parquet"),
    "a class too few": (manifest(label_names=["ant"]), "verify, inspect, quality, report, leaks, export --to webdataset"),
    "no statistics": (lambda out: (out / STATISTICS).unlink(), "verify --quick, inspect, report, leaks, export --to parquet"),
    "statistics of nothing": (lambda out: (out / STATISTICS).write_text("{}"), "verify --quick, inspect, report, leaks, export --to parquet"),
    "a run of nothing": (lambda out: (out / RUN).write_text("{}"), "inspect, repair, report, status"),
    "shards cut off": (cut("*.tfrecord-*"), "verify --quick, inspect --example, repair --dry_run, export --to tfrecord, report"),
    "indexes cut off": (cut("index/*"), "inspect --example, quality, export --to dali_index, report, which"),
    "catalogs cut off": (cut("catalog/*"), "inspect --where, leaks, quality, report, prepare --splits_from"),
    "pipes for shards": (pipes("*.tfrecord-*"), READING),
    "pipes for indexes and catalogs": (pipes("index/*", "catalog/*"), READING),
    "pipes for metadata": (pipes(STATISTICS, RUN, "*.jsonl", "croissant.json", "*.md"), READING),
    "an endless device for statistics": (endless(STATISTICS), READING),
    "an endless device for a run": (endless(RUN), READING),
    "no shards": (lambda out: [path.unlink() for path in out.glob("*.tfrecord-*")], "inspect --example, leaks, export --to image_folder, report"),
}


def run(command: str, out: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, which writes nowhere but to what it is given."""
    monkeypatch.chdir(out.parent.parent)
    before = listing(out)
    capfd.readouterr()
    words = [{"OUT": str(out), "NEW": str(out.parent / "new")}.get(word, word) for word in COMMANDS[command]]
    code = main(words)
    reported, err = capfd.readouterr()
    assert listing(out) == before and "Traceback" not in err, (command, err)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", err), (command, err)
    shutil.rmtree(out.parent / "new", ignore_errors=True)
    return code, reported, err


def listing(out: pathlib.Path) -> set[str]:
    """All that lies about, but for the data set, which may be mended, and what commands make of it."""
    return {str(path) for path in out.parent.parent.rglob("*") if {out, out.parent / "new"}.isdisjoint((path, *path.parents))}


def copied(folder: pathlib.Path, change: Callable[[pathlib.Path], None]) -> pathlib.Path:
    shutil.rmtree(folder / "copy", ignore_errors=True)
    out = folder / "copy" / "out"
    shutil.copytree(folder / "made", out)
    change(out)
    return out


@pytest.mark.slow(0.3)
@pytest.mark.parametrize("case", NONE)
def test_what_is_no_dataset_is_one_line_of_every_command(
    case: str, folder: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of every command are tried that no manifest can be read of; of others a third, in turn, and those that have a code of their own."""
    change, codes = NONE[case]
    out = copied(folder, change)
    first = [*NONE].index(case)
    turn = [*COMMANDS] if case in ("without a manifest", "cut off", "of other types") else [*COMMANDS][first % 3 :: 3]
    for command in dict.fromkeys((*turn, *codes)):
        code, reported, err = run(command, out, capfd, monkeypatch)
        assert code == codes.get(command, 2), (command, code, err)
        assert code == 0 or (err.count("\n") == 1 and err.startswith("recordmill: ") and not reported), (command, reported, err)
    with pytest.raises((OSError, ValueError)) as error:
        tf_input.open(out)
    assert str(out) in str(error.value)


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_damaged_breaks_no_command(
    case: str, folder: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, commands = DAMAGED[case]
    for command in commands.split(", "):
        out = copied(folder, change)
        code, reported, err = run(command, out, capfd, monkeypatch)
        assert code in (0, 1, 2), (command, code, err)
        assert code != 2 or (err.count("\n") == 1 and err.startswith("recordmill: ") and not reported), (command, reported, err)
        page = out / "report.html"
        assert HTML not in page.read_text(), command
