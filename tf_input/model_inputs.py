"""Detects inputs whose range, dtype or shape differs from the inputs that a Keras model was trained on."""

import contextlib
from collections.abc import Mapping
from typing import Any, Iterator

import keras
import numpy as np

from tf_input.mapped_batches import OTHER_SCALE

_OTHER_STATISTICS = 20  # like `OTHER_SCALE`, for moving statistics, which lag behind in the first steps
SAME_OPTIONS = "Use the options from training"
RESCALED = (
    "If `map` or your own training loop rescaled the images, put the same step before the model, as in "
    "keras.Sequential([keras.layers.Rescaling(1 / 255), model])"
)
# Largest value of normalized images, and largest scale of a `Rescaling` layer for values of 0..255.
_MAX_NORMALISED, _MAX_RESCALING = 16, 1 / 100


def describe_misfit(model: keras.Model, x: Any) -> str:
    """Explains why a model was clearly not trained on the given inputs and gives advice. Returns "" if no reason is
    found.

    Args:
        model: The model. If it is not built, the result is "".
        x: A batch of its inputs: a NumPy array, or arrays by name.
    """
    if not getattr(model, "built", False):
        return ""
    for given in getattr(model, "inputs", None) or ():
        values = x.get(given.name) if isinstance(x, Mapping) else x
        if not isinstance(values, np.ndarray) or values.dtype == object:
            continue
        difference = f"its input would be {values.dtype} {[None, *values.shape[1:]]}"
        expected = f"{difference}, but it takes {given.dtype} {[*given.shape]}. {SAME_OPTIONS}"
        sides = zip(given.shape[1:], values.shape[1:])
        if len(given.shape) == values.ndim and any(side not in (None, other) for side, other in sides):
            return expected
        if values.dtype.kind == "f" and keras.backend.is_int_dtype(given.dtype):
            return expected
        for layer in _first_layers(model, given):
            if reason := _misfit(layer, values):
                return f"{difference}, and its layer {layer.name!r} {reason}. {SAME_OPTIONS}. {RESCALED}"
    return _statistics_misfit(model, x)


def scales_itself(model: Any) -> bool:
    """Returns whether the first layer of a model rescales or normalizes its inputs."""
    if getattr(model, "inputs", None):
        layers = [layer for given in model.inputs for layer in _first_layers(model, given)]
    else:  # a Sequential that is not built yet
        layers = [*getattr(model, "layers", ())][:1]
    return any(isinstance(layer, (keras.layers.Rescaling, keras.layers.Normalization)) for layer in layers)


def _first_layers(model: keras.Model, given: Any) -> Iterator[keras.layers.Layer]:
    """Yields the first layers that process an input, except augmentation layers."""
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
    """Explains why a layer was clearly not trained on the given values. Returns "" if no reason is found."""
    if isinstance(layer, keras.layers.Rescaling) and values.dtype.kind == "f":
        scale, largest = np.abs(np.asarray(layer.scale)).max(), np.abs(values).max(initial=0)
        if scale <= _MAX_RESCALING and 0 < largest <= _MAX_NORMALISED:
            return f"multiplies values by {scale:g}, although they are at most {largest:.3g}"
    if isinstance(layer, keras.layers.Normalization) and values.shape[-1:] == np.shape(layer.mean)[-1:]:
        deviation = np.sqrt(keras.ops.convert_to_numpy(layer.variance)).max()
        actual_deviation = values.reshape(-1, values.shape[-1]).std(axis=0, dtype=np.float64).max()
        if actual_deviation and not deviation / OTHER_SCALE < actual_deviation < deviation * OTHER_SCALE:
            return f"was adapted to a standard deviation of {deviation:.3g}, but here it is {actual_deviation:.3g}"
    return ""


def _statistics_misfit(model: keras.Model, x: Any) -> str:
    """Compares the moving variance of the first BatchNormalization with the variance of its inputs."""
    layer = next((flatten_layer for flatten_layer in model._flatten_layers() if isinstance(flatten_layer, keras.layers.BatchNormalization)), None)
    if layer is None or not layer.built:
        return ""
    with _inputs_of(layer) as seen, contextlib.suppress(ValueError, TypeError):  # the caller reports inputs that do not fit
        model(x, training=False)
    if not seen:
        return ""
    values = np.asarray(keras.ops.convert_to_numpy(seen[0]), np.float64)
    axes = tuple(axis for axis in range(values.ndim) if axis != layer.axis % values.ndim)
    moving = float(np.sqrt(np.mean(keras.ops.convert_to_numpy(layer.moving_variance))))
    actual_deviation = float(np.sqrt(np.mean(values.var(axis=axes))))
    # The moving variance starts at 1. A smaller variance of inputs is significant only if training has increased it.
    if actual_deviation > _OTHER_STATISTICS * moving or moving > 1.5 and 0 < actual_deviation < moving / _OTHER_STATISTICS:
        statistics = f"its layer {layer.name!r} was trained on a standard deviation of {moving:.3g}"
        return f"{statistics}, but here it is {actual_deviation:.3g}. {SAME_OPTIONS}. {RESCALED}"
    return ""


@contextlib.contextmanager
def _inputs_of(layer: keras.layers.Layer) -> Iterator[list[Any]]:
    """Context manager that records the inputs of a layer's calls in a list."""
    seen: list[Any] = []
    call = layer.call

    def collect(inputs: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(inputs)
        return call(inputs, *arguments, **options)

    layer.call = collect
    try:
        yield seen
    finally:
        del layer.call
