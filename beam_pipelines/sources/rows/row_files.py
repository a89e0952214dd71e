"""Defines the base class of sources whose files contain rows: tables or lists of images. Paths in a file are relative to
its folder."""

import abc
import contextlib
import dataclasses
import functools
import os
import re
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple

from beam_pipelines.columns.column import Column
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.values import NAME_PATTERN
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.cells.array_cells import find_array_shapes, resolve_by_cell
from beam_pipelines.sources.cells.cells import in_column, read_image_path
from beam_pipelines.sources.files.embedded_images import Embedded
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.paths import is_image_name, join, matches, nfc
from beam_pipelines.sources.files.layouts import CHOOSE_SPLIT_FOLDERS, given_already, no_split_folders
from beam_pipelines.sources.files.patterns import InputNames, split_input
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.searched_root import SearchedRoot
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at

_SHARD = re.compile(r"-\d+(?:-of-\d+)?$")  # the end of a name such as train-00000-of-00002
_SUFFIXES = tuple(suffix for suffix in IMAGE_EXTENSIONS if suffix != ".npy")

# The number of a row in its file, and its cells by column name, or an error.
Row = tuple[int, Mapping[str, Any] | InvalidInput]


class TableFile(NamedTuple):
    """One file of rows.

    Attributes:
        path: The path or URL of the file.
        name: The path of the file relative to the input's folder, for messages and parts.
        format: The format, one of the values of `formats`.
        folder: The folder, relative to the root, to which paths in the rows are relative. Empty, or with a trailing "/".
        split: The split of all rows; None if unknown.
    """

    path: str
    name: str
    format: str
    folder: str
    split: str | None


class RowFiles(Source):
    """Lists inputs from files in which each row describes one input. Each file is a part.

    A subclass calls `_open_columns` at the end of its constructor.

    Args:
        options: The options of the source.
        spool_directory: See `open_source`.
        formats: Extension -> format. The extension "" stands for all other extensions. Files with other extensions are
            read only if the input names them.
        metadata: The names of files to read instead of all other files, if they exist.
    """

    _image: str | None = None  # the column with the path of the image

    def __init__(
        self, options: PrepareOptions, spool_directory: str | None, formats: Mapping[str, str], metadata: tuple[str, ...] = ()
    ) -> None:
        super().__init__(options, spool_directory)
        self._source = options.source
        folder, files = _find_files(options, formats, metadata)
        self._files, self._first = {file.name: file for file in files}, files[0]
        self.root, self._searched_root = Root(options.source.image_root or folder).path, None
        folders, is_deep = options.source.image_folders, options.source.search_images
        if is_deep or folders:
            self._searched_root = SearchedRoot(self.root, options.follow_links, folders, options.ignore, is_deep)

    @abc.abstractmethod
    def _rows(self, file: TableFile) -> Iterator[Row]:
        """Yields the rows of a file."""

    def _first_row(self, columns: tuple[str, ...]) -> Mapping[str, Any]:
        """Returns the given columns of the first valid row, or an empty row if there is none."""
        with contextlib.closing(self._rows(self._first)) as rows:
            return next((row for _, row in rows if not isinstance(row, InvalidInput)), {})

    def _open_columns(self, labels: tuple[Column, ...], features: tuple[Column, ...], **options: Any) -> None:
        """Determines unknown shapes of columns from the first row and sets the features of the source.

        Args:
            labels: The columns that a model predicts.
            features: The other columns to keep.
            options: Further arguments of `RowMapper`.
        """
        root = self._root_of(self._first)
        resolve: Callable[[Column], Column] = lambda column: resolve_by_cell(self._first_row(column.names), root, column)
        resolved = [find_array_shapes(columns, resolve) for columns in (labels, features)]
        suffix, given = self._find_suffix(self._image, root) if self._image is not None else "", self._source.image_suffix
        if given and suffix not in ("", given):
            problem = f"the first image of {printable(self._first.name)} is a file with {suffix}, not with {printable(given)}"
            raise UserError(f"--image_suffix={printable(given)}: {problem}. Pass --image_suffix={suffix}, or omit the option.")
        if suffix and not given:
            self.resolved = self._source = dataclasses.replace(self._source, image_suffix=suffix)
            message = f"the names in {printable(self._image)!r} have no extension, and the first image is a file with {suffix}"
            message += f" (--image_suffix={suffix})"
            self.detected = f"{self.detected} {message}." if self.detected else message
        self._make_mapper = functools.partial(RowMapper, *resolved, self._source, **options)
        self._mapper = self._make_mapper(root)
        self.features, self.targets = self._mapper.features, self._mapper.targets

    def _find_suffix(self, column: str, root: Root) -> str:
        """Returns the extension that the first image name lacks, or "" if none or several extensions lead to a file."""
        cell = self._first_row((column,)).get(column)
        if not isinstance(cell, (str, int)) or is_image_name(str(cell)):
            return ""
        found = []
        for suffix in dict.fromkeys(("", self._source.image_suffix, *_SUFFIXES)):
            with contextlib.suppress(InvalidInput):
                path = f"{root.path}/{read_image_path(cell, root, suffix)}"
                found += [suffix] if files_at(path).exists(path) else []
        return found[0] if len(found) == 1 else ""

    def parts(self) -> list[str]:
        return [*self._files]

    def label_names(self) -> Mapping[str, Collection[str]]:
        return self._mapper.label_names

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        file = self._files[part]
        return self._read_rows(file, self._rows(file))

    def _read_rows(self, file: TableFile, rows: Iterable[Row]) -> Iterator[InputRecord | Embedded | DeadLetter]:
        """Yields the inputs and dead letters for the rows of one file."""
        root = self._root_of(file)
        mapper = self._make_mapper(root)
        for number, row in rows:
            try:
                if isinstance(row, InvalidInput):
                    raise row
                image = self._read_row(file, root, mapper, number, mapper.fill(row))
            except InvalidInput as error:
                yield DeadLetter.of(f"{printable(file.name)}:{number}", error)
                continue
            if isinstance(image, InputRecord) and self._is_ignored(image):
                self.num_ignored += 1
            else:
                yield image

    def _read_row(
        self, file: TableFile, root: Root, mapper: RowMapper, number: int, row: Mapping[str, Any]
    ) -> InputRecord | Embedded:
        """Converts a row to an input. Raises `InvalidInput` if a cell is invalid for its column. The other cells of an
        ignored image are not read."""
        if self._image is None:
            return mapper.read(row, InputRecord(nfc(f"{file.name}:{number}"), file.name, "", file.split, offset=NO_IMAGE))
        cell = self._image_path(row.get(self._image))
        path = in_column(self._image, read_image_path, cell, root, self._source.image_suffix)
        record = InputRecord(nfc(path), path, "", file.split)
        return record if self._is_ignored(record) else mapper.read(row, record)

    def _image_path(self, cell: Any) -> Any:
        """Returns the path in a cell of the image column. Keys and other values are read from the whole cell."""
        return cell

    def _is_ignored(self, image: InputRecord) -> bool:
        """Returns whether the path of an image matches `--ignore`."""
        return bool(self._options.ignore) and image.offset != NO_IMAGE and matches(image.path, self._options.ignore)

    def _root_of(self, file: TableFile) -> Root:
        if self._searched_root is not None:
            return self._searched_root
        return Root(self.root, self._options.follow_links, "" if self._source.image_root else file.folder)


def format_of(name: str, formats: Mapping[str, str]) -> str | None:
    """Returns the table format for a file's extension, ignoring `.gz`, or None for unknown extensions."""
    return formats.get(os.path.splitext(name.lower().removesuffix(".gz"))[1])


def _find_files(options: PrepareOptions, formats: Mapping[str, str], metadata: tuple[str, ...]) -> tuple[str, list[TableFile]]:
    """Returns the folder of the files in an input, and these files sorted by name. See `RowFiles` for the arguments.

    Raises:
        UserError: There are no files, or it is unclear which files to read.
    """
    path, wanted, other = options.input.rstrip("/") or "/", split_input(options.input), formats.get("", "")
    extensions = ", ".join(extension for extension in formats if extension)
    if files_at(path).exists(path):
        folder, _, name = path.rpartition("/")
        if not (kind := format_of(name, formats) or other):
            advice = f"Name a file that ends in {extensions}, or a folder of such files"
            raise UserError(f"--input={options.input}: is not a table. {advice}.")
        if options.split_folders:
            raise no_split_folders(options.input, "is one table")
        return folder or ("/" if path.startswith("/") else "."), [TableFile(path, name, kind, "", None)]
    is_pattern = bool(wanted.patterns) or len(wanted.literal) > 1
    path = wanted.folder if is_pattern else path
    root = Root(path, options.follow_links)
    listing = FileListing(root, options.ignore)
    if is_pattern:
        names = _fitting_files(options, listing, wanted, lambda name: format_of(name, formats) or other, extensions)
        stems = _split_folders_of(names) or [_stem(name) for name in names]
    else:
        tables_in = functools.partial(_files_in, path, listing, lambda name: format_of(name, formats), metadata)
        names = tables_in("")
        stems = [_stem(name) for name in names]
        if names and names[0] in metadata:
            if options.split_folders:
                raise no_split_folders(options.input, "is one table")
            stems = [""]
        if not names:
            names = [name for folder in listing.top_level()[0] for name in tables_in(folder)]
            stems = [name.split("/")[0] for name in names]
            if not any(stem.lower() in SPLIT_FOLDERS for stem in stems):  # such as data/train-00000-of-00002.parquet
                stems = [_stem(name) for name in names]
        if not names:
            expected = f"{', '.join(metadata)}, or files" if metadata else "files"
            raise UserError(f"--input={options.input}: contains no table. Tables are {expected} named {extensions}.")
    files = []
    for name, split in zip(names, _name_splits(options, stems)):
        try:
            root.relative(name)
        except OutsideError as error:
            raise UserError(f"--input={options.input}: {error}") from None
        folder = f"{name.rpartition('/')[0]}/".lstrip("/")
        files.append(TableFile(f"{path}/{name}", name, format_of(name, formats) or other, folder, split))
    return path, files


def _stem(name: str) -> str:
    return _SHARD.sub("", name.rpartition("/")[2].split(".")[0])


def _fitting_files(
    options: PrepareOptions, listing: FileListing, wanted: InputNames, find_format: Callable[[str], str], extensions: str
) -> list[str]:
    found, rejected = listing.fitting(wanted) if wanted.patterns else ([], [])
    listing.reject(rejected)
    names = sorted({*wanted.literal, *found})
    kinds = set(map(find_format, names))
    if len(kinds) != 1 or "" in kinds:
        shown = ", ".join(map(printable, names[:5])) or "no file"
        advice = f"Change the pattern so that it matches files of one format, named {extensions}"
        raise UserError(f"--input={options.input}: matches {shown}. {advice}.")
    return names


def _files_in(
    path: str, listing: FileListing, find_format: Callable[[str], str | None], metadata: tuple[str, ...], folder: str
) -> list[str]:
    """Returns the paths of the tables directly in a folder, or only the path of a file in `metadata` if it exists."""
    where = f"{path}/{folder}".rstrip("/")
    names = [name for name in metadata if files_at(path).exists(f"{where}/{name}")] or listing.take_files(folder, find_format)
    if len(set(map(find_format, names))) > 1 or (len(names) > 1 and names[0] in metadata):
        several = f"contains several tables: {', '.join(map(printable, names[:5]))}"
        raise UserError(f"--input={printable(where)}: {several}. Name one of them as --input.")
    return [join(listing.take_folder(folder), name) for name in names]


def _name_splits(options: PrepareOptions, names: list[str]) -> list[str | None]:
    """Returns the splits that the names of folders or files indicate."""
    splits = [SPLIT_FOLDERS.get(name.lower()) for name in names]
    if options.split_folders is False or (options.split_folders is None and not any(splits)):
        return [None] * len(names)
    if options.split_folders:
        splits = [split or name for split, name in zip(splits, names)]
    for name, split in zip(names, splits):
        if split is None or not NAME_PATTERN.fullmatch(split):
            problem = f"{printable(name)!r} is not named like a split, and others beside it are"
            raise UserError(f"--input={options.input}: {problem}. {CHOOSE_SPLIT_FOLDERS}")
    if options.asks_for_shares and not options.source.divide:
        raise given_already(options, options.input, "--split_folders=no", splits)
    return splits


def _split_folders_of(paths: list[str]) -> list[str]:
    """Returns the name of the split folder of each file, or an empty list if no folder is named like a split.

    The split folders are at the deepest level that has a folder named like a split. In `site/train/labels.csv`, this is the
    second level. For a file without a folder at this level, the list contains the name of the file.
    """
    components = [path.split("/") for path in paths]
    for level in reversed(range(max(map(len, components)) - 1)):
        names = [parts[min(level, len(parts) - 1)] for parts in components]
        if any(name.lower() in SPLIT_FOLDERS for name in names):
            return names
    return []
