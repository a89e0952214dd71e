"""Reads the headers of NumPy's `.npy` files and `.npz` archives (numpy.org/neps/nep-0001-npy-format.html).

Arrays of Python objects are rejected, because reading a pickle can execute code.
"""

import contextlib
import functools
import math
import os
import struct
import zipfile
from typing import BinaryIO, Iterator

import numpy as np

from beam_pipelines.errors import CONTROL, UserError, printable
from beam_pipelines.images.npy_header import MAX_HEADER_BYTES, read_npy_header
from beam_pipelines.sources.arrays.array_images import split_of_file, take_split
from beam_pipelines.sources.arrays.array_streams import (
    Field,
    Records,
    Stream,
    check_inflation,
    check_num_bytes,
    open_stream,
    unpacking,
)
from beam_pipelines.sources.formats.arrays.named_arrays import NamedArray
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.files import files_at, open_file

# Zip flags for the compression level, sizes after the data, and names in UTF-8.
_HARMLESS_FLAGS = 0x80E
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def npy_array(root: Root, path: str) -> NamedArray:
    """Returns the array of a `.npy` file."""
    split, name = take_split(os.path.basename(path).removesuffix(".npy"))
    folder = os.path.dirname(path)
    return NamedArray(folder, split or split_of_file(path), name, path, functools.partial(_open_npy, root.path, path))


def npz_arrays(root: Root, path: str) -> list[NamedArray]:
    """Returns the arrays in an archive. Raises `UserError` if the file is not a zip archive, or repeats a name."""
    with open_file(f"{root.path}/{path}") as file, _opening(file, path) as archive:
        names = [info.filename for info in archive.infolist()]
    members = [name for name in names if name.endswith(".npy") and not CONTROL.search(name)]
    if len(set(members)) < len(members):
        raise UserError(f"{printable(path)}: two of its arrays have the same name. Give each array its own name.")
    arrays = []
    for member in members:
        name = member.removesuffix(".npy")
        split, base = take_split(name)
        opened = functools.partial(_open_member, root.path, path, member)
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
        dtype, num, header_bytes = read_header(file.read(MAX_HEADER_BYTES), stream.name)
    num_bytes = header_bytes + num * dtype.itemsize
    check_num_bytes(stream, num_bytes, files_at(root).size(f"{root}/{path}"))
    return Field(Records(stream, dtype, num, header_bytes, num_bytes), "value")


def _open_member(root: str, path: str, member: str) -> Field:
    name = printable(f"{path}/{member}")
    with open_file(f"{root}/{path}") as file, _opening(file, path) as archive:
        info = archive.getinfo(member)
        num_file_bytes = file.seek(0, os.SEEK_END)
        if info.flag_bits & ~_HARMLESS_FLAGS or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(
                f"{name}: encrypted, or compressed in a way that NumPy does not use. Create it again with numpy.savez."
            )
        if not 0 <= info.header_offset < num_file_bytes:
            raise UserError(
                f"{name}: corrupt: it begins at byte {info.header_offset}, but the file has {num_file_bytes} bytes. "
                "Download or create the file again."
            )
        packed = Stream(path, "zip", member)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            check_inflation(packed, info.file_size, min(info.compress_size, num_file_bytes))
            stream, start = packed, 0
            with unpacking(packed), archive.open(info) as opened:
                header = opened.read(MAX_HEADER_BYTES)
        else:
            stream, start = Stream(path), _start_of_data(file, info, name, num_file_bytes)
            file.seek(start)
            header = file.read(min(MAX_HEADER_BYTES, info.file_size))
    dtype, num, header_bytes = read_header(header, name)
    check_num_bytes(packed, header_bytes + num * dtype.itemsize, info.file_size)
    return Field(Records(stream, dtype, num, start + header_bytes, start + info.file_size), "value")


def _start_of_data(file: BinaryIO, info: zipfile.ZipInfo, name: str, num_file_bytes: int) -> int:
    """Returns the offset of the data of an uncompressed member, which follows the member's local header."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
        raise UserError(
            f"{name}: corrupt: it does not begin at byte {info.header_offset}, as the archive states. Download or create the file again."
        )
    _, num_name, num_extra = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + _LOCAL_HEADER.size + num_name + num_extra
    if info.compress_size != info.file_size or start + info.file_size > num_file_bytes:
        left = max(num_file_bytes - start, 0)
        raise UserError(f"{name}: has {left} bytes, but the archive states {info.file_size}. Download or create the file again.")
    return start


def read_header(data: bytes, name: str) -> tuple[np.dtype, int, int]:
    """Reads the header of an array.

    Args:
        data: The first bytes of a `.npy` file.
        name: The name of the array, for messages.

    Returns:
        (the dtype of a record with the field `value`, the number of records, the size of the header in bytes).

    Raises:
        UserError: The data is not an array, or the array is not supported.
    """
    try:
        base, shape, is_fortran, num_bytes = read_npy_header(data)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error
    if base.hasobject:
        raise UserError(
            f"{name}: an array of Python objects is a pickle, and pickles are never opened. Save numbers, or text with x.astype(str)."
        )
    if base.kind not in "biufUS" or (base.kind in "iuf" and base.itemsize > 8):
        raise UserError(f"{name}: an array of {base.name} is not supported. Save numbers of at most 64 bits, or text.")
    if is_fortran and len(shape) > 1:
        raise UserError(
            f"{name}: is in Fortran order, in which images are not contiguous. Save numpy.ascontiguousarray(x) instead."
        )
    if not shape or 0 in shape or not base.itemsize:
        raise UserError(f"{name}: an array of {base.name}{list(shape)}. It must have one or more values for each image.")
    if math.prod(shape[1:]) * base.itemsize > MAX_FILE_BYTES:
        raise UserError(
            f"{name}: an array of {base.name}{list(shape)}. It must have at most {MAX_FILE_BYTES} bytes for each image."
        )
    return np.dtype([("value", base, shape[1:])]), shape[0], num_bytes
