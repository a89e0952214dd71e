"""How much the classes of a target count in the loss."""

from numbers import Integral, Real
from typing import Any, Mapping, Sequence

from tf_input.dataset_format import LABEL, Feature
from tf_input.options import meant

Table = tuple[float, ...]  # the weight of each label


def heads(features: Mapping[str, Feature], targets: Sequence[str]) -> list[str]:
    """The targets that are one class label each."""
    chosen = [features[name] for name in targets if name in features]
    return [feature.name for feature in chosen if feature.kind == "class_label" and not feature.shape]


def balanced(feature: Feature, statistics: Mapping[str, Any], split: str) -> Table:
    """Weights with which every class counts the same: num_examples / (num_classes * examples of the class).

    Over the classes that occur in the split; 0 for the others.
    """
    facts = statistics["splits"][split]
    counts = facts["label_counts"] if feature.name == LABEL else facts["other_label_counts"][feature.name]
    share = sum(counts.values()) / max(1, sum(count > 0 for count in counts.values()))
    return tuple(share / counts[name] if counts.get(name) else 0.0 for name in feature.label_names)


def tables(
    option: Any, features: Mapping[str, Feature], targets: Sequence[str], statistics: Mapping[str, Any] | None, split: str
) -> dict[str, Table]:
    """`ReadConfig.class_weight` in full: target -> the weight of each of its labels.

    Args:
        option: None, "balanced", label -> weight, or target -> one of these; a label that is not named has 1, as in Keras.
        features: Of the data set.
        targets: That are read.
        statistics: What `statistics.json` says; None: there is none, and classes are not counted.
        split: The split that is read.

    Raises:
        ValueError: No target, or another one, is one class label, or has such a label.
    """
    if option is None:
        return {}
    known = heads(features, targets)
    if not known:
        raise ValueError(f"class_weight={option!r}: expected a target that is one class label; there are {', '.join(targets) or 'none'}")
    if option == "balanced":
        option = dict.fromkeys(known, option)
    elif not any(isinstance(name, str) for name in option):
        if len(known) > 1:
            raise ValueError(f"class_weight={option!r}: expected weights for each of {', '.join(known)}")
        option = {known[0]: option}
    if unknown := [name for name in option if name not in known]:
        labels = f", or labels of it, 0 to {len(features[known[0]].label_names) - 1}" if len(known) == 1 else ""
        raise ValueError(f"class_weight={unknown[0]!r}: expected one of {', '.join(known)}{labels}{meant(unknown[0], known)}")
    if statistics is None and "balanced" in option.values():
        raise ValueError("class_weight='balanced': the classes of these files are not counted; expected weights by label")
    return {
        name: balanced(features[name], statistics, split) if weights == "balanced" else _table(weights, features[name])
        for name, weights in option.items()
    }


def _table(weights: Any, feature: Feature) -> Table:
    num_labels = len(feature.label_names)
    if not isinstance(weights, Mapping):
        raise ValueError(f"class_weight={weights!r}: expected 'balanced' or weights by label, for {feature.name}")
    if unknown := [label for label in weights if not isinstance(label, Integral) or not 0 <= label < num_labels]:
        raise ValueError(f"class_weight: {feature.name} has labels 0 to {num_labels - 1}; got {unknown[0]!r}")
    for label, weight in weights.items():
        if not isinstance(weight, Real) or not 0 <= weight < float("inf"):
            raise ValueError(f"class_weight: expected weights of 0 or more; label {label} of {feature.name} has {weight!r}")
    return tuple(float(weights.get(label, 1.0)) for label in range(num_labels))
