"""The command line as a user types it: exit codes, one clear line, nothing left behind."""

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
    """A directory to work in, with `flowers/`: two classes of 40 images."""
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
def test_the_command_in_the_readme(folder):
    run = recordmill("prepare", "--input", "flowers", "--output", "out/flowers", "--splits", "train=0.8,validation=0.2")
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""  # quiet in a pipe
    for expected in ("examples", "rose", "tulip", "mean same-label run", "dead letters: 0 of 80 inputs", "out/flowers"):
        assert expected in run.stdout, expected
    manifest = dataset_format.read_manifest("out/flowers")
    assert manifest.name == "flowers" and list(manifest.splits) == ["train", "validation"]
    assert sum(map(manifest.num_examples, manifest.splits)) == 80


@pytest.mark.slow(11)
def test_what_the_summary_says_to_type_next_runs(folder, capsys):
    assert prepare("--input", "flowers", "--output", "out") == 0
    code = capsys.readouterr().out.split("To read it in Python:\n")[1].replace("\n  ", "\n").strip()
    code += "\nimages, labels = next(iter(train))\nprint(images.shape[1:], images.dtype.name)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    typed = forked_python.run("-c", code, env=environment)
    assert typed.stdout == "(16, 16, 3) uint8\n", typed.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["prepare", "--help"]])
def test_help_is_there(arguments):
    run = recordmill(*arguments)
    assert run.returncode == 0 and "recordmill" in run.stdout and run.stderr == ""


def test_help_has_an_example_and_names_every_option_and_its_default():
    text = " ".join(recordmill("prepare", "--help").stdout.split())
    assert "recordmill prepare --input flowers/" in text
    for option in ("name seed splits split_folders num_shards shard_size check max_bad_fraction ignore overwrite").split():
        assert f"--{option}" in text, option
    assert "Default: strict." in text and "Default: 0.01." in text


def wrong_calls() -> dict[str, tuple[list[str], str]]:
    """Name -> (options, what the one line must say)."""
    given = ["--input", "flowers", "--output", "out"]
    return {
        "no options": ([], "--input, --output"),
        "missing input": (["--input", "nowhere", "--output", "out"], "--input=nowhere: does not exist"),
        "a similar folder": (["--input", "flowres/rose", "--output", "out"], "did you mean 'flowers/rose'?"),
        "a similar folder with another case": (["--input", "Flowers/tulips/", "--output", "out"], "'flowers/tulip'?"),
        "a similar folder of a pattern": (["--input", "flower/*/a.csv", "--output", "out"], "did you mean 'flowers'?"),
        "a similar option for a required one": (["--inptu=flowers", "--output=out"], "did you mean --input?"),
        "a similar option": ([*given, "--spilts", "train=1"], "did you mean --splits?"),
        "an option with a hyphen": ([*given, "--num-shards=2"], "did you mean --num_shards?"),
        "a similar option of Beam": ([*given, "--direct_num_wokers=2"], "did you mean --direct_num_workers?"),
        "a similar choice": ([*given, "--check", "strickt"], "did you mean 'strict'?"),
        "a similar source": ([*given, "--source=image_foldr"], "did you mean 'image_folder'?"),
        "a similar format": ([*given, "--image_format=jpg"], "did you mean 'jpeg'?"),
        "a similar kind": ([*given, "--label=a:multilabel"], "did you mean 'multi_label'?"),
        "a similar runner": ([*given, "--runner=FlnkRunner"], "did you mean 'FlinkRunner'?"),
        "input is a file": (["--input", "flowers/rose/000.jpg", "--output", "out"], "is an image"),
        "a file for a folder": ([*given[2:], "--source=image_folder", "--input=notes/rose/notes.txt"], "is not a folder"),
        "an option of another source": ([*given, "--masks"], "--masks: "),
        "columns of folders": ([*given, "--label=colour"], "--label: class folders have no columns"),
        "unknown kind": ([*given, "--label=colour:color"], "--label=colour:color:"),
        "none and some": ([*given, "--label=none", "--label=a"], "--label=none"),
        "image size": ([*given, "--image_size=256"], "--image_size=256:"),
        "no pixels": ([*given, "--image_size=exact=0x9"], "--image_size=exact=0x9:"),
        "too large": ([*given, "--image_size=exact=99999x9999"], "--image_size=exact=99999x9999 "),
        "image format": ([*given, "--image_format=tiff"], "--image_format=tiff:"),
        "image quality": ([*given, "--image_format=png:90"], "--image_format=png:90:"),
        "too good": ([*given, "--image_format=jpeg:101"], "--image_format=jpeg:101:"),
        "raw in a format": ([*given, "--image_encoding=raw", "--image_format=png"], "cannot be used together"),
        "raw of any size": ([*given, "--image_encoding=raw"], "--image_size=exact=32x32"),
        "class names": ([*given, "--label_names=nowhere.txt"], "--label_names=nowhere.txt: No such file"),
        "no class names": ([*given, "--label_names=blank.txt"], "--label_names=blank.txt: the file is empty"),
        "a class name twice": ([*given, "--label_names=twice.txt"], "--label_names lists the class 'rose' twice"),
        "a split divided twice": ([*given, "--divide=a,a"], "--divide=a,a: "),
        "layouts of two sources": ([*given, "--layout=a", "--record_layout=b"], "--layout is for --source=tfrecord"),
        "empty input": (["--input", "empty", "--output", "out"], "--input=empty: the folder is empty"),
        "no images": (["--input", "hollow", "--output", "out"], "contains no image"),
        "unknown extension": (["--input", "notes", "--output", "out"], "(.txt): rose/notes.txt"),
        "a pattern in no folder": (["--input=nowhere/*.csv", *given[2:]], "--input=nowhere/*.csv: folder 'nowhere'"),
        "a pattern of folders in no folder": (["--input=nowhere/*/a.csv", *given[2:]], "--input=nowhere/*/a.csv: folder 'nowhere'"),
        "a pattern that matches folders": (["--input=flowers/*", *given[2:]], "--input=flowers, or"),
        "a place that is taken": ([*given[:3], "twins", "--overwrite"], "twins.replaced exists"),
        "a split of bad images": (["--input=spoilt", *given[2:], "--max_bad_fraction=0.5"], "split 'test' would be empty"),
        "output exists": (["--input", "flowers", "--output", "taken"], "--output=taken exists"),
        "overwriting no dataset": ([*given[:3], "taken", "--overwrite"], "--output=taken is not a dataset"),
        "output in the input": ([*given[:3], "flowers/out"], "contain each other"),
        "input in the output": ([*given[:3], "."], "contain each other"),
        "an unknown store": ([*given[:3], "ftp://host/out"], "--output=ftp://host/out: "),
        "shares under 1": ([*given, "--splits", "train=0.5,test=0.4"], "add up to 0.9"),
        "shares over 1": ([*given, "--splits", "train=0.9,test=0.2"], "add up to 1.1"),
        "share of 0": ([*given, "--splits", "train=1,test=0"], "--splits=test=0"),
        "no shares": ([*given, "--splits", "train"], "--splits=train:"),
        "split twice": ([*given, "--splits", "a=0.5,a=0.5"], "--splits=a=0.5,a=0.5"),
        "empty split": ([*given, "--splits", "train=0.999999,test=0.000001"], "split 'test' would be empty"),
        "more shards than examples": ([*given, "--num_shards", "81"], "--num_shards=81 "),
        "more shards than a split": ([*given, "--num_shards", "train=70,validation=70"], "train=70,validation=70"),
        "shards of no split": ([*given, "--num_shards", "test=2"], "train, validation"),
        "no shards": ([*given, "--num_shards", "0"], "--num_shards=0:"),
        "wrong number of shards": ([*given, "--num_shards", "many"], "--num_shards=many"),
        "wrong size": ([*given, "--shard_size", "12parsecs"], "--shard_size=12parsecs:"),
        "size of 0": ([*given, "--shard_size", "0"], "--shard_size=0"),
        "both": ([*given, "--shard_size", "1MiB", "--num_shards", "2"], "cannot be used together"),
        "wrong check": ([*given, "--check", "hard"], "--check: invalid choice: 'hard'"),
        "wrong fraction": ([*given, "--max_bad_fraction", "2"], "--max_bad_fraction=2.0"),
        "wrong seed": ([*given, "--seed", "-1"], "--seed=-1:"),
        "long name": ([*given, "--name", "a" * 81], f"--name={'a' * 20}…"),
        "long split": ([*given, "--splits", "a" * 81 + "=1"], "…"),
        "no input": (["--input=", *given[2:]], "--input=: does not exist"),
        "no output": ([*given[:2], "--output="], "--output=: the path is empty"),
        "a line in a path": (["--input", "a\nb", *given[2:]], "does not exist"),
        "ignoring nothing": ([*given, "--ignore="], "--ignore=: "),
        "less than no workers": ([*given, "--direct_num_workers=-2"], "--direct_num_workers=-2"),
        "wrong name": ([*given, "--name", "a/b"], "--name=a/b:"),
        "no such class, in a new folder": (["--input", "gap", "--output", "new/er/out"], "no image of class 'tulip' in 'tulip/'"),
        "output below a file": ([*given[:3], "flowers.txt/out"], "flowers.txt is not a folder"),
        "unknown option": ([*given, "--shards", "2"], "unknown option --shards"),
        "unknown word": ([*given, "more"], "unknown option more"),
        "no setup file": ([*given, "--setup_file=no.py"], "/no.py does not exist"),
        "wrong Beam option": ([*given, "--direct_num_workers", "two"], "--direct_num_workers: invalid int value: 'two'"),
        "empty class": (["--input", "gap", "--output", "out"], "--ignore='FOLDER'"),
        "two inputs": (["--input=gap", *given], "--input: given twice (gap and flowers)"),
        "two outputs": ([*given, "--output=b"], "--output: given twice (out and b)"),
        "a value twice": ([*given, "--seed", "1", "--seed", "1"], "--seed: given twice (1 and 1)"),
        "a choice twice": ([*given, "--check=none", "--check=strict"], "--check: given twice (none and strict)"),
        "a source twice": ([*given, "--image_format=png", "--image_format=jpeg"], "--image_format: given twice (png and jpeg)"),
        "splits twice": (["--input", "split", "--output", "out", "--splits", "a=1"], "splits (train, test)"),
    }


def write_wrong_inputs() -> None:
    here = pathlib.Path(".")
    for name in ("empty", "hollow/rose", "taken", "gap/tulip", "twins", "twins.replaced"):
        (here / name).mkdir(parents=True)
    (here / "blank.txt").write_text("\n \n")
    (here / "twice.txt").write_text("rose\nrose\n")
    (here / "taken/file").write_text("mine")
    (here / "flowers.txt").write_text("mine")
    write_class_folders(here / "gap", {"rose": 3})
    write_class_folders(here / "notes", {"rose": 3})
    (here / "notes/rose/notes.txt").write_text("hello")
    write_class_folders(here / "spoilt", {"train/rose": 3, "test/rose": 1})
    (here / "spoilt/test/rose/000.jpg").write_bytes(b"no image")
    write_class_folders(here / "split", {"train/rose": 3, "test/rose": 3})


def options_of(command: str) -> Iterator[tuple[str, str]]:
    """Each option with one value, and one that it takes."""
    commands = make_parser()._subparsers._group_actions[0].choices
    for action in commands[command]._actions:
        if action.option_strings and action.nargs is None and type(action).__name__ != "_AppendAction":
            yield action.option_strings[0], {"--shuffle": "exact", "--hosts": "4,2", "--fold": "5,0", "--open_fold": "5,0"}.get(action.option_strings[0], (action.choices or ["7"])[0])


@pytest.mark.parametrize("command, words", [("prepare", []), ("analyze", ["a"]), ("transform", ["a", "b"]), ("benchmark", ["a"]), ("which", ["a"])])
def test_no_option_with_one_value_is_replaced_in_silence(command, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where --error_json writes
    options = list(options_of(command))
    assert options
    for option, value in options:
        assert main([command, *words, option, value, f"{option}={value}"]) == 2, option
        assert f"recordmill: {option}: given twice (" in capsys.readouterr().err, option


def test_a_home_is_meant_where_a_shell_does_not_say_so(folder, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    assert main(["prepare", "--input=~/flowers", "--output=~/out"]) == 0 and main(["verify", "~/out"]) == 0
    assert (folder / "out/manifest.json").exists() and not (folder / "~").exists()
    assert main(["prepare", "--input=~elsewhere/in", "--output=x"]) == 2 and "~elsewhere/in" in capsys.readouterr().err


def test_a_separator_that_is_a_tilde_is_no_home(folder):
    (folder / "tags.csv").write_text("image,tags\n" + "".join(f"{path},big~red\n" for path in sorted(folder.glob("flowers/*/*.jpg"))))
    assert prepare("--input", "tags.csv", "--output", "out", "--label=tags:multi_label", "--label_separator", "~") == 0
    assert (folder / "out/label.labels.txt").read_text().split() == ["big", "red"]


def test_options_with_several_values_are_given_as_often_as_there_are(folder):
    (folder / "flowers/rose/notes.txt").write_text("hello")
    (folder / "flowers/rose/notes.done").write_text("hello")
    assert prepare("--input", "flowers", "--output", "out", "--ignore=*.txt", "--ignore=*.done", "--overwrite", "--overwrite") == 0


@pytest.fixture(scope="module")
def wrong_inputs(tmp_path_factory) -> pathlib.Path:
    """`flowers/`, and what else the wrong calls name: no call changes any of it."""
    folder = tmp_path_factory.mktemp("wrong")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_class_folders(folder / "flowers", {"rose": 40, "tulip": 40})
        write_wrong_inputs()
    return folder


@pytest.mark.parametrize("case", wrong_calls())
def test_a_wrong_call_gets_one_clear_line_and_exit_code_2(case, wrong_inputs, monkeypatch, capfd):
    folder = wrong_inputs
    monkeypatch.chdir(folder)
    before = sorted(str(path) for path in folder.rglob("*"))
    arguments, expected = wrong_calls()[case]
    assert prepare(*arguments) == 2, case
    output, message = capfd.readouterr()
    assert output == "" and message.startswith("recordmill: ") and expected in message, (case, message)
    assert "Traceback" not in message and len([line for line in message.splitlines() if line[:3] != "  -"]) == 1, message
    assert sorted(str(path) for path in folder.rglob("*")) == before, case


@pytest.mark.parametrize("command", make_parser()._actions[-1].choices)
def test_a_misspelt_command_or_option_gets_the_similar_name(command, capfd):
    for arguments, name in (
        ([command[:-1]], f"did you mean {command!r}?"),
        ([command, "--log_fromat=json"], "did you mean --log_format?"),
        ([command, "--xyzzy"], "arguments are required"),
    ):
        assert main(arguments) == 2, arguments
        message = capfd.readouterr().err
        assert name in message and message.count("\n") == 1 and message.count("did you mean") <= 1, message


def test_bad_images_are_dead_letters_with_path_stage_and_reason(folder, capsys):
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


def test_images_of_every_format_are_stored_as_jpeg_or_png(folder):
    for image_format in ("png", "gif", "bmp", "webp"):
        (folder / f"flowers/rose/one.{image_format}").write_bytes(encode(noise(), image_format.upper()))
    assert prepare("--input", "flowers", "--output", "out", "--splits", "train=1", "--num_shards", "1") == 0
    import tensorflow as tf

    starts = set()
    for record in tf.data.TFRecordDataset("out/out-train.tfrecord-00000-of-00001").as_numpy_iterator():
        image = tf.train.Example.FromString(record).features.feature["image"].bytes_list.value[0]
        starts.add(image[:4])
    assert starts == {b"\xff\xd8\xff\xe0", b"\x89PNG"}
    formats = json.loads((folder / "out/statistics.json").read_text())["images"]["formats"]
    assert formats == {"bmp": 1, "gif": 1, "jpeg": 80, "png": 1, "webp": 1}


def test_split_folders_become_the_splits(folder, capsys):
    write_class_folders(folder / "in", {"train/rose": 5, "train/tulip": 5, "val/rose": 2, "test/tulip": 3})
    assert prepare("--input", "in", "--output", "out") == 0
    manifest = dataset_format.read_manifest("out")
    assert {split: manifest.num_examples(split) for split in manifest.splits} == {"train": 10, "validation": 2, "test": 3}
    assert list(manifest.splits) == ["train", "validation", "test"]
    assert manifest.label_names == ("rose", "tulip")


@pytest.mark.slow
def test_shards_in_all_of_each_split_and_by_size(folder):
    cases = {
        "in all": (["--num_shards", "9"], 9),
        "of each": (["--num_shards", "train=5,validation=2"], 7),
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


def test_without_a_check_images_are_taken_as_they_are(folder):
    (folder / "flowers/rose/odd.jpg").write_bytes(b"not looked into")
    assert prepare("--input", "flowers", "--output", "out", "--check", "none") == 0
    manifest = dataset_format.read_manifest("out")
    assert [feature.name for feature in manifest.schema] == ["image", "key", "label"]
    assert (manifest.num_inputs, manifest.num_dead_letters) == (81, 0)


def test_ignored_files_are_counted_and_said(folder, capsys):
    (folder / "flowers/rose/notes.txt").write_text("hello")
    (folder / "flowers/.DS_Store").write_text("system")
    (folder / "flowers/README.md").write_text("about flowers")
    assert prepare("--input", "flowers", "--output", "out", "--ignore", "*.txt") == 0
    assert "ignored:      3 files and folders" in capsys.readouterr().out
    assert json.loads((folder / "out/statistics.json").read_text())["num_ignored_files"] == 3


@pytest.mark.slow(0.9)
@pytest.mark.parametrize("num_classes", [1, 13])
def test_a_class_without_a_good_image_is_warned_of_and_stays(folder, capsys, num_classes):
    """What decides is --max_bad_fraction alone."""
    write_files(folder / "flowers", {f"gone{index:02d}/1.jpg": b"no image" for index in range(num_classes)})
    assert prepare("--input", "flowers", "--output", "out") == 2
    assert f"{num_classes} of {80 + num_classes} inputs are dead letters, more than --max_bad_fraction=0.01" in capsys.readouterr().err
    assert prepare("--input", "flowers", "--output", "out", "--max_bad_fraction=0.5", "--resume") == 0
    reported = capsys.readouterr()
    classes = "1 class has" if num_classes == 1 else "13 classes have"
    more = "" if num_classes == 1 else ", 'gone01', 'gone02', 'gone03', 'gone04', 'gone05', 'gone06', 'gone07', 'gone08', 'gone09' and 3 more"
    expected = f"label: {classes} no example, because all of their inputs were rejected: 'gone00'{more}"
    assert f"recordmill: warning: {expected}\n" in reported.err and "warnings:     1 (see " in reported.out
    assert json.loads((folder / "out/statistics.json").read_text())["warnings"] == [expected]
    names = dataset_format.read_manifest("out").features["label"].label_names
    assert len(names) == len(set(names)) and {f"gone{index:02d}" for index in range(num_classes)} < set(names)


def test_a_class_of_another_feature_than_label_is_warned_of_too(folder, capsys):
    write_files(folder / "photos", {**{f"{index}.jpg": jpeg() for index in range(9)}, "9.jpg": b"no image"})
    rows = "".join(f"{index}.jpg,{'fog' if index == 9 else 'sun'},{'rye|oat' if index == 9 else 'oat'}\n" for index in range(10))
    (folder / "photos/rows.csv").write_text(f"image,sky,crop\n{rows}")
    labels = ["--label=sky", "--label=crop:multi_label"]
    assert prepare("--input", "photos/rows.csv", "--output", "out", "--splits=train=1", "--max_bad_fraction=0.5", *labels) == 0
    reported = capsys.readouterr().err
    assert "warning: sky: 1 class has" in reported and "'fog'\n" in reported and "warning: crop: 1 class has" in reported and "'rye'\n" in reported


def test_a_second_run_to_the_same_output_is_refused_while_the_first_is_at_work(folder, capsys):
    import fcntl

    (folder / "out.incomplete").mkdir()
    descriptor = os.open(folder / "out.incomplete", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert prepare("--input", "flowers", "--output", "out") == 1
        assert "another run is writing to it" in capsys.readouterr().err
    finally:
        os.close(descriptor)
    assert prepare("--input", "flowers", "--output", "out") == 0


# The command, but for a signal that comes at a known point: as a function is called.
INTERRUPTED = """
import importlib, os, signal, sys
from beam_pipelines.__main__ import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
name, function, number = sys.argv.pop(1).split(":")
module = importlib.import_module(name)
original = getattr(module, function)

def interrupted(*arguments, **options):
    os.kill(os.getpid(), int(number))
    return original(*arguments, **options)

setattr(module, function, interrupted)
run()
"""


# Signal, whether what it interrupts has been written, whether that replaces a dataset: all pairs.
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
def test_an_interrupt_says_what_is_in_place(folder, number, is_written, replaces):
    location = "beam_pipelines.publish.summary:describe_dataset" if is_written else "beam_pipelines.launch:resolve_source"
    given = ["prepare", "--input", "flowers", "--output", "out"]
    if replaces:
        assert main([*given, "--seed=5"]) == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = ["-c", INTERRUPTED, f"{location}:{number}", *given, "--overwrite"]
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
    assert "apache_beam" in imported and imported.isdisjoint({"pandas.core", "botocore.session", "google.auth.credentials"}), "nothing of clouds"
