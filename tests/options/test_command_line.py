"""Tests that invalid calls return the right exit code, print one line, and leave no files."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
from typing import Iterator

import pytest
from PIL import Image

import forked_python
from beam_pipelines.__main__ import main
from beam_pipelines.options.arguments import make_parser
from made_images import encode, jpeg, noise, write_class_folders, write_files
from tf_input import dataset_format

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    """Changes to a new working directory that contains 40 images for each of two classes, and returns the directory."""
    write_class_folders(tmp_path / "flowers", {"rose": 40, "tulip": 40})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recordmill(*arguments: str, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "beam_pipelines", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


def prepare(*arguments: str) -> int:
    return main(["prepare", *arguments])


@pytest.mark.slow
def test_prepare_command_of_the_readme(folder):
    run = recordmill("prepare", "--input", "flowers", "--output", "out/flowers", "--splits", "train=0.8,validation=0.2")
    assert run.returncode == 0, run.stderr
    (line,) = run.stderr.splitlines()  # no progress bar, because standard error is a pipe
    assert "--source=image_folder" in line
    for expected in ("examples", "rose", "tulip", "mean same-label run", "dead letters: 0 of 80 inputs", "out/flowers"):
        assert expected in run.stdout, expected
    manifest = dataset_format.read_manifest("out/flowers")
    assert manifest.name == "flowers" and list(manifest.splits) == ["train", "validation"]
    assert sum(map(manifest.num_examples, manifest.splits)) == 80


@pytest.mark.slow(11)
def test_python_code_in_the_summary_runs(folder, capsys):
    assert prepare("--input", "flowers", "--output", "out") == 0
    code = capsys.readouterr().out.split("To read it in Python:\n")[1].replace("\n  ", "\n").strip()
    code += "\nimages, labels = next(iter(train))\nprint(images.shape[1:], images.dtype.name)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    typed = forked_python.run("-c", code, env=environment)
    assert typed.stdout == "(16, 16, 3) uint8\n", typed.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["prepare", "--help"]])
def test_help_is_printed(arguments):
    run = recordmill(*arguments)
    assert run.returncode == 0 and "recordmill" in run.stdout and run.stderr == ""


def test_prepare_help_has_an_example_all_options_and_defaults():
    text = " ".join(recordmill("prepare", "--help").stdout.split())
    assert "recordmill prepare --input flowers/" in text
    for option in ("name seed splits split_folders num_shards shard_size check max_bad_fraction ignore overwrite").split():
        assert f"--{option}" in text, option
    assert "Default: strict." in text and "Default: 0.01." in text


def invalid_calls() -> dict[str, tuple[list[str], str]]:
    """Returns a dictionary from names of invalid calls to their options and a part of the expected error message."""
    given = ["--input", "flowers", "--output", "out"]
    return {
        "no options": ([], "--input, --output"),
        "missing input": (["--input", "nowhere", "--output", "out"], "--input=nowhere: does not exist"),
        "a similar folder": (["--input", "flowres/rose", "--output", "out"], "did you mean 'flowers/rose'?"),
        "a similar folder with another case": (["--input", "Flowers/tulips/", "--output", "out"], "'flowers/tulip'?"),
        "a similar folder for a pattern": (["--input", "flower/*/a.csv", "--output", "out"], "did you mean 'flowers'?"),
        "a similar option for a required one": (["--inptu=flowers", "--output=out"], "did you mean --input?"),
        "a similar option": ([*given, "--spilts", "train=1"], "did you mean --splits?"),
        "an option with a hyphen": ([*given, "--num-shards=2"], "did you mean --num_shards?"),
        "a similar Beam option": ([*given, "--direct_num_wokers=2"], "did you mean --direct_num_workers?"),
        "a similar choice": ([*given, "--check", "strickt"], "did you mean 'strict'?"),
        "a similar source": ([*given, "--source=image_foldr"], "did you mean 'image_folder'?"),
        "a similar format": ([*given, "--image_format=jpg"], "did you mean 'jpeg'?"),
        "a similar kind": ([*given, "--label=a:multilabel"], "did you mean 'multi_label'?"),
        "a source of another name": ([*given, "--source=csv"], "did you mean 'table'?"),
        "a kind of another name": ([*given, "--label=price:number"], "did you mean 'float'?"),
        "a similar runner": ([*given, "--runner=FlnkRunner"], "did you mean 'FlinkRunner'?"),
        "input is a file": (["--input", "flowers/rose/000.jpg", "--output", "out"], "is an image"),
        "a file instead of a folder": ([*given[2:], "--source=image_folder", "--input=notes/rose/notes.txt"], "is not a folder"),
        "an option of another source": ([*given, "--masks"], "--masks: "),
        "a label column for class folders": ([*given, "--label=colour"], "--label: --source=image_folder"),
        "unknown kind": ([*given, "--label=colour:color"], "--label=colour:color:"),
        "no label and a label": ([*given, "--label=none", "--label=a"], "--label=none"),
        "an image size without its kind": ([*given, "--image_size=256"], "--image_size=256:"),
        "an image size of 0": ([*given, "--image_size=exact=0x9"], "--image_size=exact=0x9:"),
        "an image size above the limit": ([*given, "--image_size=exact=99999x9999"], "--image_size=exact=99999x9999 "),
        "an unknown image format": ([*given, "--image_format=tiff"], "--image_format=tiff:"),
        "a quality for PNG": ([*given, "--image_format=png:90"], "--image_format=png:90:"),
        "a quality above 100": ([*given, "--image_format=jpeg:101"], "--image_format=jpeg:101:"),
        "raw encoding with a format": ([*given, "--image_encoding=raw", "--image_format=png"], "cannot be used together"),
        "raw encoding of several sizes": ([*given, "--image_encoding=raw"], "--image_size=exact=32x32"),
        "a missing file of class names": ([*given, "--label_names=nowhere.txt"], "--label_names=nowhere.txt: No such file"),
        "an empty file of class names": ([*given, "--label_names=blank.txt"], "--label_names=blank.txt: "),
        "a class name twice": ([*given, "--label_names=twice.txt"], "'rose' twice"),
        "a split divided twice": ([*given, "--divide=a,a"], "--divide=a,a: "),
        "empty input": (["--input", "empty", "--output", "out"], "--input=empty: "),
        "no images": (["--input", "hollow", "--output", "out"], "contains no image"),
        "unknown extension": (["--input", "notes", "--output", "out"], "(.txt): rose/notes.txt"),
        "a pattern in a missing folder": (["--input=nowhere/*.csv", *given[2:]], "--input=nowhere/*.csv: folder 'nowhere'"),
        "a pattern with folders in a missing folder": (["--input=nowhere/*/a.csv", *given[2:]], "--input=nowhere/*/a.csv: folder 'nowhere'"),
        "a pattern that matches folders": (["--input=flowers/*", *given[2:]], "--input=flowers, or"),
        "an existing backup of the output": ([*given[:3], "kept", "--overwrite"], "kept.replaced exists"),
        "a split of corrupt images": (["--input=corrupt", *given[2:], "--max_bad_fraction=0.5"], "split 'test' would be empty"),
        "output exists": (["--input", "flowers", "--output", "taken"], "--output=taken exists"),
        "overwriting another directory": ([*given[:3], "taken", "--overwrite"], "--output=taken is not "),
        "output in the input": ([*given[:3], "flowers/out"], "contain each other"),
        "input in the output": ([*given[:3], "."], "contain each other"),
        "an unknown store": ([*given[:3], "ftp://host/out"], "--output=ftp://host/out: "),
        "shares below 1": ([*given, "--splits", "train=0.5,test=0.4"], "add up to 0.9"),
        "shares above 1": ([*given, "--splits", "train=0.9,test=0.2"], "add up to 1.1"),
        "share of 0": ([*given, "--splits", "train=1,test=0"], "--splits=test=0"),
        "no shares": ([*given, "--splits", "train"], "--splits=train:"),
        "split twice": ([*given, "--splits", "a=0.5,a=0.5"], "--splits=a=0.5,a=0.5"),
        "empty split": ([*given, "--splits", "train=0.999999,test=0.000001"], "split 'test' would be empty"),
        "more shards than examples": ([*given, "--num_shards", "81"], "--num_shards=81 "),
        "more shards than a split": ([*given, "--num_shards", "train=70,validation=70"], "train=70,validation=70"),
        "shards for an unknown split": ([*given, "--num_shards", "test=2"], "train, validation"),
        "no shards": ([*given, "--num_shards", "0"], "--num_shards=0:"),
        "wrong number of shards": ([*given, "--num_shards", "many"], "--num_shards=many"),
        "wrong size": ([*given, "--shard_size", "12parsecs"], "--shard_size=12parsecs:"),
        "size of 0": ([*given, "--shard_size", "0"], "--shard_size=0"),
        "a number and a size of shards": ([*given, "--shard_size", "1MiB", "--num_shards", "2"], "cannot be used together"),
        "wrong check": ([*given, "--check", "hard"], "--check: invalid choice: 'hard'"),
        "wrong fraction": ([*given, "--max_bad_fraction", "2"], "--max_bad_fraction=2.0"),
        "wrong seed": ([*given, "--seed", "-1"], "--seed=-1:"),
        "long name": ([*given, "--name", "a" * 81], f"--name={'a' * 20}…"),
        "long split": ([*given, "--splits", "a" * 81 + "=1"], "…"),
        "no input": (["--input=", *given[2:]], "--input=: does not exist"),
        "no output": ([*given[:2], "--output="], "--output=: the path is empty"),
        "a newline in a path": (["--input", "a\nb", *given[2:]], "does not exist"),
        "an empty pattern to ignore": ([*given, "--ignore="], "--ignore=: "),
        "a negative number of workers": ([*given, "--direct_num_workers=-2"], "--direct_num_workers=-2"),
        "wrong name": ([*given, "--name", "a/b"], "--name=a/b:"),
        "an empty class and an output in a new folder": (["--input", "gap", "--output", "new/er/out"], "'tulip' in 'tulip/'"),
        "output below a file": ([*given[:3], "flowers.txt/out"], "flowers.txt is not a folder"),
        "unknown option": ([*given, "--shards", "2"], "unknown option --shards"),
        "an unknown argument": ([*given, "more"], "unknown option more"),
        "a missing setup file": ([*given, "--setup_file=no.py"], "/no.py does not exist"),
        "a wrong value of a Beam option": ([*given, "--direct_num_workers", "two"], "--direct_num_workers: invalid int value: 'two'"),
        "empty class": (["--input", "gap", "--output", "out"], "--ignore='FOLDER'"),
        "two inputs": (["--input=gap", *given], "--input: given twice (gap and flowers)"),
        "two outputs": ([*given, "--output=b"], "--output: given twice (out and b)"),
        "a value twice": ([*given, "--seed", "1", "--seed", "1"], "--seed: given twice (1 and 1)"),
        "a choice twice": ([*given, "--check=none", "--check=strict"], "--check: given twice (none and strict)"),
        "an image format twice": ([*given, "--image_format=png", "--image_format=jpeg"], "--image_format: given twice (png and jpeg)"),
        "splits of another name than the folders": (["--input", "split", "--output", "out", "--splits", "a=1"], "splits (train, test)"),
    }


def write_invalid_inputs() -> None:
    here = pathlib.Path(".")
    for name in ("empty", "hollow/rose", "taken", "gap/tulip", "kept", "kept.replaced"):
        (here / name).mkdir(parents=True)
    (here / "blank.txt").write_text("\n \n")
    (here / "twice.txt").write_text("rose\nrose\n")
    (here / "taken/file").write_text("mine")
    (here / "flowers.txt").write_text("mine")
    write_class_folders(here / "gap", {"rose": 3})
    write_class_folders(here / "notes", {"rose": 3})
    (here / "notes/rose/notes.txt").write_text("hello")
    write_class_folders(here / "corrupt", {"train/rose": 3, "test/rose": 1})
    (here / "corrupt/test/rose/000.jpg").write_bytes(b"no image")
    write_class_folders(here / "split", {"train/rose": 3, "test/rose": 3})


def single_value_options(command: str) -> Iterator[tuple[str, str]]:
    """Yields each command-line option that takes one value, together with a valid value."""
    commands = make_parser()._subparsers._group_actions[0].choices
    for action in commands[command]._actions:
        if action.option_strings and action.nargs is None and type(action).__name__ != "_AppendAction":
            yield action.option_strings[0], {"--shuffle": "exact", "--hosts": "4,2", "--fold": "5,0", "--open_fold": "5,0"}.get(action.option_strings[0], (action.choices or ["7"])[0])


@pytest.mark.parametrize("command, words", [("prepare", []), ("analyze", ["a"]), ("transform", ["a", "b"]), ("benchmark", ["a"]), ("which", ["a"])])
def test_option_given_twice_is_rejected(command, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # `--error_json` writes here
    options = list(single_value_options(command))
    assert options
    for option, value in options:
        assert main([command, *words, option, value, f"{option}={value}"]) == 2, option
        assert f"recordmill: {option}: given twice (" in capsys.readouterr().err, option


def test_tilde_is_expanded_to_the_home_directory(folder, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    assert main(["prepare", "--input=~/flowers", "--output=~/out"]) == 0 and main(["verify", "~/out"]) == 0
    assert (folder / "out/manifest.json").exists() and not (folder / "~").exists()
    assert main(["prepare", "--input=~elsewhere/in", "--output=x"]) == 2 and "~elsewhere/in" in capsys.readouterr().err


def test_tilde_as_separator_is_not_expanded(folder):
    (folder / "tags.csv").write_text("image,tags\n" + "".join(f"{path},big~red\n" for path in sorted(folder.glob("flowers/*/*.jpg"))))
    assert prepare("--input", "tags.csv", "--output", "out", "--label=tags:multi_label", "--label_separator", "~") == 0
    assert (folder / "out/label.labels.txt").read_text().split() == ["big", "red"]


def test_repeatable_options_can_be_given_several_times(folder):
    (folder / "flowers/rose/notes.txt").write_text("hello")
    (folder / "flowers/rose/notes.done").write_text("hello")
    assert prepare("--input", "flowers", "--output", "out", "--ignore=*.txt", "--ignore=*.done", "--overwrite", "--overwrite") == 0


@pytest.fixture(scope="module")
def invalid_inputs(tmp_path_factory) -> pathlib.Path:
    """Returns a directory with the inputs of all invalid calls."""
    folder = tmp_path_factory.mktemp("wrong")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_class_folders(folder / "flowers", {"rose": 40, "tulip": 40})
        write_invalid_inputs()
    return folder


@pytest.mark.parametrize("case", invalid_calls())
def test_invalid_call_prints_one_line_and_exits_with_2(case, invalid_inputs, monkeypatch, capfd):
    folder = invalid_inputs
    monkeypatch.chdir(folder)
    before = sorted(str(path) for path in folder.rglob("*"))
    arguments, expected = invalid_calls()[case]
    assert prepare(*arguments) == 2, case
    output, message = capfd.readouterr()
    assert output == "" and message.startswith("recordmill: ") and expected in message, (case, message)
    lines = [line for line in message.splitlines() if not line.startswith(("  -", "recordmill: --source="))]
    assert "Traceback" not in message and len(lines) == 1, message
    assert sorted(str(path) for path in folder.rglob("*")) == before, case


@pytest.mark.parametrize("command", make_parser()._actions[-1].choices)
def test_misspelled_command_or_option_gets_a_suggestion(command, capfd):
    for arguments, name in (
        ([command[:-1]], f"did you mean {command!r}?"),
        ([command, "--log_fromat=json"], "did you mean --log_format?"),
        ([command, "--xyzzy"], "arguments are required"),
    ):
        assert main(arguments) == 2, arguments
        message = capfd.readouterr().err
        assert name in message and message.count("\n") == 1 and message.count("did you mean") <= 1, message


def test_bad_images_are_dead_letters_with_stage_and_reason(folder, capsys):
    frames = [Image.fromarray(noise(seed)) for seed in range(3)]
    animated = encode(noise(), "GIF", save_all=True, append_images=frames)
    bad = {
        "rose/cut.jpg": jpeg(0, 200, 300)[:700],
        "rose/empty.jpg": b"",
        "rose/page.jpg": b"<!DOCTYPE html><html>Not Found</html>",
        "tulip/moving.gif": animated,
    }
    write_files(folder / "flowers", bad)
    assert prepare("--input", "flowers", "--output", "out", "--max_bad_fraction", "0.1") == 0
    letters = [json.loads(line) for line in (folder / "out/dead_letters.jsonl").read_text().splitlines()]
    assert {letter["path"]: (letter["stage"], letter["reason"]) for letter in letters} == dict.fromkeys(
        bad, ("check", "bad_image")
    )
    assert "dead letters: 4 of 84 inputs (see out/dead_letters.jsonl)" in capsys.readouterr().out


def test_other_image_formats_are_stored_as_jpeg_or_png(folder):
    for image_format in ("png", "gif", "bmp", "webp"):
        (folder / f"flowers/rose/one.{image_format}").write_bytes(encode(noise(), image_format.upper()))
    assert prepare("--input", "flowers", "--output", "out", "--splits", "train=1", "--num_shards", "1") == 0
    import tensorflow as tf

    magic_numbers = set()
    for record in tf.data.TFRecordDataset("out/out-train.tfrecord-00000-of-00001").as_numpy_iterator():
        image = tf.train.Example.FromString(record).features.feature["image"].bytes_list.value[0]
        magic_numbers.add(image[:4])
    assert magic_numbers == {b"\xff\xd8\xff\xe0", b"\x89PNG"}
    formats = json.loads((folder / "out/statistics.json").read_text())["images"]["formats"]
    assert formats == {"bmp": 1, "gif": 1, "jpeg": 80, "png": 1, "webp": 1}


def test_split_folders_become_splits(folder, capsys):
    write_class_folders(folder / "in", {"train/rose": 5, "train/tulip": 5, "val/rose": 2, "test/tulip": 3})
    assert prepare("--input", "in", "--output", "out") == 0
    manifest = dataset_format.read_manifest("out")
    assert {split: manifest.num_examples(split) for split in manifest.splits} == {"train": 10, "validation": 2, "test": 3}
    assert list(manifest.splits) == ["train", "validation", "test"]
    assert manifest.label_names == ("rose", "tulip")


@pytest.mark.slow
def test_shards_by_total_number_by_split_and_by_size(folder):
    cases = {
        "total": (["--num_shards", "9"], 9),
        "by split": (["--num_shards", "train=5,validation=2"], 7),
        "by size": (["--shard_size", "10KiB"], None),
    }
    for case, (options, expected) in cases.items():
        assert prepare("--input", "flowers", "--output", f"out-{case}", *options) == 0
        splits = dataset_format.read_manifest(f"out-{case}").splits
        shards = [shard for shards in splits.values() for shard in shards]
        if expected is None:
            assert len(splits["train"]) > 1 and all(shard.num_bytes < 14 << 10 for shard in shards), case
        else:
            assert len(shards) == expected, case


def test_images_are_copied_unread_without_a_check(folder):
    (folder / "flowers/rose/odd.jpg").write_bytes(b"not looked into")
    assert prepare("--input", "flowers", "--output", "out", "--check", "none") == 0
    manifest = dataset_format.read_manifest("out")
    assert [feature.name for feature in manifest.schema] == ["image", "key", "label"]
    assert (manifest.num_inputs, manifest.num_dead_letters) == (81, 0)


def test_ignored_files_are_counted_and_reported(folder, capsys):
    (folder / "flowers/rose/notes.txt").write_text("hello")
    (folder / "flowers/.DS_Store").write_text("system")
    (folder / "flowers/README.md").write_text("about flowers")
    assert prepare("--input", "flowers", "--output", "out", "--ignore", "*.txt") == 0
    assert "ignored:      3 files and folders" in capsys.readouterr().out
    assert json.loads((folder / "out/statistics.json").read_text())["num_ignored_files"] == 3


@pytest.mark.slow(0.9)
@pytest.mark.parametrize("num_classes", [1, 13])
def test_class_without_valid_images_is_kept_with_a_warning(folder, capsys, num_classes):
    """Only `--max_bad_fraction` decides whether the run fails."""
    write_files(folder / "flowers", {f"gone{index:02d}/1.jpg": b"no image" for index in range(num_classes)})
    assert prepare("--input", "flowers", "--output", "out") == 2
    reported = capsys.readouterr().err
    assert f"{num_classes} of {80 + num_classes} inputs" in reported and "--max_bad_fraction=0.01" in reported
    assert prepare("--input", "flowers", "--output", "out", "--max_bad_fraction=0.5", "--resume") == 0
    reported = capsys.readouterr()
    (warning,) = json.loads((folder / "out/statistics.json").read_text())["warnings"]
    more = ", ".join(f"'gone{index:02d}'" for index in range(min(num_classes, 10))) + (" and 3 more" if num_classes > 10 else "")
    assert warning.startswith("label: ") and warning.endswith(f": {num_classes}: {more}"), warning
    assert f"recordmill: warning: {warning}\n" in reported.err and "warnings:     1 (see " in reported.out
    names = dataset_format.read_manifest("out").features["label"].label_names
    assert len(names) == len(set(names)) and {f"gone{index:02d}" for index in range(num_classes)} < set(names)


def test_warning_names_every_feature_with_an_empty_class(folder, capsys):
    write_files(folder / "photos", {**{f"{index}.jpg": jpeg() for index in range(9)}, "9.jpg": b"no image"})
    rows = "".join(f"{index}.jpg,{'fog' if index == 9 else 'sun'},{'rye|oat' if index == 9 else 'oat'}\n" for index in range(10))
    (folder / "photos/rows.csv").write_text(f"image,sky,crop\n{rows}")
    labels = ["--label=sky", "--label=crop:multi_label"]
    assert prepare("--input", "photos/rows.csv", "--output", "out", "--splits=train=1", "--max_bad_fraction=0.5", *labels) == 0
    reported = capsys.readouterr().err
    assert "warning: sky: classes without examples, because all of their inputs were rejected or" in reported and "'fog'\n" in reported and "warning: crop: classes" in reported and "'rye'\n" in reported


def test_second_run_to_the_same_output_fails_during_the_first(folder, capsys):
    import fcntl

    (folder / "out.incomplete").mkdir()
    descriptor = os.open(folder / "out.incomplete", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert prepare("--input", "flowers", "--output", "out") == 1
        assert f"another run is writing to it (see `recordmill status {folder}/out`)" in capsys.readouterr().err
    finally:
        os.close(descriptor)
    assert prepare("--input", "flowers", "--output", "out") == 0


# Runs the command and sends itself a signal when a given function is called.
INTERRUPTED = """
import importlib, os, signal, sys
from beam_pipelines.__main__ import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
name, function, number = sys.argv.pop(1).split(":")
module = importlib.import_module(name)
original = getattr(module, function)

def interrupted(*arguments, **options):
    os.kill(os.getpid(), int(number))
    return original(*arguments, **options)

setattr(module, function, interrupted)
run()
"""


# signal, whether the dataset has already been written, whether it replaces a dataset: all pairs of values
INTERRUPTS = [
    (signal.SIGINT, False, False),
    (signal.SIGINT, True, True),
    (signal.SIGTERM, False, True),
    (signal.SIGTERM, True, False),
    (signal.SIGHUP, False, False),
    (signal.SIGHUP, True, True),
]


@pytest.mark.slow
@pytest.mark.parametrize("number, is_written, replaces", INTERRUPTS)
def test_interrupt_reports_whether_the_output_is_complete(folder, number, is_written, replaces):
    stop_at = "beam_pipelines.publish.summary:describe_dataset" if is_written else "beam_pipelines.launch:resolve_options"
    given = ["prepare", "--input", "flowers", "--source=image_folder", "--output", "out"]
    if replaces:
        assert main([*given, "--seed=5"]) == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = ["-c", INTERRUPTED, f"{stop_at}:{number}", *given, "--overwrite"]
    run = forked_python.run(*arguments, env=environment, preloaded=forked_python.BEAM)
    reported = f"{folder / 'out'} is complete." if is_written else "Nothing was written."
    assert (run.returncode, run.stdout, run.stderr) == (128 + number, "", f"recordmill: Interrupted. {reported}\n")
    assert sorted(os.listdir()) == (["flowers", "out"] if is_written or replaces else ["flowers"])
    if is_written or replaces:
        assert dataset_format.read_manifest("out").seed == (0 if is_written else 5)


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(tmp_path):
    image = tmp_path / "image.jpg"
    image.write_bytes(jpeg(0, 120, 160))
    for label in ("rose", "tulip"):
        (tmp_path / "in" / label).mkdir(parents=True)
        for index in range(3000):
            os.link(image, tmp_path / "in" / label / f"{index}.jpg")
    controller, terminal = pty.openpty()
    command = [sys.executable, "-X", "importtime", "-m", "beam_pipelines", "prepare", "--input", "in", "--output", "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(controller, 1 << 16)
        except OSError:  # the other end is closed
            break
    assert run.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"listed .*6000/6000", text) and re.search(r"written .*\d+/6000", text), text[-2000:]
    assert "left" in text
    imported = set(re.findall(r"^import time: .*\| +(\S+)\r$", text, re.MULTILINE))
    assert "apache_beam" in imported and imported.isdisjoint({"pandas.core", "botocore.session", "google.auth.credentials"})
