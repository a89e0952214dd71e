"""Groups the rows of a file by a key, such as the name of an image, in limited memory.

Rows with the same key need not be adjacent. Rows are kept in memory as pickles. If they take more than `MAX_MEMORY`, they
are distributed to temporary files by a hash of their key. Then the rows of one temporary file at a time are grouped.
"""

import contextlib
import hashlib
import itertools
import pickle
import tempfile
from typing import Any, BinaryIO, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.errors import InvalidInput, RunError
from beam_pipelines.storage.files import is_remote, make_folder

MAX_MEMORY = 128 << 20
_ROW_BYTES = 100  # memory of a row in addition to its pickle
_NUM_FILES = 64

NumberedRow = tuple[int, Mapping[str, Any]]
Rejected = tuple[int, InvalidInput]
_Item = tuple[str, bytes | Rejected]  # the key and a pickled row; or an empty key and a rejected row


def group_rows(
    rows: Iterable[tuple[str, int, Mapping[str, Any] | InvalidInput]],
    columns: Sequence[str],
    directory: str | None,
    max_bytes: int = MAX_MEMORY,
) -> Iterator[tuple[int, list[NumberedRow] | InvalidInput]]:
    """Yields the rows of each key together, in the order of the file.

    Args:
        rows: The key, the number and the cells of each row. An error replaces the cells of an invalid row.
        columns: The columns to keep.
        directory: The folder for temporary files. If it is None or in an object store, the system's temporary folder
            is used instead.
        max_bytes: The approximate memory limit in bytes.

    Yields:
        The number of the first row of a key, and all its numbered rows, or an error if these rows do not fit in memory.
        An invalid row is yielded separately, as its number and error.

    Raises:
        RunError: Temporary files cannot be written.
    """
    items = (
        ("", (number, row)) if isinstance(row, InvalidInput) else (key, pickle.dumps((number, *map(row.get, columns)), 5))
        for key, number, row in rows
    )
    for group in _group(items, directory if directory and not is_remote(directory) else None, max_bytes, level=0):
        if isinstance(group, tuple):
            yield group
            continue
        numbered = [(number, dict(zip(columns, cells))) for number, *cells in map(pickle.loads, group)]
        if group[-1] is _TOO_MANY:
            message = f"the rows of one image take more than {max_bytes // 2:,} bytes of memory. Remove some of the rows"
            yield numbered[0][0], InvalidInput("too_large", message)
        else:
            yield numbered[0][0], numbered


_TOO_MANY = pickle.dumps((0,), 5)  # marks that all rows of a key except the first are omitted, for lack of memory


def _group(
    items: Iterator[_Item], directory: str | None, max_bytes: int, level: int
) -> Iterator[list[bytes] | Rejected]:
    groups: dict[str, list[bytes]] = {}
    num_bytes = 0
    for key, data in items:
        if isinstance(data, tuple):
            yield data
            continue
        group = groups.setdefault(key, [])
        if group and group[-1] is _TOO_MANY:
            continue
        group.append(data)
        num_bytes += len(data) + _ROW_BYTES
        if num_bytes <= max_bytes:
            continue
        for some in groups.values():
            if (size := sum(map(len, some)) + len(some) * _ROW_BYTES) > max_bytes // 2:
                some[1:] = [_TOO_MANY]
                num_bytes -= size
        if num_bytes > max_bytes // 2:
            yield from _group_in_files(groups, items, directory, max_bytes, level)
            return
    yield from groups.values()


def _group_in_files(
    groups: dict[str, list[bytes]], items: Iterator[_Item], directory: str | None, max_bytes: int, level: int
) -> Iterator[list[bytes] | Rejected]:
    """Distributes the rows in `groups` and all further rows to temporary files, and groups the rows of each file."""
    with contextlib.ExitStack() as stack:
        too_many = {key: group for key, group in groups.items() if group[-1] is _TOO_MANY}
        kept = ((key, data) for key, group in groups.items() if key not in too_many for data in group)
        files = _open_files(stack, directory)
        for key, data in itertools.chain(kept, items):
            if isinstance(data, tuple):
                yield data
            elif key not in too_many:
                _write(files, key, data, level)
        groups.clear()
        yield from too_many.values()
        for file in files:
            file.seek(0)
            yield from _group(_read(file), directory, max_bytes, level + 1)
            file.close()


def _open_files(stack: contextlib.ExitStack, directory: str | None) -> list[BinaryIO]:
    try:
        if directory is not None:
            make_folder(directory)
        return [stack.enter_context(tempfile.TemporaryFile(dir=directory)) for _ in range(_NUM_FILES)]
    except OSError as error:
        raise _write_error(error) from error


def _write(files: Sequence[BinaryIO], key: str, data: bytes, level: int) -> None:
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    try:
        pickle.dump((key, data), files[digest[level] % _NUM_FILES], 5)
    except OSError as error:
        raise _write_error(error) from error


def _write_error(error: OSError) -> RunError:
    return RunError(f"rows could not be written to a temporary file: {error.strerror or error}")


def _read(file: BinaryIO) -> Iterator[_Item]:
    with contextlib.suppress(EOFError):
        while True:
            yield pickle.load(file)
