"""Reads the headers of NumPy's `.npy` files and `.npz` archives (numpy.org/neps/nep-0001-npy-format.html).

Arrays of Python objects are rejected, because reading a pickle can execute code.
"""

import contextlib
import functools
import os
import struct
import zipfile
from typing import BinaryIO, Iterator

from beam_pipelines.errors import CONTROL, UserError, printable
from beam_pipelines.images.npy_header import MAX_HEADER_BYTES, read_npy_header
from beam_pipelines.sources.arrays.array_source import split_of_file, take_split
from beam_pipelines.sources.arrays.array_streams import Field, Stream, make_field, open_stream, unpacking
from beam_pipelines.sources.formats.arrays.named_arrays import NamedArray
from beam_pipelines.storage.files import files_at, open_file

# Zip flags for the compression level, sizes after the data, and names in UTF-8.
_HARMLESS_FLAGS = 0x80E
_LOCAL_HEADER_BYTES = 30  # The last four bytes are the lengths of the name and of the extra field, which follow.


def npy_array(root: str, path: str) -> NamedArray:
    """Returns the array of a `.npy` file."""
    split, name = take_split(os.path.basename(path).removesuffix(".npy"))
    opened = functools.partial(_open_npy, root, path)
    return NamedArray(os.path.dirname(path), split or split_of_file(path), name, path, opened)


def npz_arrays(root: str, path: str) -> list[NamedArray]:
    """Returns the arrays in an archive. Raises `UserError` if the file is not a zip archive, or repeats a name."""
    with open_file(f"{root}/{path}") as file, _opening(file, path) as archive:
        names = [info.filename for info in archive.infolist()]
    members = [name for name in names if name.endswith(".npy") and not CONTROL.search(name)]
    if len(set(members)) < len(members):
        raise UserError(f"{printable(path)}: two of its arrays have the same name. Give each array its own name.")
    arrays = []
    for member in members:
        name = member.removesuffix(".npy")
        split, base = take_split(name)
        opened = functools.partial(_open_member, root, path, member)
        arrays.append(NamedArray(path, split or split_of_file(path), base, f"{path}/{name}", opened))
    return arrays


@contextlib.contextmanager
def _opening(file: BinaryIO, path: str) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        raise UserError(
            f"{printable(path)}: not an .npz archive ({printable(str(error))}). Create it again with numpy.savez."
        ) from error
    with archive:
        yield archive


def _open_npy(root: str, path: str) -> Field:
    stream = Stream(path)
    with open_stream(root, stream) as file:
        header = file.read(MAX_HEADER_BYTES)
    return _make_field(header, stream, files_at(root).size(f"{root}/{path}"), stream.name)


def _open_member(root: str, path: str, member: str) -> Field:
    packed = Stream(path, "zip", member)
    with open_file(f"{root}/{path}") as file, _opening(file, path) as archive:
        info = archive.getinfo(member)
        if info.flag_bits & ~_HARMLESS_FLAGS or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(
                f"{packed.name}: encrypted, or compressed in a way that NumPy does not use. Create it again with numpy.savez."
            )
        num_file_bytes = file.seek(0, os.SEEK_END)
        with unpacking(packed):
            if not 0 <= info.header_offset < num_file_bytes:
                raise zipfile.BadZipFile(f"begins at byte {info.header_offset} of {num_file_bytes}")
            with archive.open(info) as opened:
                header = opened.read(MAX_HEADER_BYTES)
        num_packed = min(info.compress_size, num_file_bytes)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            return _make_field(header, packed, info.file_size, packed.name, num_packed=num_packed)
        file.seek(info.header_offset + _LOCAL_HEADER_BYTES - 4)
        start = info.header_offset + _LOCAL_HEADER_BYTES + sum(struct.unpack("<HH", file.read(4)))
        num_bytes = min(info.file_size, num_packed, num_file_bytes - start)
        return _make_field(header, Stream(path), num_bytes, packed.name, start=start)


def _make_field(header: bytes, stream: Stream, num_bytes: int, name: str, **options: int) -> Field:
    """Returns the field of an array from the first bytes of a `.npy` file. See `make_field` for the other arguments."""
    try:
        dtype, shape, is_fortran, header_bytes = read_npy_header(header)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error
    if dtype.hasobject:
        raise UserError(
            f"{name}: an array of Python objects is a pickle, and pickles are never opened. Save numbers, or text with x.astype(str)."
        )
    if dtype.kind not in "biufUS" or (dtype.kind in "iuf" and dtype.itemsize > 8):
        raise UserError(f"{name}: an array of {dtype.name} is not supported. Save numbers of at most 64 bits, or text.")
    if is_fortran and len(shape) > 1:
        raise UserError(f"{name}: is in Fortran order, in which images are not contiguous. Save numpy.ascontiguousarray(x) instead.")
    return make_field(stream, dtype, shape, header_bytes, num_bytes, name=name, **options)
