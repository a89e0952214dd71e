"""`recordmill analyze` and `recordmill transform` on a real Flink cluster: what comes out is what the local runner gives."""

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any, Iterator

import numpy as np
import pytest
import tensorflow as tf

import engines
from engines import ROOT, digest, finish, running_flink
from prepared import prepare_images
from tf_input import dataset_format
from tf_input.decoding.schema import parse_examples
from tf_input.transform.transform_format import TRANSFORM_FN
from tf_input.transform.transform_graph import TransformGraph

MISSING = engines.flink_cluster().missing_tools()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"Flink needs {' and '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Any]:
    with running_flink(tmp_path_factory.mktemp("flink")) as cluster:
        cluster.wait_for_task_managers(2)
        yield cluster


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> pathlib.Path:
    return prepare_images(tmp_path_factory.mktemp("source"), "--splits=train=0.8,test=0.2", "--num_shards=4")


def run(command: str, *arguments: str) -> str:
    """`recordmill …` as a user starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "beam_pipelines", command, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    return finish(process, seconds=500)


def transformed(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """All that the transform gives for the training split."""
    manifest = dataset_format.read_manifest(directory)
    paths = [str(directory / shard.name) for shard in manifest.splits["train"]]
    graph = TransformGraph(directory / TRANSFORM_FN)
    examples = tf.data.TFRecordDataset(paths).batch(1000).map(lambda batch: parse_examples(batch, manifest.schema))
    (outputs,) = examples.map(lambda batch: graph.apply(batch, graph.output_names)).as_numpy_iterator()
    return outputs


def test_what_comes_out_is_what_the_local_runner_gives(cluster, prepared, tmp_path):
    directories = {"here": [], "flink": cluster.options}
    for name, engine in directories.items():
        shutil.copytree(prepared, tmp_path / name)
        run("analyze", str(tmp_path / name), *engine)
    here, there = (transformed(tmp_path / name) for name in directories)
    assert here.keys() == there.keys()
    for name, values in here.items():
        if values.dtype == object:  # strings
            np.testing.assert_array_equal(there[name], values, err_msg=name)
        else:
            np.testing.assert_allclose(there[name], values, rtol=1e-6, atol=1e-6, err_msg=name)
    for path in (tmp_path / "here" / TRANSFORM_FN / "assets").iterdir():
        assert (tmp_path / "flink" / TRANSFORM_FN / "assets" / path.name).read_bytes() == path.read_bytes()

    # And the examples that the same transform makes have the same bytes.
    for name, engine in directories.items():
        run("transform", str(tmp_path / "here"), str(tmp_path / f"{name}2"), "--name=made", *engine)
    assert digest(tmp_path / "flink2") == digest(tmp_path / "here2")
