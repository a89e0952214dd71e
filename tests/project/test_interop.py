"""Tests that TensorFlow Metadata, TFX and TensorFlow Data Validation read our datasets.

TFX and TensorFlow Data Validation have no release for the installed version of TensorFlow. Set RECORDMILL_TFX_PYTHON to
an interpreter that has both packages, for example:

    python3.11 -m venv TFX && TFX/bin/pip install 'tfx==1.16.0' dill 'setuptools<81'
    RECORDMILL_TFX_PYTHON=TFX/bin/python python -m pytest tests/project/test_interop.py
"""

import json
import os
import pathlib
import shutil
import subprocess
from typing import Any, Iterator, Mapping

import apache_beam as beam
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from apache_beam.testing.util import assert_that
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.public import tfxio

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.tfrecord.example_reader import ExampleReader
from beam_pipelines.transform.tft_modules import tft
from made_sources import HEADS, NUM, write_coco, write_csv, write_npz
from prepared import prepare_images
from tf_input.dataset_format import FEATURE_KINDS, read_manifest
from tf_input.decoding.schema import parse_examples

HERE = pathlib.Path(__file__).resolve().parents[1]
TFX_PYTHON = os.environ.get("RECORDMILL_TFX_PYTHON")
needs_tfx = pytest.mark.skipif(
    TFX_PYTHON is None, reason="set RECORDMILL_TFX_PYTHON to an interpreter with TFX"
)

# Options for tables that together have features of all kinds and shapes.
TABLE = ("--label=class", "--feature=tags:multi_label", "--feature=city", "--feature=count:integer", "--feature=age:float")
TABLES_AND_ARRAYS = {
    "table": (write_csv, [*TABLE, "--feature=heat_path:array", "--feature=exact=heat_path:tensor"]),
    "heads": (write_csv, [*HEADS, "--feature=mask_path:mask", "--feature=points=x,age:keypoints"]),
    "objects": (write_coco, ["--masks"]),
    # The name of a split is a valid name of a dataset
    "pixels": (write_npz(np.savez), ["--image_encoding=raw", "--name=train"]),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Returns the directory of each dataset of `TABLES_AND_ARRAYS`."""
    made = {}
    for name, (write, options) in TABLES_AND_ARRAYS.items():
        source = tmp_path_factory.mktemp(name)
        path = str(source / "data" / write(source / "data"))
        made[name] = prepare(path, source / "made", *options, "--splits=train=0.7,validation=0.3")
    return made


@pytest.fixture(params=TABLES_AND_ARRAYS)
def prepared(request, datasets) -> pathlib.Path:
    return datasets[request.param]


def prepare(source: str, output: pathlib.Path, *options: str) -> pathlib.Path:
    assert main(["prepare", "--input", source, "--output", str(output), *options]) == 0
    return output


def read_schema(directory: pathlib.Path) -> schema_pb2.Schema:
    return text_format.Parse((directory / "schema.pbtxt").read_text(), schema_pb2.Schema())


def shards(directory: pathlib.Path, split: str) -> list[str]:
    return [str(directory / shard.name) for shard in read_manifest(directory).splits[split]]


def records(directory: pathlib.Path, split: str) -> list[bytes]:
    return list(tf.data.TFRecordDataset(shards(directory, split)).as_numpy_iterator())


def values_by_key(parsed: Mapping[str, Any]) -> dict[bytes, dict[str, list]]:
    """Returns a dictionary from each example key in a parsed batch to the flat feature values of the example."""
    rows = {}
    for name, value in parsed.items():
        ragged = tf.RaggedTensor.from_sparse(value) if isinstance(value, tf.SparseTensor) else value
        rows[name] = [np.ravel(row.numpy()).tolist() for row in ragged]
    return {key: {name: rows[name][i] for name in rows} for i, [key] in enumerate(rows["key"])}


def expected_values(directory: pathlib.Path, split: str) -> dict[bytes, dict[str, list]]:
    """Returns the values that `tf_input` parses from the records of a split."""
    expected = values_by_key(parse_examples(tf.constant(records(directory, split)), read_manifest(directory).schema))
    assert len(expected) == tf_input.open(directory).num_examples(split) > 1
    return expected


@pytest.mark.slow
def test_datasets_have_features_of_every_kind(datasets):
    schema = [feature for made in datasets.values() for feature in read_manifest(made).schema]
    assert {feature.kind for feature in schema} == set(FEATURE_KINDS)
    shapes = {(feature.kind, "ragged" if feature.is_ragged else len(feature.shape)) for feature in schema}
    assert {("class_label", "ragged"), ("bbox", "ragged"), ("float", 3)} <= shapes


@pytest.mark.slow(1)
def test_parse_example_with_the_schema_matches_tf_input(prepared):
    """Parses the records with the feature spec of TensorFlow Transform."""
    spec = tft.tf_metadata.schema_utils.schema_as_feature_spec(read_schema(prepared)).feature_spec
    manifest = read_manifest(prepared)
    assert {name for name, item in spec.items() if isinstance(item, tf.io.VarLenFeature)} == {
        feature.name for feature in manifest.schema if feature.is_ragged
    }
    for split in manifest.splits:
        parsed = tf.io.parse_example(records(prepared, split), spec)
        assert values_by_key(parsed) == expected_values(prepared, split), split


def test_schema_domains_match_the_classes(prepared):
    domains = tft.tf_metadata.schema_utils.schema_as_feature_spec(read_schema(prepared)).domains
    classes = {feature.name: len(feature.label_names) for feature in read_manifest(prepared).schema if feature.kind == "class_label"}
    assert {name: (domain.min, domain.max) for name, domain in domains.items() if hasattr(domain, "is_categorical")} == {
        name: (0, num_classes - 1) for name, num_classes in classes.items()
    }


@pytest.mark.slow(1.3)
def test_tfx_bsl_reads_the_shards_in_a_beam_pipeline(prepared):
    reader = tfxio.TFExampleRecord(shards(prepared, "train"), schema=read_schema(prepared))
    expected = expected_values(prepared, "train")
    adapter = tfxio.TensorAdapter(reader.TensorAdapterConfig())

    def check(batches):
        actual = {}
        for batch in batches:
            actual |= values_by_key(adapter.ToBatchTensors(batch))
        assert actual == expected

    with beam.Pipeline(runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner") as pipeline:
        assert_that(pipeline | reader.BeamSource(batch_size=4), check)


@pytest.mark.slow(0.7)
def test_tfx_bsl_reads_the_shards_as_a_tf_data_dataset(prepared):
    reader = tfxio.TFExampleRecord(shards(prepared, "train"), schema=read_schema(prepared))
    options = tfxio.TensorFlowDatasetOptions(batch_size=NUM, num_epochs=1, shuffle=False)
    actual = {}
    for batch in reader.TensorFlowDataset(options):
        actual |= values_by_key(batch)
    assert actual == expected_values(prepared, "train")


@pytest.mark.slow(5)
def test_croissant_loaders_select_each_split(prepared, tmp_path, caplog):
    """Checks that mlcroissant and the CroissantBuilder of TensorFlow Datasets read the same splits."""
    mlcroissant = pytest.importorskip("mlcroissant")
    manifest, path = read_manifest(prepared), str(prepared / "croissant.json")
    expected = {
        split: {key for record in records(prepared, split) for key in ExampleReader(record).values("key")}
        for split in manifest.splits
    }
    builder = tfds.core.dataset_builders.CroissantBuilder(jsonld=path, data_dir=str(tmp_path))
    builder.download_and_prepare()
    with caplog.at_level("WARNING"):
        caplog.clear()
        everything = list(mlcroissant.Dataset(path).records("examples"))
        for split, keys in expected.items():
            assert {row["examples/key"] for row in everything if row["examples/split"] == split.encode()} == keys
            rows = list(mlcroissant.Dataset(path).records("examples", filters={"examples/split": split}))
            assert {row["examples/key"] for row in rows} == keys and {row["examples/split"] for row in rows} == {
                split.encode()
            }
            assert {row["key"] for row in tfds.as_numpy(builder.as_dataset(split))} == keys
    assert not [log for log in caplog.records if "match" in log.getMessage() or "@context" in log.getMessage()]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Returns a dataset in each output layout."""
    folder = tmp_path_factory.mktemp("layouts")
    options = ("--num_shards", "train=3,validation=2", "--name=ants")
    flat = prepare_images(folder, *options, num_images={"ant": 20, "bee": 20})
    tfx = prepare(str(folder / "source"), folder / "tfx", *options, "--output_layout=tfx")
    return {"flat": flat, "tfx": tfx}


def files_of(directory: pathlib.Path) -> Iterator[str]:
    return (str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_tfx_layout_has_a_folder_of_shards_for_each_split(layouts):
    for split, num_shards in {"train": 3, "validation": 2}.items():
        names = [f"data_tfrecord-{index:05d}-of-{num_shards:05d}" for index in range(num_shards)]
        assert sorted(os.listdir(layouts["tfx"] / f"Split-{split}")) == names
        assert [shard.name for shard in read_manifest(layouts["tfx"]).splits[split]] == [f"Split-{split}/{n}" for n in names]


def test_layout_changes_no_shard_or_index(layouts):
    flat, tfx = (read_manifest(layouts[layout]) for layout in ("flat", "tfx"))
    assert (flat.layout, tfx.layout) == ("flat", "tfx")
    for split in flat.splits:
        for flat_shard, tfx_shard in zip(flat.splits[split], tfx.splits[split], strict=True):
            assert (layouts["flat"] / flat_shard.name).read_bytes() == (layouts["tfx"] / tfx_shard.name).read_bytes()
            assert (layouts["flat"] / flat_shard.index).read_bytes() == (layouts["tfx"] / tfx_shard.index).read_bytes()
    plain = {name for name in files_of(layouts["flat"]) if "tfrecord" not in name}
    assert plain == {name for name in files_of(layouts["tfx"]) if "tfrecord" not in name}
    files_with_paths = {"manifest.json", "dataset_info.json", "run.json", "README.md", "croissant.json", "report.html"}
    for name in plain - files_with_paths:
        if name.endswith(".parquet"):  # the column `shard` has paths
            item, other = (pq.read_table(layouts[layout] / name).drop_columns(["shard"]) for layout in layouts)
            assert item.equals(other), name
        else:
            assert (layouts["flat"] / name).read_bytes() == (layouts["tfx"] / name).read_bytes(), name


@pytest.mark.slow(1.3)
@pytest.mark.parametrize("cached", [False, True])
def test_tf_input_reads_the_same_batches_from_every_layout(layouts, tmp_path, cached):
    actual = {}
    for layout, directory in layouts.items():
        options = {"cache_directory": tmp_path / layout} if cached else {}
        made = tf_input.open(directory, **options)
        batches = made.batches("train", batch_size=8, image_size=16, seed=3)
        actual[layout] = ([labels.numpy().tolist() for _, labels in batches], made["validation"][1]["key"])
    assert actual["tfx"] == actual["flat"]


def test_tensorflow_datasets_opens_every_layout(layouts):
    actual = {}
    for layout, directory in layouts.items():
        builder = tfds.builder_from_directory(str(directory))
        actual[layout] = {split: {item["key"] for item in tfds.as_numpy(builder.as_dataset(split))} for split in builder.info.splits}
        assert len(list(builder.as_dataset("train[:50%]", as_supervised=True))) == round(len(actual[layout]["train"]) / 2)
    assert actual["tfx"] == actual["flat"]


@pytest.mark.slow
@pytest.mark.parametrize("described_by", ["manifest.json", "dataset_info.json"])
def test_every_layout_can_be_prepared_again(layouts, tmp_path, described_by):
    actual = {}
    for layout, directory in layouts.items():
        source = tmp_path / layout
        shutil.copytree(directory, source)
        if described_by != "manifest.json":
            (source / "manifest.json").unlink()
        options = ("--name=again", "--num_shards=2", "--seed=5", "--key_column=key")
        again = prepare(str(source), tmp_path / f"{layout}_again", *options)
        actual[layout] = {split: records(again, split) for split in read_manifest(again).splits}
    assert actual["tfx"] == actual["flat"]


def test_missing_shard_in_the_tfx_layout_is_named(layouts, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(layouts["tfx"], copy)
    (copy / "Split-train/data_tfrecord-00001-of-00003").unlink()
    with pytest.raises(FileNotFoundError, match="Split-train/data_tfrecord-00001-of-00003"):
        tf_input.open(copy).batches("train", batch_size=8, image_size=16)


@pytest.mark.slow
def test_overwrite_can_change_the_layout(layouts, tmp_path):
    source = str(layouts["flat"].parent / "source")
    options = ("--overwrite", "--name=ants", "--num_shards", "train=3,validation=2")
    for layout in ("tfx", "flat"):
        prepare(source, tmp_path / "made", f"--output_layout={layout}", *options)
        names = {name for name in files_of(tmp_path / "made") if "tfrecord" in name}
        assert names == {name for name in files_of(layouts[layout]) if "tfrecord" in name}, layout


@needs_tfx
@pytest.mark.slow
@pytest.mark.parametrize(("layout", "reader"), [("flat", "import_example_gen"), ("tfx", "import_example_gen"), ("tfx", "importer")])
def test_tfx_imports_and_validates_a_dataset(layouts, layout, reader):
    check_tfx(layouts[layout], reader)


@needs_tfx
@pytest.mark.slow
def test_data_validation_finds_no_anomalies(prepared):
    check_tfx(prepared, "import_example_gen")


def check_tfx(directory: pathlib.Path, reader: str) -> None:
    command = [TFX_PYTHON, HERE / "tfx_components.py", directory, reader]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    actual = json.loads(done.stdout.splitlines()[-1])
    manifest = read_manifest(directory)
    assert list(actual) == list(manifest.splits)
    for split, of_split in actual.items():
        expected = {key.decode() for key in expected_values(directory, split)}
        assert of_split["num_examples"] == len(expected), split
        assert of_split["anomalies"] == {}, split
        assert of_split["features"] == sorted(feature.name for feature in manifest.schema), split
        if reader == "import_example_gen":  # ImportExampleGen copies the records
            assert sorted(of_split["keys"]) == sorted(expected), split
