"""Finds out whether a Keras model predicts logits or probabilities."""

from collections.abc import Mapping  # not of typing: Keras keeps dictionaries in a wrapper of its own
from typing import Any


def predicts_logits(model: Any, target: str) -> bool | None:
    """Whether a model predicts a target in logits, by the loss it was compiled with; None if that is unknown.

    Args:
        model: The model. If a Sequential was not compiled, its last layer may be a compiled model.
        target: The name of the target.
    """
    loss = getattr(model, "loss", None)
    if isinstance(loss, Mapping):
        loss = loss.get(target)
    elif isinstance(loss, (list, tuple)):
        loss = dict(zip(getattr(model, "output_names", ()), loss)).get(target)
    if loss is None and (layers := getattr(model, "layers", None)) and hasattr(layers[-1], "compile"):
        return predicts_logits(layers[-1], target)
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    if name.endswith("crossentropy"):  # with its defaults
        return False
    from_logits = getattr(loss, "from_logits", None)
    return None if from_logits is None else bool(from_logits)


def predicts_scores(model: Any) -> bool:
    """Whether the last layer of a model has an activation that gives scores from 0 to 1."""
    layers = getattr(model, "layers", None)
    if layers:
        return predicts_scores(layers[-1])
    return getattr(getattr(model, "activation", None), "__name__", "") in ("sigmoid", "softmax")
