"""Tests that each source rejects an unknown column with a one-line error that lists the available columns."""

import json
import pathlib
from typing import Sequence

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from made_images import write_files
from made_records import example, write_records
from made_sources import (
    FIXED,
    PNGS,
    ROWS,
    slim,
    with_json,
    write_csv,
    write_fixed_length,
    write_jsonl,
    write_npz,
    write_parquet,
    write_tars,
    write_tfrecord,
)

SOURCES = {
    "csv": (write_csv, ["--label=class"], "weather"),
    "jsonl": (write_jsonl, ["--label=class"], "weather"),
    "parquet": (write_parquet, ["--label=class"], "weather"),
    "tfrecord": (write_tfrecord(slim), [], "image/class/label"),
    "webdataset": (write_tars(with_json), ["--label=weather"], "city"),
    "arrays": (write_npz(np.savez), [], "y"),
    "fixed_length": (write_fixed_length, FIXED, "age"),
}
VALUES = ("class", "multi_label", "float", "float[2]", "integer", "text")
FILES = ("mask", "array", "array[4,4,2]")


def options_with_typo(source: str) -> list[str]:
    typed = source in ("arrays", "fixed_length")  # these sources reject columns with file names
    kinds = VALUES if typed else (*VALUES, *FILES)
    columns = [f"--{option}=typo:{kind}" for option in ("label", "feature") for kind in kinds]
    several = ["--label=typo,typo2:multi_label", "--feature=typo,typo2:float"]
    roles = [f"--{role}=typo" for role in ("image_column", "key_column", "split_column", "group", "weight_column")]
    return [*columns, *several, *roles]


def error_line(capsys: pytest.CaptureFixture, path: pathlib.Path, *options: str) -> str:
    """Runs a command that must fail, and returns its error line."""
    output = path.parent / "out"
    code = main(["prepare", "--input", str(path), "--output", str(output), *options])
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("recordmill: --source=")]
    assert (code, len(lines), output.exists()) == (2, 1, False), lines
    return lines[0]


@pytest.mark.slow(0.6)
@pytest.mark.parametrize("source", SOURCES)
def test_unknown_column_fails_with_the_available_columns(source, tmp_path, capsys):
    write, options, other = SOURCES[source]
    path = tmp_path / "in" / write(tmp_path / "in")
    for option in options_with_typo(source):
        kept = [item for item in options if not option.startswith(item.partition("=")[0])]
        line = error_line(capsys, path, *kept, option)
        if not (source == "fixed_length" and "image_column" in option):  # named in --record_layout
            assert "'typo'" in line or "called typo" in line, option
            assert (other if (source, option) != ("webdataset", "--image_column=typo") else "json, png") in line, option


def test_similar_column_name_is_suggested(tmp_path, capsys):
    path = tmp_path / "in" / write_csv(tmp_path / "in")
    assert "did you mean 'weather'?" in error_line(capsys, path, "--label=Wether")
    path = tmp_path / "tar" / write_tars(with_json)(tmp_path / "tar")
    assert "did you mean 'city'?" in error_line(capsys, path, "--label=weather", "--feature=citi")


def test_name_of_a_layout_is_not_a_column(tmp_path, capsys):
    records = [example({"image": png, "tags": ["a", "b"]}) for png in PNGS]
    path = write_records(tmp_path / "in" / "x.tfrecord", records)
    line = error_line(capsys, path, "--layout=image=image,label=tags", "--label=label:multi_label")
    assert "no 'label' in " in line
    assert "image (bytes × 1), tags (bytes × 2)" in error_line(capsys, path, "--layout=image=image,key=id", "--label=none")


@pytest.mark.slow
def test_finds_features_that_only_later_examples_have(tmp_path, capsys):
    """Programs that write records may omit features without a value."""
    records = [example({"image": png} | ({"tags": ["a"]} if index == 15 else {})) for index, png in enumerate(PNGS)]
    write_records(tmp_path / "records" / "x.tfrecord", records)
    write_tars(lambda i: {"png": PNGS[i], "json": json.dumps({"tags": ["a"]} if i == 15 else {}).encode()})(tmp_path / "tars")
    for source in ("records", "tars"):
        options = ["--layout=image=image"] if source == "records" else []
        output = tmp_path / f"out-{source}"
        label = ["--label=tags:multi_label", "--splits=train=1"]
        assert main(["prepare", "--input", str(tmp_path / source), "--output", str(output), *options, *label]) == 0
        assert (output / "label.labels.txt").read_text() == "a\n"


def test_rejects_a_later_table_without_the_column(tmp_path, capsys):
    def lines(rows: Sequence[dict]) -> bytes:
        return "".join(json.dumps(row) + "\n" for row in rows).encode()

    def files(column: str) -> dict[str, bytes]:
        rows = [{"file_name": row["file_name"], column: row["tags"]} for row in ROWS[10:]]
        return {"train.jsonl": lines([{"file_name": r["file_name"], "tags": r["tags"]} for r in ROWS[:10]]), "val.jsonl": lines(rows)}

    path = write_files(tmp_path / "in", {**{row["file_name"]: png for row, png in zip(ROWS, PNGS)}, **files("Tags")})
    line = error_line(capsys, path, "--source=table", "--label=tags:multi_label")
    assert "did you mean 'Tags'?" in line
