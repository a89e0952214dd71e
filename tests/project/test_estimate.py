"""Tests that `prepare --estimate`, which only lists the input, predicts the results of `prepare`."""

import dataclasses
import json
import pathlib

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.estimate import Estimate, describe_estimate, make_estimate
from beam_pipelines.sources.registry import find_kind
from made_images import write_class_folders, write_files
from made_references import make_run, make_references, plan_without_beam
from tf_input import dataset_format

MILLION = {"train": 1_000_000}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    write_class_folders(tmp_path / "flowers", {"rose": 40, "tulip": 30})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def estimate(**fields: object) -> Estimate:
    complete = {
        "num_examples": MILLION,
        "num_bytes": {"train": 10**11},
        "num_shards": {"train": 800},
        "num_classes": 10,
        "num_dead_letters": 0,
        "core_seconds": 10_000.0,
    }
    return Estimate(**{**complete, **fields})


@pytest.mark.slow
def test_estimate_has_the_counts_and_shards_of_the_run(folder):
    for options in ({}, {"num_shards": 9}, {"shard_bytes": 3000}):
        actual = make_estimate(PrepareOptions("flowers", "out", "flowers", source=SourceConfig(kind=find_kind("image_folder")), **options))
        flags = [f"--num_shards={options['num_shards']}"] if "num_shards" in options else []
        flags += ["--shard_size=3000"] if "shard_bytes" in options else []
        assert main(["prepare", "--input=flowers", "--output=out", "--overwrite", "--name=flowers", *flags]) == 0
        manifest = dataset_format.read_manifest("out")
        assert actual.num_examples == {split: manifest.num_examples(split) for split in manifest.splits}
        assert actual.num_shards == {split: len(shards) for split, shards in manifest.splits.items()}
        written = sum(shard.num_bytes for shards in manifest.splits.values() for shard in shards)
        assert abs(actual.output_bytes - written) < 0.1 * written
        assert actual.num_classes == len(manifest.label_names)


def test_command_prints_the_estimate_and_writes_nothing(folder, capsys):
    assert main(["prepare", "--input=flowers", "--output=out", "--estimate"]) == 0
    printed = capsys.readouterr().out
    assert "images:    70 in 2 classes" in printed and "\nplan: " in printed
    assert main(["prepare", "--input=flowers", "--output=out", "--estimate", "--duplicates=group"]) == 0
    assert ", twice" in capsys.readouterr().out and ", twice" not in printed
    assert sorted(path.name for path in folder.iterdir()) == ["flowers"]


def test_estimate_for_dataflow_needs_no_cluster(folder, capsys):
    call = ["prepare", "--input=flowers", "--output=gs://bucket/out", "--estimate", "--runner=DataflowRunner"]
    assert main(call) == 0
    printed = capsys.readouterr().out
    assert "workers:   1 with 4 cores" in printed and "plan:      " in printed


def test_missing_input_folder_is_rejected(folder, capsys):
    assert main(["prepare", "--input=missing", "--output=out", "--estimate"]) == 2
    assert "--input=missing: does not exist" in capsys.readouterr().err


def test_estimate_rejects_an_empty_split_like_the_run(folder, capsys):
    call = ["prepare", "--input=flowers", "--output=out", "--splits=train=0.999999,test=0.000001"]
    assert [main([*call, *option]) for option in ([], ["--estimate"])] == [2, 2]
    first, second = [line for line in capsys.readouterr().err.splitlines() if "--source=" not in line]
    assert first == second and "split 'test' would be empty: none of 70 examples" in first


def test_estimate_reports_rejected_inputs(folder, capsys):
    (folder / "flowers" / "rose" / "link.jpg").symlink_to("/etc/hostname")
    assert main(["prepare", "--input=flowers", "--output=out", "--estimate"]) == 0
    assert "70 in 2 classes, 1 inputs rejected" in capsys.readouterr().out


def test_memory_for_annotations_covers_the_files_read_at_once(tmp_path, monkeypatch):
    some = {"images": [{"id": 1, "file_name": "a.jpg", "height": 4, "width": 4}], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    data = json.dumps(some).encode()
    write_files(tmp_path, {f"annotations/instances_{split}2017.json": data for split in ("train", "val", "test")})
    for has_masks, num_bytes in ((False, len(data) // 2), (True, len(data))):
        job = PrepareOptions(str(tmp_path), "out", "made", source=SourceConfig(kind=find_kind("coco"), has_masks=has_masks))
        for limit, num_read in ((5 * len(data), 3), (len(data) // 4, 1)):
            monkeypatch.setattr("beam_pipelines.estimate.MAX_TASK_BYTES", limit)
            actual = make_estimate(job)
            assert actual.memory_bytes == num_read * num_bytes == actual.memory - dataclasses.replace(actual, memory_bytes=0).memory


def test_plan_is_much_smaller_than_the_output():
    assert 10**7 < estimate().plan_bytes < 10**9 < estimate().output_bytes


def test_plan_size_is_close_to_the_size_on_disk(tmp_path):
    """Compares the estimated size of a shuffle plan with the actual size for 20,000 inputs."""
    config = make_run(tmp_path, splits={"train": 1})
    paths = [f"class{index // 2000:02d}/ILSVRC_{index:010d}.jpg" for index in range(20_000)]
    batches = [make_references([InputRecord(path, path, path[:7], None) for path in paths], config)]
    plan_without_beam(batches, {"train": 4}, config)
    actual = sum(path.stat().st_size for path in pathlib.Path(config.run.scratch_directory).rglob("*") if path.is_file())
    assert 0.3 < actual / estimate(num_examples={"train": 20_000}).plan_bytes < 1.2


def test_memory_grows_up_to_one_block_of_references():
    small, large, huge = (estimate(num_examples={"train": num}).memory for num in (1000, 10**6, 10**9))
    assert small + 10**8 < large == huge < 2 * small


def test_number_of_workers_follows_the_amount_of_work():
    for core_seconds, expected in ((1.0, 1), (3600.0, 1), (36_000.0, 10), (1e9, 200)):
        assert estimate(core_seconds=core_seconds).num_workers == expected, core_seconds
    assert "10 with 4 cores" in describe_estimate(estimate(core_seconds=36_000.0), start_seconds=240)
