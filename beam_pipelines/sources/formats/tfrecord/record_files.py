"""Finds TFRecord and ArrayRecord files and reads their records, for all sources that list records."""

import contextlib
import re
from typing import BinaryIO, Iterator, Mapping

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import matches
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.rows.containers import Containers, reject_outside
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import listing_error
from beam_pipelines.storage.spool import ObjectSpoolWriter, SpoolWriter, open_spool
from beam_pipelines.tfrecord.array_record_reader import RecordFileReader, is_array_record
from beam_pipelines.tfrecord.record_reader import BadRecord, NoRecordsError, Record, is_compressed

AnySpoolWriter = SpoolWriter | ObjectSpoolWriter

_NAME = re.compile(r".*(\.(tf|array_?)records?(\..*|[-_].*)?|\.tfrec|\.record|-\d+-of-\d+)(\.gz|\.zlib)?", re.IGNORECASE | re.DOTALL)


class RecordFiles(Source):
    """The record files of an input. Subclasses implement `list_record`, which converts a record to an input.

    Args:
        config: The options of the source.
        spool_directory: The directory for data of compressed files; None disables spooling.
        shards: Name of a shard -> its split, if the input is a dataset with metadata; otherwise None.

    Attributes:
        root: The root folder of the files.

    Raises:
        UserError: There are no files, or an option does not apply.
    """

    def __init__(self, config: PrepareConfig, spool_directory: str | None, shards: Mapping[str, str] | None) -> None:
        super().__init__(config)
        self._spool_directory = spool_directory
        self._reader = RecordFileReader()
        self._containers = None
        if shards is not None:
            self._root = Root(config.input.rstrip("/") or "/", config.follow_links)
            self._names = sorted(name for name in shards if not matches(name, config.ignore))
            self._num_ignored = len(shards) - len(self._names)
            self._splits = shards if config.split_folders is not False else {}
        else:
            expected = "files named *.tfrecord or *.array_record, or such as train-00000-of-00010"
            self._containers = Containers(config, is_record_file, expected)
            self._root = self._containers.root
            self._names = self._containers.names
            self._splits = self._containers.splits()
        if not self._names:
            raise UserError(f"--input={config.input}: the dataset has no shards. Name another dataset.")
        self.root = self._root.path

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        path = f"{self.root}/{self._root.relative(name)}"
        try:
            with open_file(path) as file:
                yield file
        except OSError as error:
            raise listing_error(error, path, f"{printable(path)} cannot be read: {error.strerror or error}") from error

    def _records(self, name: str, file: BinaryIO) -> Iterator[Record | BadRecord]:
        try:
            yield from self._reader.read(f"{self.root}/{self._root.relative(name)}", file)
        except NoRecordsError as error:
            raise UserError(f"{printable(name)}: {error} (--ignore={printable(name)!r} leaves it out)") from None

    def parts(self) -> list[str]:
        """Returns the names of the files. Each file is listed as one part."""
        return [*self._names]

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs of one file. Only one record is in memory."""
        if self._containers:
            self.num_ignored, dead_letters = self._containers.describe_ignored(part)
            yield from dead_letters
        else:
            self.num_ignored = self._num_ignored if part == self._names[0] else 0
        if rejected := reject_outside(self._root, part):
            yield rejected
            return
        shown, stable_name = printable(part), nfc(part)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._open(part))
            is_array = is_array_record(file)
            is_spooled = self._spool_directory and (is_array or is_compressed(file))
            spool = stack.enter_context(open_spool(self._spool_directory)) if is_spooled else None
            for index, record in enumerate(self._records(part, file)):
                path = f"{shown}#{index:08d}" if is_array else f"{shown}@{record.offset}"
                if isinstance(record, BadRecord):
                    yield DeadLetter(path, "list", "bad_record", record.message)
                else:
                    yield self.list_record(part, path, f"{stable_name}#{index:08d}", record, spool)

    def list_record(self, part: str, path: str, name: str, record: Record, spool: AnySpoolWriter | None) -> InputRecord | DeadLetter:
        """Converts a record to an input.

        Args:
            part: The name of the file.
            path: The location of the record for dead letters.
            name: The key of records without a key.
            record: The record.
            spool: The spool for bytes that cannot be read again by byte range; None if the file can be read again.
        """
        raise NotImplementedError


def is_record_file(name: str) -> bool:
    """Returns whether the name of a file is typical for TFRecord or ArrayRecord files."""
    return bool(_NAME.fullmatch(name))
