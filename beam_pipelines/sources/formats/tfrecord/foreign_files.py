"""Reads record files from other tools, for commands that inspect such files."""

import contextlib
import itertools
from typing import Iterator

from beam_pipelines.columns.forms import form_of
from beam_pipelines import log
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.label_feature import LabelFeature
from beam_pipelines.errors import StorageError, UserError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.sources.files.roots import OutsideError
from beam_pipelines.sources.formats.tfrecord.record_directories import read_directory
from beam_pipelines.sources.formats.tfrecord.record_files import find_record_files
from beam_pipelines.sources.formats.tfrecord.record_layouts import find_layout
from beam_pipelines.storage.files import is_remote, open_file
from beam_pipelines.tfrecord.array_record_reader import RecordFileReader
from beam_pipelines.tfrecord.record_reader import BadRecord, NoRecordsError, Record
from tf_input.first_records import MAX_RECORDS
from tf_input.serialized_example import BadExampleError, SerializedExample


class ForeignFiles:
    """The record files at a path, which can be a file, a folder, a pattern, or a dataset with metadata.

    Args:
        path: A path or a URL.
        follow_links: Whether links may lead to folders, and out of the root folder.
        split_folders: Whether the files are named like splits. If it is None, the names decide.

    Attributes:
        root: The root folder of the files.
        splits: File name -> its split, or "" if it is unknown.
        describes_itself: Whether the splits come from a manifest or from TensorFlow Datasets' metadata.

    Raises:
        UserError: There are no files.
    """

    def __init__(self, path: str, follow_links: bool = False, split_folders: bool | None = None) -> None:
        config = PrepareOptions(input=path, output="", name="foreign", follow_links=follow_links, split_folders=split_folders)
        self._reader = RecordFileReader()
        try:
            directory = read_directory(path.rstrip("/") or "/")
            files = find_record_files(config, directory and directory.files)
            self._layout = directory and directory.read_layout()
        except UserError as error:  # The message names an option of `prepare`, which other commands lack.
            raise UserError(str(error).replace("--input=", "", 1).replace(" as --input", "")) from None
        self.describes_itself, self.root = directory is not None, files.root
        self.splits = {name: (directory.files if directory else files.splits).get(name, "") for name in files.names}
        if letters := files.dead_letters:
            first = min(letters)
            log.print_message(
                f"{printable(path)}: {len(letters):,} files or folders are not read, for example {printable(first.path)}: {first.message}",
                "warning",
            )

    def records(self, name: str) -> Iterator[Record | BadRecord]:
        """Yields the records of a file. Raises `UserError` if the file does not exist or contains no records, and
        `StorageError` if an object store fails."""
        path = f"{self.root.path}/{name}"
        try:
            inside = f"{self.root.path}/{self.root.relative(name)}"
            with open_file(inside) as file:
                yield from self._reader.read(inside, file)
        except (NoRecordsError, OutsideError) as error:
            raise UserError(f"{printable(path)}: {error}") from None
        except OSError as error:
            message = f"{printable(path)} could not be read: {error.strerror or error}"
            if is_remote(path) and not isinstance(error, FileNotFoundError):
                raise StorageError(message, path) from error
            raise UserError(message) from None

    def first_examples(self) -> list[SerializedExample]:
        """Returns up to `MAX_RECORDS` examples from the start of the files."""
        return list(itertools.islice(self._examples(), MAX_RECORDS))

    def find_label(self, first: list[SerializedExample]) -> LabelFeature:
        """Returns the class feature of the records. Its name is empty if the layout of the records is unknown."""
        try:
            layout = self._layout or find_layout(iter(first), SourceConfig(), next(iter(self.splits)))
        except (UserError, BadExampleError):
            return LabelFeature("")
        if layout.objects:
            return LabelFeature(layout.objects.label)
        return next((LabelFeature(column.names[0], form_of(column).is_flags) for column in layout.labels or ()), LabelFeature(""))

    def _examples(self) -> Iterator[SerializedExample]:
        for name in self.splits:
            for record in self.records(name):
                with contextlib.suppress(BadExampleError):
                    if isinstance(record, Record):
                        yield SerializedExample(record.data)
