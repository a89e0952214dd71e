"""Tests each source with each machine-learning task that the source supports. The tests prepare each dataset with the
command and read its examples.

The pixels identify an example. Each test case defines the expected values of each picture.
"""

import csv
import pathlib
import shutil
from typing import Any, Callable, Iterable

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import tf_input
from beam_pipelines.__main__ import main
from engines import two_workers
from made_sources import CASES, GREYS, MASKS, NUM, PICTURES, ROWS, made_case, plain, write_csv
from tf_input.dataset_format import Manifest, read_manifest


@pytest.fixture
def prepared(tmp_path_factory) -> Callable[[str], pathlib.Path]:
    """Returns a function that prepares the dataset of a case once and returns its directory."""
    return lambda name: made_case(tmp_path_factory, name).output


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("name", CASES)
def test_source_provides_the_expected_values(prepared, name):
    case, output = CASES[name], prepared(name)
    manifest = read_manifest(output)
    assert manifest.targets == case.targets and manifest.num_dead_letters == 0
    pictures = GREYS if case.grey else PICTURES
    actual = read_back(output, manifest)
    assert len(actual) == NUM
    for index, pixels in enumerate(pictures):
        values = actual[rgb(pixels).tobytes()]
        for feature, expected in case.expected(index).items():
            if isinstance(expected, np.ndarray):
                np.testing.assert_array_equal(values[feature], expected, f"{feature} of picture {index}")
            else:
                assert values[feature] == expected, f"{feature} of picture {index}"


def rgb(pixels: np.ndarray) -> np.ndarray:
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., np.newaxis], 3, axis=-1)


def read_back(output: pathlib.Path, manifest: Manifest) -> dict[bytes, dict[str, Any]]:
    """Reads all examples without `tf_input`. Returns a dictionary from the pixels of an example to its values."""
    actual = {}
    for record in records_of(output.glob("*.tfrecord-*")):
        stored = tf.train.Example.FromString(record).features.feature
        values = {name: list(getattr(value, value.WhichOneof("kind")).value) for name, value in stored.items()}
        for feature in manifest.schema:
            if feature.kind == "class_label":
                values[feature.name] = [feature.label_names[position] for position in values[feature.name]]
            elif feature.kind == "mask":
                values[feature.name] = tf.io.decode_png(values[feature.name][0]).numpy()[..., 0]
            elif feature.kind == "pixels":
                pixels = np.frombuffer(values[feature.name][0], np.uint8).reshape(feature.shape)
                values[feature.name] = np.repeat(pixels, 3, axis=-1) if feature.shape[2] == 1 else pixels
            elif feature.kind == "image":
                values[feature.name] = tf.io.decode_image(values[feature.name][0], channels=3).numpy()
        assert set(stored) == set(manifest.features)
        actual[values["image"].tobytes()] = values
    return actual


def records_of(shards: Iterable[pathlib.Path]) -> Iterable[bytes]:
    """Returns the records of some shards."""
    return tf.data.TFRecordDataset(sorted(map(str, shards))).as_numpy_iterator()


@pytest.mark.slow
def test_groups_and_splits_follow_the_table(tmp_path):
    write_csv(tmp_path / "in")
    table, out = str(tmp_path / "in/rows.csv"), tmp_path / "out"
    options = ["--label=class", "--group=patient", "--splits=train=0.5,test=0.5"]
    assert main(["prepare", "--input", table, "--output", str(out), *options]) == 0
    patients = {row["file_name"].encode(): row["patient"] for row in ROWS}
    patients_by_split = {split: {patients[key] for key in keys_of(out, split)} for split in ("train", "test")}
    assert patients_by_split["train"].isdisjoint(patients_by_split["test"]) and len(patients_by_split["train"] | patients_by_split["test"]) == 5

    options = ["--label=class", "--split_column=where", "--key_column=count", "--overwrite"]
    assert main(["prepare", "--input", table, "--output", str(out), *options]) == 0
    assert keys_of(out, "validation") == {str(row["count"]).encode() for row in ROWS if row["where"] == "val"}


def keys_of(output: pathlib.Path, split: str) -> set[bytes]:
    records = records_of(output.glob(f"*-{split}.tfrecord-*"))
    return {tf.train.Example.FromString(record).features.feature["key"].bytes_list.value[0] for record in records}


TFDS_CASES = [
    "image_folder, raw",
    "table csv, multi-label",
    "table csv, two heads",
    "table csv, vector",
    "table csv, segmentation",
    "table csv, dense",
    "table csv, no label",
    "table csv, extra columns",
    "table csv, pairs",
    "table csv, raw pairs",
    "voc, detection",
    "coco, detection and segmentation",
    "arrays idx, raw",
]


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("name", TFDS_CASES)
def test_tensorflow_datasets_opens_every_task(prepared, name):
    case = CASES[name]
    builder = tfds.builder_from_directory(str(prepared(name)))
    pictures = GREYS if case.grey else PICTURES
    indices = {(pixels if pixels.ndim == 3 else pixels[..., np.newaxis]).tobytes(): index for index, pixels in enumerate(pictures)}
    seen = set()
    for item in tfds.as_numpy(builder.as_dataset(split="+".join(builder.info.splits))):
        index = indices[item["image"].tobytes()]
        seen.add(index)
        for feature, expected in case.expected(index).items():
            actual, declared = item, builder.info.features
            for part in feature.split("/"):
                actual = actual[part]
                declared = (declared.feature if isinstance(declared, tfds.features.Sequence) else declared)[part]
            if isinstance(expected, np.ndarray):
                np.testing.assert_array_equal(actual[..., 0] if expected.ndim == 2 else actual, expected, feature)
                continue
            actual = np.ravel(actual).tolist()
            declared = getattr(declared, "feature", declared)
            if isinstance(declared, tfds.features.ClassLabel):
                actual = [declared.names[label] for label in actual]
            assert actual == expected, (feature, index)
    assert seen == set(range(NUM))
    names = case.targets
    pair = ("image", names[0] if len(names) == 1 else {name: name for name in names}) if names else None
    assert builder.info.supervised_keys == pair


@pytest.mark.slow
def test_masks_can_be_combined_with_a_class(tmp_path):
    write_csv(tmp_path / "in")
    options = ["--label=class", "--label=mask_path:mask", "--feature=class:text"]
    assert main(["prepare", "--input", str(tmp_path / "in/rows.csv"), "--output", str(tmp_path / "out"), *options]) == 2
    options = ["--label=class", "--label=mask_path:mask", "--feature=city", "--weight_column="]
    assert main(["prepare", "--input", str(tmp_path / "in/rows.csv"), "--output", str(tmp_path / "out"), *options]) == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest.targets == ("class", "mask_path") and manifest.num_dead_letters == 0
    actual = read_back(tmp_path / "out", manifest)
    for index, pixels in enumerate(PICTURES):
        np.testing.assert_array_equal(actual[pixels.tobytes()]["mask_path"], MASKS[index])
    for x, y in tf_input.open(tmp_path / "out").batches("train", batch_size=4, image_size=8):
        assert x.shape[1:] == (8, 8, 3) and set(y) == {"class", "mask_path"} and y["mask_path"].shape[1:] == (8, 8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table csv, dense", "voc, detection", "table csv, two heads", "table csv, pairs", "image_folder, raw"])
def test_prepared_dataset_is_a_source(prepared, tmp_path, name):
    assert main(["prepare", "--input", str(prepared(name)), "--output", str(tmp_path / "again")]) == 0
    before, after = (read_back(path, read_manifest(path)) for path in (prepared(name), tmp_path / "again"))
    assert before.keys() == after.keys()
    for pixels, values in before.items():
        for feature, value in values.items():
            if feature != "image":
                np.testing.assert_array_equal(after[pixels][feature], value, feature)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--label=weather", "--label=ground"], "--label_names=FILE"),
        (["--label=age:float"], "Omit --label_names"),
        (["--label=class", "--key_column=patient", "--splits=train=1"], "'patient'"),
    ],
)
def test_options_that_do_not_fit_the_table_are_rejected(tmp_path, capsys, options, message):
    write_csv(tmp_path / "in")
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\ncow\n")
    command = ["prepare", "--input", str(tmp_path / "in/rows.csv"), "--output", str(tmp_path / "out"), *options]
    assert main([*command, f"--label_names={names}"]) == 2
    assert message in capsys.readouterr().err


def test_repeated_image_is_rejected_by_name(tmp_path, capsys):
    write_csv(tmp_path / "in")
    with open(tmp_path / "in/rows.csv", "a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, list(ROWS[0])).writerow(plain(ROWS[0]))
    command = ["prepare", "--input", str(tmp_path / "in/rows.csv"), "--output", str(tmp_path / "out"), "--label=class"]
    assert main(command) == 2 and "'pictures/00.png' is listed 2 times" in capsys.readouterr().err


def test_parquet_files_keep_the_splits_in_their_names(tmp_path):
    CASES["table parquet, embedded images"].write(tmp_path / "in/data")
    (tmp_path / "in/data/train.parquet").rename(tmp_path / "in/data/train-00000-of-00001.parquet")
    shutil.copy(tmp_path / "in/data/train-00000-of-00001.parquet", tmp_path / "in/data/test-00000-of-00001.parquet")
    assert main(["prepare", "--source=table", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 0
    manifest = read_manifest(tmp_path / "out")
    assert {split: manifest.num_examples(split) for split in manifest.splits} == {"train": NUM, "test": NUM}


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_image_in_two_splits_is_rejected(tmp_path, capsys, monkeypatch, num_processes):
    write_csv(tmp_path / "in")
    for split, rows in (("train", ROWS), ("val", ROWS[7:8])):
        lines = [f"{row['file_name']} {row['class']}\n" for row in rows]
        (tmp_path / f"in/{split}.txt").write_text("".join(lines))
    (tmp_path / "in/rows.csv").unlink()
    flags = two_workers(monkeypatch, tmp_path) if num_processes == 2 else []
    command = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--source=text", *flags]
    assert main(command) == 2
    assert "'pictures/07.png' in split 'train' and 'pictures/07.png' in split 'validation'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
