"""Transforms a shard in a worker of `recordmill transform`.

    records -> batches -> graph, in threads ahead of the writer -> records in the same order
"""

import collections
import functools
import threading
from collections import Counter
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import google_crc32c
import numpy as np
import tensorflow as tf

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.plan import ShardAddress
from beam_pipelines.elements.quality import LabelSequence, one_label
from beam_pipelines.errors import DataError, RunError, StorageError, printable
from beam_pipelines.parallel import interrupts
from beam_pipelines.parallel.progress import count
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.storage.files import files_at, make_parent_folders, write_file
from beam_pipelines.tfrecord.example_encoder import encode_chunks
from beam_pipelines.tfrecord.record_reader import Record
from beam_pipelines.tfrecord.record_writer import RecordWriter
from beam_pipelines.tfrecord.shard_records import shard_records
from beam_pipelines.transform.graph_failures import read_graph_failure
from beam_pipelines.transform.transform_job import TransformedShard, TransformJob
from tf_input.dataset_format import LABEL, NO_LABEL, Feature, ShardInfo, encode_index, index_name, shard_name
from tf_input.storage.open_files import open_files
from tf_input.transform.transform_format import TRANSFORM_FN
from tf_input.transform.transforms import Transform

_BATCH_BYTES = 8 << 20
_MAX_EXAMPLES = 1024
_MAX_REASON = 300  # Maximum length of a TensorFlow error message, in characters.


class _Batch(NamedTuple):
    """Consecutive records of a shard, with the index of the first record."""

    path: str
    first: int
    records: list[Record]


class _Transformed(NamedTuple):
    """Transformed examples of a batch.

    Attributes:
        examples: The serialized examples, each as a list of byte strings from `encode_chunks`.
        labels: A mapping from class feature to the concatenated labels of all examples.
        sequences: A mapping from class feature to one number per example, from `quality.one_label`.
    """

    examples: list[list[bytes]]
    labels: dict[str, np.ndarray]
    sequences: dict[str, list[int]]


def transform_shard(job: TransformJob, run: RunPaths, split: str, shard_index: int) -> TransformedShard:
    """Reads a shard and writes its transformed records in the same order.

    Raises:
        RunError: A record is corrupt, the transform fails, or the transform has changed.
    """
    shards = job.manifest.splits[split]
    source, address = shards[shard_index], ShardAddress(split, shard_index, len(shards))
    shard, index = shard_name(job.name, *address), index_name(job.name, *address)
    transform = _load(job)
    batches = ((batch, len(batch.records) * job.example_bytes) for batch in _batches(job, source))
    rows: list[tuple[int, int, int, int]] = []
    labels: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    sequences: dict[str, list[int]] = collections.defaultdict(list)
    try:
        with files_at(run.output).create(make_parent_folders(run.working_directory, shard)) as file:
            writer = RecordWriter(file)
            for batch in read_ahead(transform, batches):
                interrupts.check()
                rows += _write(job, batch, writer)
                for name, values in batch.labels.items():
                    labels[name].append(values)
                    sequences[name] += batch.sequences[name]
                count(run.progress_directory, written=len(batch.examples))
            writer.flush()
    except OSError as error:
        raise StorageError(f"{shard} could not be written: {error.strerror or error}") from error
    encoded = encode_index(rows, writer.fingerprint)
    write_file(make_parent_folders(run.working_directory, index), encoded)
    info = ShardInfo(
        shard, len(rows), writer.num_bytes, writer.crc32c, index, len(encoded), google_crc32c.value(encoded),
        first_crc32c=writer.fingerprint[0], last_crc32c=writer.fingerprint[1],
    )  # fmt: skip
    sequences = {name: LabelSequence.of(np.asarray(values)) for name, values in sequences.items()}
    counts = {name: Counter(np.concatenate(parts).tolist()) for name, parts in sorted(labels.items())}
    return TransformedShard(address, info, sequences, counts)


def _write(job: TransformJob, batch: _Transformed, writer: RecordWriter) -> Iterator[tuple[int, int, int, int]]:
    """Writes examples and yields their index rows."""
    image = job.image_chunk
    labels = batch.labels[LABEL].tolist() if job.has_label else [NO_LABEL] * len(batch.examples)
    for chunks, label in zip(batch.examples, labels, strict=True):
        start = writer.write(*chunks)
        sizes = [len(chunk) for chunk in chunks]
        before, length = (0, sum(sizes)) if image is None else (sum(sizes[:image]), sizes[image])
        yield start, start + RecordWriter.HEADER_BYTES + before, length, label


def _batches(job: TransformJob, shard: ShardInfo) -> Iterator[_Batch]:
    """Divides the records of a shard into batches, independently of the number of workers.

    Raises:
        RunError: A record is corrupt, or the number of records differs from the manifest.
    """
    path = f"{job.directory}/{shard.name}"
    records: list[Record] = []
    first, num_bytes = 0, 0
    for record in shard_records(path, shard.num_examples):
        num_more = len(record.data) + job.example_bytes
        if records and (num_bytes + num_more > _BATCH_BYTES or len(records) == _MAX_EXAMPLES):
            yield _Batch(path, first, records)
            first, records, num_bytes = first + len(records), [], 0
        records.append(record)
        num_bytes += num_more
    if records:
        yield _Batch(path, first, records)


_lock = threading.Lock()
_loaded: dict[tuple[str, str], "_Transformer"] = {}


def _load(job: TransformJob) -> "_Transformer":
    """Loads the graph once per process. Only one graph is cached, because graphs use a lot of memory.

    Raises:
        RunError: The graph has changed or is corrupt.
    """
    key = (job.directory, job.transform_digest)
    with _lock:
        if key not in _loaded:
            try:
                transform = Transform(job.directory, open_files(job.directory), None, job.manifest)
                if transform.digest != job.transform_digest:
                    raise RunError(
                        f"the transform of {printable(job.directory)} was replaced while it was applied. Run the "
                        "command again."
                    )
                _loaded.clear()
                _loaded[key] = _Transformer(transform, job.manifest.schema)
            except (OSError, ValueError, tf.errors.OpError) as error:
                reason = printable(" ".join(str(error).split()))[:_MAX_REASON]
                raise RunError(f"{printable(job.directory)}/{TRANSFORM_FN} can't be applied: {reason}") from None
        return _loaded[key]


class _Transformer:
    """A thread-safe function that transforms a batch of records to serialized examples.

    Args:
        transform: The transform graph to apply.
        schema: The schema of the records.
    """

    def __init__(self, transform: Transform, schema: Sequence[Feature]) -> None:
        # Keeps a reference, because the functions of loops and conditions are freed together with the graph.
        self._transform = transform
        self._schema = transform.info.schema
        names = [feature.name for feature in self._schema]

        @functools.partial(tf.function, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
        def apply(serialized: tf.Tensor) -> Mapping[str, Any]:
            with tf.device("CPU:0"):  # The reader also uses the CPU.
                return transform.parse(serialized, schema, names)

        self._apply = apply.get_concrete_function()  # Trace here once, so that threads do not trace in parallel.

    def __call__(self, batch: _Batch) -> _Transformed:
        """Transforms the records of a batch.

        Raises:
            RunError: The transform fails on a record, or the number of output rows differs from the number of records.
        """
        try:
            outputs = self._apply(tf.constant([record.data for record in batch.records]))
        except tf.errors.OpError as error:
            raise DataError(self._explain(batch, error)) from None
        columns = {feature.name: _rows(outputs[feature.name], feature) for feature in self._schema}
        for name, rows in columns.items():
            if len(rows) != len(batch.records):
                last = batch.first + len(batch.records) - 1
                reason = f"the transform returns {len(rows)} rows of {name!r} for {len(batch.records)} records"
                raise DataError(f"{printable(batch.path)}: records {batch.first} to {last}: {reason}")
        heads = {
            feature.name: [np.atleast_1d(row) for row in columns[feature.name]]
            for feature in self._schema
            if feature.is_categorical
        }
        labels = {name: np.concatenate(rows).astype(np.int64) for name, rows in heads.items()}
        sequences = {name: [one_label(row.tolist()) for row in rows] for name, rows in heads.items()}
        rows = zip(*columns.values(), strict=True)
        return _Transformed([encode_chunks(self._schema, dict(zip(columns, row))) for row in rows], labels, sequences)

    def _explain(self, batch: _Batch, error: tf.errors.OpError) -> str:
        """Returns an error message that identifies the first record on which the graph fails."""
        records_text = f"records {batch.first} to {batch.first + len(batch.records) - 1}"
        for position, record in enumerate(batch.records):
            try:
                self._apply(tf.constant([record.data]))
            except tf.errors.OpError as one:
                records_text, error = f"record {batch.first + position}, at byte {record.offset}", one
                break
        reason = printable(read_graph_failure(error.message).reason)
        return f"{printable(batch.path)}: {records_text}: the transform failed: {reason[:_MAX_REASON]}"


def _rows(value: tf.Tensor | tf.RaggedTensor, feature: Feature) -> Sequence[Any]:
    """Returns the values of a feature for each example in a batch, in the format of `encode_chunks`."""
    if isinstance(value, tf.RaggedTensor):
        splits, *inner = (nested_row_split.numpy() for nested_row_split in value.nested_row_splits)
        for splits_of_level in inner:  # Convert row splits to splits of the flat values.
            splits = splits_of_level[splits]
        values = value.flat_values.numpy()
        rows = [values[start:end].ravel() for start, end in zip(splits, splits[1:])]
    else:
        values = value.numpy()
        rows = values.tolist() if values.ndim == 1 else [row.ravel() for row in values]
    return [row.tolist() for row in rows] if feature.is_text and feature.shape else rows
