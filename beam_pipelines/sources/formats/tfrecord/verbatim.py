"""Implements `--records verbatim` of the source `tfrecord`: records of any kind are stored unchanged.

Records are not parsed. The key of a record is `FILE#INDEX`.
"""

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.sources.formats.tfrecord.record_directories import read_shards
from beam_pipelines.sources.formats.tfrecord.record_files import AnySpoolWriter, RecordFiles
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, Record


class VerbatimRecords(RecordFiles):
    """Lists the records of TFRecord and ArrayRecord files as references to their bytes."""

    kind = SourceKind(
        name="tfrecord with --records=verbatim",
        summary="records of any kind in TFRecord and ArrayRecord files",
        options=("records", "has_images"),
        is_of_values=True,
    )
    has_images = False

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config, spool_directory, read_shards(config.input.rstrip("/") or "/"))

    def list_record(self, part: str, path: str, name: str, record: Record, spool: AnySpoolWriter | None) -> InputRecord:
        offset = record.offset + HEADER_BYTES if spool is None else spool.append(record.data)
        number = 0 if spool is None else spool.spool
        return InputRecord(name, part, "", self._files.splits.get(part), len(record.data), offset=offset, spool=number)
