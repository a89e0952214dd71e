"""Finds TFRecord and ArrayRecord files and reads their records, for all sources that list records."""

import abc
import contextlib
import itertools
import re
from typing import BinaryIO, Iterator, Mapping

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, ArrayPart, FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.files.embedded_images import Embedded, spool_images
from beam_pipelines.sources.files.paths import matches, nfc
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.formats.tfrecord.record_directories import read_directory
from beam_pipelines.sources.rows.containers import Containers, ContainerSource, find_containers
from beam_pipelines.tfrecord.array_record_reader import RecordFileReader, is_array_record
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, BadRecord, NoRecordsError, Record, is_compressed
from beam_pipelines.tfrecord.verbatim_columns import choose_columns
from tf_input.dataset_format import IMAGE
from tf_input.first_records import MAX_BYTES, MAX_RECORDS
from tf_input.serialized_example import BadExampleError


_NUM_NAMES = 20  # maximum number of columns in a message
_NAME = re.compile(r".*(\.(tf|array_?)records?(\..*|[-_].*)?|\.tfrec|\.record|-\d+-of-\d+)(\.gz|\.zlib)?", re.IGNORECASE | re.DOTALL)


def is_record_file(name: str) -> bool:
    """Returns whether a file is named like a TFRecord or ArrayRecord file."""
    return bool(_NAME.fullmatch(name))


def find_record_files(options: PrepareOptions, shards: Mapping[str, str] | None) -> Containers:
    """Returns the record files of an input. Raises `UserError` if there are none.

    Args:
        options: The options of the source.
        shards: Name of a shard -> its split, if the input is a dataset with metadata; otherwise None.
    """
    if shards is None:
        return find_containers(options, is_record_file, "files named *.tfrecord or *.array_record, or such as train-00000-of-00010")
    names = sorted(name for name in shards if not matches(name, options.ignore))
    if not names:
        raise UserError(f"--input={options.input}: the dataset has no shards. Name another dataset.")
    root, splits = Root(options.input.rstrip("/") or "/", options.follow_links), shards if options.split_folders is not False else {}
    return Containers(root, names, splits, num_ignored=len(shards) - len(names))


class RecordFiles(ContainerSource):
    """The base class of sources of record files. Subclasses implement `list_record`, which converts a record to an input.

    Args:
        options: The options of the source.
        spool_directory: The directory for data from compressed files, or None if this data will not be read.
        shards: See `find_record_files`.
    """

    def __init__(self, options: PrepareOptions, spool_directory: str | None, shards: Mapping[str, str] | None) -> None:
        super().__init__(options, spool_directory)
        self._reader = RecordFileReader()
        self._files = find_record_files(options, shards)
        self.root = self._files.root.path

    def _records(self, name: str, file: BinaryIO) -> Iterator[Record | BadRecord]:
        try:
            yield from self._reader.read(f"{self.root}/{self._files.root.relative(name)}", file)
        except NoRecordsError as error:
            raise UserError(f"{printable(name)}: {error}. Replace the file, or move it out of the input.") from None

    def _list_file(self, name: str) -> Iterator[InputRecord | DeadLetter]:
        with self._open_file(name) as file:
            is_array = is_array_record(file)
            is_spooled = is_array or is_compressed(file)
            yield from spool_images(self._list_records(name, file, is_array, is_spooled), self._spool_directory)

    def _list_records(self, name: str, file: BinaryIO, is_array: bool, is_spooled: bool) -> Iterator[InputRecord | Embedded | DeadLetter]:
        shown, stable_name = printable(name), nfc(name)
        for index, record in enumerate(self._records(name, file)):
            try:
                if isinstance(record, BadRecord):
                    raise BadExampleError(record.message)
                image = self.list_record(name, f"{stable_name}#{index:08d}", record)
                yield _embed(image, record) if is_spooled else image
            except (BadExampleError, InvalidInput) as error:
                reason = error.reason if isinstance(error, InvalidInput) else "bad_record"
                path = f"{shown}#{index:08d}" if is_array else f"{shown}@{record.offset}"
                yield DeadLetter(path, "list", reason, printable(str(error)))

    @abc.abstractmethod
    def list_record(self, part: str, name: str, record: Record) -> InputRecord:
        """Converts a record to an input.

        Args:
            part: The name of the file.
            name: The key of records without a key.
            record: The record.

        Raises:
            BadExampleError, InvalidInput: The record is invalid.
        """


def _embed(image: InputRecord, record: Record) -> Embedded:
    """Returns the input of a record with the bytes of its images and arrays."""
    parts = {name: part for name, part in (image.values or {}).items() if isinstance(part, (FilePart, ArrayPart))}
    if image.offset != NO_IMAGE:
        parts[IMAGE] = image
    starts = {name: part.offset - record.offset - HEADER_BYTES for name, part in parts.items()}
    return Embedded(image, {name: record.data[start : start + parts[name].num_bytes] for name, start in starts.items()})


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_NAMES:,} more" if len(names) > _NUM_NAMES else ""
    return ", ".join(map(printable, names[:_NUM_NAMES])) + more


class VerbatimRecords(RecordFiles):
    """Lists records of any kind as references to their bytes, for `--records verbatim`. The key of a record is
    `FILE#INDEX`. The first records of the first file determine the catalog columns."""

    kind = SourceKind(
        name="tfrecord with --records=verbatim",
        summary="records of any kind in TFRecord and ArrayRecord files",
        options=("records", "has_images"),
        is_of_values=True,
    )
    has_images = False

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        directory = read_directory(options.input.rstrip("/") or "/")
        super().__init__(options, spool_directory, directory and directory.files)
        self.columns, taken = choose_columns(self._first_records())
        found = {
            "columns of the catalog": [column.name for column in self.columns],
            "not in the catalog, because it has columns of the same name": taken,
        }
        self.detected = "; ".join(f"{text}: {_first_names(names)}" for text, names in found.items() if names)

    def _first_records(self) -> Iterator[bytes]:
        """Yields the first records of the first file."""
        name, num_bytes = self._files.names[0], 0
        with contextlib.suppress(OutsideError), self._open_file(name) as file:
            for record in itertools.islice(self._records(name, file), MAX_RECORDS):
                if isinstance(record, Record):
                    yield record.data
                    num_bytes += len(record.data)
                if num_bytes >= MAX_BYTES:
                    break

    def list_record(self, part: str, name: str, record: Record) -> InputRecord:
        split, offset = self._files.splits.get(part), record.offset + HEADER_BYTES
        return InputRecord(name, part, "", split, len(record.data), offset=offset)
