"""Tests that NVIDIA DALI can read shards with the exported index files, even on a machine without a GPU."""

import pathlib

import numpy as np
import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import png, write_files
from tf_input.dataset_format import read_manifest

pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI, which is hundreds of megabytes: pip install nvidia-dali-cuda120")


@pytest.mark.slow
def test_dali_reads_shards_by_exported_indexes(tmp_path: pathlib.Path) -> None:
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    source = write_files(tmp_path / "in", {f"{'ab'[seed % 2]}/{seed}.png": png(seed, 20, 24) for seed in range(17)})
    assert main(["prepare", "--input", str(source), "--output", str(tmp_path / "out"), "--splits=train=1", "--num_shards=3"]) == 0
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "indexes"), "--to=dali_index"]) == 0
    names = [info.name for info in read_manifest(tmp_path / "out").splits["train"]]

    @pipeline_def(batch_size=17, num_threads=1, device_id=None)  # None selects the CPU
    def pipeline():
        features = {
            "image": tfrecord.FixedLenFeature((), tfrecord.string, ""),
            "label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        }
        shards, indexes = ([str(tmp_path / folder / f"{name}{end}") for name in names] for folder, end in (("out", ""), ("indexes", ".idx")))
        record = fn.readers.tfrecord(path=shards, index_path=indexes, features=features)
        return fn.decoders.image(record["image"], device="cpu", output_type=types.RGB), record["label"]

    built = pipeline()
    built.build()
    images, labels = (batch.as_array() for batch in built.run())
    examples = list(tf_input.open(tmp_path / "out")["train"])
    np.testing.assert_array_equal(images, [example["image"] for example in examples])
    assert labels.ravel().tolist() == [example["label"] for example in examples]
