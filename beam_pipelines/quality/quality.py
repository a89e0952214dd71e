"""Runs the shuffle test of `recordmill quality` and formats the result."""

import dataclasses
import os
from typing import Any, Iterator, Sequence

from beam_pipelines.errors import ProblemsFound, UserError, printable
from beam_pipelines.quality.file_labels import read_file_labels
from beam_pipelines.quality.measures import PARTLY, SHUFFLED, SIGNIFICANCE, UNKNOWN, UNSHUFFLED, Measure, Quality, assess
from beam_pipelines.quality.dataset_labels import is_prepared_dataset, read_dataset_labels
from beam_pipelines.quality.split_labels import SplitLabels
from beam_pipelines.storage.files import is_remote

# If splits have different verdicts, the first one in this list is the verdict of the dataset.
_VERDICTS = (UNSHUFFLED, PARTLY, SHUFFLED, UNKNOWN)
_WORDS = {
    "mean_run_length": "mean same-label run",
    "longest_run": "longest same-label run",
    "shard_distance": "mean label difference of a shard",
    "source_correlation": "correlation with the source order",
}


@dataclasses.dataclass(frozen=True)
class SplitQuality:
    """The test result of one split."""

    labels: SplitLabels
    quality: Quality

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON values."""
        order, quality = self.labels.order, self.quality
        worst = None if quality.worst_shard is None else printable(self.labels.shard_names[quality.worst_shard])
        return {
            "verdict": quality.verdict,
            "p_value": quality.p_value,
            "records": len(order.labels),
            "shards": len(self.labels.shard_names),
            "labels": printable(self.labels.labels_are),
            "permutations": quality.num_permutations,
            "measures": {measure.name: {name: value for name, value in measure.to_json().items() if name != "name"} for measure in quality.measures},
            "farthest_shard": worst,
            "notes": list(self.labels.notes),
        }


@dataclasses.dataclass(frozen=True)
class PathQuality:
    """The test result of a prepared dataset or of TFRecord files."""

    path: str
    splits: tuple[SplitQuality, ...]

    @property
    def verdict(self) -> str:
        """The worst verdict of all splits."""
        verdicts = {split.quality.verdict for split in self.splits}
        return next(verdict for verdict in _VERDICTS if verdict in verdicts)

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON values."""
        splits = {printable(item.labels.split) or "all": item.to_json() for item in self.splits}
        return {"path": printable(self.path), "verdict": self.verdict, "significance": SIGNIFICANCE, "splits": splits}

    def describe(self) -> str:
        """Returns the result as text for the terminal."""
        lines = [line for split in self.splits for line in (*_describe(self.path, split), "")]
        return "\n".join([*lines, f"{printable(self.path)}: {self.verdict}"])


def find_quality(
    path: str, label: str | None, *, follow_links: bool = False, split_folders: bool | None = None
) -> PathQuality:
    """Tests whether the records of a dataset or of TFRecord files are shuffled.

    Args:
        path: A prepared dataset, or a file, folder or pattern of TFRecord files, or a URL.
        label: The class feature to test, or None to detect it.
        follow_links: Whether to follow links to folders, and links that lead out of the folder of TFRecord files.
        split_folders: Whether the files are named after splits. None detects split names.

    Raises:
        UserError: There are no records, the data is corrupt, or the feature does not exist.
        StorageError: The object store failed.
    """
    path = path if is_remote(path) else os.path.expanduser(path)
    read = read_dataset_labels(path, label) if is_prepared_dataset(path) else read_file_labels(path, label, follow_links, split_folders)
    splits = tuple(SplitQuality(labels, assess(labels.order)) for labels in read)
    if not splits:
        raise UserError(f"{printable(path)}: no examples found.")
    return PathQuality(path, splits)


def failure(qualities: Sequence[PathQuality]) -> ProblemsFound | None:
    """Returns the error to raise if a dataset is not shuffled, or None."""
    bad = [quality_of_path for quality_of_path in qualities if quality_of_path.verdict in (UNSHUFFLED, PARTLY)]
    message = "; ".join(f"{printable(entry.path)}: {entry.verdict}" for entry in bad)
    return ProblemsFound(f"{message}. Run `recordmill prepare` to shuffle the records globally.", bad[0].path) if bad else None


def _describe(path: str, split_quality: SplitQuality) -> Iterator[str]:
    labels, quality = split_quality.labels, split_quality.quality
    num_records, num_shards = len(labels.order.labels), len(labels.shard_names)
    where = f"{printable(path)}{labels.split and ', '}{printable(labels.split)}"
    yield (
        f"{where}: records: {num_records:,}, shards: {num_shards:,}, label: {printable(labels.labels_are)}"
    )
    rows = [("", "actual", "random", "sorted"), *(_row(measure) for measure in quality.measures if measure.counts)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *others in rows if len(rows) > 1 else ():
        yield "  ".join([f"  {first.ljust(widths[0])}", *(cell.rjust(width) for cell, width in zip(others, widths[1:]))])
    if quality.worst_shard is not None:
        yield f"  most different shard: {printable(labels.shard_names[quality.worst_shard])}"
    yield from (f"  note: {printable(note)}" for note in labels.notes)
    yield f"  {quality.verdict}: {_reason(quality)}"


def _row(measure: Measure) -> tuple[str, ...]:
    title = _WORDS.get(measure.name) or f"labels in {int(measure.name.removeprefix('labels_in_')):,} records"
    return title, *map(_number, (measure.actual, measure.chance, measure.sorted))


def _reason(quality: Quality) -> str:
    if quality.p_value is None:
        return "the test cannot distinguish sorted records from random records"
    worst = max((measure for measure in quality.measures if measure.counts), key=lambda item: item.share)
    chance = f"p = {quality.p_value:.2g}, from {quality.num_permutations:,} permutations"
    if quality.verdict != SHUFFLED:
        return f"{worst.share:.0%} of the way from random to sorted; {chance}"
    return (
        chance if quality.p_value > SIGNIFICANCE else f"{chance}, but only {worst.share:.1%} of the way from random to sorted"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
