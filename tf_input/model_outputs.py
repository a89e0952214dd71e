"""Determines whether a Keras model predicts logits or probabilities."""

from collections.abc import Mapping  # not from typing: Keras wraps dictionaries in this Mapping
from typing import Any


def predicts_logits(model: Any, target: str) -> bool | None:
    """Returns whether the loss of a compiled model expects logits for a target; None if it is unknown.

    Args:
        model: The model. If a Sequential is not compiled, its last layer may be a compiled model.
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
    if name.endswith("crossentropy"):  # a loss by name has from_logits=False
        return False
    from_logits = getattr(loss, "from_logits", None)
    return None if from_logits is None else bool(from_logits)


def predicts_scores(model: Any) -> bool:
    """Returns whether the last layer of a model has a sigmoid or softmax activation."""
    layers = getattr(model, "layers", None)
    if layers:
        return predicts_scores(layers[-1])
    return getattr(getattr(model, "activation", None), "__name__", "") in ("sigmoid", "softmax")
