"""Lists the examples, with or without images, in arrays."""

import math
import os
import re
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, ArrayPart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.arrays.array_columns import ArrayColumns
from beam_pipelines.sources.arrays.array_streams import Field, Stream, read_rows, unpack
from beam_pipelines.sources.files.file_listing import FileListing, is_utf8, name_first
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at, is_remote

# The limits for a part of uncompressed records.
_PART_RECORDS = 1 << 20
_PART_BYTES = 1 << 30


class ImageSet(NamedTuple):
    """A set of examples that have no images, or whose images are stored in one array.

    Attributes:
        name: The prefix of the keys.
        split: The split that the name contains; None if it does not contain a split.
        images: The field with the pixels; without images, any of the columns.
        raw: The layout of the pixels; None without images.
        columns: Name -> a function that opens that column.
    """

    name: str
    split: str | None
    images: Field
    raw: RawImage | None
    columns: Mapping[str, Callable[[], Field]]


def list_images(
    root: Root, images: ImageSet, columns: ArrayColumns, bounds: range, spools: Mapping[Stream, int]
) -> Iterator[InputRecord | DeadLetter]:
    """Yields the examples at the given indices, with the values of all columns. The memory use is constant.

    Args:
        root: The root of the source.
        images: The set of examples.
        columns: The columns to read.
        bounds: The indices of the examples.
        spools: Compressed stream -> the spool with its decompressed bytes.

    Raises:
        UserError: The number of values in a column differs from the number of examples, or the type of a column
            differs from its type in the first set.
    """
    fields = {name: _open_column(images, columns, name) for name in columns.names}
    parts = {name: _open_column(images, columns, name) for name in columns.part_names}
    records, raw = images.images.records, images.raw
    image = InputRecord("", records.stream.path, "", images.split, offset=NO_IMAGE)
    if raw is not None:
        image = image._replace(num_bytes=raw.num_bytes, raw=raw, spool=spools.get(records.stream, 0))
    # With the rows first, zip() reaches the check after the last row.
    for row, index in zip(read_rows(root.path, fields, bounds.start, bounds.stop), bounds):
        name = f"{images.name}#{index:06d}"
        row |= {part: _point(field, index, spools) for part, field in parts.items()}
        try:
            yield columns.mapper.read(row, image._replace(key=nfc(name), offset=NO_IMAGE if raw is None else _offset(images.images, index)))
        except InvalidInput as error:
            yield DeadLetter.of(printable(name), error)


def _offset(field: Field, index: int) -> int:
    """Returns the offset of a value in its stream, in bytes, given the index of the record."""
    records = field.records
    return records.offset + field.offset + index * records.dtype.itemsize


def _point(field: Field, index: int, spools: Mapping[Stream, int]) -> ArrayPart:
    stream, dtype = field.records.stream, field.dtype
    num_bytes = math.prod(field.shape) * dtype.itemsize
    return ArrayPart(stream.path, _offset(field, index), num_bytes, dtype.str, field.shape, spools.get(stream, 0))


def _open_column(images: ImageSet, columns: ArrayColumns, name: str) -> Field:
    if name not in images.columns:
        raise UserError(
            f"{printable(images.name)}: has no {printable(name)!r}, unlike the first images. Add it, or exclude the file with --ignore."
        )
    field = images.columns[name]()
    columns.check(name, field)
    num, records = field.records.num, images.images.records
    if num != records.num:
        each = f"{records.num} {'examples' if images.raw is None else 'images'} in {records.stream.name}"
        raise UserError(
            f"{field.records.stream.name}: has {num} values of {printable(name)!r}, but there are {each}. Provide one for each."
        )
    return field


def pointed_at(images: ImageSet, columns: ArrayColumns) -> list[Field]:
    """Returns the fields whose locations are listed instead of their values: images and large arrays."""
    return [*([] if images.raw is None else [images.images]), *(_open_column(images, columns, name) for name in columns.part_names)]


def spool_packed(root: Root, fields: Iterable[Field], spool_directory: str | None) -> dict[Stream, int]:
    """Decompresses the compressed streams of fields into temporary files, and returns stream -> spool. Returns {} without
    a spool directory."""
    packed = {field.records.stream: field.records.num_bytes for field in fields if field.records.stream.packing}
    if spool_directory is None:
        return {}
    return {stream: unpack(root.path, stream, spool_directory, num_bytes)[0] for stream, num_bytes in packed.items()}


def ranges(num: int, record_bytes: int) -> Iterator[tuple[int, int]]:
    """Divides records into ranges that are listed independently, and yields the start and stop index of each range."""
    step = max(min(_PART_RECORDS, _PART_BYTES // record_bytes), 1)
    yield from ((start, min(start + step, num)) for start in range(0, num, step))


class InputFiles(NamedTuple):
    """The files of an input.

    Attributes:
        root: The input folder, or the folder of the input file.
        paths: The paths relative to the root, in ascending order.
        only: The name of the input if it is a file; otherwise empty. For a file, `paths` has all files in its folder.
        dead_letters: The dead letters of invalid files and folders.
        num_ignored: The number of ignored files.
    """

    root: Root
    paths: list[str]
    only: str
    dead_letters: list[DeadLetter]
    num_ignored: int


def find_array_files(path: str, ignore: tuple[str, ...], follow_links: bool = False) -> InputFiles:
    """Returns the files below an input folder, or the files in the folder of an input file. Raises `UserError` if the
    input does not exist, or has no files."""
    resolved_path = path.rstrip("/") if is_remote(path) else os.path.realpath(path)
    if files_at(resolved_path).exists(resolved_path):
        folder, _, only = resolved_path.rpartition("/")
        root = Root(folder or "/", follow_links)
        neighbors = FileListing(root, ignore).top_level()[1]
        return InputFiles(root, sorted({only, *neighbors}), only, [], 0)
    root = Root(resolved_path, follow_links)
    listing = FileListing(root, ignore)
    paths, dead_letters = [], []
    for listed_file in listing.walk():
        if isinstance(listed_file, DeadLetter):
            dead_letters.append(listed_file)
        else:
            paths.append(listed_file.path)
    if not paths:
        raise UserError(f"--input={path}: contains no file{name_first(dead_letters)}. Name a folder with files of arrays.")
    return InputFiles(root, sorted(paths), "", sorted(dead_letters), listing.num_ignored)


def check_inside(root: Root, path: str) -> str:
    """Returns a file's path relative to the root. Raises `UserError` if the path is outside the root, or not UTF-8."""
    try:
        if not is_utf8(path):
            raise OutsideError(f"{printable(path)}: the file name is not valid UTF-8. Rename the file.")
        return root.relative(path)
    except OutsideError as error:
        raise UserError(str(error)) from None


_SPLIT = "|".join(SPLIT_FOLDERS)
_SPLIT_FIRST = re.compile(rf"({_SPLIT})(?![a-z])[-_. ]*(.*)", re.IGNORECASE)
_SPLIT_LAST = re.compile(rf"(.+)[-_. ]({_SPLIT})", re.IGNORECASE)


def take_split(name: str) -> tuple[str | None, str]:
    """Separates the name of an array into a split, or None, and the remaining name: `x_train` becomes (`train`, `x`)."""
    if match := _SPLIT_FIRST.fullmatch(name):
        return SPLIT_FOLDERS[match[1].lower()], match[2]
    if match := _SPLIT_LAST.fullmatch(name):
        return SPLIT_FOLDERS[match[2].lower()], match[1]
    return None, name


def split_of_file(path: str) -> str | None:
    """Returns the split that the name of a file, or else the name of a folder above it, indicates, or None."""
    *folders, name = path.split("/")
    named = take_split(name.partition(".")[0])[0]
    return named or next((SPLIT_FOLDERS[folder.lower()] for folder in reversed(folders) if folder.lower() in SPLIT_FOLDERS), None)
