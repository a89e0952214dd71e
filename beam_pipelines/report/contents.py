"""What a data set says of itself in the files beside its shards: read, and of the kinds that are expected."""

import dataclasses
import json
from collections import Counter
from typing import Any, Mapping, NamedTuple

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.files import files_at, open_file
from tf_input.dataset_format import DEAD_LETTERS, RUN, STATISTICS, Feature, Manifest

LEAKS = "leaks.json"

_MAX_LINES = 200_000  # of dead letters that are read
_MAX_LINE_BYTES = 1 << 16
_NUM_SHOWN = 3  # of one reason


class Refused(NamedTuple):
    """The dead letters of one stage and reason.

    Attributes:
        stage, reason: Theirs.
        num: How many there are, among those that were read.
        first: (path, message) of the first ones.
    """

    stage: str
    reason: str
    num: int
    first: list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Contents:
    """The files beside the shards.

    Attributes:
        manifest: `manifest.json`.
        statistics: `statistics.json`.
        run: `run.json`.
        refused: The dead letters, those of the most frequent reason first.
        num_refused_read: Of how many dead letters.
        leaks: `leaks.json`, where it is there.
    """

    manifest: Manifest
    statistics: Mapping[str, Any]
    run: Mapping[str, Any]
    refused: list[Refused]
    num_refused_read: int
    leaks: Mapping[str, Any] | None

    def label_counts(self, split: str, feature: Feature) -> Mapping[str, int]:
        """Class name -> how often it occurs in a split."""
        facts = self.statistics["splits"][split]
        return facts.get("other_label_counts", {}).get(feature.name) or facts["label_counts"]


def read_contents(directory: str, manifest: Manifest) -> Contents:
    """Reads what lies beside the shards of a data set.

    Raises:
        UserError: A file is damaged.
        OSError: One can't be read.
    """
    refused, num_read = _read_dead_letters(directory)
    leaks = _read_object(directory, LEAKS) if files_at(directory).exists(f"{directory}/{LEAKS}") else None
    return Contents(manifest, _read_object(directory, STATISTICS), _read_object(directory, RUN), refused, num_read, leaks)


def _read_object(directory: str, name: str) -> dict[str, Any]:
    path = f"{directory}/{name}"
    try:
        fields = json.loads(files_at(path).read(path))
    except (ValueError, RecursionError) as error:  # of UTF-8, too
        raise UserError(f"{printable(path)}: no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{printable(path)}: a {type(fields).__name__}; expected an object")
    return fields


def _read_dead_letters(directory: str) -> tuple[list[Refused], int]:
    path, num_read = f"{directory}/{DEAD_LETTERS}", 0
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], list[tuple[str, str]]] = {}
    with open_file(path) as file:
        while num_read < _MAX_LINES and (line := file.readline(_MAX_LINE_BYTES)):
            try:
                fields = json.loads(line)
                what = (str(fields["stage"]), str(fields["reason"]))
                told = (str(fields["path"]), str(fields["message"]))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(f"{printable(path)}: line {num_read + 1}: {error!r}; expected a dead letter") from None
            num_read += 1
            counts[what] += 1
            if counts[what] <= _NUM_SHOWN:
                first.setdefault(what, []).append(told)
    by_number = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [Refused(*what, num, first[what]) for what, num in by_number], num_read
