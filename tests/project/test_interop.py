"""Tests that TensorFlow Metadata, TFX and TensorFlow Data Validation can read prepared datasets.

TFX and TensorFlow Data Validation have no release for the installed version of TensorFlow. Set RECORDMILL_TFX_PYTHON to
an interpreter that has both packages, for example:

    python3.11 -m venv TFX && TFX/bin/pip install 'tfx==1.16.0' dill 'setuptools<81'
    RECORDMILL_TFX_PYTHON=TFX/bin/python python -m pytest tests/project/test_interop.py
"""

import json
import os
import pathlib
import subprocess
from typing import Any, Mapping

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from apache_beam.testing.util import assert_that
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.public import tfxio

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.transform.tft_modules import tft
from made_sources import HEADS, NUM, write_coco, write_csv, write_npz
from tf_input.dataset_format import read_manifest
from tf_input.serialized_example import SerializedExample
from tf_input.stored_kinds import FEATURE_KINDS
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
    classes = {feature.name: len(feature.label_names) for feature in read_manifest(prepared).schema if feature.is_categorical}
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
        split: {key for record in records(prepared, split) for key in SerializedExample(record).values("key")}
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


@needs_tfx
@pytest.mark.slow
def test_data_validation_finds_no_anomalies(prepared):
    command = [TFX_PYTHON, HERE / "tfx_components.py", prepared]
    done = subprocess.run(command, cwd=prepared, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    actual = json.loads(done.stdout.splitlines()[-1])
    manifest = read_manifest(prepared)
    assert list(actual) == list(manifest.splits)
    for split, of_split in actual.items():
        expected = {key.decode() for key in expected_values(prepared, split)}
        assert of_split["num_examples"] == len(expected), split
        assert of_split["anomalies"] == {}, split
        assert of_split["features"] == sorted(feature.name for feature in manifest.schema), split
        assert sorted(of_split["keys"]) == sorted(expected), split
