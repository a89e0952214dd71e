"""Cross-validation with a dataset from `--folds N`. One fold is for validation, all other folds are for training."""

import dataclasses
import math
from collections import Counter
from typing import Any, Mapping

from tf_input.choices import Fold
from tf_input.dataset_format import Manifest

TRAIN, VALIDATION = "train", "validation"

def choose_fold(manifest: Manifest, fold: Fold) -> Manifest:
    """Returns the manifest with the splits `train` and `validation` instead of the folds.

    Args:
        manifest: The manifest of the dataset.
        fold: The pair (number of folds, index of the validation fold, from 0).

    Raises:
        ValueError: The dataset does not have exactly these folds.
    """
    names = fold_names(fold)
    others = {split: shards for split, shards in manifest.splits.items() if split not in names}
    folds = [split for split in manifest.splits if split.startswith("fold")]
    if sorted(folds) != sorted(names) or {TRAIN, VALIDATION}.intersection(others):
        raise ValueError(
            f"fold={fold!r}: the dataset was not prepared for this; its splits are {', '.join(manifest.splits)}. "
            f"Prepare it with --folds {fold[0]}."
        )
    validation = names[fold[1]]
    train = tuple(shard for name in names if name != validation for shard in manifest.splits[name])
    return dataclasses.replace(manifest, splits={TRAIN: train, VALIDATION: manifest.splits[validation], **others})


def has_folds(manifest: Manifest, fold: Fold | None) -> bool:
    """Returns whether a dataset was prepared with `--folds`."""
    return fold is not None or {*fold_names((2, 0))} <= {*manifest.splits}


def fold_names(fold: Fold) -> list[str]:
    """Returns the split names of all folds, such as fold0 and fold1."""
    return [f"fold{number}" for number in range(fold[0])]


def choose_statistics(statistics: Mapping[str, Any], fold: Fold) -> dict[str, Any]:
    """Returns the contents of `statistics.json`, recomputed for the splits `train` and `validation`."""
    splits, names = dict(statistics["splits"]), fold_names(fold)
    of_folds = [splits.pop(name) for name in names]
    validation = of_folds.pop(fold[1])
    return {**statistics, "splits": {TRAIN: _merge(of_folds), VALIDATION: validation, **splits}}


def _merge(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {name: sum(part[name] for part in parts) for name in ("num_examples", "image_bytes") if name in parts[0]}
    merged["label_counts"] = _add(part["label_counts"] for part in parts)
    others = dict.fromkeys(name for part in parts for name in part.get("other_label_counts", {}))
    if others:
        merged["other_label_counts"] = {name: _add(part.get("other_label_counts", {}).get(name, {}) for part in parts) for name in others}
    if "pixels" in parts[0]:
        merged["pixels"] = _merge_pixels([part["pixels"] for part in parts if part["pixels"]])
    if names := sorted({name for part in parts for name in part.get("tensors", {})}):
        merged["tensors"] = {
            name: _merge_tensors([part["tensors"][name] for part in parts if name in part.get("tensors", {})]) for name in names
        }
    return {**merged, "shuffle": None}


def _add(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    return dict(total)


def _merge_pixels(parts: list[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not parts:
        return None
    counts = [part["num_pixels"] for part in parts]
    channels = range(len(parts[0]["mean"]))
    moments = [_merge_moments(counts, [(part["mean"][channel], part["variance"][channel]) for part in parts]) for channel in channels]
    mean, variance = map(list, zip(*moments))
    return {"num_images": sum(part["num_images"] for part in parts), "num_pixels": sum(counts), "mean": mean, "variance": variance}


def _merge_tensors(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {name: sum(part[name] for part in parts) for name in ("num_examples", "num_values", "num_not_finite")}
    seen = [part for part in parts if part["num_values"]]
    merged["min"] = min((part["min"] for part in seen), default=None)
    merged["max"] = max((part["max"] for part in seen), default=None)
    if not seen:
        return {**merged, "mean": None, "std": None}
    has_std = all(part["std"] is not None for part in seen)  # else a variance is too large for 64 bits
    moments = [(part["mean"], part["std"] ** 2 if has_std else 0.0) for part in seen]
    mean, variance = _merge_moments([part["num_values"] for part in seen], moments)
    return {**merged, "mean": mean, "std": math.sqrt(variance) if has_std else None}


def _merge_moments(counts: list[int], moments: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns the mean and variance of several pooled samples, given the count, mean and variance of each sample."""
    weights = [count / sum(counts) for count in counts]
    mean = sum(weight * of_part for weight, (of_part, _) in zip(weights, moments))
    return mean, sum(weight * (variance + (of_part - mean) ** 2) for weight, (of_part, variance) in zip(weights, moments))
