"""Runs a TFX pipeline on a dataset.

Use a separate Python environment, because TFX and Recordmill need different package versions. The pipeline reads the
examples, computes statistics and validates the statistics against `schema.pbtxt`. For each split, the script prints the
number of examples, the anomalies and the example keys as JSON. Start it like this:

    python tests/tfx_components.py DATASET
"""

import glob
import json
import sys
import tempfile

import tensorflow as tf
from tensorflow_metadata.proto.v0 import anomalies_pb2, statistics_pb2
from tfx import v1 as tfx


def main(directory: str) -> dict[str, dict]:
    with open(f"{directory}/manifest.json") as file:
        manifest = json.load(file)
    with tempfile.TemporaryDirectory() as root:
        components = make_components(directory, manifest)
        metadata = tfx.orchestration.metadata.sqlite_metadata_connection_config(f"{root}/metadata.db")
        pipeline = tfx.dsl.Pipeline("interop", root, metadata_connection_config=metadata, components=components)
        tfx.orchestration.LocalDagRunner().run(pipeline)
        return {split: describe(root, components[0].id, split) for split in manifest["splits"]}


def make_components(directory: str, manifest: dict) -> list:
    patterns = {split: f"{manifest['name']}-{split}.tfrecord-*" for split in manifest["splits"]}
    inputs = [tfx.proto.Input.Split(name=split, pattern=pattern) for split, pattern in patterns.items()]
    source = tfx.components.ImportExampleGen(input_base=directory, input_config=tfx.proto.Input(splits=inputs))
    examples = source.outputs["examples"]
    schema = tfx.components.ImportSchemaGen(schema_file=f"{directory}/schema.pbtxt")
    statistics = tfx.components.StatisticsGen(examples=examples)
    validator = tfx.components.ExampleValidator(
        statistics=statistics.outputs["statistics"], schema=schema.outputs["schema"]
    )
    return [source, schema, statistics, validator]


def describe(root: str, source: str, split: str) -> dict:
    (path,) = glob.glob(f"{root}/StatisticsGen/statistics/*/Split-{split}/FeatureStats.pb")
    statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(read(path))
    (path,) = glob.glob(f"{root}/ExampleValidator/anomalies/*/Split-{split}/SchemaDiff.pb")
    anomalies = anomalies_pb2.Anomalies.FromString(read(path))
    files = glob.glob(f"{root}/{source}/examples/*/Split-{split}/*")
    records = tf.data.TFRecordDataset(sorted(files), "GZIP").as_numpy_iterator() if files else ()
    return {
        "num_examples": statistics.datasets[0].num_examples,
        "features": sorted(feature.path.step[0] for feature in statistics.datasets[0].features),
        "anomalies": {name: info.description for name, info in anomalies.anomaly_info.items()},
        "keys": [key_of(record) for record in records],
    }


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def key_of(record: bytes) -> str:
    return tf.train.Example.FromString(record).features.feature["key"].bytes_list.value[0].decode()


if __name__ == "__main__":
    found = main(sys.argv[1])
    print(json.dumps(found))
