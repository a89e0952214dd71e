"""Finds the files with the rows of an input: tables or lists of images. Paths in a file are relative to its folder."""

import os
import re
from typing import Mapping, NamedTuple

from beam_pipelines.config.prepare_config import NAME_PATTERN, PrepareConfig
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import FileListing, join
from beam_pipelines.sources.files.layouts import CHOOSE_SPLIT_FOLDERS, given_already, no_split_folders
from beam_pipelines.sources.files.patterns import split_input
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at, is_remote

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_SHARD = re.compile(r"-\d+(?:-of-\d+)?$")  # the end of a name such as train-00000-of-00002


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


def open_root(path: str, folder: str, follows_links: bool = False) -> Root:
    """Returns the root `path` for paths that are relative to its subfolder `folder`, which is "" or ends in "/"."""
    return _FolderRoot(path, folder, follows_links) if folder else Root(path, follows_links)


class _FolderRoot(Root):
    def __init__(self, path: str, folder: str, follows_links: bool) -> None:
        super().__init__(path, follows_links)
        self._folder = folder

    def relative(self, path: str) -> str:
        is_absolute = path.startswith(("/", "\\")) or is_remote(path)
        return super().relative(path if is_absolute else self._folder + path)


def find_table_files(
    config: PrepareConfig, formats: Mapping[str, str], metadata: tuple[str, ...]
) -> tuple[str, list[TableFile]]:
    """Returns the folder of the tables in an input, and these tables sorted by name.

    Args:
        config: The options of the source.
        formats: Extension -> format. The extension "" stands for all other extensions. Files with other extensions are
            read only if the input names them.
        metadata: The names of files to read instead of all other files, if they exist.

    Raises:
        UserError: There are no tables, or it is unclear which tables to read.
    """
    finder = _Finder(config, formats, metadata)
    return finder.find_one() if finder.is_file() else finder.find_fitting() if finder.is_pattern() else finder.find_all()


def format_of(name: str, formats: Mapping[str, str]) -> str | None:
    """Returns the table format for a file's extension, ignoring `.gz`, or None for unknown extensions."""
    return formats.get(os.path.splitext(name.lower().removesuffix(".gz"))[1])


class _Finder:
    def __init__(self, config: PrepareConfig, formats: Mapping[str, str], metadata: tuple[str, ...]) -> None:
        self._config = config
        self._formats = formats
        self._metadata = metadata
        self._input = config.input.rstrip("/") or "/"
        self._wanted = split_input(config.input)
        if self.is_pattern():
            self._input = self._wanted.folder
        self._files = files_at(self._input)
        self._listing = FileListing(Root(self._input, config.follow_links), config.ignore)
        self._extensions = ", ".join(extension for extension in formats if extension)

    def is_file(self) -> bool:
        return self._files.exists(self._input)

    def is_pattern(self) -> bool:
        return bool(self._wanted.patterns) or len(self._wanted.literal) > 1

    def find_one(self) -> tuple[str, list[TableFile]]:
        folder, _, name = self._input.rpartition("/")
        kind = format_of(name, self._formats) or self._formats.get("")
        if kind is None:
            raise UserError(
                f"--input={self._config.input}: is not a table. Name a file that ends in {self._extensions}, or a folder of such files."
            )
        file = TableFile(self._input, name, kind, "", *self._no_splits())
        return folder or ("/" if self._input.startswith("/") else "."), [file]

    def find_all(self) -> tuple[str, list[TableFile]]:
        paths = self._tables_in("")
        stems = [_SHARD.sub("", name.split(".")[0]) for name in paths]
        if not paths:
            paths = [path for folder in self._listing.top_level()[0] for path in self._tables_in(folder)]
            stems = [path.split("/")[0] for path in paths]
            if not any(stem.lower() in SPLIT_FOLDERS for stem in stems):  # such as data/train-00000-of-00002.parquet
                stems = [_SHARD.sub("", os.path.basename(path).split(".")[0]) for path in paths]
        if not paths:
            wanted = f"{', '.join(self._metadata)}, or files" if self._metadata else "files"
            raise UserError(f"--input={self._config.input}: contains no table. Tables are {wanted} named {self._extensions}.")
        splits = self._no_splits() if paths[0] in self._metadata else self._name_splits(stems)
        return self._input, [self._make_file(path, split) for path, split in zip(paths, splits)]

    def find_fitting(self) -> tuple[str, list[TableFile]]:
        names, rejected = self._listing.fitting(self._wanted) if self._wanted.patterns else ([], [])
        self._listing.reject(rejected)
        paths = sorted({*self._wanted.literal, *names})
        kinds = {format_of(name, self._formats) or self._formats.get("") for name in paths}
        if len(kinds) != 1 or None in kinds:
            shown = ", ".join(map(printable, paths[:5])) or "no file"
            raise UserError(
                f"--input={self._config.input}: matches {shown}. Change the pattern so that it matches files of one "
                f"format, named {self._extensions}."
            )
        names = _split_folders_of(paths) or [_SHARD.sub("", os.path.basename(name).split(".")[0]) for name in paths]
        return self._input, [self._make_file(name, split) for name, split in zip(paths, self._name_splits(names))]

    def _make_file(self, name: str, split: str | None) -> TableFile:
        try:
            Root(self._input, self._config.follow_links).relative(name)
        except OutsideError as error:
            raise UserError(f"--input={self._config.input}: {error}") from None
        folder = f"{os.path.dirname(name)}/" if "/" in name else ""
        return TableFile(f"{self._input}/{name}", name, format_of(name, self._formats) or self._formats.get("", ""), folder, split)

    def _tables_in(self, folder: str) -> list[str]:
        """Returns the paths of the tables directly in a folder, or only the path of a file in `metadata` if it exists."""
        path = f"{self._input}/{folder}".rstrip("/")
        table_names = [name for name in self._metadata if self._files.exists(f"{path}/{name}")]
        if not table_names:
            table_names = self._listing.take_files(folder, lambda name: format_of(name, self._formats))
        if len({format_of(name, self._formats) for name in table_names}) > 1 or (
            len(table_names) > 1 and table_names[0] in self._metadata
        ):
            raise UserError(
                f"--input={printable(path)}: contains several tables: {', '.join(map(printable, table_names[:5]))}. Name "
                "one of them as --input, or leave the others out with --ignore."
            )
        return [join(self._listing.take_folder(folder), name) for name in table_names]

    def _no_splits(self) -> list[str | None]:
        if self._config.split_folders:
            raise no_split_folders(self._config.input, "is one table")
        return [None]

    def _name_splits(self, names: list[str]) -> list[str | None]:
        """Returns the splits that the names of folders or files indicate."""
        config = self._config
        splits = [SPLIT_FOLDERS.get(name.lower()) for name in names]
        if config.split_folders is False or (config.split_folders is None and not any(splits)):
            return [None] * len(names)
        if config.split_folders:
            splits = [split or name for split, name in zip(splits, names)]
        for name, split in zip(names, splits):
            if split is None or not NAME_PATTERN.fullmatch(split):
                raise UserError(
                    f"--input={config.input}: {printable(name)!r} is not named like a split, and others beside it "
                    f"are. {CHOOSE_SPLIT_FOLDERS}"
                )
        if config.asks_for_shares and not config.source.divide:
            raise given_already(config, config.input, "--split_folders=no", splits)
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
