"""The catalog says of each record where it came from and what it is, by names that people query, in the same bytes every time."""

import io
import json
import pathlib
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_pipelines.columns import Column
from beam_pipelines.config import SourceConfig
from beam_pipelines.shard_files import finish_shard
from made_images import jpeg
from made_plan import PlannedInput

CATALOG = "catalog/made-train-00000-of-00001.parquet"

ROWS = {
    f"{index}.jpg": {
        "tags": ["a", "ä", "c"][: index % 4],
        "weather": ["sun", "rain"][index % 2],
        "format": f"kind {index % 3}",
        "patient": f"p{index % 5}" if index % 3 else "",
        "weight": index / 8,
    }
    for index in range(17)
}


def write(directory: pathlib.Path, num_parts: int = 1, with_optional: bool = True) -> bytes:
    lines = [json.dumps({"image": name, **row}) + "\n" for name, row in ROWS.items()]
    files = {**{name: jpeg(index) for index, name in enumerate(ROWS)}, "rows.jsonl": "".join(lines).encode()}
    labels = (Column("tags", ("tags",), "multi_label"), Column("weather", ("weather",), "class"), Column("format", ("format",), "class"))
    columns = {"group_column": "patient", "weight_column": "weight"} if with_optional else {"group_column": "", "weight_column": ""}
    source = SourceConfig("table", image_column="image", labels=labels, **columns)
    run = PlannedInput(directory, files, input=str(directory / "in/rows.jsonl"), source=source)
    finish_shard(run.context, run.shards[0], run.write_parts(num_parts))
    return run.files()[CATALOG]


def rows_of(data: bytes) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(data)).to_pylist()


def test_labels_are_there_by_name_with_groups_and_weights(tmp_path):
    rows = rows_of(write(tmp_path))
    assert [row["record"] for row in rows] == list(range(len(ROWS)))
    for row in rows:
        expected = ROWS[row["path"]]
        found = {name: row[name] for name in ("tags", "weather", "label_format", "group", "weight")}
        assert found == {
            "tags": sorted(expected["tags"]),  # as class numbers are
            "weather": expected["weather"],
            "label_format": expected["format"],  # the image's own format is a column already
            "group": expected["patient"] or None,
            "weight": expected["weight"],
        }, row["path"]
        assert row["format"] == "jpeg"


def test_what_was_not_given_is_null(tmp_path):
    rows = rows_of(write(tmp_path, with_optional=False))
    assert {(row["group"], row["weight"], row["offset"], row["reencoded"]) for row in rows} == {(None,) * 4}


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_the_same_rows_are_the_same_bytes(tmp_path, num_parts):
    assert write(tmp_path / "again", num_parts) == write(tmp_path / "first")


def test_columns_and_their_types_do_not_depend_on_what_is_in_them(tmp_path):
    schemas = [pq.read_schema(io.BytesIO(write(tmp_path / f"{optional}", with_optional=optional))) for optional in (True, False)]
    assert schemas[0] == schemas[1]
    assert {schemas[0].field(name).type for name in ("key", "path", "shard", "format", "group", "weather")} == {"string"}
