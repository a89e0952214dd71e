"""Groups the rows of a file by a key, such as the name of an image. Rows with the same key need not be adjacent.

SQLite sorts the rows. It keeps some rows in memory, and writes the rest to temporary files.
"""

import contextlib
import itertools
import pickle
import sqlite3
from typing import Any, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.errors import InvalidInput, RunError
from beam_pipelines.storage.files import is_remote, make_folder

_CACHE_KIB = 32 << 10
_MAX_GROUP_BYTES = 64 << 20
_ROW_BYTES = 100  # memory of a row in addition to its pickle
GROUPING_BYTES = (_CACHE_KIB << 10) + _MAX_GROUP_BYTES  # the memory that `group_rows` needs, approximately

NumberedRow = tuple[int, Mapping[str, Any]]


def group_rows(
    rows: Iterable[tuple[str, int, Mapping[str, Any] | InvalidInput]],
    columns: Sequence[str],
    directory: str | None,
    max_bytes: int = _MAX_GROUP_BYTES,
) -> Iterator[tuple[int, list[NumberedRow] | InvalidInput]]:
    """Yields the rows of each key together, sorted by key and number.

    Args:
        rows: The key, the number and the cells of each row. An error replaces the cells of an invalid row.
        columns: The columns to keep.
        directory: The folder for temporary files. If it is None or in an object store, the system's temporary folder is
            used instead.
        max_bytes: The approximate memory limit for the rows of one key, in bytes.

    Yields:
        The number of the first row of a key, and all its numbered rows, or an error if these rows do not fit in memory.
        An invalid row is yielded separately, as its number and error.

    Raises:
        RunError: Temporary files cannot be written.
    """
    try:
        with contextlib.closing(_open_database(directory)) as database:
            for key, number, row in rows:
                if isinstance(row, InvalidInput):
                    yield number, row
                else:
                    cells = pickle.dumps([*map(row.get, columns)], 5)
                    database.execute("INSERT INTO rows VALUES (?, ?, ?)", (key, number, cells))
            found = database.execute("SELECT * FROM rows ORDER BY key, number")
            for _, group in itertools.groupby(found, lambda row: row[0]):
                yield _read_group(group, columns, max_bytes)
    except sqlite3.Error as error:
        raise _write_error(error) from error


def _open_database(directory: str | None) -> sqlite3.Connection:
    """Returns an empty database in temporary files, which SQLite deletes."""
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    if directory and not is_remote(directory):
        try:
            make_folder(directory)
        except OSError as error:
            raise _write_error(error.strerror) from error
        # This setting is process-wide, but all runs of a process can share a folder for temporary files.
        database.execute(f"PRAGMA temp_store_directory = '{directory.replace(chr(39), chr(39) * 2)}'")
    database.executescript(
        f"PRAGMA journal_mode = OFF; PRAGMA cache_size = -{_CACHE_KIB}; BEGIN;"
        "CREATE TABLE rows (key TEXT, number INTEGER, cells BLOB)"
    )
    return database


def _write_error(problem: object) -> RunError:
    return RunError(f"rows could not be written to a temporary file: {problem}")


def _read_group(
    rows: Iterable[tuple[str, int, bytes]], columns: Sequence[str], max_bytes: int
) -> tuple[int, list[NumberedRow] | InvalidInput]:
    first, num_bytes, numbered = 0, 0, []
    for _, number, cells in rows:
        first, num_bytes = first or number, num_bytes + len(cells) + _ROW_BYTES
        if num_bytes <= max_bytes:
            numbered.append((number, dict(zip(columns, pickle.loads(cells)))))
    if num_bytes <= max_bytes:
        return first, numbered
    problem = f"the rows of one image take more than {max_bytes:,} bytes of memory. Remove some of the rows"
    return first, InvalidInput("too_large", problem)
