"""Writes tables, and lists the inputs of tables and text lists."""

import csv
import io
import json
import os
import pathlib
from typing import Any, Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipelines.columns.forms import parse_column, parse_labels
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.sources.files.sizes import add_sizes
from beam_pipelines.sources.registry import find_kind, source_classes
from beam_pipelines.sources.source import Source, other_images
from made_images import write_files


def open_rows(
    path: os.PathLike[str] | str,
    labels: list[str] | None = None,
    features: list[str] = [],
    config: dict[str, Any] = {},
    spool_directory: str | None = None,
    kind: str = "table",
    **options: Any,
) -> Source:
    """Opens a source. `labels` and `features` are the values of the options `--label` and `--feature`. `config` sets
    fields of `PrepareOptions`, and `options` sets fields of `SourceConfig`."""
    parsed = None if labels is None else parse_labels(labels)
    kept = tuple(parse_column("--feature", text, "text") for text in features)
    source = SourceConfig(kind=find_kind(kind), labels=parsed, features=kept, **options)
    job = PrepareOptions(input=os.fspath(path), output="out", name="flowers", source=source, **config)
    return source_classes()[kind](job, spool_directory)


class Listing:
    """The inputs and dead letters of all parts of a source. See `open_rows` for the arguments."""

    def __init__(self, path: os.PathLike[str] | str, labels: list[str] | None = None, with_sizes: bool = False, **options: Any) -> None:
        self.source = open_rows(path, labels, **options)
        actual = [item for part in self.source.parts() for item in self.source.list(part)]
        if with_sizes:
            actual = [*add_sizes(actual, self.source.root, other_images(self.source))]
        self.all = [item for item in actual if isinstance(item, InputRecord)]
        self.images = {image.key: image for image in self.all}
        self.dead_letters = {item.path: item for item in actual if isinstance(item, DeadLetter)}
        assert len(self.all) + len(self.dead_letters) == len(actual)

    @property
    def labels(self) -> dict[str, str]:
        """A mapping from keys to classes."""
        return {key: image.label for key, image in self.images.items()}

    @property
    def splits(self) -> dict[str, str | None]:
        """A mapping from keys to splits."""
        return {key: image.split for key, image in self.images.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """A mapping from the paths of dead letters to their reasons."""
        return {path: letter.reason for path, letter in self.dead_letters.items()}


def write(root: pathlib.Path, text: str | bytes, name: str = "labels.csv") -> pathlib.Path:
    """Writes a file below a folder, and returns its path."""
    return write_files(root, {name: text.encode() if isinstance(text, str) else text}) / name


def to_csv(rows: list[Mapping[str, Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def to_jsonl(rows: Iterable[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def to_parquet(rows: pa.Table | list[Mapping[str, Any]], **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), buffer, **options)
    return buffer.getvalue()


WRITERS = {"csv": to_csv, "jsonl": to_jsonl, "parquet": to_parquet}


def write_rows(root: pathlib.Path, rows: list[Mapping[str, Any]], suffix: str, name: str = "rows") -> pathlib.Path:
    """Writes a table with the extension csv, jsonl or parquet, and returns its path."""
    return write(root, WRITERS[suffix](rows), f"{name}.{suffix}")


def read_letters(output: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns the dead letters of a prepared dataset by path."""
    letters = map(json.loads, (output / "dead_letters.jsonl").read_text().splitlines())
    return {letter["path"]: letter for letter in letters}
