"""Tests features that are lists of any length, such as `ids:integer[]` and `tags:text[]`, in each table format."""

import itertools
import json
import pathlib
import re
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.columns.column import Column
from beam_pipelines.columns.forms import feature_of, parse_column
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.shards.input_reader import InputReader, ReadImage
from beam_pipelines.shards.write_context import WriteContext, WriteSpec
from beam_pipelines.sources.listing.list_part import list_part
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.listing.make_listing import make_listing
from beam_pipelines.sources.formats.table.table import Table
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader
from listed_rows import to_csv, to_jsonl
from tf_input.dataset_format import Feature
from tf_input.decoding.schema import parse_examples

FEATURES = ("ids:integer[]", "scores:float[]", "tags:text[]", "pair:integer[2]")
INT64 = st.integers(-(2**63), 2**63 - 1)
# CSV cannot contain NUL, and lone surrogates are not valid text.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
ROWS = st.fixed_dictionaries(
    {
        "ids": st.lists(INT64, max_size=6),
        "scores": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=6),
        "tags": st.lists(TEXTS, max_size=6),
        "pair": st.lists(INT64, min_size=2, max_size=2),
    }
)


def write_table(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".csv":
        path.write_bytes(to_csv([{name: json.dumps(cell) for name, cell in row.items()} for row in rows]))
    elif path.suffix == ".jsonl":
        path.write_bytes(to_jsonl(rows))
    else:
        types = {"ids": pa.int64(), "scores": pa.float32(), "tags": pa.string(), "pair": pa.int64()}
        pq.write_table(pa.table({name: pa.array([row[name] for row in rows], pa.list_(kind)) for name, kind in types.items()}), path)


def store_table(path: pathlib.Path) -> tuple[tuple[Feature, ...], list[bytes]]:
    """Returns the schema of a table, and the serialized example of each row."""
    source = SourceConfig(kind=find_kind("table"), has_images=False, labels=(), features=tuple(parse_column("--feature", text, "text") for text in FEATURES))
    options = PrepareOptions(str(path), "out", "made", source=source)
    table, actual = Table(options), ListedFacts()
    listed = list(itertools.chain.from_iterable(list_part(table, path.name, actual)))
    assert all(isinstance(entry, InputRecord) for entry in listed)
    listing = make_listing(options, table, actual)
    spec = WriteSpec.of(options, RunPaths(options.output))
    with SpoolReader(spec.run.spool_directory) as spool:
        reader = InputReader(WriteContext(spec, listing), files_at(listing.root), spool)
        read = [reader.read(member, is_sampled=False) for member in listed]
    assert all(isinstance(element, ReadImage) for element in read)
    return listing.schema, [item.data for item in read]


@pytest.mark.slow(0.7)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@settings(max_examples=25)
@given(rows=st.lists(ROWS, min_size=1, max_size=4))
def test_lists_are_stored_and_read_exactly(suffix, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"rows{suffix}"
        write_table(path, rows)
        schema, records = store_table(path)
    parsed = parse_examples(tf.constant(records), schema)
    assert parsed["ids"].to_list() == [row["ids"] for row in rows] and parsed["pair"].numpy().tolist() == [row["pair"] for row in rows]
    assert [[tag.decode() for tag in tags] for tags in parsed["tags"].to_list()] == [row["tags"] for row in rows]
    for scores, row in zip(parsed["scores"], rows):
        assert scores.numpy().tobytes() == np.array(row["scores"], np.float32).tobytes(), "the sign of -0.0 is kept"


def test_parses_list_columns_of_options():
    assert parse_column("--feature", "ids:integer[]", "text") == Column("ids", ("ids",), "integer", (None,))
    assert feature_of(parse_column("--feature", "w=words:text[]", "text")) == Feature("w", "text", (None,))
    assert feature_of(parse_column("--feature", "x:float[3]", "text")) == Feature("x", "float", (3,))
    for text in ("x:multi_label[]", "x:class[]", "x:array[]", "x:multi_hot[]", "x:mask[]", "a,b:float[]", "x:integer[2,3]", "x:text[0]", "x:float[,]"):
        with pytest.raises(UserError, match=re.escape(f"--feature={text}: ")):
            parse_column("--feature", text, "text")

