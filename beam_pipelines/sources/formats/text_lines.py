"""Source `text_lines`: text files in which each line is an example with the feature `text`."""

import functools
import os
import re
from typing import Iterator

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, InputRecord
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.rows.lines import read_lines
from beam_pipelines.sources.rows.row_files import RowFiles
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.rows.table_files import TableFile

_FORMATS = {".txt": "text", ".text": "text", ".lst": "text", ".list": "text", "": "text"}
_ENDING = re.compile(rf"({'|'.join(map(re.escape, _FORMATS))})(\.gz)?$", re.IGNORECASE)
_TEXT, _FILE = "text", "file"
_PATHS = ("tensor", "array", "mask", "image")  # kinds whose values are stored in files


class TextLines(RowFiles):
    """Lists the lines of one or several text files as examples."""

    kind = SourceKind(
        name="text_lines",
        summary="text files in which each line is an example",
        options=("labels", "label_names", "features", "has_images", "group", "skip_lines", "comment"),
        is_of_values=True,
    )

    has_images = False

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        source = config.source
        super().__init__(config, _FORMATS)
        labels, features = source.labels or (), source.features
        for name in (name for column in (*labels, *features) for name in column.names):
            if name not in (_TEXT, _FILE):
                nearest = did_you_mean(name, (_TEXT, _FILE))
                raise UserError(
                    f"--label or --feature: a line has no {printable(name)!r}{nearest or '.'} Choose {_TEXT} or {_FILE}."
                )
        for column in (*labels, *features):
            if column.kind in _PATHS:
                raise UserError(
                    f"--label or --feature: a line of text cannot be read as {column.kind}. Choose a text, a class, "
                    "numbers, or a list of these."
                )
        if not any(_TEXT in column.names for column in (*labels, *features)):
            features = (Column(_TEXT, (_TEXT,), "text"), *features)
        if source.group not in (None, "", _FILE):
            raise UserError(
                f"--group: a line has no {printable(source.group)!r}. Use --group={_FILE}, or --group_pattern, which "
                "finds groups in the keys."
            )
        self._is_grouped = source.group == _FILE
        self._mapper = RowMapper(labels, features, source)
        self.features, self.targets = self._mapper.features, self._mapper.targets

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        file = self._files[part]
        read = functools.partial(self._read, file, _ENDING.sub("", os.path.basename(file.name)))
        return self._read_rows(file, read_lines(file.path, file.name, self._config.source), read)

    def _read(self, file: TableFile, name: str, number: int, line: str) -> InputRecord:
        group = nfc(file.name) if self._is_grouped else ""
        record = InputRecord(nfc(f"{file.name}:{number}"), file.name, "", file.split, offset=NO_IMAGE, group=group)
        return self._mapper.read({_TEXT: line.rstrip("\r\n"), _FILE: name}, record)
