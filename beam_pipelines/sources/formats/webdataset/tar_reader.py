"""Reads the names and positions of the members of a tar file.

Supported header formats are POSIX (ustar and pax) and GNU. The standard library's `tarfile` is used only to parse
single headers. It is not safe for untrusted files, because it keeps all members in memory.

Sparse files, links and devices are members without data. A tar file cannot be read beyond a corrupt header. The file
ends with a block of zeros. If data other than zeros follows, such as a second tar file, it is reported as lost.
"""

import os
import tarfile
import zlib
from typing import BinaryIO, Iterator, NamedTuple

from beam_pipelines.errors import printable
from beam_pipelines.tfrecord.record_reader import read_up_to

_BLOCK = 512
_MAX_HEADER_BYTES = 1 << 20  # for a long name or pax records
_READ_BYTES = 1 << 20
_MAX_SIZE = 1 << 62

_FILES = (b"\0", b"0", b"7")
# Pax headers for the next member and for all members, a long name, the target of a link.
_HEADERS = (b"x", b"g", b"L", b"K")
_WITHOUT_DATA = {b"1": "a link", b"2": "a link", b"3": "a device", b"4": "a device", b"5": "a folder", b"6": "a pipe"}
FILE, FOLDER = "a file", "a folder"


class BadTarError(ValueError):
    """Raised if a tar file is corrupt or truncated.

    Attributes:
        offset: The offset in bytes from which the file cannot be read.
    """

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


class NoTarError(BadTarError):
    """Raised if a file does not start with a tar header."""


class Member(NamedTuple):
    """The header of a member.

    Attributes:
        name: The path of the member. Bytes that are not UTF-8 become lone surrogates.
        kind: `FILE`, `FOLDER`, or a description of any other kind, for messages.
        offset: The offset of the data in the file, in bytes.
        num_bytes: The length of the data, in bytes.
    """

    name: str
    kind: str
    offset: int
    num_bytes: int


class TarReader:
    """Reads a tar file sequentially from start to end.

    Args:
        file: The file, open at its start.
        is_seekable: Whether the file can be read in any order. Otherwise, data that is not needed is read too.
    """

    def __init__(self, file: BinaryIO, is_seekable: bool) -> None:
        self._file = file
        self._position = 0
        self._size = _MAX_SIZE
        self._is_seekable = is_seekable
        if is_seekable:
            self._size = file.seek(0, os.SEEK_END)
            file.seek(0)

    def read(self, member: Member, limit: int | None = None) -> bytes:
        """Reads the data of the last yielded member, or only the first `limit` bytes. Raises `BadTarError` if the data
        is truncated."""
        return self._read(member.offset, member.num_bytes if limit is None else min(member.num_bytes, limit))

    def __iter__(self) -> Iterator[Member]:
        """Yields the members in order. Raises `BadTarError` at the first member that cannot be read."""
        if not self._size:
            raise BadTarError(0, "the file is empty")
        offset = 0
        extended_fields: dict[str, str] = {}  # from extended headers, which precede the header of a member
        while True:
            header = self._read(offset, _BLOCK)
            if not any(header):  # A block of zeros marks the end. A file without this block is truncated.
                self._read_end()
                return
            member, kind = _parse_header(header, offset, extended_fields)
            if (left := self._size - offset - _BLOCK) < member.num_bytes:
                name = printable(member.name[:200])
                raise BadTarError(offset, f"{name} has {member.num_bytes} bytes, but only {left} are left in the file")
            if kind in _HEADERS:
                extended_fields |= self._read_extended_header(member, kind)
            else:
                extended_fields = {}
                yield member
            offset = member.offset + -(-member.num_bytes // _BLOCK) * _BLOCK

    def _read_extended_header(self, member: Member, kind: bytes) -> dict[str, str]:
        """Returns the fields that an extended header sets for the next member."""
        if member.num_bytes > _MAX_HEADER_BYTES:
            message = f"a header of {member.num_bytes} bytes, more than the limit of {_MAX_HEADER_BYTES}"
            raise BadTarError(member.offset - _BLOCK, message)
        if kind == b"L":
            return {"path": _text(self.read(member).rstrip(b"\0"))}
        return _parse_pax(self.read(member), member.offset) if kind == b"x" else {}

    def _read_end(self) -> None:
        while data := self._read_up_to(self._position, min(_READ_BYTES, self._size - self._position)):
            if rest := data.lstrip(b"\0"):
                message = "data follows the end of the archive, as in concatenated tar files; this data is not read"
                raise BadTarError(self._position - len(rest), message)

    def _read(self, offset: int, num_bytes: int) -> bytes:
        data = self._read_up_to(offset, num_bytes)
        if len(data) < num_bytes:
            raise BadTarError(offset, f"truncated: {len(data)} of {num_bytes} bytes are in the file")
        return data

    def _read_up_to(self, offset: int, num_bytes: int) -> bytes:
        try:
            if self._is_seekable:
                self._file.seek(offset)
            while not self._is_seekable and self._position < offset:
                if not (skipped := len(self._file.read(min(offset - self._position, _READ_BYTES)))):
                    raise EOFError(f"it is truncated at byte {self._position}")
                self._position += skipped
            data = read_up_to(self._file, num_bytes)
        except (zlib.error, EOFError) as error:
            raise BadTarError(offset, f"the compressed file is corrupt: {error}") from error
        self._position = offset + len(data)
        return data


def _parse_header(header: bytes, offset: int, extended_fields: dict[str, str]) -> tuple[Member, bytes]:
    """Parses a header. Returns the member that the header describes, and the type of the member."""
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        size = int(extended_fields["size"]) if extended_fields.get("size", "").isdecimal() else info.size
        if not 0 <= size <= _MAX_SIZE:
            raise ValueError(f"a size of {size:.3g} bytes, which is not in 0 to {_MAX_SIZE:.3g}")
    except (tarfile.HeaderError, ValueError) as error:
        if offset:
            raise BadTarError(offset, f"a corrupt header: {error}; the rest of the file is not read") from None
        raise NoTarError(offset, f"not a tar file: it does not begin with a header ({error})") from None
    # GNU headers have other data in the place where POSIX headers have the start of a long name.
    name = extended_fields.get("path") or (info.name if header[257:263] == b"ustar\0" else _text(header[:100].partition(b"\0")[0]))
    kind = info.type
    if kind in _HEADERS:
        return Member(name, "a header", offset + _BLOCK, size), kind
    if kind in _WITHOUT_DATA:
        return Member(name, _WITHOUT_DATA[kind], offset + _BLOCK, 0), kind
    is_file = kind in _FILES and not any(field.startswith("GNU.sparse.") for field in extended_fields)
    return Member(name, FILE if is_file else "a sparse file, or of an unknown type", offset + _BLOCK, size), kind


def _parse_pax(data: bytes, offset: int) -> dict[str, str]:
    """Parses the records of a pax header, which have the form `LENGTH KEY=VALUE` and end with a newline."""
    extended_fields: dict[str, str] = {}
    position = 0
    while position < len(data) and data[position]:
        digits, space, _ = data[position : position + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = data[position + len(digits) + 1 : position + length]
        key, equals, value = record.partition(b"=")
        if not equals or not record.endswith(b"\n") or position + length > len(data):
            raise BadTarError(offset - _BLOCK, "a corrupt pax header; the rest of the file is not read")
        extended_fields[_text(key)] = _text(value[:-1])
        position += length
    return extended_fields


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
