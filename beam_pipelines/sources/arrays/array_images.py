"""Images that are a field of records, or records without one, and their listing."""

import math
import os
import re
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.labeled_image import NO_IMAGE, ArrayPart, LabeledImage
from beam_pipelines.errors import Refusal, UserError, printable
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.arrays.array_columns import ArrayColumns
from beam_pipelines.sources.arrays.array_streams import Field, Stream, read_rows, unpack
from beam_pipelines.sources.folders.file_listing import FileListing, is_utf8, name_first
from beam_pipelines.sources.folders.image_folder import nfc
from beam_pipelines.sources.folders.roots import OutsideError, Root
from beam_pipelines.sources.splits import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at, is_remote

# What one worker lists at a time, of records that can be divided: so many, and so many bytes of them.
_PART_RECORDS = 1 << 20
_PART_BYTES = 1 << 30


class ImageSet(NamedTuple):
    """Images of one size, and what belongs to them; or examples without images.

    Attributes:
        name: The name that the keys of the images begin with.
        split: The split that a name puts them in; None: none does.
        images: The field with the pixels; without images, any of their columns.
        raw: The layout of the pixels; None where there are no images.
        columns: Name -> what opens that column.
    """

    name: str
    split: str | None
    images: Field
    raw: RawImage | None
    columns: Mapping[str, Callable[[], Field]]


def list_images(
    root: Root, images: ImageSet, columns: ArrayColumns, bounds: range, spools: Mapping[Stream, int]
) -> Iterator[LabeledImage | DeadLetter]:
    """The images at some positions, as they are read: memory does not depend on their number.

    Args:
        spools: Where the whole streams of the images and of arrays beside them were unpacked to; without those that are not packed.

    Raises:
        UserError: A column has another length than the images have, or another type than in the first set.
    """
    fields = {name: _open_column(images, columns, name) for name in columns.names}
    parts = {name: _open_column(images, columns, name) for name in columns.part_names}
    records, raw = images.images.records, images.raw
    image = LabeledImage("", records.stream.path, "", images.split, offset=NO_IMAGE)
    if raw is not None:
        image = image._replace(num_bytes=raw.num_bytes, raw=raw, spool=spools.get(records.stream, 0))
    for row, index in zip(
        read_rows(root.path, fields, bounds.start, bounds.stop), bounds
    ):  # the rows first: they end with a check
        name = f"{images.name}#{index:06d}"
        row |= {part: _point(field, index, spools) for part, field in parts.items()}
        try:
            yield columns.read(row, image._replace(key=nfc(name), offset=NO_IMAGE if raw is None else _offset(images.images, index)))
        except Refusal as error:
            yield DeadLetter.of(printable(name), error)


def _offset(field: Field, index: int) -> int:
    """Where the value of one record begins."""
    records = field.records
    return records.offset + field.offset + index * records.dtype.itemsize


def _point(field: Field, index: int, spools: Mapping[Stream, int]) -> ArrayPart:
    stream, dtype = field.records.stream, field.dtype
    num_bytes = math.prod(field.shape) * dtype.itemsize
    return ArrayPart(stream.path, _offset(field, index), num_bytes, dtype.str, field.shape, spools.get(stream, 0))


def _open_column(images: ImageSet, columns: ArrayColumns, name: str) -> Field:
    if name not in images.columns:
        raise UserError(f"{printable(images.name)}: there is no {printable(name)!r} for it; expected one, as for the first images")
    field = images.columns[name]()
    columns.check(name, field)
    num, records = field.records.num, images.images.records
    if num != records.num:
        expected = f"{records.num}, one for each {'example' if images.raw is None else 'image'} in {records.stream.name}"
        raise UserError(f"{field.records.stream.name}: {num} of {printable(name)!r}; expected {expected}")
    return field


def pointed_at(images: ImageSet, columns: ArrayColumns) -> list[Field]:
    """The images, if there are any, and the arrays beside them."""
    return [*([] if images.raw is None else [images.images]), *(_open_column(images, columns, name) for name in columns.part_names)]


def spool_packed(root: Root, fields: Iterable[Field], spool_directory: str | None) -> dict[Stream, int]:
    """The spools to which streams that are compressed were unpacked; none where nobody will read them."""
    packed = {field.records.stream: field.records.num_bytes for field in fields if field.records.stream.packing}
    if spool_directory is None:
        return {}
    return {stream: unpack(root.path, stream, spool_directory, num_bytes)[0] for stream, num_bytes in packed.items()}


def ranges(num: int, record_bytes: int) -> Iterator[tuple[int, int]]:
    """Where the parts of uncompressed records begin and end."""
    step = max(min(_PART_RECORDS, _PART_BYTES // record_bytes), 1)
    yield from ((start, min(start + step, num)) for start in range(0, num, step))


class InputFiles(NamedTuple):
    """The files of an input.

    Attributes:
        root: The folder, or the one in which the input lies.
        paths: The paths relative to the root, in ascending order.
        only: The input's own name, if it is a file; the others lie beside it.
        dead_letters: The dead letters of what is no file below the root.
        num_ignored: The number of files that were ignored.
    """

    root: Root
    paths: list[str]
    only: str
    dead_letters: list[DeadLetter]
    num_ignored: int


def find_array_files(path: str, ignore: tuple[str, ...], follow_links: bool = False) -> InputFiles:
    """The files of an input that is a folder with others below it, or a file.

    Raises:
        UserError: There is no such input.
    """
    place = path.rstrip("/") if is_remote(path) else os.path.realpath(path)
    if files_at(place).exists(place):
        folder, _, only = place.rpartition("/")
        root = Root(folder or "/", follow_links)
        beside = FileListing(root, ignore).top_level()[1]
        return InputFiles(root, sorted({only, *beside}), only, [], 0)
    root = Root(place, follow_links)
    listing = FileListing(root, ignore)
    paths, dead_letters = [], []
    for found in listing.walk():
        if isinstance(found, DeadLetter):
            dead_letters.append(found)
        else:
            paths.append(found.path)
    if not paths:
        raise UserError(f"--input={path}: no file in it{name_first(dead_letters)}; expected one or more")
    return InputFiles(root, sorted(paths), "", sorted(dead_letters), listing.num_ignored)


def check_inside(root: Root, path: str) -> str:
    """A file's path, if it is below the root and text.

    Raises:
        UserError: It is not.
    """
    try:
        if not is_utf8(path):
            raise OutsideError(f"{printable(path)}: the file's name is not UTF-8")
        return root.relative(path)
    except OutsideError as error:
        raise UserError(str(error)) from None


_SPLIT = "|".join(SPLIT_FOLDERS)
_SPLIT_FIRST = re.compile(rf"({_SPLIT})(?![a-z])[-_. ]*(.*)", re.IGNORECASE)
_SPLIT_LAST = re.compile(rf"(.+)[-_. ]({_SPLIT})", re.IGNORECASE)


def take_split(name: str) -> tuple[str | None, str]:
    """(the split that a name begins or ends with, what is left of the name): `x_train` is `x` of the split `train`."""
    if match := _SPLIT_FIRST.fullmatch(name):
        return SPLIT_FOLDERS[match[1].lower()], match[2]
    if match := _SPLIT_LAST.fullmatch(name):
        return SPLIT_FOLDERS[match[2].lower()], match[1]
    return None, name


def split_of_file(path: str) -> str | None:
    """The split that a file is named after, or else the folder in which it lies."""
    *folders, name = path.split("/")
    named = take_split(name.partition(".")[0])[0]
    return named or next(
        (SPLIT_FOLDERS[folder.lower()] for folder in reversed(folders) if folder.lower() in SPLIT_FOLDERS), None
    )
