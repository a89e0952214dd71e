"""A Beam transform that reads shards and returns parsed examples as Arrow record batches, in record order.

TensorFlow Transform reads its input in each phase of an analysis. Engines cache values that several steps read. To save
memory, Beam caches only the location of each batch, and the records are read again in each phase.
"""

import dataclasses
import io
import pickle
import threading
from typing import Iterator, NamedTuple, Sequence

import apache_beam as beam
import pyarrow as pa
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder
from tfx_bsl.tfxio.tensor_adapter import TensorAdapterConfig

from beam_pipelines.errors import DataError, RunError, StorageError, printable
from beam_pipelines.parallel import interrupts
from beam_pipelines.parallel.progress import count
from beam_pipelines.publish.metadata import schema_pbtxt
from beam_pipelines.storage.files import files_at
from beam_pipelines.tfrecord.record_reader import NoRecordsError, Record, read_records
from tf_input.dataset_format import Feature, Manifest, ShardInfo
from tf_input.storage.index import ShardIndex

_POINTER = "recordmill_pointer"
# The size of a batch, both decoded and stored. It is large enough to use the graph efficiently.
_BATCH_BYTES = 16 << 20
_MAX_EXAMPLES = 1024


class BatchPointer(NamedTuple):
    """The location of a batch of records in a shard.

    Attributes:
        path: The path of the shard.
        offset: The offset of the first record in the shard, in bytes.
        num_bytes: The total length of the records, in bytes.
        record_index: The index of the first record in the shard.
        schema: The serialized TensorFlow Metadata schema for parsing the records.
        progress_directory: The directory for progress counts, or an empty string to disable progress counts.
    """

    path: str
    offset: int
    num_bytes: int
    record_index: int
    schema: bytes
    progress_directory: str


class PointedRecordBatch(pa.RecordBatch):
    """The type of the transform's output elements. Beam selects the coder by this class. It is never instantiated."""


class RecordBatchCoder(beam.coders.Coder):
    """Encodes a record batch as its `BatchPointer`."""

    def encode(self, batch: pa.RecordBatch) -> bytes:
        return batch.schema.metadata[_POINTER.encode()]

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        return read_batch(BatchPointer(*pickle.loads(encoded)))

    def is_deterministic(self) -> bool:
        return True


beam.coders.registry.register_coder(PointedRecordBatch, RecordBatchCoder)


@dataclasses.dataclass
class ReadRecordBatches(beam.PTransform):
    """Reads the records of shards in batches.

    Attributes:
        directory: The directory of the dataset.
        shards: The shards to read.
        schema: The features to parse.
        example_bytes: The memory of a decoded example, in bytes.
        progress_directory: The directory for progress counts, or an empty string to disable progress counts.
    """

    directory: str
    shards: Sequence[ShardInfo]
    schema: Sequence[Feature]
    example_bytes: int
    progress_directory: str = ""

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        return (
            pipeline
            | "ListShards" >> beam.Create(list(self.shards))  # ShardInfo
            | "PointToBatches" >> beam.FlatMap(self.pointers)  # BatchPointer
            | "ReadBatches" >> beam.Map(read_batch).with_output_types(PointedRecordBatch)
        )

    def pointers(self, shard: ShardInfo) -> Iterator[BatchPointer]:
        """Yields the batches of a shard in record order."""
        schema = metadata_schema(self.schema).SerializeToString()
        max_examples = max(1, min(_MAX_EXAMPLES, _BATCH_BYTES // self.example_bytes))
        for record_index, offset, end in batch_extents(self.directory, shard, max_examples):
            path = f"{self.directory}/{shard.name}"
            yield BatchPointer(path, offset, end - offset, record_index, schema, self.progress_directory)


def batch_extents(
    directory: str, shard: ShardInfo, max_examples: int, max_bytes: int = _BATCH_BYTES
) -> Iterator[tuple[int, int, int]]:
    """Yields the index of the first record, the start offset and the end offset of each batch of a shard.

    Raises:
        RunError: The index is missing or corrupt.
    """
    path = f"{directory}/{shard.index}"
    try:
        index = ShardIndex(path, shard, files_at(path).read(path))
    except (OSError, ValueError) as error:
        raise RunError(f"{printable(str(error))}. To rebuild the index, run `recordmill repair`.") from None
    starts, ends = (values.tolist() for values in index.extents(0, shard.num_examples))
    num_batches = -(-shard.num_examples // max_examples)
    first = 0
    for record in range(1, shard.num_examples + 1):
        is_full = (
            record == shard.num_examples
            or record - first == -(-shard.num_examples // num_batches)
            or ends[record] - starts[first] > max_bytes
        )
        if is_full:
            yield first, starts[first], ends[record - 1]
            first = record


def read_batch(pointer: BatchPointer) -> pa.RecordBatch:
    """Reads, checks and parses the records of a batch.

    Raises:
        RunError: A record is corrupt.
    """
    interrupts.check()
    records = list(_read_records(pointer))
    batch = _parser(pointer.schema).DecodeBatch(records)
    count(pointer.progress_directory, analyzed=len(records))
    return batch.replace_schema_metadata({_POINTER: pickle.dumps(tuple(pointer))})


def _read_records(pointer: BatchPointer) -> Iterator[bytes]:
    try:
        data = files_at(pointer.path).read_range(pointer.path, pointer.offset, pointer.num_bytes)
        for position, record in enumerate(read_records(io.BytesIO(data))):
            if not isinstance(record, Record):
                record_text = f"record {pointer.record_index + position}, at byte {pointer.offset + record.offset}"
                raise DataError(f"{printable(pointer.path)}: {record_text}: {record.message}")
            yield record.data
    except OSError as error:
        raise StorageError(f"{printable(pointer.path)}: {error.strerror or error}") from None
    except NoRecordsError as error:
        raise DataError(f"{printable(pointer.path)}: record {pointer.record_index}, at byte {pointer.offset}: {error}") from None


_of_thread = threading.local()


def _parser(schema: bytes) -> ExamplesToRecordBatchDecoder:
    """Returns the parser of this thread. Parsers are not thread-safe, so each thread has its own parser."""
    if getattr(_of_thread, "schema", None) != schema:
        _of_thread.schema, _of_thread.parser = schema, ExamplesToRecordBatchDecoder(schema)
    return _of_thread.parser


def metadata_schema(schema: Sequence[Feature]) -> schema_pb2.Schema:
    """Returns a TensorFlow Metadata schema that parses records to the same tensors as the reader does."""
    manifest = Manifest("", 0, tuple(schema), {}, 0, 0)
    proto = text_format.Parse(schema_pbtxt(manifest), schema_pb2.Schema())
    representations = proto.tensor_representation_group[""].tensor_representation
    for feature in schema:
        representation = representations[feature.name]
        if not feature.is_ragged:
            representation.dense_tensor.column_name = feature.name
            shape = representation.dense_tensor.shape
            shape.SetInParent()
            for side in feature.stored_shape:
                shape.dim.add(size=side)
            continue
        ragged = representation.ragged_tensor
        ragged.feature_path.step.append(feature.name)
        # The same type as in tf.io.RaggedFeature.
        ragged.row_partition_dtype = schema_pb2.TensorRepresentation.RowPartitionDType.INT32
        for side in feature.shape[1:]:
            ragged.partition.add(uniform_row_length=side)
    return proto


def tensor_adapter_config(schema: Sequence[Feature]) -> TensorAdapterConfig:
    """Returns the configuration that TensorFlow Transform uses to interpret the record batches."""
    proto = metadata_schema(schema)
    representations = dict(proto.tensor_representation_group[""].tensor_representation)
    return TensorAdapterConfig(_parser(proto.SerializeToString()).ArrowSchema(), representations)
