"""Computes class weights for targets."""

from numbers import Integral, Real
from typing import Any, Mapping, Sequence

from tf_input.dataset_format import LABEL, Feature
from tf_input.options import suggest_option

Table = tuple[float, ...]  # the weight of each label


def class_targets(features: Mapping[str, Feature], targets: Sequence[str]) -> list[str]:
    """Returns the names of the targets with exactly one class label per example."""
    chosen = [features[name] for name in targets if name in features]
    return [feature.name for feature in chosen if feature.is_categorical and not feature.shape]


def weighted_targets(features: Mapping[str, Feature], targets: Sequence[str]) -> list[str]:
    """Returns the targets that support class weights: masks, and targets with one class label per example."""
    single = class_targets(features, targets)
    return [name for name in targets if name in single or name in features and features[name].is_mask]


def balanced(feature: Feature, statistics: Mapping[str, Any], split: str) -> Table:
    """Returns balanced class weights. The weight of a class is num_examples / (num_classes * examples of the class).

    `num_classes` is the number of classes that occur in the split. Classes that do not occur have weight 0.
    """
    facts = statistics["splits"][split]
    counts = facts["label_counts"] if feature.name == LABEL else facts["other_label_counts"][feature.name]
    share = sum(counts.values()) / max(1, sum(count > 0 for count in counts.values()))
    return tuple(share / counts[name] if counts.get(name) else 0.0 for name in feature.label_names)


def weight_tables(
    option: Any, features: Mapping[str, Feature], targets: Sequence[str], statistics: Mapping[str, Any] | None, split: str
) -> dict[str, Table]:
    """Converts the option `ReadConfig.class_weight` to a list of class weights for each target.

    Args:
        option: The user's option: None, "balanced", a mapping from labels to weights, or a mapping from targets to one
            of these values. Labels are numbers or class names. Missing labels have weight 1, as in Keras.
        features: The features of the dataset, by name.
        targets: The names of the targets that are read.
        statistics: The contents of `statistics.json`; None if classes have not been counted.
        split: The name of the split that is read.

    Raises:
        ValueError: A target is neither a class label nor a mask, or does not have a given label.
    """
    if option is None:
        return {}
    known, given = weighted_targets(features, targets), option
    if not known:
        raise ValueError(
            f"class_weight={option!r} needs a target that is a class label or a mask. "
            f"The targets are {', '.join(targets) or 'none'}."
        )
    if option == "balanced":
        option = dict.fromkeys(class_targets(features, targets) or known, option)
    elif not any(isinstance(weights, (str, Mapping)) for weights in option.values()):
        if len(known) > 1:
            raise ValueError(
                f"class_weight={option!r} is ambiguous with several targets. Pass weights by target: "
                f"{', '.join(known)}."
            )
        option = {known[0]: option}
    num_labels = {name: _num_labels(features[name], statistics) for name in known}
    if unknown := [name for name in option if name not in known]:
        most = num_labels[known[0]] - 1 if len(known) == 1 else -1
        labels = f", or a label from 0 to {most}" if most >= 0 else ""
        raise ValueError(
            f"class_weight has the key {unknown[0]!r}, which does not exist. Use {', '.join(known)}{labels}"
            f"{suggest_option(unknown[0], known)}"
        )
    if statistics is None and "balanced" in option.values():
        raise ValueError("class_weight='balanced': the classes in these files are not counted. Pass weights by label.")
    if unnamed := [name for name in option if not num_labels[name]]:
        raise ValueError(
            f"class_weight={given!r}: the number of classes of {unnamed[0]} is unknown. Pass label_names=..."
        )
    if uncounted := [name for name, weights in option.items() if weights == "balanced" and features[name].is_mask]:
        raise ValueError(
            f"class_weight='balanced': the pixels of {uncounted[0]} are not counted. Pass weights by label."
        )
    return {
        name: balanced(features[name], statistics, split)
        if weights == "balanced"
        else _table(weights, features[name], num_labels[name])
        for name, weights in option.items()
    }


def _num_labels(feature: Feature, statistics: Mapping[str, Any] | None) -> int:
    """Returns the number of labels of a target; for a mask, the number of possible pixel values."""
    if not feature.is_mask:
        return len(feature.label_names)
    return 1 << ((statistics or {}).get("mask") or {"bits": 16})["bits"]


def _table(weights: Any, feature: Feature, num_labels: int) -> Table:
    if not isinstance(weights, Mapping):
        raise ValueError(
            f"class_weight={weights!r} is invalid for {feature.name}. Pass 'balanced' or weights by label."
        )
    table = [1.0] * num_labels
    for given, weight in weights.items():
        label = feature.label_names.index(given) if given in feature.label_names else given
        if not isinstance(label, Integral) or isinstance(label, bool) or not 0 <= label < num_labels:
            raise ValueError(
                f"class_weight: {given!r} is not a label of {feature.name}. Use labels from 0 to {num_labels - 1}"
                f"{suggest_option(given, feature.label_names)}"
            )
        if not isinstance(weight, Real) or not 0 <= weight < float("inf"):
            raise ValueError(
                f"class_weight: label {given} of {feature.name} has weight {weight!r}. Pass a finite number of 0 or "
                "more."
            )
        table[label] = float(weight)
    return tuple(table)
