"""Reads the metadata files of a dataset and checks the types of their values."""

import base64
import dataclasses
import itertools
import json
from collections import Counter
from typing import Any, Iterator, Mapping, NamedTuple

from beam_pipelines.elements.dead_letters import MAX_LINE_BYTES
from beam_pipelines.elements.label_conflicts import show_label
from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.files import files_at, open_file
from beam_pipelines.storage.metadata_files import read_object
from tf_input.dataset_format import DEAD_LETTER_THUMBNAILS, DEAD_LETTERS, LEAKS, RUN, STATISTICS, NEAR_DUPLICATES, Feature, Manifest

_MAX_LINES = 200_000  # Maximum number of lines to read from a file.
_NUM_SHOWN = 3  # Maximum number of dead letters to list for each reason.
_MAX_THUMBNAILS = 500
_MAX_NEAR_DUPLICATES = 2_000  # Maximum number of near-duplicate images in memory.


class RejectionReason(NamedTuple):
    """Dead letters with the same stage and reason.

    Attributes:
        stage, reason: The stage that rejected the inputs, and the reason.
        num: The number of these dead letters among the lines that were read.
        first: The (path, message) of the first few dead letters.
        seen: The (path, message, JPEG) of the first few dead letters with a thumbnail.
    """

    stage: str
    reason: str
    num: int
    first: list[tuple[str, str]]
    seen: list[tuple[str, str, bytes]]


class NearDuplicate(NamedTuple):
    """An image with a near-duplicate.

    Attributes:
        key: The key of the example.
        description: The class or split of the example, or an empty string.
    """

    key: str
    description: str


@dataclasses.dataclass(frozen=True)
class Leaks:
    """The near-duplicates of a dataset.

    Attributes:
        facts: The contents of `leaks.json`.
        clusters: The first few clusters in `near_duplicates.jsonl`.
        dropped: The keys of the dropped images.
    """

    facts: Mapping[str, Any]
    clusters: list[list[NearDuplicate]]
    dropped: frozenset[str]

    @property
    def counts_all_pairs(self) -> bool:
        """Whether all pairs of near-duplicates were counted."""
        return bool(self.facts["detected"].get("counts_all_pairs", True))


@dataclasses.dataclass(frozen=True)
class Contents:
    """The contents of the metadata files of a dataset.

    Attributes:
        manifest: The contents of `manifest.json`.
        statistics: The contents of `statistics.json`.
        run: The contents of `run.json`.
        rejected: The dead letters by reason, the most frequent reason first.
        num_rejected_read: The number of dead letters that were read.
        leaks: The near-duplicates, or None if the run did not search for them.
    """

    manifest: Manifest
    statistics: Mapping[str, Any]
    run: Mapping[str, Any]
    rejected: list[RejectionReason]
    num_rejected_read: int
    leaks: Leaks | None

    def label_counts(self, split: str, feature: Feature) -> Mapping[str, int]:
        """Returns a mapping from each class name to its number of occurrences in a split."""
        facts = self.statistics["splits"][split]
        return facts.get("other_label_counts", {}).get(feature.name) or facts["label_counts"]


def read_contents(directory: str, manifest: Manifest) -> Contents:
    """Reads the metadata files that the report needs.

    Raises:
        UserError: A file is corrupt.
        OSError: A file cannot be read.
    """
    rejected, num_read = _read_dead_letters(directory)
    leaks = _read_leaks(directory, manifest) if _exists(directory, LEAKS) else None
    statistics, run = (read_object(directory, manifest, name) for name in (STATISTICS, RUN))
    return Contents(manifest, statistics, run, rejected, num_read, leaks)


def _exists(directory: str, name: str) -> bool:
    return files_at(directory).exists(f"{directory}/{name}")


def _read_dead_letters(directory: str) -> tuple[list[RejectionReason], int]:
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for stage, reason, path, message in _read_lines(directory, DEAD_LETTERS, ("stage", "reason", "path", "message"), _MAX_LINES):
        counts[stage, reason] += 1
        if counts[stage, reason] <= _NUM_SHOWN:
            first.setdefault((stage, reason), []).append((path, message))
    seen: dict[tuple[str, str], list[tuple[str, str, bytes]]] = {}
    if _exists(directory, DEAD_LETTER_THUMBNAILS):
        names = ("stage", "reason", "path", "message", "thumbnail")
        for stage, reason, path, message, thumbnail in _read_lines(directory, DEAD_LETTER_THUMBNAILS, names, _MAX_THUMBNAILS):
            seen.setdefault((stage, reason), []).append((path, message, _decode(directory, thumbnail)))
    by_number = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [RejectionReason(*subject, num, first[subject], seen.get(subject, [])) for subject, num in by_number], counts.total()


def _decode(directory: str, thumbnail: str) -> bytes:
    try:
        return base64.b64decode(thumbnail, validate=True)
    except ValueError as error:
        raise UserError(
            f"{printable(f'{directory}/{DEAD_LETTER_THUMBNAILS}')}: a thumbnail is not valid base64: {error}. Run "
            "`recordmill verify`."
        ) from None


def _read_leaks(directory: str, manifest: Manifest) -> Leaks:
    """Reads `leaks.json`, the first few near-duplicate clusters, and the keys of dropped images."""
    facts = read_object(directory, manifest, LEAKS)
    lines = _read_lines(directory, NEAR_DUPLICATES, ("cluster", "key", "labels", "dropped"), _MAX_LINES)
    first = list(itertools.islice(lines, _MAX_NEAR_DUPLICATES))
    clusters = [[NearDuplicate(key, label) for _, key, label, _ in cluster] for _, cluster in itertools.groupby(first, lambda line: line[0])]
    others = lines if facts["detected"]["num_dropped"] else ()
    return Leaks(facts, clusters, frozenset(key for _, key, _, dropped in itertools.chain(first, others) if dropped == str(True)))


def _show_value(value: Any) -> str:
    """Formats a JSON value as a string."""
    if isinstance(value, dict):
        return ", ".join(map(show_label, value.values()))
    return "" if value is None else str(value)


def _read_lines(directory: str, name: str, fields: tuple[str, ...], most: int) -> Iterator[tuple[str, ...]]:
    """Yields the values of the given fields in the first lines of a JSON lines file. Null becomes an empty string."""
    path = f"{directory}/{name}"
    with open_file(path) as file:
        for number in range(1, most + 1):
            if not (line := file.readline(MAX_LINE_BYTES)):
                return
            try:
                values = json.loads(line)
                cells = tuple(_show_value(values[field]) for field in fields)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(
                    f"{printable(path)}: line {number} has no valid fields {', '.join(fields)}: {error!r}. Run "
                    "`recordmill verify`."
                ) from None
            yield cells
