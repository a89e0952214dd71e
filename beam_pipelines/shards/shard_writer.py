"""Reads the inputs of a shard, or of a part of a shard, and writes records in shuffled order.

Each input is checked, re-encoded if necessary, and written as a record. An invalid input becomes a dead letter.
"""

import itertools
from collections import Counter
from typing import BinaryIO, Iterable, Iterator

import google_crc32c
import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.elements.extras import Extras
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.listed_values import decode_values
from beam_pipelines.elements.plan import PlannedShard
from beam_pipelines.elements.plan_files import read_planned_shard
from beam_pipelines.elements.references import References
from beam_pipelines.elements.statistics import SplitStatistics
from beam_pipelines.errors import DataError, StorageError
from beam_pipelines.images.images import StoredImage
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.worker_processes import shared
from beam_pipelines.shards.input_reader import InputReader, ReadImage
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.shards.written_part import INDEX, ShardPart, WrittenPart, part_path
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.lease import check_lease
from beam_pipelines.storage.spool import SpoolReader
from beam_pipelines.tfrecord.record_reader import FRAME_BYTES, HEADER_BYTES, check_frames
from beam_pipelines.tfrecord.record_writer import RecordWriter
from beam_pipelines.tfrecord.verbatim_columns import read_values
from tf_input.dataset_format import IMAGE, LABEL, NO_LABEL, WEIGHT

# The values to keep for each record: its index row, and its values in `WrittenPart.crcs` and `WrittenPart.sizes`.
_KEPT = np.dtype([*INDEX.descr, ("crc", "<u4"), ("height", "<i4"), ("width", "<i4")])

# The number of inputs after which the progress is updated, and the values are packed into an array.
_COUNTED_INPUTS = 256
_LISTED_AT_ONCE = 1024
_COPIED_AT_ONCE = 512

# A run fails at once if a shard has more dead letters. With fewer dead letters, it reports all of them at its end.
_MANY = 1000


def write_part(shared_context: bytes, shard: PlannedShard, part: ShardPart) -> WrittenPart:
    """Reads the inputs of a shard, or of a part of a shard, and writes their records.

    Raises:
        RunError: A disk or a store failed, or a file could not be written.
    """
    context: WriteContext = shared(shared_context)
    start, stop = (shard.num_inputs * number // part.num_parts for number in (part.number, part.number + 1))
    references = read_planned_shard(context.spec.run, shard, start, stop)
    path = part_path(context, shard.address, part)
    try:
        with (
            files_at(path).create(path) as file,
            SpoolReader(context.spec.run.spool_directory) as spool,
        ):
            extras = context.extras
            columns = [column.name for column in context.listing.columns]
            names = extras.label_features, columns or extras.catalog_values, extras.image_names
            written = WrittenPart(shard, part, path, references, *({name: [] for name in some} for some in names))
            _PartWriter(context, written, file, spool).write()
            if is_remote(path):  # A remote file is published after the block, so the lease must still be valid.
                check_lease(context.spec.run.scratch_directory, context.spec.run.holder)
            return written
    except OSError as error:
        raise StorageError(f"shard {shard.address} could not be written: {error.strerror or error}") from error


class _PartWriter:
    """Writes a part of a shard, and collects the information about its records in `part`."""

    def __init__(self, context: WriteContext, part: WrittenPart, file: BinaryIO, spool: SpoolReader) -> None:
        self._context = context
        self._part = part
        self._spool = spool
        self._reader = InputReader(context, files_at(context.listing.root), spool)
        self._writer = RecordWriter(file)
        self._rows: list[tuple] = []
        self._packed = [np.zeros(0, _KEPT)]  # Rows of earlier records, packed into arrays.
        self._images: list[StoredImage] = []  # The images of `_rows`.
        self._split = part.statistics.splits[context.listing.splits.index(part.shard.address.split)] = SplitStatistics()
        self._counted = (0, 0, 0)
        self._stopwatch = progress.Stopwatch("write")

    def write(self) -> None:
        references = self._part.references
        if self._context.listing.schema:
            self._write_inputs(references, 0)
        else:  # records of any kind
            for start in range(0, len(references), _COPIED_AT_ONCE):
                some = references.slice(start, min(start + _COPIED_AT_ONCE, len(references)))
                if not self._copy_records(some, start):
                    self._write_inputs(some, start)
        self._writer.flush()
        self._count()
        self._complete()

    def _write_inputs(self, references: References, start: int) -> None:
        """Reads, checks and writes inputs. `start` is the index of the first input in this part."""
        encode_around, has_images, writer = self._context.encoder.encode_around, self._context.listing.has_images, self._writer
        before = b""  # Empty for examples without an image, which are encoded as a whole.
        for position, image, key, label in zip(itertools.count(start), self._read_all(references), references.keys, self._labels(references)):
            if position % _COUNTED_INPUTS == _COUNTED_INPUTS - 1:
                self._count()
                self._pack_rows()
            if type(image) is DeadLetter:
                self._reject(image)
                continue
            data, extras, stored, pixels = image
            num_bytes, height, width = stored.num_bytes, stored.height, stored.width
            if has_images:
                values = {"height": height, "key": key, "label": label, "width": width}
                before, after = encode_around(num_bytes, values, extras.entries if extras else ())
            offset = writer.write(before, data, after) if has_images else writer.write(data)
            self._part.kept.append(position)
            self._rows.append(
                (offset, offset + RecordWriter.HEADER_BYTES + len(before), num_bytes, label, google_crc32c.value(data), height, width)
            )
            self._images.append(stored)
            self._keep_columns([data])
            if pixels is not None:
                self._split.pixels.merge(pixels)
            if extras is not None:
                self._keep_extras(extras)
        self._pack_rows()

    def _copy_records(self, references: References, start: int) -> bool:
        """Copies records with their headers and footers. `start` is the index of the first record in this part. Returns
        False if the records must be written one by one."""
        frames, sizes = self._reader.read_frames(references), references.rows["num_bytes"]
        crcs = None if frames is None else check_frames(frames)
        if crcs is None:
            return False
        rows = np.zeros(len(frames), _KEPT)
        rows["record"] = self._writer.num_bytes + np.cumsum(sizes + FRAME_BYTES) - (sizes + FRAME_BYTES)
        rows["image"], rows["length"], rows["crc"] = rows["record"] + RecordWriter.HEADER_BYTES, sizes, crcs
        self._packed.append(rows)
        self._writer.write_frames(frames)
        self._keep_columns(frame[HEADER_BYTES : HEADER_BYTES - FRAME_BYTES] for frame in frames)
        self._part.kept += range(start, start + len(frames))
        self._part.formats += [""] * len(frames)
        self._part.reencoded += [""] * len(frames)
        self._count()
        return True

    def _pack_rows(self) -> None:
        self._packed.append(np.array(self._rows, _KEPT))
        self._rows.clear()
        self._part.formats += [image.format for image in self._images]
        self._part.reencoded += [image.reencoded for image in self._images]
        if self._context.listing.has_images:
            self._part.statistics.images_of(IMAGE).add(self._images)
        self._images.clear()

    def _keep_columns(self, records: Iterable[bytes]) -> None:
        """Keeps the catalog values of verbatim records."""
        if columns := self._context.listing.columns:
            for record in records:
                for name, value in zip(self._part.values, read_values(columns, record), strict=True):
                    self._part.values[name].append(value)

    def _keep_extras(self, extras: Extras) -> None:
        part = self._part
        part.statistics.add_extras(self._split, extras)
        for columns, values in ((part.labels, extras.labels), (part.values, extras.values), (part.paths, extras.paths)):
            for name, column in columns.items():
                column.append(values[name])

    def _complete(self) -> None:
        """Completes the information about the part."""
        part, split, context = self._part, self._split, self._context
        part.num_bytes, part.crc32c, part.fingerprint = self._writer.num_bytes, self._writer.crc32c, self._writer.fingerprint
        table = np.concatenate(self._packed)
        part.index = np.empty(len(table), INDEX)
        for name in INDEX.names:
            part.index[name] = table[name]
        part.crcs, part.sizes = table["crc"].copy(), np.stack([table["height"], table["width"]], axis=1)
        if WEIGHT in context.features:
            values = [decode_values(value, self._spool) or {} for value in part.references.values]
            part.weights = [values[position].get(WEIGHT) for position in part.kept]
        part.statistics.dead_letters.add(part.dead_letters)
        split.num_examples, split.num_bytes = len(table), int(table["length"].sum())
        if context.listing.has_images:
            split.num_bytes = sum(facts.num_bytes.total for facts in part.statistics.images.values())
        if context.has_labels:
            part.labels[LABEL] = part.index["label"].tolist()
            split.labels.update(part.labels[LABEL])
        else:
            part.index["label"] = NO_LABEL

    def _labels(self, references: References) -> Iterator[int]:
        return map(self._context.labels.__getitem__, references.labels) if self._context.has_labels else itertools.repeat(0)

    def _read_all(self, references: References) -> Iterator[ReadImage | DeadLetter]:
        sampled = self._context.is_sampled(references.rows["order"])
        return self._reader.read_all(list_again(references, self._spool), sampled.tolist())

    def _reject(self, dead_letter: DeadLetter) -> None:
        letters = self._part.dead_letters
        letters.append(dead_letter)
        # More dead letters than allowed in the whole run.
        if len(letters) > max(self._context.max_dead_letters, _MANY):
            count = DeadLetterCount()
            count.add(letters)
            raise DataError(
                f"{count.num} inputs of shard {self._part.shard.address} alone are dead letters, more than "
                f"--max_bad_fraction={self._context.spec.max_bad_fraction:g} allows. Correct them and rerun with "
                "--restart, or rerun with --resume --max_bad_fraction=1, which allows any number. Dead letters:"
                f"{count.describe()}"
            )

    def _count(self) -> None:
        """Updates the progress counts."""
        counts = len(self._part.kept) + len(self._part.dead_letters), len(self._part.dead_letters), self._writer.num_bytes
        written, rejected, num_bytes = (now - before for now, before in zip(counts, self._counted))
        reasons = Counter(f"dead_letters_{letter.reason}" for letter in self._part.dead_letters[self._counted[1] :])
        details = {**reasons, **self._stopwatch.lap()}
        progress.count(self._context.spec.run.progress_directory, details, written=written, dead_letters=rejected, written_bytes=num_bytes)
        self._counted = counts


def list_again(references: References, spool: SpoolReader) -> Iterator[InputRecord]:
    """Yields the inputs as listed by the source, but without splits and groups."""
    raws = (None, *references.raws)
    rows = references.rows[["num_bytes", "offset", "raw", "spool"]]
    columns = itertools.chain.from_iterable(
        rows[start : start + _LISTED_AT_ONCE].tolist() for start in range(0, len(rows), _LISTED_AT_ONCE)
    )
    texts = zip(references.keys, references.paths, references.labels, references.values)
    for (key, path, label, values), (num_bytes, offset, raw, number) in zip(texts, columns):
        name = key.decode()
        yield InputRecord(
            name, path.decode() if path else name, label.decode(), None, num_bytes, "", offset, raws[raw], number,
            decode_values(values, spool),
        )  # fmt: skip
