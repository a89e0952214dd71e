"""Tests that `recordmill inspect` prints a summary of a dataset and finds examples by key or by condition."""

import json
import pathlib
import pickle
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import ImageColor

import tf_input
from beam_pipelines.__main__ import main
from made_images import png, write_files
from made_rich import analyzed_rich
from signed import update_checksums
from tf_input.inspection.drawings import draw_annotations
from tf_input.inspection.pictures import save_image


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset of 30 small images with three classes in two splits."""
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
def dataset(directory: pathlib.Path) -> tf_input.PreparedDataset:
    return tf_input.open(directory)


def inspect(capfd: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main(["inspect", *map(str, arguments)])
    return code, *capfd.readouterr()


def test_prints_tables_of_dataset_contents(directory: pathlib.Path, dataset: tf_input.PreparedDataset, capfd: pytest.CaptureFixture) -> None:
    code, stdout, stderr = inspect(capfd, directory)
    assert code == 0 and not stderr and str(dataset) in stdout, "the output contains the representation of the dataset"
    train, test = (dataset.num_examples(split) for split in ("train", "test"))
    for line in (
        "label +train +test",
        "image +png 30 +4 to 8",
        r"out-train.tfrecord-00000-of-00002 +\d+",
        "--input +.*/in", "--source +image_folder", "--splits +train=7/10",
        r"apache-beam +2\.",
    ):
        assert re.search(f"^{line}", stdout, re.M), line
    counts = dataset.statistics["splits"]["train"]["label_counts"]
    assert re.search(rf"^ant +{counts['ant']} +\d+$", stdout, re.M) and "30 inputs, 0 " in stdout
    code, stdout, _ = inspect(capfd, directory, "--json")
    actual = json.loads(stdout)
    assert [actual["splits"][split]["num_examples"] for split in ("train", "test")] == [train, test]
    assert actual["statistics"] == dataset.statistics and actual["run"]["options"]["input"].endswith("/in") and actual["format_version"] == 4


def test_examples_are_found_by_key(dataset: tf_input.PreparedDataset) -> None:
    train = dataset["train"]
    keys = dataset.keys("train")
    assert list(keys) == [example["key"] for example in train] and list(dataset.keys()) == ["train", "test"]
    for number, key in enumerate(keys):
        np.testing.assert_array_equal(train[key]["image"], train[number]["image"])
        assert key in train and key not in dataset["test"] and train.find(key)[0] == number
    examples = pickle.loads(pickle.dumps(train))[3:8]
    assert (
        examples[keys[5]]["key"] == keys[5] and examples.find(keys[5])[0] == 2 and keys[9] not in examples
        and 5 not in examples
    )
    for wrong in ("no/such.png", "", "\ud800", "ant"):
        with pytest.raises(KeyError, match="no example has the key"):
            train[wrong]
    with pytest.raises(ValueError, match="split='trian'"):
        dataset.keys("trian")


def test_finding_keys_without_a_catalog_raises_an_error(dataset: tf_input.PreparedDataset, tmp_path: pathlib.Path) -> None:
    copy = shutil.copytree(dataset.directory, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            shard |= {"catalog": "", "catalog_bytes": 0, "catalog_crc32c": 0}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    without = tf_input.open(copy)
    for use in (lambda: without["train"]["ant/0.png"], lambda: "ant/0.png" in without["train"], lambda: without.keys("train")):
        with pytest.raises(ValueError, match="has no catalog"):
            use()


def test_condition_selects_the_same_examples_as_batches(
    directory: pathlib.Path, dataset: tf_input.PreparedDataset, capfd: pytest.CaptureFixture
) -> None:
    where = "label in ('bee', 'cat') and height >= 5"
    code, stdout, _ = inspect(capfd, directory, "--where", where, "--json")
    actual = json.loads(stdout)["splits"]
    for split in ("train", "test"):
        batches = dataset.batches(split, batch_size=1, image_size=4, select=where, with_keys=True, shuffle=False)
        assert [row["key"] for row in actual[split]] == [keys[0].decode() for _, keys in batches.as_numpy_iterator()], split
        assert all(row["key"] == dataset[split][row["number"]]["key"] and row["label"] != "ant" for row in actual[split])
    code, stdout, _ = inspect(capfd, directory, "--where", where, "--split", "train")
    assert (
        code == 0
        and stdout.startswith(f"train: {len(actual['train'])} of {dataset.num_examples('train')} examples\nnumber")
        and "test" not in stdout
    )
    code, stdout, stderr = inspect(capfd, directory, "--where", "label == 'wasp'")
    assert (code, stdout, stderr.count("\n")) == (2, "", 1) and "has no class 'wasp'" in stderr


def test_prints_one_example_and_saves_its_image(
    directory: pathlib.Path, dataset: tf_input.PreparedDataset, capfd: pytest.CaptureFixture
) -> None:
    example = dataset["test"][1]
    for wanted in ("test:1", example["key"]):
        code, stdout, _ = inspect(capfd, directory, "--example", wanted)
        assert code == 0 and stdout.startswith("test:1\n") and example["key"] in stdout and f"{example['label']} ({example['key'][:3]})" in stdout
        path = pathlib.Path(re.search(r"^saved to (.*\.png)$", stdout, re.M)[1])
        np.testing.assert_array_equal(tf.io.decode_png(path.read_bytes()).numpy(), example["image"])
        path.unlink()
    actual = json.loads(inspect(capfd, directory, "--example", "test:1", "--json")[1])
    assert (actual["split"], actual["number"], actual["key"]) == ("test", 1, example["key"])
    for wrong, message in (
        ("test:99", "--example=test:99"),
        ("missing.png", "no example has this key"),
        ("val:1", "no example has this key"),
    ):
        code, stdout, stderr = inspect(capfd, directory, "--example", wrong)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1) and message in stderr


@pytest.mark.slow
def test_boxes_and_masks_are_drawn_on_the_image(tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture) -> None:
    rich = analyzed_rich(tmp_path_factory)
    train = tf_input.open(rich)["train"]
    number = next(number for number, example in enumerate(train) if len(example["objects"]["bbox"]) == 3)
    code, stdout, _ = inspect(capfd, rich, "--example", f"train:{number}")
    path = pathlib.Path(re.search(r"^saved to (.*\.png)$", stdout, re.M)[1])
    drawn = tf.io.decode_png(path.read_bytes()).numpy()
    path.unlink()
    example = train[number]
    height, width = example["image"].shape[:2]
    factor = len(drawn) // height
    assert code == 0 and drawn.shape == (factor * height, factor * width, 3) and max(drawn.shape) >= 512
    top, left, bottom, right = example["objects"]["bbox"][0]
    middle = drawn[round((top + bottom) / 2 * (len(drawn) - 1)), round(left * (drawn.shape[1] - 1)) + 1]
    np.testing.assert_array_equal(middle, label_color(example["objects"]["label"][0]))  # the left side of the box
    free = np.ones((height, width), bool)  # pixels without boxes and names
    for top, left, bottom, right in example["objects"]["bbox"]:
        free[max(0, int(top * height) - 12) : int(bottom * height) + 2, max(0, int(left * width) - 2) :] = False
    shown = drawn[factor // 2 :: factor, factor // 2 :: factor]
    in_class = example["mask"][..., 0] > 0
    np.testing.assert_array_equal(shown[free & ~in_class], example["image"][free & ~in_class])
    assert (free & ~in_class).any() and in_class[5, 6]  # a pixel that is only inside the first box
    np.testing.assert_array_equal(shown[5, 6], (example["image"][5, 6].astype(int) + label_color(example["mask"].max())) // 2)


def label_color(label: int) -> tuple[int, int, int]:
    return ImageColor.getrgb(f"hsl({label * 137.508 % 360:.0f},70%,45%)")


def test_invalid_boxes_are_not_drawn_and_any_name_is_drawn() -> None:
    pixels = np.zeros((40, 20, 3), np.uint8)
    invalid = np.array([[np.nan, 0, 1, 1], [0.9, 0, 0.1, 1], [-1, 0, 1, 1], [0, 0, 9, 1]], np.float32)
    assert not draw_annotations(pixels, (), {"bbox": invalid, "label": np.zeros(4, np.int64)}, ["a"]).any()
    names = ["\x1b[31m\n" + "x" * 300, "שלום", "😀"]
    boxes = {"bbox": np.tile(np.float32([0.2, 0.1, 0.9, 0.8]), (5, 1)), "label": np.array([0, 1, 2, 99, -1])}
    assert draw_annotations(pixels, [np.ones((10, 5, 1), np.int32)], boxes, names).any()


@pytest.mark.parametrize(("dtype", "channels"), [("uint8", 3), ("uint8", 1), ("uint8", 4), ("uint16", 1)])
def test_image_of_any_type_is_saved_under_a_safe_name(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, dtype: str, channels: int) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pixels = np.arange(4 * 4 * channels, dtype=dtype).reshape(4, 4, channels)
    saved = save_image(pixels, "../\x1b[31m").removeprefix("saved to ")
    assert saved.startswith(f"{tmp_path}/recordmill--31m-")
    np.testing.assert_array_equal(tf.io.decode_png(pathlib.Path(saved).read_bytes(), dtype=dtype).numpy(), pixels)


def test_colors_of_16_bits_are_saved_with_8_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pixels = np.random.default_rng(0).integers(0, 1 << 16, (4, 4, 3), np.uint16)
    saved = save_image(pixels, "deep").removeprefix("saved to ")
    np.testing.assert_array_equal(tf.io.decode_png(pathlib.Path(saved).read_bytes()).numpy(), pixels >> 8)


def test_duckdb_reads_the_catalog(directory: pathlib.Path, dataset: tf_input.PreparedDataset) -> None:
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.sql(f"select label, count(*) from '{directory}/catalog/*.parquet' group by label").fetchall()
    counts = [dataset.statistics["splits"][split]["label_counts"] for split in dataset]
    assert dict(rows) == {label: sum(count[label] for count in counts) for label in ("ant", "bee", "cat")}


def test_control_characters_are_escaped_in_the_terminal(
    directory: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    copy = shutil.copytree(directory, tmp_path / "copy")
    evil = "\x1b]0;x\x07‮\n"
    for name in ("manifest.json", "statistics.json", "run.json"):
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace('"ant"', json.dumps(evil)).replace('"python": "', f'"python": "{json.dumps(evil)[1:-1]}'))
    update_checksums(copy)
    code, stdout, stderr = inspect(capfd, copy)
    assert code == 0 and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", stdout) and "\\x1b]0;x" in stdout
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", inspect(capfd, copy, "--json")[1])
    code, stdout, stderr = inspect(capfd, copy, "--where", f"label == {evil!r} or label == 'bug'")
    assert code == 2 and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", stderr)


@pytest.mark.parametrize(
    "change", [{"splits": 5}, {"splits": {"train": {"label_counts": {"ant": "x"}}, "test": {"label_counts": {}}}}, {"images": []}, None]
)
def test_corrupt_statistics_print_one_line(
    change: dict | None, directory: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    copy = shutil.copytree(directory, tmp_path / "copy")
    text = (copy / "statistics.json").read_text()
    (copy / "statistics.json").write_text("{" if change is None else json.dumps(json.loads(text) | change))
    update_checksums(copy)
    code, stdout, stderr = inspect(capfd, copy)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1) and "statistics.json" in stderr


def test_record_that_does_not_match_the_schema_prints_one_line(
    directory: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    copy = shutil.copytree(directory, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"schema": [{"name": "nothing", "kind": "text"}]}))
    code, stdout, stderr = inspect(capfd, copy, "--example", "train:0")
    assert (code, stdout, stderr.count("\n")) == (2, "", 1) and re.match("recordmill: example 0 .*'nothing'", stderr)


def test_invalid_paths_and_options_print_one_line(directory: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    copy = shutil.copytree(directory, tmp_path / "incomplete")
    (copy / "manifest.json").unlink()
    for path in (copy, tmp_path / "missing", directory / "statistics.json"):
        code, stdout, stderr = inspect(capfd, path)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1) and "is not a dataset" in stderr
    for wrong in (
        ["--split", "train"],
        ["--where", "1 == 1", "--example", "x"],
        ["--whre", "x"],
        ["--where", "label == 'ant'", "--split", "trian"],
    ):
        code, stdout, stderr = inspect(capfd, directory, *wrong)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1), wrong
