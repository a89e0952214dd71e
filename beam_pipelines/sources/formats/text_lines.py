"""Source `text_lines`: text files in which each line is an example with the feature `text`."""

import os
import re
from typing import Iterator

from beam_pipelines.columns.column import Column
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.sources.files.paths import nfc
from beam_pipelines.sources.rows.lines import read_lines
from beam_pipelines.sources.rows.row_files import Row, RowFiles, TableFile
from beam_pipelines.sources.rows.row_mapper import RowRoles

_FORMATS = {".txt": "text", ".text": "text", ".lst": "text", ".list": "text", "": "text"}
_ENDING = re.compile(rf"({'|'.join(map(re.escape, _FORMATS))})(\.gz)?$", re.IGNORECASE)
_TEXT, _FILE, _PATH = "text", "file", "path of the file"


class TextLines(RowFiles):
    """Lists the lines of one or more text files as examples."""

    kind = SourceKind(
        name="text_lines",
        summary="text files in which each line is an example",
        options=("labels", "label_names", "features", "has_images", "group", "skip_lines", "comment"),
        is_of_values=True,
    )

    has_images = False

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory, _FORMATS)
        source, labels, features = options.source, options.source.labels or (), options.source.features
        for column in (*labels, *features):
            for name in column.names:
                if name not in (_TEXT, _FILE):
                    problem = f"a line has no {printable(name)!r}{did_you_mean(name, (_TEXT, _FILE)) or '.'}"
                    raise UserError(f"--label or --feature: {problem} Choose {_TEXT} or {_FILE}.")
            if form_of(column).is_part:
                problem = f"a line of text cannot be read as {column.kind}"
                raise UserError(f"--label or --feature: {problem}. Choose a text, a class, numbers, or a list of these.")
        if not any(_TEXT in column.names for column in (*labels, *features)):
            features = (Column(_TEXT, (_TEXT,), "text"), *features)
        if source.group not in (None, "", _FILE):
            advice = f"Use --group={_FILE}, or --group_pattern, which finds groups in the keys"
            raise UserError(f"--group: a line has no {printable(source.group)!r}. {advice}.")
        self._open_columns(labels, features, roles=RowRoles(group=_PATH if source.group else None))

    def _rows(self, file: TableFile) -> Iterator[Row]:
        name, path = _ENDING.sub("", os.path.basename(file.name)), nfc(file.name)
        for number, line in read_lines(file.path, file.name, self._source):
            yield number, line if isinstance(line, InvalidInput) else {_TEXT: line.rstrip("\r\n"), _FILE: name, _PATH: path}
