"""Reads the lines of text files. The length of a line is limited, to limit the use of memory."""

import contextlib
import gzip
import io
import zlib
from typing import Iterator

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.sources.files.paths import is_utf8
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import listing_error

MAX_LINE = 16 << 20  # in characters


class LongLineError(ValueError):
    """Raised for a line with more than `MAX_LINE` characters."""


class Lines:
    """An iterator over the lines of a text file, including line breaks.

    The iterator raises `LongLineError` for a line that is too long. It can then continue with the next line.

    Args:
        file: The text file.
        config: The options for skipped lines and comments.

    Attributes:
        number: The number of the last returned line, starting at 1.
        row_start: The number of the line in which the current row starts.
        is_row_start: Whether the next line starts a row, and can therefore be a comment. The caller sets it.
    """

    def __init__(self, file: io.TextIOBase, config: SourceConfig) -> None:
        self._readline = file.readline
        self._comment = config.comment
        self.number = self.row_start = 0
        self.is_row_start = True
        while self.number < config.skip_lines and self._read():
            pass

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> str:
        line = self._read()
        while self.is_row_start and self._comment and line.startswith(self._comment):
            line = self._read()
        if not line:
            raise StopIteration
        if self.is_row_start:
            self.row_start, self.is_row_start = self.number, False
        if _is_cut(line):
            raise LongLineError(f"a line of more than {MAX_LINE} characters")
        return line

    def _read(self) -> str:
        """Reads the next line, or its first `MAX_LINE` characters. Returns "" at the end of the file."""
        line = rest = self._readline(MAX_LINE)
        while _is_cut(rest):
            rest = self._readline(MAX_LINE)
        self.number += bool(line)
        return line


def _is_cut(line: str) -> bool:
    return len(line) == MAX_LINE and line[-1] not in "\r\n"


@contextlib.contextmanager
def open_lines(path: str, name: str, config: SourceConfig) -> Iterator[Lines]:
    """Opens a UTF-8 file, with or without a byte order mark. Bytes that are not UTF-8 become lone surrogates. Raises
    `UserError` if the file cannot be read, or ends in `.gz` but is not a gzip file."""
    try:
        with open_file(path) as file:
            data = gzip.GzipFile(fileobj=file) if path.lower().endswith(".gz") else file
            yield Lines(io.TextIOWrapper(data, "utf-8-sig", errors="surrogateescape", newline=""), config)
    except (OSError, EOFError, zlib.error) as error:
        message = f"{printable(name)}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise listing_error(error, path, message) from error


def read_lines(path: str, name: str, config: SourceConfig) -> Iterator[tuple[int, str | InvalidInput]]:
    """Yields (line number, line) for each line that is not blank. An `InvalidInput` replaces a line that is too long or
    not UTF-8. Raises `UserError` as `open_lines` does."""
    with open_lines(path, name, config) as lines:
        while True:
            lines.is_row_start = True
            try:
                line = next(lines)
            except StopIteration:
                return
            except LongLineError as error:
                yield lines.row_start, InvalidInput("bad_row", str(error))
                continue
            if not is_utf8(line):
                yield lines.row_start, InvalidInput("not_utf8", "the line is not valid UTF-8")
            elif not line.isspace():
                yield lines.row_start, line
