"""Tests the catalogs: Parquet files that contain one row for each record of a shard."""

import json
import pathlib
from typing import Any, Iterator

import google_crc32c
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from beam_pipelines.__main__ import main
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
from made_images import jpeg, png, write_class_folders, write_files
from made_sources import CASES, CLASSES, NUM, OBJECTS, ROWS, made_case, write_csv
from tf_input.dataset_format import Manifest, ShardInfo, read_manifest

# Columns in the catalog of every dataset.
COLUMNS = {
    "key": pa.string(),
    "path": pa.string(),
    "offset": pa.int64(),
    "num_bytes": pa.uint32(),
    "crc32c": pa.uint32(),
    "height": pa.int32(),
    "width": pa.int32(),
    "format": pa.string(),
    "reencoded": pa.string(),
    "group": pa.string(),
    "weight": pa.float32(),
    "shard": pa.string(),
    "record": pa.int64(),
}
# Types of columns for features with a single value, by kind.
VALUES = {"float": pa.float32(), "integer": pa.int64(), "text": pa.string()}


def prepare(source: pathlib.Path | str, output: pathlib.Path, *options: str) -> pathlib.Path:
    assert main(["prepare", "--input", str(source), "--output", str(output), *options]) == 0
    return output


def shards_of(directory: pathlib.Path) -> list[ShardInfo]:
    return [shard for shards in read_manifest(directory).splits.values() for shard in shards]


def rows_of(directory: pathlib.Path) -> list[dict[str, Any]]:
    return [row for shard in shards_of(directory) for row in pq.read_table(directory / shard.catalog).to_pylist()]


def records_of(path: pathlib.Path, manifest: Manifest) -> Iterator[dict[str, list]]:
    """Yields the feature values of each record, with class names in place of class numbers."""
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        stored = tf.train.Example.FromString(record).features.feature
        values = {name: list(getattr(value, value.WhichOneof("kind")).value) if value.WhichOneof("kind") else [] for name, value in stored.items()}
        for feature in manifest.schema:
            if feature.kind == "class_label":
                values[feature.name] = [feature.label_names[label] for label in values[feature.name]]
        yield values


@pytest.mark.slow(0.5)
@pytest.mark.parametrize(
    "name",
    [
        "image_folder, class",
        "image_folder, raw",
        "table csv, two heads",
        "table parquet, multi-label",
        "table parquet, embedded images",
        "table csv, extra columns",
        "table csv, pairs",
        "table csv, class",
        "table csv, no label",
        "coco, detection and segmentation",
        "webdataset gz, class",
        "arrays idx gz, class",
    ],
)
def test_rows_match_their_records(tmp_path_factory, name):
    folder, _, output = made_case(tmp_path_factory, name)
    manifest = read_manifest(output)
    labels = [feature for feature in manifest.schema if feature.kind == "class_label"]
    others = [feature.name for feature in manifest.schema if feature.kind == "image" and feature.name != "image"]
    values = [item for item in manifest.schema if item.kind in VALUES and not item.shape and item.name not in COLUMNS]
    for shard in shards_of(output):
        table = pq.read_table(output / shard.catalog)
        types = {feature.name: pa.list_(pa.string()) if feature.shape else pa.string() for feature in labels}
        types |= {f"{other}_path": pa.string() for other in others}
        types |= {feature.name: VALUES[feature.kind] for feature in values}
        actual = {field.name: field.type for field in table.schema}
        assert {entry: pa.list_(kind.value_type) if pa.types.is_list(kind) else kind for entry, kind in actual.items()} == {**COLUMNS, **types}
        rows, records = table.to_pylist(), list(records_of(output / shard.name, manifest))
        assert len(rows) == len(records) == shard.num_examples
        for number, (row, record) in enumerate(zip(rows, records)):
            (image,) = record["image"]
            assert [row["key"].encode()] == record["key"]
            assert (row["num_bytes"], row["crc32c"]) == (len(image), google_crc32c.value(image))
            assert ([row["height"]], [row["width"]]) == (record["height"], record["width"])
            assert (row["shard"], row["record"]) == (shard.name, number)
            assert row["weight"] == (record["weight"][0] if "weight" in record else None)
            for feature in labels:
                assert row[feature.name] == (record[feature.name] if feature.shape else record[feature.name][0])
            for feature in values:
                (value,) = record[feature.name]
                assert row[feature.name] == (value.decode() if feature.kind == "text" else value)
            for other in others:
                assert (folder / row[f"{other}_path"]).read_bytes() == record[other][0]


@pytest.mark.slow
def test_path_and_offset_locate_the_image_bytes(tmp_path_factory):
    """The catalog's path and offset locate the bytes of each image that was neither re-encoded nor compressed."""
    has_offsets = {
        "image_folder, class": True,
        "table csv, class": True,
        "webdataset, class": True,
        "tfrecord slim gzip, class": False,
        "table parquet, embedded images": False,
    }
    for name, has_offset in has_offsets.items():
        _, source, output = made_case(tmp_path_factory, name)
        root = source if source.is_dir() else source.parent
        rows = rows_of(output)
        assert len(rows) == NUM
        for row in rows:
            assert row["reencoded"] is None and (root / row["path"]).is_file(), name
            if not has_offset:
                assert row["offset"] is None, name
                continue
            data = (root / row["path"]).read_bytes()[row["offset"] or 0 :][: row["num_bytes"]]
            assert google_crc32c.value(data) == row["crc32c"], name


def test_unknown_values_are_null(tmp_path):
    write_class_folders(tmp_path / "in", {"ant": 3, "bee": 3})
    rows = rows_of(prepare(tmp_path / "in", tmp_path / "out", "--check=none"))
    assert {(*(row[name] for name in ("offset", "height", "width", "format", "reencoded", "group", "weight")),) for row in rows} == {(None,) * 7}
    rows = rows_of(prepare(tmp_path / "in", tmp_path / "checked", "--check=header"))
    assert {(row["height"], row["width"], row["format"]) for row in rows} == {(16, 16, "jpeg")}


def test_rows_have_groups_weights_and_the_reason_for_reencoding(tmp_path):
    source = tmp_path / "in" / write_csv(tmp_path / "in")
    options = ["--label=class", "--group=patient", "--splits=train=1", "--image_size=short=8", "--image_format=jpeg:90"]
    rows = {row["path"]: row for row in rows_of(prepare(source, tmp_path / "out", *options))}
    for given in ROWS:
        row = rows[given["file_name"]]
        assert (row["group"], row["weight"], row["label"]) == (given["patient"], given["weight"], given["class"])
        assert row["format"] == "png" and row["reencoded"] and (row["height"], row["width"]) == (8, 8)


def test_rows_have_the_class_names_of_boxes(tmp_path):
    source = tmp_path / "in" / CASES["coco, detection and segmentation"].write(tmp_path / "in")
    rows = rows_of(prepare(source, tmp_path / "out", "--splits=train=1"))
    assert sorted(row["objects/label"] for row in rows) == sorted([name for *_, name in objects] for objects in OBJECTS)
    assert [] in [row["objects/label"] for row in rows]


def test_feature_named_like_a_column_is_renamed(tmp_path):
    write_files(tmp_path / "in", {f"{index}.png": png(index) for index in range(6)})
    lines = [f"{index}.png,{CLASSES[index % 3]},{CLASSES[index % 2]}" for index in range(6)]
    (tmp_path / "in" / "rows.csv").write_text("\n".join(["image,format,label_format", *lines]))
    output = prepare(tmp_path / "in" / "rows.csv", tmp_path / "out", "--label=format", "--label=label_format", "--splits=train=1")
    for row in rows_of(output):
        index = int(row["key"].removesuffix(".png"))
        actual = (row["format"], row["label_format"], row["label_label_format"])
        assert actual == ("png", CLASSES[index % 2], CLASSES[index % 3])
    lines = [f"{index}.png,{(index + 1) % 6}.png,from the {index}th" for index in range(6)]
    (tmp_path / "in" / "pairs.csv").write_text("\n".join(["image,right,right_path", *lines]))
    options = ("--label=none", "--feature=right:image", "--feature=right_path", "--splits=train=1")
    for row in rows_of(prepare(tmp_path / "in" / "pairs.csv", tmp_path / "pairs", *options)):
        index = int(row["key"].removesuffix(".png"))
        assert (row["right_path"], row["image_right_path"]) == (f"from the {index}th", f"{(index + 1) % 6}.png")


def test_empty_shard_has_an_empty_catalog(tmp_path):
    write_class_folders(tmp_path / "in", {"ant": 4, "bee": 4})
    (tmp_path / "in" / "ant" / "001.jpg").write_bytes(b"no image")
    options = ["--num_shards=8", "--splits=train=1", "--max_bad_fraction=0.5"]
    output = prepare(tmp_path / "in", tmp_path / "out", *options)
    tables = [pq.read_table(output / shard.catalog) for shard in shards_of(output)]
    assert sorted(map(len, tables)) == [0, *[1] * 7]
    assert len({str(table.schema) for table in tables}) == 1, "Parquet readers need equal schemas"
    empty = next(shard for shard in shards_of(output) if not shard.num_examples)
    for file, *_ in empty.files():
        kept = (output / file).read_bytes()
        (output / file).unlink()
        assert main(["repair", str(output)]) == 0
        assert (output / file).read_bytes() == kept


@pytest.mark.slow
def test_catalog_bytes_are_equal_with_and_without_worker_processes(tmp_path):
    """Either two worker processes write one part of the shard each, or one worker writes the whole shard."""
    write_files(tmp_path / "in", {f"{name}/{index}.jpg": jpeg(index) for name in ("ant", "bee") for index in range(300)})
    options = ["--num_shards=1", "--splits=train=1"]
    runs = {"worker processes": [], "one worker": ["--direct_num_workers=2", "--direct_running_mode=multi_threading"]}
    written = {run: prepare(tmp_path / "in", tmp_path / run / "out", *options, *flags) for run, flags in runs.items()}
    processes = [choose_engine(parse_pipeline_options(flags)).num_processes for flags in runs.values()]
    assert processes[0] > 1 and processes[1] == 0
    first, second = ((output / shards_of(output)[0].catalog).read_bytes() for output in written.values())
    assert first == second


def test_pandas_reads_all_catalogs_together(tmp_path):
    write_class_folders(tmp_path / "in", {"ant": 20, "bee": 10, "cow": 5})
    output = prepare(tmp_path / "in", tmp_path / "out", "--num_shards=train=3,validation=2")
    catalog = pd.read_parquet(output / "catalog")
    assert catalog.groupby("label").size().to_dict() == {"ant": 20, "bee": 10, "cow": 5}
    assert catalog.groupby("shard").size().to_dict() == {shard.name: shard.num_examples for shard in shards_of(output)}
    assert catalog.num_bytes.sum() == sum(path.stat().st_size for path in (tmp_path / "in").rglob("*.jpg"))
