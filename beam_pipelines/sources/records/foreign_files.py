"""Files of records that others wrote, for commands that look at them as they lie: which there are, their first examples, and their label."""

import contextlib
import itertools
from typing import Iterator

from beam_pipelines.config.prepare_config import PrepareConfig, SourceConfig
from beam_pipelines.elements.label_feature import LabelFeature
from beam_pipelines.errors import StorageError, UserError, printable
from beam_pipelines.sources.folders.roots import OutsideError, Root
from beam_pipelines.sources.records.containers import Containers
from beam_pipelines.sources.records.record_directories import read_directory
from beam_pipelines.sources.records.record_layouts import Layout, find_layout
from beam_pipelines.sources.records.tfrecord import is_record_file
from beam_pipelines.storage.files import is_remote, open_file
from beam_pipelines.tfrecord.array_record_reader import RecordFileReader
from beam_pipelines.tfrecord.example_reader import BadExampleError, ExampleReader
from beam_pipelines.tfrecord.record_reader import BadRecord, NoRecordsError, Record
from tf_input.first_records import MAX_RECORDS


class ForeignFiles:
    """The files of a path: one, those in a folder and below, those that a pattern fits, or those of a data set that describes itself.

    Args:
        path: Also a URL.

    Attributes:
        root: The folder that they lie below.
        splits: Name of each -> its split, or "" where none is named.
        describes_itself: Whether the splits are those of a data set of TensorFlow Datasets, or of ours.

    Raises:
        UserError: There is none.
    """

    def __init__(self, path: str) -> None:
        self._layout: Layout | None = None
        self._reader = RecordFileReader()
        try:
            directory = read_directory(path.rstrip("/") or "/", None)
            self.describes_itself = directory is not None
            if directory:
                self.root, self._layout, self.splits = Root(path), directory.layout, dict(sorted(directory.files.items()))
            else:
                config = PrepareConfig(input=path, output="", name="foreign")
                containers = Containers(config, is_record_file, "files of TFRecords, such as train.tfrecord-00000-of-00010")
                named = containers.splits()
                self.root, self.splits = containers.root, {name: named.get(name, "") for name in containers.names}
        except UserError as error:  # which names the path as `prepare` does
            raise UserError(str(error).replace("--input=", "", 1)) from None

    def records(self, name: str) -> Iterator[Record | BadRecord]:
        """The examples of a file.

        Raises:
            UserError: It is none of records, or not there.
            StorageError: A store does not give it.
        """
        path = f"{self.root.path}/{name}"
        try:
            inside = f"{self.root.path}/{self.root.relative(name)}"
            with open_file(inside) as file:
                yield from self._reader.read(inside, file)
        except (NoRecordsError, OutsideError) as error:
            raise UserError(f"{printable(path)}: {error}") from None
        except OSError as error:
            told = f"{printable(path)} could not be read: {error.strerror or error}"
            if is_remote(path) and not isinstance(error, FileNotFoundError):
                raise StorageError(told, path) from error
            raise UserError(told) from None

    def first_examples(self) -> list[ExampleReader]:
        """As many as are looked at."""
        return list(itertools.islice(self._examples(), MAX_RECORDS))

    def find_label(self, first: list[ExampleReader]) -> LabelFeature:
        """The label that a layout has which is known, or the classes of its objects."""
        try:
            layout = self._layout or find_layout(iter(first), SourceConfig(), next(iter(self.splits)))
        except (UserError, BadExampleError):
            return LabelFeature("")
        if layout.objects:
            return LabelFeature(layout.objects.label)
        return next((LabelFeature(column.names[0], column.kind == "multi_hot") for column in layout.labels or ()), LabelFeature(""))

    def _examples(self) -> Iterator[ExampleReader]:
        for name in self.splits:
            for record in self.records(name):
                with contextlib.suppress(BadExampleError):
                    if isinstance(record, Record):
                        yield ExampleReader(record.data)
