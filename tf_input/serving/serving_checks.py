"""Whether what is served does what training does, to the bit or but for rounding."""

from collections.abc import Mapping
from typing import Any, Iterator

import keras
import numpy as np

# Of the largest prediction: the served graph is optimised otherwise than the model, and adds in another order, which differs by a
# few units in the last place of each sum; what is wrongly preprocessed differs by more than this.
_TOLERANCES = {"float32": 1e-4, "float64": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}

_OTHER_SCALE = 10  # times as much, or as little, as images of the data set spread around their mean
_MAX_NORMALISED, _MAX_RESCALING = 16, 1 / 100  # values of images that are normalised; factors that are for 0..255


def check_fed(model: keras.Model, x: Any) -> None:
    """Whether it can be that a model was trained on such inputs.

    Args:
        model: Built or not; of one that is not, nothing is known.
        x: What it is to be fed with, NumPy arrays.

    Raises:
        ValueError: It takes integers or another shape, or it normalises what is normalised.
    """
    for given in (getattr(model, "inputs", None) or ()) if model.built else ():
        values = x.get(given.name) if isinstance(x, Mapping) else x
        if not isinstance(values, np.ndarray) or values.dtype == object:
            continue
        found = f"the model can't have been trained on this: it would be fed with {values.dtype} {[None, *values.shape[1:]]}"
        expected = f"it takes {given.dtype} {[*given.shape]}; expected the options with which it was trained"
        sides = zip(given.shape[1:], values.shape[1:])
        if len(given.shape) == values.ndim and any(side not in (None, other) for side, other in sides):
            raise ValueError(f"{found}, and {expected}")
        if values.dtype.kind == "f" and keras.backend.is_int_dtype(given.dtype):
            raise ValueError(f"{found}, and {expected}")
        for layer in _first_layers(model, given):
            if reason := _misfit(layer, values):
                raise ValueError(f"{found}, and its layer {layer.name!r} {reason}; expected the options with which it was trained")


def _first_layers(model: keras.Model, given: Any) -> Iterator[keras.layers.Layer]:
    """Those that an input comes to first, but for those that vary images in training."""
    reached = {id(given)}
    for layer in model.layers:
        if id(getattr(layer, "input", None)) not in reached or isinstance(layer, keras.layers.InputLayer):
            continue
        if isinstance(layer, keras.Model):
            yield from _first_layers(layer, layer.inputs[0])
        elif type(layer).__name__.startswith("Random"):
            reached.add(id(layer.output))
        else:
            yield layer


def _misfit(layer: keras.layers.Layer, values: np.ndarray) -> str:
    """Why a layer is not made for such values; "" if it may be."""
    if isinstance(layer, keras.layers.Rescaling) and values.dtype.kind == "f":
        scale, largest = np.abs(np.asarray(layer.scale)).max(), np.abs(values).max(initial=0)
        if scale <= _MAX_RESCALING and 0 < largest <= _MAX_NORMALISED:
            return f"multiplies by {scale:g} what is at most {largest:.3g} already"
    if isinstance(layer, keras.layers.Normalization) and values.shape[-1:] == np.shape(layer.mean)[-1:]:
        deviation = np.sqrt(keras.ops.convert_to_numpy(layer.variance)).max()
        found = values.reshape(-1, values.shape[-1]).std(axis=0, dtype=np.float64).max()
        if found and not deviation / _OTHER_SCALE < found < deviation * _OTHER_SCALE:
            return f"is made for a standard deviation of {deviation:.3g}, which here is {found:.3g}"
    return ""


def check_inputs(name: str, found: np.ndarray, expected: np.ndarray, rounding: int) -> None:
    """Compares what a model is fed with.

    Args:
        name: The name of the input.
        found: The values as they are served.
        expected: The values as a training batch has them.
        rounding: The amount by which they may differ; 0: not by a bit.

    Raises:
        RuntimeError: They differ.
    """
    found_kind, kind = ((one.dtype, one.shape) for one in (found, expected))
    if found_kind != kind:
        raise RuntimeError(f"{name!r} is not preprocessed as in training: it is {found_kind}, not {kind}; nothing was written")
    if expected.dtype == object:  # texts
        is_same, by = bool((found == expected).all()), "is another text"
    else:
        is_same = found.tobytes() == expected.tobytes()
        differ = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
        is_same, by = is_same or 0 < rounding and differ <= rounding, f"differs by up to {differ:g}"
    if not is_same:
        raise RuntimeError(f"{name!r} is not preprocessed as in training: it {by}; nothing was written")


def check_predictions(what: str, found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Compares what a model predicts.

    Args:
        what: The name of the predictions, for the message.
        found: The predictions as they are served.
        expected: The predictions as the model gives them.
        tolerance: The difference that is allowed, as a part of the largest prediction.

    Raises:
        RuntimeError: They differ by more.
    """
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    most = tolerance * max(1e-6, float(np.abs(expected).max(initial=0)))
    differ = np.abs(found - expected).max(initial=0)
    if not differ <= most:  # so said, it is refused where something is no number
        found = f"served {what} differ from the model's by {differ:g}, more than {most:g}"
        raise RuntimeError(f"{found}: a model must predict the same each time; nothing was written")


def prediction_tolerance(model: keras.Model) -> float:
    """By the coarsest dtype in which a layer computes."""
    return max(_TOLERANCES.get(layer.compute_dtype, _TOLERANCES["float32"]) for layer in _layers(model))


def _layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    yield layer
    for part in getattr(layer, "layers", ()):
        yield from _layers(part)
