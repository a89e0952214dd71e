"""Reads labels from TFRecord files that other tools wrote. Images are not decoded.

| case | label that is used |
| --- | --- |
| `--label NAME` | the value of the feature, or the set of its values |
| a TensorFlow Datasets directory or a known layout | the label, or the classes of the objects |
| a numeric label with a different value in nearly every record | the quantile (sixteenth) of the value |
| no label, or records that are not `tf.train.Example`s | the quantile (sixteenth) of the record length |
"""

import array
import math
import tempfile
from typing import Iterable, Iterator

import numpy as np

from beam_pipelines.elements.label_feature import LabelFeature
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.progress import Counts, ProgressDisplay, Stage
from beam_pipelines.quality.measures import LabelOrder
from beam_pipelines.quality.split_labels import NOTHING, NUM_PARTS, Codes, SplitLabels, label_of_set, parts_of, shards_of
from beam_pipelines.sources.formats.tfrecord.foreign_files import ForeignFiles
from beam_pipelines.tfrecord.record_reader import BadRecord, Record
from tf_input.serialized_example import BadExampleError, SerializedExample

_RECORDS_OF_CLASS = 4  # If there are fewer records per distinct value, the values are treated as numbers, not classes.
_COUNTED_RECORDS = 1024
_LENGTHS = "the order of the record lengths is tested instead"


def read_file_labels(
    path: str, label: str | None, follow_links: bool = False, split_folders: bool | None = None
) -> Iterator[SplitLabels]:
    """Yields the labels of each split. If the file names do not contain split names, all records form one split.

    Args:
        path: A file, a folder, a pattern, or a URL.
        label: The name of a feature, or None to detect the label.
        follow_links, split_folders: As in `ForeignFiles`.

    Raises:
        UserError: There are no records, a file contains no records, or the feature does not exist.
        StorageError: The object store failed.
    """
    files = ForeignFiles(path, follow_links, split_folders)
    chosen, notes = _choose_label(files, label)
    num_records = 0

    def stages(counts: Counts) -> list[Stage]:
        return [Stage("files", counts.listed, len(files.splits)), Stage("records", counts.analyzed, None)]

    with tempfile.TemporaryDirectory() as scratch, ProgressDisplay(scratch, stages):
        for split in dict.fromkeys(files.splits.values()):
            split_labels = _LabelCollector(scratch)
            for name in (name for name, item in files.splits.items() if item == split):
                split_labels.add_shard(name, files.records(name), chosen)
            num_records += len(split_labels.sizes)
            if split_labels.sizes:
                yield split_labels.to_labels(split, chosen.name, notes)
    if not num_records:
        raise UserError(f"{printable(path)}: no records found in {len(files.splits):,} files. Give files with records.")


def _choose_label(files: ForeignFiles, label: str | None) -> tuple[LabelFeature, tuple[str, ...]]:
    """Chooses the class feature. Returns the feature, and a note for the user if none was detected."""
    first = files.first_examples()
    if label is None:
        chosen = files.find_label(first)
        return chosen, (
            ()
            if chosen.name
            else (
                f"no label, or more than one label, was detected: {_LENGTHS}. Pass --label NAME to choose a feature.",
            )
        )
    names = {name for example in first for name in example.features}
    if label not in names:
        has = f"The first {len(first)} records have {', '.join(map(printable, sorted(names)[:20])) or 'no features'}"
        raise UserError(f"--label={printable(label)}: no such feature. {has}{did_you_mean(label, names)}")
    return LabelFeature(label), ()


class _LabelCollector:
    """Collects the labels and the sizes of the records of a split.

    Args:
        progress_directory: The directory for progress counts.

    Attributes:
        sizes: The length of each record, in bytes.
    """

    def __init__(self, progress_directory: str) -> None:
        self._progress_directory = progress_directory
        self.sizes = array.array("q")
        self._labels = array.array("q")
        self._values = Codes()
        self._counts: dict[str, int] = {}
        self._num_corrupt = self._num_unlabelled = 0

    def add_shard(self, name: str, records: Iterable[Record | BadRecord], label: LabelFeature) -> None:
        """Adds the records of a file."""
        before = len(self.sizes)
        for record in records:
            if isinstance(record, BadRecord):
                self._num_corrupt += 1
                continue
            self.sizes.append(len(record.data))
            self._labels.append(self._label_of(record.data, label) if label.name else NOTHING)
            if (len(self.sizes) - before) % _COUNTED_RECORDS == 0:
                progress.count(self._progress_directory, analyzed=_COUNTED_RECORDS)
        self._counts[name] = len(self.sizes) - before
        progress.count(self._progress_directory, listed=1, analyzed=self._counts[name] % _COUNTED_RECORDS)

    def _label_of(self, data: bytes, label: LabelFeature) -> int:
        """Returns an integer that represents the label of an example, or `NOTHING` if it has no label."""
        try:
            values = SerializedExample(data).values(label.name)
        except BadExampleError:
            values = []
        if not values and not label.is_flags:
            self._num_unlabelled += 1
        return label_of_set([self._values.of(value) for value in label.classes(values)])

    def to_labels(self, split: str, label: str, notes: tuple[str, ...]) -> SplitLabels:
        """Returns the labels of all records. If no record has a label, quantiles of the record sizes are used."""
        labels, sizes, labels_are = np.array(self._labels), np.array(self.sizes), label
        if not label or self._num_unlabelled == len(sizes):
            notes += (f"no record has {label!r}: {_LENGTHS}",) if label else ()
            labels, labels_are = parts_of(sizes), f"length, in {NUM_PARTS} ranges"
        elif (numbers := self._numbers(labels)) is not None:
            labels, labels_are = parts_of(numbers), f"{label}, in {NUM_PARTS} ranges"
        if self._num_corrupt:
            notes += (f"{self._num_corrupt:,} corrupt records were skipped",)
        names = tuple(name for name, count in self._counts.items() if count)
        return SplitLabels(split, labels_are, LabelOrder(labels, shards_of([*self._counts.values()])), names, notes)

    def _numbers(self, labels: np.ndarray) -> np.ndarray | None:
        """Returns the numbers in the class feature if it has too many distinct values to be a class. Otherwise None."""
        values = self._values.values
        is_numeric = all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
        if not is_numeric or labels.min() < 0 or len(values) * _RECORDS_OF_CLASS <= len(labels):
            return None
        return np.array(values, np.float64)[labels]
