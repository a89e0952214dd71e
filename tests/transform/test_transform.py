"""Tests that `recordmill transform` writes the features that training computes, in the same order and shards."""

import dataclasses
import gc
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import tf_input
from analysed import SIZE, analysed_images
from beam_pipelines.__main__ import main
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.config.job_options import TransformOptions
from beam_pipelines.errors import RunError, StorageError
from beam_pipelines.parallel import interrupts
from beam_pipelines.storage.working_directory import MARKER, MARKER_TEXT
from beam_pipelines.transform.transform_job import make_job
from beam_pipelines.transform.transform_metadata import publish_transformed, transformed_statistics
from beam_pipelines.transform.transform_shards import transform_shard
from made_images import encode, write_files
from made_rich import SIZE as RICH_SIZE
from made_rich import analyzed_rich
from made_shards import flip
from prepared import picture, prepare_images
from tf_input.dataset_format import Feature, Manifest, decode_index, read_manifest

pytestmark = pytest.mark.slow

SPLITS = ("train", "validation", "test")
NUM_SHARDS = "--num_shards=train=3,validation=1,test=1"
OPTIONS = ("--splits=train=0.8,validation=0.1,test=0.1", NUM_SHARDS)
TWO_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")


def analyze(directory: pathlib.Path, *options: str) -> pathlib.Path:
    assert main(["analyze", str(directory), *options]) == 0
    return directory


def transform(directory: pathlib.Path, output: pathlib.Path, *options: str) -> pathlib.Path:
    assert main(["transform", str(directory), str(output), *options]) == 0
    return output


@pytest.fixture(scope="session")  # pytest runs slow tests last, after other modules
def analyzed(tmp_path_factory) -> pathlib.Path:
    """Returns a dataset with three splits of color and gray images of many sizes."""
    return analysed_images(tmp_path_factory)


@pytest.fixture(scope="session")
def transformed(analyzed, tmp_path_factory) -> pathlib.Path:
    return transform(analyzed, tmp_path_factory.mktemp("written") / "transformed")


@pytest.fixture
def copied(analyzed, tmp_path) -> pathlib.Path:
    """Returns a copy of the analyzed dataset for tests that change the dataset."""
    return pathlib.Path(shutil.copytree(analyzed, tmp_path / "copied"))


def test_transformed_dataset_passes_verify(transformed) -> None:
    assert main(["verify", str(transformed)]) == 0


def records(directory: pathlib.Path, split: str) -> list[tf.train.Example]:
    """Reads the examples of a split with TensorFlow instead of `tf_input`."""
    names = [str(directory / shard.name) for shard in read_manifest(directory).splits[split]]
    return [tf.train.Example.FromString(record) for record in tf.data.TFRecordDataset(names).as_numpy_iterator()]


def values(example: tf.train.Example, name: str) -> list[Any]:
    feature = example.features.feature[name]
    return list(getattr(feature, feature.WhichOneof("kind")).value)


def check_same(item: Any, other: Any) -> None:
    """Checks that two structures of tensors have the same types and values."""
    tf.nest.assert_same_structure(item, other)
    for a, b in zip(*map(tf.nest.flatten, (item, other))):
        assert a.dtype == b.dtype and type(a) is type(b)
        if isinstance(a, tf.RaggedTensor):
            assert a.to_list() == b.to_list()
        else:
            np.testing.assert_array_equal(a, b)


def files(directory: pathlib.Path) -> dict[str, bytes]:
    """Returns the content of all files except run.json, which differs between runs."""
    paths = (path for path in directory.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_examples_equal_the_transform_of_the_reader(analyzed, transformed):
    source, made = tf_input.open(analyzed), tf_input.open(transformed)
    for split, batch_size in (("train", 64), ("train", 7), ("validation", 7), ("test", 64)):
        options = {"batch_size": batch_size, "shuffle": False, "cache_in_memory": 0}
        pairs = zip(source.batches(split, transform=True, **options), made.batches(split, **options), strict=True)
        for expected, actual in pairs:
            assert actual[0].dtype == tf.float32 and actual[0].shape[1:] == (SIZE, SIZE, 3)
            check_same(actual, expected)


def test_examples_equal_the_result_of_the_saved_model(analyzed, transformed):
    model = tf.saved_model.load(str(analyzed / "transform_fn"))
    schema = read_manifest(analyzed).schema
    for split in SPLITS:
        names = [str(analyzed / shard.name) for shard in read_manifest(analyzed).splits[split]]
        serialized = tf.constant(list(tf.data.TFRecordDataset(names).as_numpy_iterator()))
        expected = model.transform_fn(tf_input.decoding.schema.parse_examples(serialized, schema))
        for position, example in enumerate(records(transformed, split)):
            assert values(example, "label") == [int(expected["label"][position])]
            assert values(example, "key") == [expected["key"][position].numpy()]
            image = np.array(values(example, "image"), np.float32).reshape(SIZE, SIZE, 3)
            np.testing.assert_array_equal(image, expected["image"][position])


def test_metadata_agrees_with_the_source_dataset(analyzed, transformed):
    before, after = read_manifest(analyzed), read_manifest(transformed)
    assert (after.name, after.seed, after.targets) == ("transformed", before.seed, before.targets)
    assert after.features["image"] == Feature("image", "float", (SIZE, SIZE, 3))
    assert after.features["label"] == before.features["label"]
    assert after.num_dead_letters == 0 and after.num_inputs == sum(map(before.num_examples, SPLITS))
    for split in SPLITS:
        assert [shard.num_examples for shard in after.splits[split]] == [item.num_examples for item in before.splits[split]]
        assert [values(record, "key") for record in records(transformed, split)] == [values(entry, "key") for entry in records(analyzed, split)]
    known, facts = (json.loads((folder / "statistics.json").read_text()) for folder in (analyzed, transformed))
    for split in SPLITS:
        for name in ("num_examples", "label_counts", "shuffle"):
            assert facts["splits"][split][name] == known["splits"][split][name], (split, name)
        assert facts["splits"][split]["pixels"] is None
    assert facts["images"]["height"] is None and facts["images"]["formats"] is None
    assert (transformed / "dead_letters.jsonl").read_bytes() == b""
    assert set(files(transformed)) == {
        *("manifest.json", "dataset_info.json", "features.json", "schema.pbtxt", "statistics.json", "dead_letters.jsonl"),
        *("label.labels.txt", "README.md", "croissant.json"),
        *(name for shards in after.splits.values() for shard in shards for name in (shard.name, shard.index)),
    }


def test_index_rows_point_to_their_examples(transformed):
    for shard in (shard for shards in read_manifest(transformed).splits.values() for shard in shards):
        data = (transformed / shard.name).read_bytes()
        rows = list(decode_index((transformed / shard.index).read_bytes()))
        assert len(rows) == shard.num_examples and len(data) == shard.num_bytes
        for row in rows:
            example = tf.train.Example.FromString(data[row.image_offset : row.image_offset + row.image_length])
            assert values(example, "label") == [row.label] and row.image_offset == row.record_offset + 12


def test_tensorflow_datasets_opens_transformed_dataset(transformed):
    builder = tfds.builder_from_directory(str(transformed))
    assert builder.info.features["label"].names == ["ant", "bee", "cow"]
    for split in SPLITS:
        actual = list(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)))
        assert len(actual) == builder.info.splits[split].num_examples
        expected = {values(record, "key")[0]: values(record, "image") for record in records(transformed, split)}
        for example in actual:
            np.testing.assert_array_equal(example["image"].ravel(), np.array(expected[example["key"]], np.float32))


def test_reader_supports_transformed_dataset(transformed):
    made = tf_input.open(transformed)
    assert made.image_size == (SIZE, SIZE) and set(made.class_weight()) == {0, 1, 2}
    example = made["train"][-1]
    assert example["image"].dtype == np.float32 and example["image"].shape == (SIZE, SIZE, 3) and isinstance(example["key"], str)
    reserved, read = (made.split_reader("train").plan(tf_input.ReadConfig(8, seed=1, shuffle="exact", cache_in_memory=size)) for size in (1 << 30, 0))
    assert reserved.cached is not None and read.cached is None
    options = {"batch_size": 8, "seed": 1, "shuffle": "exact"}
    for item, other in zip(made.batches("train", **options), made.batches("train", **options, cache_in_memory=0), strict=True):
        check_same(item, other)
    sequence = tf_input.Sequence(made, "train", **options, cache_in_memory=0)
    check_same(tuple(map(tf.convert_to_tensor, sequence[2])), list(made.batches("train", **options, cache_in_memory=0))[2])
    assert sum(len(labels) for _, labels in made.as_numpy("test", batch_size=4)) == made.num_examples("test")


def test_transformed_images_can_be_resized_flipped_and_cropped(transformed):
    made = tf_input.open(transformed)
    plain, smaller = (next(iter(made.batches("test", batch_size=4, image_size=size))) for size in (None, (12, 10)))
    assert smaller[0].shape == (4, 12, 10, 3) and smaller[0].dtype == tf.float32
    flip_only = tf_input.Augmentation(crop=False)
    flipped = next(iter(made.batches("test", batch_size=4, augment=flip_only, shuffle=False, seed=1)))[0].numpy()
    is_flipped_or_not = [
        [np.abs(seen - item).max() < 1e-4 for item in (image, image[:, ::-1])] for seen, image in zip(flipped, plain[0].numpy())
    ]
    assert all(map(any, is_flipped_or_not)) and np.any(is_flipped_or_not, axis=0).all()
    cropped = next(iter(made.batches("train", batch_size=4, augment=True, seed=1)))[0]
    assert cropped.shape == (4, SIZE, SIZE, 3) and cropped.numpy().min() < 0
    with pytest.raises(ValueError, match="augment=.*'image' is transformed"):
        made.batches("train", batch_size=4, augment=tf_input.Augmentation(brightness=0.1))
    with pytest.raises(ValueError, match="'image' is float"):
        made.normalization_layer()


def test_benchmark_reads_transformed_dataset(transformed, capsys):
    assert main(["benchmark", str(transformed), "--seconds=0.1", "--batch_size=8"]) == 0
    assert f"{SIZE} x {SIZE} pixels" in capsys.readouterr().out


def test_prepare_rejects_transformed_dataset(transformed, tmp_path, capsys):
    assert main(["prepare", "--input", str(transformed), "--output", str(tmp_path / "out")]) == 2
    assert "feature 'image'" in capsys.readouterr().err
    assert not os.listdir(tmp_path)


MODULE = """
import tensorflow as tf

def preprocessing_fn(inputs):
    parts = tf.strings.split(tf.strings.regex_replace(inputs["key"], "[0-9]", "/"), "/")
    lengths = tf.cast(tf.strings.length(parts), tf.float32)
    height = tf.cast(inputs["height"], tf.float32)
    return {
        "label": inputs["label"],
        "picture": inputs["image"],
        "vector": tf.stack([height, height * 0.1, tf.zeros_like(height)], axis=1),
        "pairs": tf.cast(tf.stack([inputs["height"], -inputs["width"]], axis=1), tf.int64),
        "words": parts,
        "lengths": lengths,
        "matrix": tf.RaggedTensor.from_row_splits(tf.stack([lengths.values, -lengths.values], axis=1), lengths.row_splits),
        "names": tf.stack([inputs["key"], inputs["key"] + "!"], axis=1),
    }
"""


@pytest.fixture(scope="module")
def module_datasets(tmp_path_factory) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns a dataset and a transformed copy. A user's module computes features of every kind and shape."""
    folder = tmp_path_factory.mktemp("module")
    (folder / "my.py").write_text(MODULE)
    made = prepare_images(folder, *OPTIONS, num_images={"ant": 10, "bee": 10, "cow": 10})
    analyze(made, f"--preprocessing_module={folder / 'my.py'}")
    return made, transform(made, folder / "out", "--name=other")


def test_module_can_write_features_of_every_kind_and_shape(module_datasets):
    source, output = module_datasets
    made, manifest = tf_input.open(output), read_manifest(output)
    assert manifest.name == "other" and manifest.splits["train"][0].name.startswith("other-train.tfrecord-")
    shapes = {"vector": (3,), "pairs": (2,), "words": (None,), "lengths": (None,), "matrix": (None, 2), "names": (2,)}
    assert {name: made.features[name].shape for name in shapes} == shapes
    assert made.features["picture"].kind == "image"
    for split in SPLITS:
        before, after = records(source, split), records(output, split)
        for old, new, read in zip(before, after, made[split], strict=True):
            (key,), (height,), (width,) = (values(old, name) for name in ("key", "height", "width"))
            parts = "".join("/" if item.isdigit() else item for item in key.decode()).split("/")
            assert values(new, "picture") == values(old, "image") and values(new, "label") == values(old, "label")
            assert values(new, "words") == [part.encode() for part in parts] == [*map(str.encode, read["words"])]
            assert values(new, "lengths") == [*map(len, parts)]
            assert values(new, "pairs") == [height, -width] and values(new, "names") == [key, key + b"!"]
            np.testing.assert_array_equal(read["matrix"], [[len(part), -len(part)] for part in parts])
            np.testing.assert_array_equal(read["vector"], np.array([height, height * np.float32(0.1), 0], np.float32))


def test_dataset_without_image_is_read_by_other_inputs(module_datasets):
    source, output = module_datasets
    made = tf_input.open(output)
    assert made.image_size is None
    chosen = {"batch_size": 4, "shuffle": False, "inputs": ("vector", "lengths")}
    for item, other in zip(made.batches("train", **chosen), tf_input.open(source).batches("train", **chosen, transform=True), strict=True):
        check_same(item, other)
    shown = {"batch_size": 4, "shuffle": False, "image_size": 8}
    for item, other in zip(made.batches("train", **shown, inputs="picture"), tf_input.open(source).batches("train", **shown), strict=True):
        check_same(item, other)
    with pytest.raises(ValueError, match="there are only label"):
        made.batches("train", batch_size=4, augment=True, inputs="vector")
    with pytest.raises(ValueError, match="no 'image'"):
        made.normalization_layer()


def test_tensorflow_datasets_opens_features_of_every_kind(module_datasets):
    _, output = module_datasets
    builder = tfds.builder_from_directory(str(output))
    actual = {example["names"][0]: example for example in tfds.as_numpy(builder.as_dataset(split="train"))}
    for record in records(output, "train"):
        example = actual[values(record, "names")[0]]
        assert list(example["words"]) == values(record, "words") and example["vector"].tolist() == values(record, "vector")
        assert example["matrix"].ravel().tolist() == values(record, "matrix")


def test_transformed_targets_of_every_kind(tmp_path_factory, tmp_path):
    source, output = analyzed_rich(tmp_path_factory), tmp_path / "out"
    transform(source, output)
    before, after = tf_input.open(source), tf_input.open(output)
    assert set(after.targets) == set(before.targets) == {"objects", "mask", "colours", "weather"}
    assert after.image_size == (RICH_SIZE, RICH_SIZE)
    options = {"batch_size": 5, "shuffle": False}
    for item, other in zip(after.batches("train", **options), before.batches("train", **options, transform=True), strict=True):
        check_same(item, other)
    # The mask must be flipped with its image.
    flip_only = tf_input.Augmentation(crop=False)
    images, y, _ = next(iter(after.batches("train", batch_size=8, augment=flip_only, shuffle=False, seed=3)))
    plain_images, plain, _ = next(iter(after.batches("train", batch_size=8, shuffle=False)))
    flipped_images = [np.abs(image - complete).max() > 1e-4 for image, complete in zip(images, plain_images)]
    assert any(flipped_images) and not all(flipped_images)
    for is_flipped, mask, whole_mask in zip(flipped_images, y["mask"], plain["mask"]):
        np.testing.assert_array_equal(mask, whole_mask[:, ::-1] if is_flipped else whole_mask)


def test_output_that_drops_examples_fails(tmp_path, capsys):
    """The transform drops examples in all splits except the analyzed split."""
    files = {f"{split}/{label}/{index}.png": encode(picture(index, (4, 4)), "PNG") for split, label, index in FILTERED}
    write_files(tmp_path / "in", files)
    (tmp_path / "my.py").write_text(
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n"
        "    return {'y': tf.boolean_mask(inputs['label'], inputs['label'] < 2)}\n"
    )
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "made")]) == 0
    analyze(tmp_path / "made", f"--preprocessing_module={tmp_path / 'my.py'}")
    capsys.readouterr()
    assert main(["transform", str(tmp_path / "made"), str(tmp_path / "out")]) == 2
    reported = capsys.readouterr().err
    shard = tmp_path / "made" / read_manifest(tmp_path / "made").splits["validation"][0].name
    assert reported.startswith(f"recordmill: {shard}: records 0 to 2: ") and "2 rows of 'y'" in reported and reported.count("\n") == 1
    assert not (tmp_path / "out").exists()


FILTERED = [("train", "a", 0), ("train", "b", 1), ("validation", "a", 2), ("validation", "b", 3), ("validation", "c", 4)]


def test_images_that_are_not_changed_keep_their_statistics(tmp_path):
    (tmp_path / "my.py").write_text("def preprocessing_fn(inputs):\n    return {name: inputs[name] for name in ('image', 'label')}\n")
    source = prepare_images(tmp_path, *OPTIONS, num_images={"ant": 10, "bee": 10, "cow": 10})
    output = transform(analyze(source, f"--preprocessing_module={tmp_path / 'my.py'}"), tmp_path / "out")
    known, facts = (json.loads((folder / "statistics.json").read_text()) for folder in (source, output))
    assert facts["images"] == known["images"] and facts["splits"] == known["splits"]
    for shard in read_manifest(output).splits["train"]:
        data = (output / shard.name).read_bytes()
        for row in decode_index((output / shard.index).read_bytes()):
            assert data[row.image_offset : row.image_offset + row.image_length][:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0")
    options = {"batch_size": 4, "shuffle": False, "image_size": 16}
    for item, other in zip(*(tf_input.open(folder).batches("train", **options) for folder in (source, output)), strict=True):
        check_same(item, other)
    assert tf_input.open(output).normalization_layer() is not None


def test_existing_output_is_only_replaced_with_overwrite(analyzed, transformed, tmp_path, capsys):
    output = pathlib.Path(shutil.copytree(transformed, tmp_path / "transformed"))
    (output / "label.labels.txt").write_text("")
    assert main(["transform", str(analyzed), str(output)]) == 2
    assert f"OUT2={output} exists. " in capsys.readouterr().err
    transform(analyzed, output, "--overwrite", "--progress=json")
    (stage,) = json.loads(capsys.readouterr().err.splitlines()[-1])["stages"]
    assert (stage["name"], stage["total"]) == ("written", sum(map(read_manifest(analyzed).num_examples, SPLITS)))
    assert files(output) == files(transformed) and os.listdir(tmp_path) == ["transformed"]


def test_invalid_arguments_are_one_line_errors(copied, tmp_path, capsys):
    prepared = pathlib.Path(shutil.copytree(copied, tmp_path / "prepared", ignore=shutil.ignore_patterns("transform_fn")))
    other = pathlib.Path(shutil.copytree(copied, tmp_path / "other"))
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "seed": 5}))
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "mine").write_text("")
    out = tmp_path / "out"
    cases = {
        "a directory without a manifest": ([tmp_path, out], f"{tmp_path} is not a dataset"),
        "no analysis": ([prepared, out], f"`recordmill analyze {prepared}`"),
        "an analysis of another version": ([other, out], "another version of the data"),
        "an output in the input": ([copied, copied / "out"], "contain each other"),
        "an input in the output": ([copied, tmp_path], "contain each other"),
        "an output that is not a dataset": ([copied, tmp_path / "occupied", "--overwrite"], "has no manifest.json"),
        "a URL as input": (["gs://bucket/set", out], "gs://bucket/set"),
        "a URL as output": ([copied, "gs://bucket/out"], "gs://bucket/out is a URL"),
        "an invalid name": ([copied, out, "--name=1st"], "--name=1st:"),
        "an unsupported runner": ([copied, out, "--runner=DataflowRunner"], "--runner=DataflowRunner"),
        "an unknown option": ([copied, out, "--fast"], "unknown option --fast"),
        "a cluster without a shared file system": ([copied, out, "--runner=FlinkRunner", "--flink_master=localhost:1"], "--shared_filesystem"),
    }
    before = sorted(os.listdir(tmp_path))
    for name, (arguments, message) in cases.items():
        assert main(["transform", *map(str, arguments)]) == 2, name
        reported = capsys.readouterr()
        assert message in reported.err and reported.err.count("\n") == 1 and not reported.out, (name, reported.err)
    assert sorted(os.listdir(tmp_path)) == before


def corrupt_image(path: pathlib.Path, record_index: int) -> int:
    """Replaces the image of a record with invalid bytes, updates the checksum, and returns the offset of the record."""
    from made_shards import frame

    examples = [tf.train.Example.FromString(item) for item in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]
    examples[record_index].features.feature["image"].bytes_list.value[0] = b"no image"
    framed = [frame(example.SerializeToString()) for example in examples]
    path.write_bytes(b"".join(framed))
    return sum(map(len, framed[:record_index]))


def test_corrupt_shard_fails_the_run_and_leaves_no_files(copied, tmp_path, capsys):
    first = read_manifest(copied).splits["train"][0]
    path, rows = copied / first.name, list(decode_index((copied / first.index).read_bytes()))
    complete = path.read_bytes()
    offset = rows[2].record_offset

    def message(code: int = 2) -> str:
        assert main(["transform", str(copied), str(tmp_path / "out")]) == code
        gc.collect()  # the loaded graph, which has not run yet, must keep the objects that it needs
        reported = capsys.readouterr().err
        assert reported.count("\n") == 1 and sorted(os.listdir(tmp_path)) == ["copied"], reported
        return reported

    flip(path, 8 * (offset + 40))
    assert f"{path}: record 2, at byte {offset}: checksum" in message()
    path.write_bytes(complete[:offset])
    assert f"{path} has 2 records" in message()
    path.unlink()
    assert f"{path}: No such file or directory" in message(1)
    path.write_bytes(complete)
    offset = corrupt_image(path, 5)
    reported = message()
    assert f"{path}: record 5, at byte {offset}: the transform failed: " in reported and "node" not in reported, reported


@pytest.mark.parametrize("corrupt", ["variables/variables.index", "saved_model.pb"])
def test_corrupt_transform_fails_the_run_and_leaves_no_files(copied, tmp_path, capsys, corrupt):
    (copied / "transform_fn" / corrupt).write_bytes(b"nothing of the kind")
    assert main(["transform", str(copied), str(tmp_path / "out")]) == 1
    reported = capsys.readouterr().err
    assert reported.startswith(f"recordmill: {copied}/transform_fn can't be applied: ") and reported.count("\n") == 1, reported
    assert os.listdir(tmp_path) == ["copied"]


def test_replaced_input_or_failed_write_publishes_nothing(copied, tmp_path):
    job, run = make_job(TransformOptions(str(copied), str(tmp_path / "out"), "made")), RunPaths(str(tmp_path / "out"))
    manifest = (copied / "manifest.json").read_text()
    (copied / "manifest.json").write_text(manifest.replace("made", "other"))
    with pytest.raises(RunError, match="copied was replaced "):
        publish_transformed(job, run, {}, [])
    (copied / "manifest.json").write_text(manifest)
    with pytest.raises(RunError, match="copied was replaced "):
        transform_shard(dataclasses.replace(job, transform_digest="another digest"), run, "train", 0)
    with pytest.raises(StorageError, match="made-train.tfrecord-00000-of-00003 .*: No such file"):
        transform_shard(job, run, "train", 0)
    assert os.listdir(tmp_path) == ["copied"]


def test_statistics_of_unchanged_images_and_masks_are_kept():
    features = (Feature("image", "image"), Feature("left", "image"), Feature("mask", "mask"), Feature("right", "image"))
    source = Manifest("made", 0, features, {"train": ()}, 0, 0)
    manifest = dataclasses.replace(source, schema=(features[0], Feature("left", "float", (8, 8, 3)), *features[2:]))
    others = {"left": {"num_images": 5}, "right": {"num_images": 7}}
    known = {"images": {"num_images": 7}, "other_images": others, "mask": {"counts": [3, 4]}}
    facts = transformed_statistics(manifest, {"train": ()}, source, {**known, "splits": {"train": {"image_bytes": 9}}})
    assert {name: facts[name] for name in known} == {**known, "other_images": {"right": {"num_images": 7}}}
    assert facts["splits"]["train"]["image_bytes"] == 9


def run_command(command: list[str]) -> subprocess.CompletedProcess:
    """Runs a command with the default log level of TensorFlow."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=pathlib.Path(__file__).resolve().parents[2])


def test_command_is_quiet_and_replaces_files_of_a_killed_run(analyzed, transformed, tmp_path):
    output = tmp_path / "transformed"
    killed = tmp_path / "transformed.incomplete"
    (killed / "index").mkdir(parents=True)
    (killed / "transformed-train.tfrecord-00000-of-00003").write_bytes(b"half")
    (killed / MARKER).write_bytes(MARKER_TEXT)
    command = [sys.executable, "-m", "beam_pipelines", "transform", str(analyzed), str(output)]
    run = run_command(command)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    assert "examples" in run.stdout and f"tf_input.open({str(output)!r}).batches('train', batch_size=128)" in run.stdout
    assert files(output) == files(transformed) and os.listdir(tmp_path) == ["transformed"]


def test_interrupt_after_publishing_reports_completion_of_two_workers(
    analyzed, transformed, tmp_path, capfd, monkeypatch
):
    """The workers of this test are threads."""

    def interrupted(directory: str) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return ""

    monkeypatch.setattr("beam_pipelines.publish.summary.describe_dataset", interrupted)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main(["transform", str(analyzed), str(tmp_path / "transformed"), *TWO_WORKERS]) == 143
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        interrupts.forget()
    assert capfd.readouterr() == ("", f"recordmill: Interrupted. {tmp_path}/transformed is complete.\n")
    assert files(tmp_path / "transformed") == files(transformed)
