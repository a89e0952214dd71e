"""Checks that a served model has the same inputs and predictions as the trained model, up to rounding."""

from typing import Any, Iterator

import keras
import numpy as np

from tf_input.model_inputs import describe_misfit

# Relative to the largest prediction. The served graph is optimized differently and adds numbers in another order, which
# changes the last bits of sums. Wrong preprocessing causes larger differences.
_TOLERANCES = {"float32": 1e-4, "float64": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}


def check_fed(model: keras.Model, x: Any) -> None:
    """Checks that a model could have been trained on the given inputs.

    Args:
        model: The model. A model that is not built passes the check.
        x: A batch of its inputs, as NumPy arrays.

    Raises:
        ValueError: The model expects another dtype or shape, or was trained on values of another scale.
    """
    if reason := describe_misfit(model, x):
        raise ValueError(f"the model was probably not trained on such inputs: {reason}")


def check_inputs(name: str, actual: np.ndarray, expected: np.ndarray, rounding: int) -> None:
    """Compares the inputs that the server computes with the inputs of a training batch.

    Args:
        name: The name of the input.
        actual: The values that the server computes.
        expected: The values of a training batch.
        rounding: The allowed absolute difference; 0 requires identical bits.

    Raises:
        RuntimeError: The values differ.
    """
    actual_kind, kind = ((item.dtype, item.shape) for item in (actual, expected))
    if actual_kind != kind:
        raise RuntimeError(
            f"{name!r} is preprocessed differently than in training: it is {actual_kind}, not {kind}; nothing was "
            "written"
        )
    if expected.dtype == object:  # strings
        is_same, by = bool((actual == expected).all()), "is a different string"
    else:
        is_same = actual.tobytes() == expected.tobytes()
        differ = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
        is_same, by = is_same or 0 < rounding and differ <= rounding, f"differs by up to {differ:g}"
    if not is_same:
        raise RuntimeError(f"{name!r} is preprocessed differently than in training: it {by}; nothing was written")


def check_predictions(description: str, actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Compares the predictions of a served model with the predictions of the original model.

    Args:
        description: The name of the predictions, for the message.
        actual: The served predictions.
        expected: The predictions of the model.
        tolerance: The allowed difference, as a fraction of the largest prediction.

    Raises:
        RuntimeError: The predictions differ by more than the tolerance.
    """
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    most = tolerance * max(1e-6, float(np.abs(expected).max(initial=0)))
    differ = np.abs(actual - expected).max(initial=0)
    if not differ <= most:  # `not`, so that NaN is rejected
        actual = f"served {description} differ from the model's by {differ:g}, more than {most:g}"
        raise RuntimeError(
            f"{actual}: the model must predict the same value for the same input each time; nothing was written"
        )


def prediction_tolerance(model: keras.Model) -> float:
    """Returns the tolerance for predictions, which depends on the least precise compute dtype of the layers."""
    return max(_TOLERANCES.get(layer.compute_dtype, _TOLERANCES["float32"]) for layer in _layers(model))


def _layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    yield layer
    for part in getattr(layer, "layers", ()):
        yield from _layers(part)
