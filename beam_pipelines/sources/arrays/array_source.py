"""The base class of sources that list the examples, with or without images, in arrays."""

import abc
import functools
import os
import re
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, ArrayPart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.arrays.array_columns import ArrayColumns, raw_layout
from beam_pipelines.sources.arrays.array_streams import Field, Records, Stream, read_rows, unpack
from beam_pipelines.sources.files.file_listing import FileListing, name_first
from beam_pipelines.sources.files.paths import is_utf8, nfc
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, is_remote

# The limits for a part of uncompressed records.
_PART_RECORDS = 1 << 20
_PART_BYTES = 1 << 30


class ImageSet(NamedTuple):
    """A set of examples that have no images, or whose images are stored in one array.

    Attributes:
        name: The prefix of the keys.
        split: The split that the name contains; None if it does not contain a split.
        images: The field with the pixels. If there are no images, any of the columns.
        raw: The layout of the pixels; None if there are no images.
        columns: Name -> a function that opens that column.
    """

    name: str
    split: str | None
    images: Field
    raw: RawImage | None
    columns: Mapping[str, Callable[[], Field]]


class ArraySource(Source):
    """Lists the sets of examples that a subclass finds in files.

    The constructor of a subclass sets `_containers`, the paths of the files that are read together, and `_columns`.
    """

    _containers: Sequence[Sequence[str]]
    _columns: ArrayColumns

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory)
        self._find_files(options)
        self.root = self._root.path

    def _find_files(self, options: PrepareOptions) -> None:
        """Finds the files below an input folder, or in the folder of an input file. Raises `UserError` if there are none."""
        path = options.input.rstrip("/") if is_remote(options.input) else os.path.realpath(options.input)
        self._only, self._dead_letters, self._num_ignored = "", [], 0  # `_only` is the name of an input file
        if files_at(path).exists(path):
            folder, _, self._only = path.rpartition("/")
            self._root = Root(folder or "/", options.follow_links)
            self._paths = sorted({self._only, *FileListing(self._root, options.ignore).top_level()[1]})
            return
        self._root = Root(path, options.follow_links)
        listing = FileListing(self._root, options.ignore)
        files = list(listing.walk())
        self._paths = sorted(file.path for file in files if not isinstance(file, DeadLetter))
        self._dead_letters = sorted(file for file in files if isinstance(file, DeadLetter))
        self._num_ignored = listing.num_ignored
        if not self._paths:
            raise UserError(
                f"--input={options.input}: contains no file{name_first(self._dead_letters)}. Name a folder with files of arrays."
            )

    @abc.abstractmethod
    def _find_sets(self, paths: Sequence[str]) -> Sequence[ImageSet]:
        """Returns the sets of examples in the files of a container. Raises `UserError` if there are none."""

    def _count_ignored(self) -> int:
        """Returns the number of files that are not read."""
        return self._num_ignored

    def parts(self) -> list[str]:
        """Returns `CONTAINER:SET:START:STOP` strings. A set of compressed images, or of records whose number is unknown, is
        a single part with START and STOP 0."""
        parts = []
        for container, paths in enumerate(self._containers):
            for position, images in enumerate(self._find_sets(paths)):
                records = images.images.records
                num, step = records.num, max(min(_PART_RECORDS, _PART_BYTES // records.dtype.itemsize), 1)
                is_whole = not num or any(field.records.stream.packing for field in self._pointed_at(images))
                bounds = [(0, 0)] if is_whole else ((start, min(start + step, num)) for start in range(0, num, step))
                parts += [f"{container}:{position}:{start}:{stop}" for start, stop in bounds]
        return parts

    def _unpack(self, images: ImageSet) -> tuple[ImageSet, Mapping[Stream, int]]:
        """Decompresses the images and large arrays of a set into temporary files if there is a spool directory. Returns
        the set, and a mapping from each compressed stream to the id of its temporary file."""
        if self._spool_directory is None:
            return images, {}
        sizes = {field.records.stream: field.records.num_bytes for field in self._pointed_at(images)}
        packed = [stream for stream in sizes if stream.packing]
        return images, {stream: unpack(self.root, stream, self._spool_directory, sizes[stream])[0] for stream in packed}

    def _pointed_at(self, images: ImageSet) -> list[Field]:
        """Returns the fields whose locations are listed instead of their values: images and large arrays."""
        parts = self._open_columns(images, self._columns.mapper.part_names).values()
        return [*parts] if images.raw is None else [images.images, *parts]

    def _list_images(
        self, images: ImageSet, spools: Mapping[Stream, int], start: int, stop: int
    ) -> Iterator[InputRecord | DeadLetter]:
        """Yields the examples from `start` to `stop`, with the values of all columns. The memory use is constant."""
        fields = self._open_columns(images, self._columns.mapper.value_names)
        parts = self._open_columns(images, self._columns.mapper.part_names)
        records, raw = images.images.records, images.raw
        image = InputRecord("", records.stream.path, "", images.split, offset=NO_IMAGE)
        if raw is not None:
            image = image._replace(num_bytes=raw.num_bytes, raw=raw, spool=spools.get(records.stream, 0))
        bounds = range(start, stop or records.num)
        # With the rows first, zip() reaches the check after the last row.
        for row, index in zip(read_rows(self.root, fields, bounds), bounds):
            name = f"{images.name}#{index:06d}"
            row |= {part: _locate(field, index, spools) for part, field in parts.items()}
            offset = NO_IMAGE if raw is None else images.images.offset(index)
            try:
                yield self._columns.mapper.read(row, image._replace(key=nfc(name), offset=offset))
            except InvalidInput as error:
                yield DeadLetter.of(printable(name), error)

    def _open_columns(self, images: ImageSet, names: Iterable[str]) -> dict[str, Field]:
        """Opens columns of a set. Raises `UserError` if a column is missing, has another type than in the first set, or
        does not have one value for each example."""
        fields = {}
        for name in names:
            if name not in images.columns:
                raise UserError(
                    f"{printable(images.name)}: has no {printable(name)!r}, unlike the first images. Add it, or exclude the "
                    "file with --ignore."
                )
            fields[name] = field = images.columns[name]()
            self._columns.check(name, field)
            if (num := field.records.num) != images.images.records.num:
                each = f"{images.images.records.num} examples in {images.images.records.stream.name}"
                raise UserError(
                    f"{field.records.stream.name}: has {num} values of {printable(name)!r}, but there are {each}. Provide one for each."
                )
        return fields

    def _choose_split(self, path: str, split: str | None) -> str | None:
        """Returns the split that a name indicates, unless an option disables splits by name. Raises `UserError` if the
        option requires a split, but there is none."""
        if self._options.split_folders and split is None:
            raise UserError(
                f"--split_folders=yes: {printable(path)} is not named like a split. Its name must contain train, validation or test."
            )
        return None if self._options.split_folders is False else split

    def _check_inside(self, path: str) -> str:
        """Returns a file's path relative to the root. Raises `UserError` if the path is outside the root, or not UTF-8."""
        if not is_utf8(path):
            raise UserError(f"{printable(path)}: the file name is not valid UTF-8. Rename the file.")
        try:
            return self._root.relative(path)
        except OutsideError as error:
            raise UserError(str(error)) from None

    def label_names(self) -> dict[str, tuple[str, ...]]:
        return self._columns.mapper.label_names

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        container, position, start, stop = map(int, part.split(":"))
        if container == position == start == 0:
            self.num_ignored = self._count_ignored()
            yield from self._dead_letters
        images = self._find_sets(self._containers[container])[position]
        self.unused_fields.add(images.columns.keys() - {*self._columns.mapper.value_names, *self._columns.mapper.part_names})
        yield from self._list_images(*self._unpack(images), start, stop)


def divide_records(
    stream: Stream, dtype: np.dtype, num_bytes: int, advice: str, header_bytes: int = 0, footer_bytes: int = 0
) -> Records:
    """Returns the fixed-length records in a stream of `num_bytes` bytes. Raises `UserError` with advice if this size
    does not fit the record."""
    num, remainder = divmod(num_bytes - header_bytes - footer_bytes, dtype.itemsize)
    if num < 1 or remainder:
        raise UserError(
            f"{stream.name}: {num_bytes} bytes; it must have a header of {header_bytes} bytes, one or more records of "
            f"{dtype.itemsize} bytes each and a footer of {footer_bytes} bytes. {advice}"
        )
    return Records(stream, dtype, num, header_bytes, num_bytes)


def record_set(name: str, split: str | None, records: Records, image: str | None) -> ImageSet:
    """Returns the examples in `records` as a set. `image` is the field with the images, or None."""
    columns = {field: functools.partial(Field, records, field) for field in records.dtype.names if field != image}
    lead = Field(records, image or records.dtype.names[0])
    return ImageSet(name, split, lead, raw_layout(lead) if image else None, columns)


def _locate(field: Field, index: int, spools: Mapping[Stream, int]) -> ArrayPart:
    stream = field.records.stream
    return ArrayPart(stream.path, field.offset(index), field.num_bytes, field.dtype.str, field.shape, spools.get(stream, 0))


_SPLIT = "|".join(SPLIT_FOLDERS)
_SPLIT_FIRST = re.compile(rf"(?P<split>{_SPLIT})(?![a-z])[-_. ]*(?P<name>.*)", re.IGNORECASE)
_SPLIT_LAST = re.compile(rf"(?P<name>.+)[-_. ](?P<split>{_SPLIT})", re.IGNORECASE)


def take_split(name: str) -> tuple[str | None, str]:
    """Separates the name of an array into a split, or None, and the remaining name: `x_train` becomes (`train`, `x`)."""
    match = _SPLIT_FIRST.fullmatch(name) or _SPLIT_LAST.fullmatch(name)
    return (SPLIT_FOLDERS[match["split"].lower()], match["name"]) if match else (None, name)


def split_of_file(path: str) -> str | None:
    """Returns the split in the name of a file, or else in the path of its folder. Returns None if there is no split."""
    *folders, name = path.split("/")
    named = take_split(name.partition(".")[0])[0]
    return named or next((SPLIT_FOLDERS[folder.lower()] for folder in reversed(folders) if folder.lower() in SPLIT_FOLDERS), None)
