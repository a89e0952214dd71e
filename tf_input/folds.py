"""Folds of a data set that was prepared with `--folds N`: one of them to validate with, all others together to train with."""

import dataclasses
from collections import Counter
from typing import Any, Mapping

from tf_input.dataset_format import Manifest

TRAIN, VALIDATION = "train", "validation"

Fold = tuple[int, int]


def choose_fold(manifest: Manifest, fold: Fold) -> Manifest:
    """The manifest as if it had the splits `train`, of all folds but one, and `validation`, which is that one, in place of its folds.

    Args:
        manifest: Of the data set.
        fold: How many folds there are, and which is to validate with, from 0.

    Raises:
        ValueError: It has not so many folds, or there is no such one.
    """
    if not (isinstance(fold, tuple) and len(fold) == 2 and all(type(number) is int for number in fold) and 0 <= fold[1] < fold[0]):
        raise ValueError(f"fold={fold!r}: expected (number of folds, which one), such as (5, 0) to (5, 4)")
    names = fold_names(fold)
    others = {split: shards for split, shards in manifest.splits.items() if split not in names}
    found = [split for split in manifest.splits if split.startswith("fold")]
    if sorted(found) != sorted(names) or {TRAIN, VALIDATION}.intersection(others):
        raise ValueError(f"fold={fold!r}: the data set has the splits {', '.join(manifest.splits)}; expected one prepared with --folds {fold[0]}")
    validation = names[fold[1]]
    train = tuple(shard for name in names if name != validation for shard in manifest.splits[name])
    return dataclasses.replace(manifest, splits={TRAIN: train, VALIDATION: manifest.splits[validation], **others})


def fold_names(fold: Fold) -> list[str]:
    """The names of all folds."""
    return [f"fold{number}" for number in range(fold[0])]


def choose_statistics(statistics: Mapping[str, Any], fold: Fold) -> dict[str, Any]:
    """`statistics.json` as if it were of those splits. Nothing is known of the quality of the shuffle across folds."""
    splits, names = dict(statistics["splits"]), fold_names(fold)
    of_folds = [splits.pop(name) for name in names]
    validation = of_folds.pop(fold[1])
    return {**statistics, "splits": {TRAIN: _merge(of_folds), VALIDATION: validation, **splits}}


def _merge(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {name: sum(part[name] for part in parts) for name in ("num_examples", "image_bytes")}
    merged["label_counts"] = _add(part["label_counts"] for part in parts)
    others = dict.fromkeys(name for part in parts for name in part.get("other_label_counts", {}))
    if others:
        merged["other_label_counts"] = {name: _add(part.get("other_label_counts", {}).get(name, {}) for part in parts) for name in others}
    return {**merged, "pixels": _merge_pixels([part["pixels"] for part in parts if part["pixels"]]), "shuffle": None}


def _add(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    return dict(total)


def _merge_pixels(parts: list[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not parts:
        return None
    num = sum(part["num_pixels"] for part in parts)
    weights = [part["num_pixels"] / num for part in parts]
    channels = range(len(parts[0]["mean"]))
    mean = [sum(weight * part["mean"][channel] for weight, part in zip(weights, parts)) for channel in channels]
    squares = [[part["variance"][channel] + (part["mean"][channel] - mean[channel]) ** 2 for part in parts] for channel in channels]
    variance = [sum(weight * square for weight, square in zip(weights, some)) for some in squares]
    return {"num_images": sum(part["num_images"] for part in parts), "num_pixels": num, "mean": mean, "variance": variance}
