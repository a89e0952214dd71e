"""`recordmill inspect`: what is in a dataset, and its examples by key, by condition and by query."""

import json
import os
import pathlib
import pickle
import re
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import ImageColor

import tf_input
from beam_pipelines.__main__ import main
from made_images import png, write_files
from made_rich import analyzed_rich
from signed import sign
from tf_input.inspection.drawings import draw_annotations
from tf_input.inspection.pictures import show_image


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset of 30 small images, of three classes, in two splits."""
    folder = tmp_path_factory.mktemp("inspect")
    files = {f"{('ant', 'bee', 'cat')[index % 3]}/{index}.png": png(index, 4 + index % 5, 6) for index in range(30)}
    source = write_files(folder / "in", files)
    assert (
        main(
            [
                "prepare",
                "--input",
                str(source),
                "--output",
                str(folder / "out"),
                "--splits=train=0.7,test=0.3",
                "--num_shards=train=2,test=1",
            ]
        )
        == 0
    )
    return folder / "out"


@pytest.fixture(scope="module")
def dataset(out: pathlib.Path) -> tf_input.PreparedDataset:
    return tf_input.open(out)


def inspect(capfd: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main(["inspect", *map(str, arguments)])
    return code, *capfd.readouterr()


def test_tables_tell_what_a_dataset_has(out: pathlib.Path, dataset: tf_input.PreparedDataset, capfd: pytest.CaptureFixture) -> None:
    code, reported, err = inspect(capfd, out)
    assert code == 0 and not err and str(dataset) in reported, "what print(dataset) shows, and more"
    train, test = (dataset.num_examples(split) for split in ("train", "test"))
    for line in (
        "label +train +test",
        "image +png 30 +4 to 8",
        r"out-train.tfrecord-00000-of-00002 +\d+",
        "input +.*/in", "source.kind +image_folder", "splits.train +7/10",
        r"apache-beam +2\.",
    ):
        assert re.search(f"^{line}", reported, re.M), line
    counts = dataset.statistics["splits"]["train"]["label_counts"]
    assert re.search(rf"^ant +{counts['ant']} +\d+$", reported, re.M) and "30 inputs, 0 of them dead letters" in reported
    code, reported, _ = inspect(capfd, out, "--json")
    actual = json.loads(reported)
    assert [actual["splits"][split]["num_examples"] for split in ("train", "test")] == [train, test]
    assert actual["statistics"] == dataset.statistics and actual["run"]["options"]["input"].endswith("/in") and actual["format_version"] == 4


def test_examples_by_key(dataset: tf_input.PreparedDataset) -> None:
    train = dataset["train"]
    keys = dataset.keys("train")
    assert list(keys) == [example["key"] for example in train] and list(dataset.keys()) == ["train", "test"]
    for number, key in enumerate(keys):
        np.testing.assert_array_equal(train[key]["image"], train[number]["image"])
        assert key in train and key not in dataset["test"] and train.find(key)[0] == number
    part = pickle.loads(pickle.dumps(train))[3:8]
    assert part[keys[5]]["key"] == keys[5] and part.find(keys[5])[0] == 2 and keys[9] not in part and 5 not in part
    for wrong in ("no/such.png", "", "\ud800", "ant"):
        with pytest.raises(KeyError, match="no example has the key"):
            train[wrong]
    with pytest.raises(ValueError, match="split='trian'"):
        dataset.keys("trian")


def test_without_a_catalog_a_key_is_not_found_in_silence(dataset: tf_input.PreparedDataset, tmp_path: pathlib.Path) -> None:
    copy = shutil.copytree(dataset.directory, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            shard |= {"catalog": "", "catalog_bytes": 0, "catalog_crc32c": 0}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    without = tf_input.open(copy)
    for ask in (lambda: without["train"]["ant/0.png"], lambda: "ant/0.png" in without["train"], lambda: without.keys("train")):
        with pytest.raises(ValueError, match="has no catalog"):
            ask()


def test_a_condition_is_that_of_batches(out: pathlib.Path, dataset: tf_input.PreparedDataset, capfd: pytest.CaptureFixture) -> None:
    where = "label in ('bee', 'cat') and height >= 5"
    code, reported, _ = inspect(capfd, out, "--where", where, "--json")
    actual = json.loads(reported)["splits"]
    for split in ("train", "test"):
        batches = dataset.batches(split, batch_size=1, image_size=4, where=where, keys=True, shuffle=False)
        assert [row["key"] for row in actual[split]] == [keys[0].decode() for _, keys in batches.as_numpy_iterator()], split
        assert all(row["key"] == dataset[split][row["number"]]["key"] and row["label"] != "ant" for row in actual[split])
    code, reported, _ = inspect(capfd, out, "--where", where, "--split", "train")
    assert (
        code == 0
        and reported.startswith(f"train: {len(actual['train'])} of {dataset.num_examples('train')} examples\nnumber")
        and "test" not in reported
    )
    code, reported, err = inspect(capfd, out, "--where", "label == 'wasp'")
    assert (code, reported, err.count("\n")) == (2, "", 1) and "has no class 'wasp'" in err


def test_one_example_and_its_image(out: pathlib.Path, dataset: tf_input.PreparedDataset, capfd: pytest.CaptureFixture) -> None:
    example = dataset["test"][1]
    for wanted in ("test:1", example["key"]):
        code, reported, _ = inspect(capfd, out, "--example", wanted)
        assert code == 0 and reported.startswith("test:1\n") and example["key"] in reported and f"{example['label']} ({example['key'][:3]})" in reported
        path = pathlib.Path(re.search(r"^saved to (.*\.png)$", reported, re.M)[1])
        np.testing.assert_array_equal(tf.io.decode_png(path.read_bytes()).numpy(), example["image"])
        path.unlink()
    actual = json.loads(inspect(capfd, out, "--example", "test:1", "--json")[1])
    assert (actual["split"], actual["number"], actual["key"]) == ("test", 1, example["key"])
    for wrong, message in (
        ("test:99", "--example=test:99"),
        ("none.png", "no example has this key"),
        ("val:1", "no example has this key"),
    ):
        code, reported, err = inspect(capfd, out, "--example", wrong)
        assert (code, reported, err.count("\n")) == (2, "", 1) and message in err


@pytest.mark.slow
def test_boxes_and_masks_are_drawn_on_the_image(tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture) -> None:
    rich = analyzed_rich(tmp_path_factory)
    train = tf_input.open(rich)["train"]
    number = next(number for number, item in enumerate(train) if len(item["objects"]["bbox"]) == 3)
    code, reported, _ = inspect(capfd, rich, "--example", f"train:{number}")
    path = pathlib.Path(re.search(r"^saved to (.*\.png)$", reported, re.M)[1])
    drawn = tf.io.decode_png(path.read_bytes()).numpy()
    path.unlink()
    example = train[number]
    height, width = example["image"].shape[:2]
    factor = len(drawn) // height
    assert code == 0 and drawn.shape == (factor * height, factor * width, 3) and max(drawn.shape) >= 512
    top, left, bottom, right = example["objects"]["bbox"][0]
    middle = drawn[round((top + bottom) / 2 * (len(drawn) - 1)), round(left * (drawn.shape[1] - 1)) + 1]
    np.testing.assert_array_equal(middle, _colour(example["objects"]["label"][0]))  # its left side
    free = np.ones((height, width), bool)  # of boxes and names
    for top, left, bottom, right in example["objects"]["bbox"]:
        free[max(0, int(top * height) - 12) : int(bottom * height) + 2, max(0, int(left * width) - 2) :] = False
    shown = drawn[factor // 2 :: factor, factor // 2 :: factor]
    in_class = example["mask"][..., 0] > 0
    np.testing.assert_array_equal(shown[free & ~in_class], example["image"][free & ~in_class])
    assert (free & ~in_class).any() and in_class[5, 6]  # within the first box, and no other
    np.testing.assert_array_equal(shown[5, 6], (example["image"][5, 6].astype(int) + _colour(example["mask"].max())) // 2)


def _colour(label: int) -> tuple[int, int, int]:
    return ImageColor.getrgb(f"hsl({label * 137.508 % 360:.0f},70%,45%)")


def test_what_is_no_box_is_not_drawn_and_any_name_is() -> None:
    pixels = np.zeros((40, 20, 3), np.uint8)
    none = np.array([[np.nan, 0, 1, 1], [0.9, 0, 0.1, 1], [-1, 0, 1, 1], [0, 0, 9, 1]], np.float32)
    assert not draw_annotations(pixels, (), {"bbox": none, "label": np.zeros(4, np.int64)}, ["a"]).any()
    names = ["\x1b[31m\n" + "x" * 300, "שלום", "😀"]
    boxes = {"bbox": np.tile(np.float32([0.2, 0.1, 0.9, 0.8]), (5, 1)), "label": np.array([0, 1, 2, 99, -1])}
    assert draw_annotations(pixels, [np.ones((10, 5, 1), np.int32)], boxes, names).any()


def test_a_terminal_with_colours_shows_an_image(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("rich", reason="needs rich: pip install 'recordmill[beam]'")
    leader, follower = os.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    red_over_blue = np.array([[[255, 0, 0]] * 4] * 2 + [[[0, 0, 255]] * 4] * 2, np.uint8)
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        reported = show_image(red_over_blue, "x")
        assert "38;2;255;0;0;48;2;255;0;0m▀" in reported and "38;2;0;0;255;48;2;0;0;255m▀" in reported and "saved" not in reported
        for other in (red_over_blue[..., :1], np.dstack([red_over_blue, red_over_blue[..., :1]]), red_over_blue.astype(np.uint16) * 257):
            assert "▀" in show_image(other, "x")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert show_image(red_over_blue, "../\x1b[31m").startswith(f"saved to {tmp_path}/recordmill--31m-")
    os.close(leader)


def test_sql_over_the_catalog(out: pathlib.Path, dataset: tf_input.PreparedDataset, capfd: pytest.CaptureFixture) -> None:
    pytest.importorskip("duckdb", reason="needs duckdb: pip install 'recordmill[sql]'")
    query = "select split, label, count(*) as num from catalog group by all order by all"
    code, reported, _ = inspect(capfd, out, "--sql", query, "--json")
    counts = {split: dataset.statistics["splits"][split]["label_counts"] for split in dataset}
    assert code == 0 and json.loads(reported) == [
        {"split": split, "label": label, "num": counts[split][label]}
        for split in ("test", "train")
        for label in sorted(counts[split])
        if counts[split][label]
    ]
    assert inspect(capfd, out, "--sql", query, "--split", "test")[1].splitlines()[0].split() == ["split", "label", "num"]
    for wrong in ("selec", "select * from nothing", "", "select * from read_text('/etc/hostname')", "copy catalog to 'x.csv'"):
        code, reported, err = inspect(capfd, out, "--sql", wrong)
        assert (code, reported, err.count("\n")) == (2, "", 1) and "--sql=" in err, wrong


def test_without_duckdb_one_line_says_how_to_install_it(
    out: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, reported, err = inspect(capfd, out, "--sql", "select 1")
    assert (code, reported, err.count("\n")) == (2, "", 1) and "pip install 'recordmill[sql]'" in err


def test_nothing_hostile_reaches_the_terminal(out: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    copy = shutil.copytree(out, tmp_path / "copy")
    evil = "\x1b]0;x\x07‮\n"
    for name in ("manifest.json", "statistics.json", "run.json"):
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace('"ant"', json.dumps(evil)).replace('"python": "', f'"python": "{json.dumps(evil)[1:-1]}'))
    sign(copy)
    code, reported, err = inspect(capfd, copy)
    assert code == 0 and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", reported) and "\\x1b]0;x" in reported
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", inspect(capfd, copy, "--json")[1])
    code, reported, err = inspect(capfd, copy, "--where", f"label == {evil!r} or label == 'bug'")
    assert code == 2 and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", err)


@pytest.mark.parametrize(
    "change", [{"splits": 5}, {"splits": {"train": {"label_counts": {"ant": "x"}}, "test": {"label_counts": {}}}}, {"images": []}, None]
)
def test_damaged_statistics_are_told_in_one_line(
    change: dict | None, out: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    copy = shutil.copytree(out, tmp_path / "copy")
    text = (copy / "statistics.json").read_text()
    (copy / "statistics.json").write_text("{" if change is None else json.dumps(json.loads(text) | change))
    sign(copy)
    code, reported, err = inspect(capfd, copy)
    assert (code, reported, err.count("\n")) == (2, "", 1) and "statistics.json" in err


def test_a_record_that_is_not_as_the_schema_says_is_told_in_one_line(
    out: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    copy = shutil.copytree(out, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"schema": [{"name": "nothing", "kind": "text"}]}))
    code, reported, err = inspect(capfd, copy, "--example", "train:0")
    told_here = [line for line in err.splitlines() if line.startswith("recordmill: ")]  # beside what TensorFlow logs in a test
    assert (code, reported, len(told_here)) == (2, "", 1) and re.match("recordmill: example 0 .*Feature: nothing .*required", told_here[0])


def test_what_is_no_dataset_is_refused_in_one_line(out: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    copy = shutil.copytree(out, tmp_path / "half")
    (copy / "manifest.json").unlink()
    for path in (copy, tmp_path / "not-there", out / "statistics.json"):
        code, reported, err = inspect(capfd, path)
        assert (code, reported, err.count("\n")) == (2, "", 1) and "is not a dataset" in err
    for wrong in (
        ["--split", "train"],
        ["--where", "1 == 1", "--example", "x"],
        ["--whre", "x"],
        ["--where", "label == 'ant'", "--split", "trian"],
    ):
        code, reported, err = inspect(capfd, out, *wrong)
        assert (code, reported, err.count("\n")) == (2, "", 1), wrong
