"""Tests that `ListImages` writes sorted files of limited size and counts inputs and dead letters."""

import json
import pathlib
from typing import Any, Sequence

import apache_beam as beam
import numpy as np
import pytest

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.reference_runs import SpoolRange, read_references, read_range
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import buckets, merge_counts
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
from beam_pipelines.sources.listing import listed_runs
from beam_pipelines.sources.listing.list_images import ListImages
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.storage.spool import SpoolReader
from made_images import jpeg, write_class_folders, write_files
from made_records import example, write_records
from made_references import MadeRun, make_run

COLLECTED: dict[str, list] = {}  # the local runner executes the pipeline in this process


def collect(element: Any, name: str) -> None:
    COLLECTED[name].append(element)


def list_on_runner(made: MadeRun, flags: Sequence[str] = ()) -> dict[str, list]:
    COLLECTED.update({name: [] for name in ("runs", "counts", "listing", "dead_letters")})
    options = parse_pipeline_options([*flags])
    with beam.Pipeline(runner=choose_engine(options).make_runner(), options=options) as pipeline:
        listed = pipeline | ListImages(*made)
        for name in COLLECTED:
            getattr(listed, name) | f"Keep {name}" >> beam.Map(collect, name)
    return {name: list(actual) for name, actual in COLLECTED.items()}


def read_runs(result: dict[str, list], made: MadeRun) -> list[References]:
    with SpoolReader(made.run.spool_directory) as spool:
        return [read_references(next(iter(run.cut(np.zeros(1, np.uint64))))[1], spool) for run in result["runs"]]


def read_dead_letters(chunks: list[SpoolRange], made: MadeRun) -> list[list[str]]:
    with SpoolReader(made.run.spool_directory) as spool:
        return [[json.loads(line)["path"] for line in read_range(chunk, spool).splitlines()] for chunk in chunks]


@pytest.mark.parametrize("bound", ["RUN_REFERENCES", "RUN_BYTES", None])
def test_every_input_is_in_a_sorted_run_or_a_dead_letter(tmp_path, monkeypatch, bound):
    monkeypatch.setattr("beam_pipelines.sources.listing.list_part.BATCH_IMAGES", 7)
    monkeypatch.setattr(listed_runs, "_RUN_DEAD_LETTERS", 4)
    if bound:
        monkeypatch.setattr(listed_runs, bound, {"RUN_REFERENCES": 20, "RUN_BYTES": 2000}[bound])
    root = write_class_folders(tmp_path / "in", {"ant": 40, "bee": 60})
    for index in range(10):
        (root / f"bee/link{index}.jpg").symlink_to("/etc/hostname")
    made = make_run(tmp_path, input=str(root))
    actual = list_on_runner(made)
    runs = read_runs(actual, made)
    names = [key.decode() for run in runs for key in run.keys]
    assert sorted(names) == sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg") if not path.is_symlink())
    assert all((np.diff(run.rows["order"].astype(object)) > 0).all() for run in runs)
    assert [run.num_references for run in actual["runs"]] == list(map(len, runs))
    assert all(len(run) < 40 for run in runs) and len(runs) > 2 if bound else len(runs) == 1
    letters = read_dead_letters(actual["dead_letters"], made)
    assert sorted(sum(letters, [])) == [f"bee/link{index}.jpg" for index in range(10)]
    assert all(paths == sorted(paths) and len(paths) <= 4 for paths in letters)
    (listing,), (packed,) = actual["listing"], actual["counts"]
    assert (listing.num_inputs, listing.dead_letters.num, listing.label_names) == (110, 10, ("ant", "bee"))
    assert listing.reference_bytes >= sum(run.num_bytes for run in runs) > 0
    counts = merge_counts([packed])
    for location, split in enumerate(runs[0].splits):
        orders = np.concatenate([run.rows["order"][run.rows["split"] == location] for run in runs])
        assert (counts[split] == np.bincount(buckets(orders), minlength=len(counts[split]))).all(), split


def test_large_part_has_its_own_runs_and_small_parts_share_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(listed_runs, "RUN_REFERENCES", 80)
    monkeypatch.setattr(listed_runs, "_FIRST_SHARE", 1.0)
    made = make_run(tmp_path, input=str(write_class_folders(tmp_path / "in", {"ant": 2, "bee": 95, "cat": 3, "dog": 5, "emu": 11})))
    monkeypatch.setattr("beam_pipelines.sources.listing.list_part.BATCH_IMAGES", 8)
    actual = list_on_runner(made)
    assert sorted(map(len, read_runs(actual, made))) == [10, 11, 15, 80]
    assert sum(int(split_counts.sum()) for split_counts in merge_counts(actual["counts"]).values()) == actual["listing"][0].num_inputs == 116


def test_run_size_grows_with_the_number_of_small_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(listed_runs, "RUN_REFERENCES", 320)
    classes = {f"class{number:02d}": 5 for number in range(60)}
    made = make_run(tmp_path, input=str(write_class_folders(tmp_path / "in", classes)))
    sizes = list(map(len, read_runs(list_on_runner(made), made)))
    assert sum(sizes) == 300 and min(sizes) == 10 and 50 <= max(sizes) < 80, sizes


@pytest.mark.parametrize("num_processes", [0, 2])
def test_worker_processes_list_the_same_as_a_single_process(tmp_path, num_processes):
    folder = write_files(tmp_path / "in", {})
    keys = [f"{part}-{index}" for part in range(9) for index in range(5)]
    for part in range(9):
        records = [example({"key": key.encode(), "image": jpeg(1), "label": part % 2}) for key in keys[part * 5 : part * 5 + 5]]
        write_records(folder / f"made-{part:05d}-of-00009.tfrecord", records)
    source = SourceConfig(kind=find_kind("tfrecord"), layout="key=key,image=image,label=label")
    made = make_run(tmp_path, input=str(folder), source=source, num_processes=num_processes)
    actual = list_on_runner(made)
    runs = read_runs(actual, made)
    assert sorted(key.decode() for run in runs for key in run.keys) == sorted(keys)
    assert {int(offset) > 0 for run in runs for offset in run.rows["offset"]} == {True}, "read from the files"
    assert actual["listing"][0].num_inputs == 45 and len(actual["counts"]) == 1
    assert len(runs) == 1, "the parts of a bundle share a run"


def test_retried_job_recreates_the_working_directory(tmp_path):
    root = write_class_folders(tmp_path / "in", {"ant": 3})
    made = make_run(tmp_path, input=str(root))
    pathlib.Path(made.run.scratch_directory).rmdir()
    assert len(list_on_runner(made)["runs"]) == 1
    assert (pathlib.Path(made.run.scratch_directory) / "INCOMPLETE").exists()
