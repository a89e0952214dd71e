"""Computes the quality checks of the report from the statistics of a dataset."""

import math
from typing import Any, Iterator, Mapping, NamedTuple

from beam_pipelines.elements.quality import WINDOW, is_inconclusive
from beam_pipelines.report.contents import Contents

_MAX_Z = 4.0  # A random shuffle exceeds this z-score in one of 30,000 datasets.
_MAX_CHECKS, _MAX_CHARACTERS = 30, 400
_RANDOM = "as in a random order"
_MUCH = 0.01  # Minimum share of rejected inputs that causes a warning.


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        level: `ok`, `note` or `warn`.
        text: The text of the result.
    """

    level: str
    text: str


class ShuffleRow(NamedTuple):
    """The shuffle quality of one feature in one split, formatted for the report."""

    split: str
    feature: str
    mean: str
    expected: str
    sorted: str
    in_window: str
    verdict: str
    is_bad: bool


def find_qualities(contents: Contents) -> list[ShuffleRow]:
    """Returns the shuffle quality of each class feature in each split."""
    rows = []
    for split in contents.manifest.splits:
        for name, shuffle in (contents.statistics["splits"][split].get("shuffle") or {}).items():
            if not shuffle:  # The split has no examples.
                continue
            z = _z_score(shuffle, contents.manifest.num_examples(split))
            if is_inconclusive(shuffle):
                verdict = "runs are not informative: they are as short if the examples are sorted by class"
            else:
                verdict = f"runs are longer than in a random order (z = {z:.1f})" if z > _MAX_Z else _RANDOM
            in_window = shuffle[f"mean_labels_in_{WINDOW}"]
            numbers = (f"{shuffle[key]:,.2f}" for key in ("mean_run_length", "expected_mean_run_length", "sorted_mean_run_length"))
            shown = "–" if in_window is None else f"{in_window:.1f}"
            rows.append(ShuffleRow(split, name, *numbers, shown, verdict, z > _MAX_Z and not is_inconclusive(shuffle)))
    return rows


def _z_score(quality: Mapping[str, Any], num_examples: int) -> float:
    """Returns how far the number of runs of equal classes is below that of a random shuffle, in standard deviations.

    The variance of the number of runs (Wald and Wolfowitz) is at most `n s (1 - s)`, where n is the number of examples
    and s is the probability that two random examples have the same class. The function uses this upper bound.
    """
    expected = quality["expected_mean_run_length"]
    same = min(max(1 + 1 / num_examples - 1 / expected, 0.0), 1.0)
    deviation = math.sqrt(num_examples * same * (1 - same))
    return (num_examples / expected - num_examples / quality["mean_run_length"]) / deviation if deviation else 0.0


def check_health(contents: Contents, qualities: list[ShuffleRow]) -> list[Check]:
    """Returns the results of the quality checks, most severe first."""
    checks = [_check_dead_letters(contents), *_check_shuffle(qualities), *_check_leaks(contents)]
    checks += [*_check_classes(contents), *_check_boxes(contents.statistics)]
    warnings = contents.statistics["warnings"]
    checks += [Check("warn", text) for text in warnings]
    checks = [check._replace(text=check.text[:_MAX_CHARACTERS]) for check in checks]
    return sorted(checks, key=lambda check: ("warn", "note", "ok").index(check.level))[:_MAX_CHECKS]


def _check_dead_letters(contents: Contents) -> Check:
    num, total = contents.manifest.num_dead_letters, contents.manifest.num_inputs
    if not num:
        return Check("ok", f"All {total:,} inputs were accepted.")
    reasons = ", ".join(f"{item.reason} ({item.num:,})" for item in contents.rejected[:3])
    return Check("warn" if num > _MUCH * total else "note", f"{num:,} of {total:,} inputs ({num / total:.2%}) were rejected: {reasons}.")


def _check_shuffle(qualities: list[ShuffleRow]) -> Iterator[Check]:
    bad = [quality for quality in qualities if quality.is_bad]
    for row in bad:
        lengths = f"Their mean length is {row.mean} examples; a perfect shuffle has {row.expected}."
        yield Check("warn", f"{row.split}, {row.feature}: {row.verdict}. {lengths}")
    good = next((item for item in qualities if not item.is_bad and item.verdict == _RANDOM), None)
    if good and not bad:
        message = f"in {good.split}, {good.mean} consecutive examples have the same {good.feature} on average"
        yield Check("ok", f"Well shuffled: {message}. A perfect shuffle has {good.expected}, examples sorted by class have {good.sorted}.")


def _check_classes(contents: Contents) -> Iterator[Check]:
    for feature in contents.manifest.schema:
        if not feature.is_categorical:
            continue
        counts = {split: contents.label_counts(split, feature) for split in contents.manifest.splits}
        totals = [sum(of_split.get(name, 0) for of_split in counts.values()) for name in feature.label_names]
        present = [num for num in totals if num]
        lacking = [
            f"{split} lacks {missing:,} classes"
            for split, of_split in counts.items()
            if (missing := sum(1 for name, num in zip(feature.label_names, totals) if num and not of_split.get(name, 0)))
        ]
        if lacking:
            yield Check("note", f"{feature.name}: of {len(present):,} classes with examples, {', '.join(lacking[:6])}.")
        elif present and len(counts) > 1:
            yield Check("ok", f"{feature.name}: every split has all {len(present):,} classes with examples.")
        if present and max(present) >= 10 * min(present):
            times = max(present) / min(present)
            yield Check("note", f"{feature.name}: the largest class has {times:,.0f} times as many examples as the smallest.")


def _check_leaks(contents: Contents) -> Iterator[Check]:
    if contents.leaks is None:
        return
    now = contents.leaks.facts["remaining"]
    num, apart, groups = now["num_pairs"], now["num_pairs_across_splits"], now["groups"]["num_across_splits"]
    if apart or groups:
        yield Check("warn", f"Leaks: {apart:,} of {num:,} near-duplicate pairs and {groups:,} groups are in different splits.")
    elif not contents.leaks.counts_all_pairs:
        message = "No leaks found: all near-duplicate pairs that were compared are in the same split."
        yield Check("note", f"{message} There are too many similar images to compare all pairs.")
    else:
        by_bytes = f" {num_by_bytes:,} images were compared only by their bytes." if (num_by_bytes := now.get("num_by_bytes")) else ""
        yield Check("ok", f"No leaks: no group and none of {num:,} near-duplicate pairs is in different splits.{by_bytes}")


def _check_boxes(statistics: Mapping[str, Any]) -> Iterator[Check]:
    boxes = statistics.get("boxes") or {}
    if any(boxes.values()):
        dropped = f"{boxes['num_dropped']:,} boxes outside their image were removed."
        yield Check("note", f"{boxes['num_clipped']:,} boxes were clipped to their image, {dropped}")
    for name, num in (statistics.get("num_outside") or {}).items():
        if num:
            yield Check("note", f"{num:,} points of {name} are outside their image and have visibility 0.")
