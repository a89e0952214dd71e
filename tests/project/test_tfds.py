"""Tests that TensorFlow Datasets and plain tf.data can read prepared datasets."""

import json
import pathlib
import re
import struct

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import CLASSES, picture, prepare_images
from tf_input import dataset_format

# The feature spec that a user would write after reading only the description of the format.
FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "key": tf.io.FixedLenFeature([], tf.string),
    "height": tf.io.FixedLenFeature([], tf.int64),
    "width": tf.io.FixedLenFeature([], tf.int64),
}
SPLITS = ("train", "validation")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> pathlib.Path:
    return prepare_images(tmp_path_factory.mktemp("prepared"), "--num_shards", "train=4,validation=2")


def plain_examples(prepared: pathlib.Path, split: str) -> list[dict]:
    """Returns the examples of a split in the order of their shards and records."""
    files = sorted(str(path) for path in prepared.glob(f"*-{split}.tfrecord-*"))
    data = tf.data.TFRecordDataset(files).map(lambda record: tf.io.parse_single_example(record, FEATURES))
    return list(data.as_numpy_iterator())


def by_key(examples) -> dict[bytes, dict]:
    return {example["key"]: example for example in examples}


def test_plain_tf_data_reads_every_record(prepared):
    examples = [example for split in SPLITS for example in plain_examples(prepared, split)]
    assert len(by_key(examples)) == len(examples) == sum(CLASSES.values())
    names = sorted(CLASSES)
    for example in examples:
        key = example["key"].decode()
        assert key.startswith(f"{names[example['label']]}/"), key
        assert example["image"] == (prepared.parent / "source" / key).read_bytes(), key
        image = tf.io.decode_image(example["image"], channels=3)
        assert image.shape == (example["height"], example["width"], 3), key


def test_tensorflow_datasets_opens_the_dataset(prepared):
    builder = tfds.builder_from_directory(str(prepared))
    assert builder.info.name == "made"
    assert set(builder.info.splits) == set(SPLITS)
    assert builder.info.features["label"].names == sorted(CLASSES)
    assert builder.info.supervised_keys == ("image", "label")
    for split in SPLITS:
        expected = by_key(plain_examples(prepared, split))
        examples = by_key(tfds.as_numpy(builder.as_dataset(split=split)))
        assert builder.info.splits[split].num_examples == len(expected) == len(examples)
        assert examples.keys() == expected.keys()
        for key, example in examples.items():
            assert set(example) == set(FEATURES), key
            assert example["label"] == expected[key]["label"], key
            np.testing.assert_array_equal(example["image"], tf.io.decode_image(expected[key]["image"], channels=3), str(key))


def test_tensorflow_datasets_reads_a_slice_as_supervised_pairs(prepared):
    builder = tfds.builder_from_directory(str(prepared))
    pairs = list(builder.as_dataset(split="train[:50%]", as_supervised=True))
    assert len(pairs) == round(builder.info.splits["train"].num_examples / 2)
    assert all(image.dtype == tf.uint8 and label.dtype == tf.int64 for image, label in pairs)


def test_patterns_in_the_docs_match_the_shards_of_one_split(tmp_path):
    """A program that uses a file pattern from the documentation must not train on test examples."""
    root = pathlib.Path(__file__).resolve().parents[2]
    pages = "".join(path.read_text() for path in [root / "README.md", *root.glob("docs/**/*.md")])
    patterns = {item for item in re.findall(r"""["']out/flowers/([^"']*)["']""", pages) if "*" in item and not item.startswith("catalog/")}
    assert len(patterns) >= 1
    made = prepare_images(tmp_path, "--name=flowers", "--splits=train=0.7,validation=0.3", "--num_shards=train=3,validation=2")
    train = {shard.name for shard in dataset_format.read_manifest(made).splits["train"]}
    for pattern in patterns:
        assert {path.relative_to(made).as_posix() for path in made.glob(pattern)} == train, pattern


@pytest.mark.slow
def test_tensorflow_datasets_reads_several_targets_as_supervised_pairs(tmp_path):
    """The targets are a dictionary, as in `batches`: a class label, several labels, a number and objects."""
    lines = []
    for index in range(12):
        row = {"weather": ["sun", "rain"][index % 2], "tags": ["wet", "dark"][: index % 3], "age": index / 4}
        row |= {"objects": {"bbox": [[0, 0, 4, 4]] * (index % 3), "categories": ["car"] * (index % 3)}, "file_name": f"{index}.png"}
        write_files(tmp_path / "in", {f"{index}.png": encode(picture(index, (10, 12)), "PNG")})
        lines.append(json.dumps(row) + "\n")
    (tmp_path / "in/rows.jsonl").write_text("".join(lines))
    labels = ["--label=weather", "--label=tags:multi_label", "--label=age:float", "--label=objects"]
    command = ["prepare", "--input", str(tmp_path / "in/rows.jsonl"), "--output", str(tmp_path / "out")]
    assert main([*command, "--splits=train=0.7,test=0.3", *labels]) == 0
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    names = ("weather", "tags", "age", "objects")
    assert builder.info.supervised_keys == ("image", {name: name for name in names})
    data = tf_input.open(tmp_path / "out")
    for split in ("train", "test"):
        pairs = tfds.as_numpy(builder.as_dataset(split=split, as_supervised=True))
        for (image, targets), (x, y) in zip(pairs, data.as_numpy(split, batch_size=1, shuffle=False), strict=True):
            np.testing.assert_array_equal(image, x[0])
            assert targets.keys() == y.keys() == set(names)
            assert targets["weather"] == y["weather"][0] and targets["age"] == y["age"][0]
            assert np.isin(range(2), targets["tags"]).tolist() == y["tags"][0].astype(bool).tolist()
            np.testing.assert_array_equal(targets["objects"]["bbox"], y["objects"]["bbox"][0])


@pytest.mark.slow
def test_tensorflow_datasets_opens_unchecked_images(tmp_path):
    """Examples have no features `height` and `width` if their images were not checked."""
    output = prepare_images(tmp_path, "--check", "none", num_images={"ant": 20, "bee": 20})
    builder = tfds.builder_from_directory(str(output))
    assert sum(len(list(builder.as_dataset(split=split))) for split in SPLITS) == 40


def test_index_entries_point_to_their_records(prepared):
    manifest = json.loads((prepared / "manifest.json").read_text())
    for split in SPLITS:
        examples = iter(plain_examples(prepared, split))
        for shard in manifest["splits"][split]["shards"]:
            data = (prepared / shard["name"]).read_bytes()
            rows = list(dataset_format.decode_index((prepared / shard["index"]).read_bytes()))
            assert len(rows) == shard["num_examples"], shard["name"]
            position = 0
            for row in rows:
                example, location = next(examples), (shard["name"], row)
                assert row.record_offset == position, location
                # Followed by its checksum, the record and the record's checksum
                (num_bytes,) = struct.unpack_from("<Q", data, position)
                record = tf.train.Example.FromString(data[position + 12 : position + 12 + num_bytes])
                assert record.features.feature["key"].bytes_list.value[0] == example["key"], location
                assert data[row.image_offset : row.image_offset + row.image_length] == example["image"], location
                assert row.label == example["label"], location
                position += 16 + num_bytes
            assert position == len(data) == shard["num_bytes"], shard["name"]
        assert not list(examples), split


def test_feature_descriptions_are_in_manifest_tfds_and_schema(tmp_path, capsys):
    described = {"label": "which animal is seen", "image": "as the camera had it; =3 channels"}
    options = [f"--describe={feature}={text}" for feature, text in described.items()]
    directory = prepare_images(tmp_path, *options)
    assert {item.name: item.description for item in dataset_format.read_manifest(directory).schema if item.description} == described
    features = tfds.builder_from_directory(str(directory)).info.features
    assert {name: feature.doc.desc for name, feature in features.items() if feature.doc.desc} == described
    schema = text_format.Parse((directory / dataset_format.SCHEMA).read_text(), schema_pb2.Schema())
    assert {entry.name: entry.annotation.comment[0] for entry in schema.feature if entry.annotation.comment} == described


BAD_DESCRIPTIONS = {
    "label": "FEATURE=TEXT in one line of at most 1000 characters",
    "label=": "FEATURE=TEXT",
    "=text": "FEATURE=TEXT",
    "label=a\nb": "FEATURE=TEXT",
    "lable=text": "'label'",
}


@pytest.mark.parametrize("text", BAD_DESCRIPTIONS)
def test_invalid_description_is_rejected_before_writing(tmp_path, capsys, text):
    write_files(tmp_path / "in", {"ant/1.png": encode(picture(1), "PNG")})
    assert main(["prepare", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", f"--describe={text}"]) == 2
    error = capsys.readouterr().err
    assert BAD_DESCRIPTIONS[text] in error and error.count("\n") == 1 + error.count("recordmill: --source="), error
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_repeated_description_is_rejected(tmp_path, capsys):
    given = ["--describe=label=a", "--describe=label=b"]
    assert main(["prepare", f"--input={tmp_path}", f"--output={tmp_path / 'out'}", *given]) == 2
    assert "--describe" in (error := capsys.readouterr().err) and "'label'" in error
