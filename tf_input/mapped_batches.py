"""Detects whether `map` changed the inputs of the batches that a model was trained on."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Callable, NamedTuple

import numpy as np

from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig

OTHER_SCALE = 10  # values are on different scales if their standard deviations differ by this factor
_USUAL = {  # (scale, offset) -> the arguments that users write
    (1 / 255, 0.0): "1 / 255",
    (1 / 256, 0.0): "1 / 256",
    (1 / 127.5, -1.0): "1 / 127.5, offset=-1",
    (1 / 128, -1.0): "1 / 128, offset=-1",
}


class MappedBatches(NamedTuple):
    """A user function that was applied to batches, by `map` or by the options `map_example` and `map_batch`.

    Attributes:
        name: "map", or the name of the option.
        function: The function.
        split: The name of the split.
        config: The reading options.
        source: A weak reference to the batches.
    """

    name: str
    function: Callable[..., Any]
    split: str
    config: ReadConfig
    source: weakref.ref[tf.data.Dataset]

    def difference(self, dataset: Any) -> "Difference | None":
        """Reads a batch with and without the user function, and compares the inputs; see `compare`."""
        seeded = dataclasses.replace(self.config, seed=self.config.seed or 0)
        before = dataset.batches(self.split, dataclasses.replace(seeded, map_example=None, map_batch=None))
        if self.name != "map":
            return compare(before, dataset.batches(self.split, seeded))
        before = dataset.batches(self.split, seeded)
        return compare(before, tf.data.Dataset.map(before, self.function))


def note_function(name: str, function: Callable[..., Any], batches: tf.data.Dataset) -> None:
    """Records a user function that was applied to batches, for checks in `export_serving` and `predict`."""
    dataset, split, config = batches.reading
    if split is not None and not any(item.function is function and item.source() is batches for item in dataset.mapped):
        dataset.mapped.append(MappedBatches(name, function, split, config, weakref.ref(batches)))


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between the original inputs of a batch and the inputs that a user function returned.

    Attributes:
        actual: A description of the returned values, such as "float32 values from 0 to 1".
        expected: A description of the original values.
        values: The returned values.
        is_other_scale: Whether the returned values are on another scale; see `is_other_scale`.
        layer: The equivalent Keras layer as Python code; "" if there is none.
    """

    actual: str
    expected: str
    values: np.ndarray
    is_other_scale: bool
    layer: str


def source_of(data: Any) -> tf.data.Dataset | None:
    """Returns the original batches of a dataset that `map`, `prefetch` or a similar method created; None if unknown."""
    while isinstance(data, tf.data.Dataset) and not hasattr(data, "reading"):
        inputs = data._inputs()
        data = inputs[0] if len(inputs) == 1 else None
    return data if isinstance(data, tf.data.Dataset) else None


def compare(batches: tf.data.Dataset, mapped: tf.data.Dataset) -> Difference | None:
    """Compares the inputs in the first batches of two datasets. Returns None if all values are equal.

    Reading the first batch does not advance the epoch.
    """
    before, after = _first_inputs(batches), _first_inputs(mapped)
    pairs = [(name, member, after.get(name)) for name, member in before.items()]
    if set(before) == set(after) and all(_is_same(item, other) for _, item, other in pairs):
        return None
    given = [(entry, other) for _, entry, other in pairs if other is not None]
    numbers = [(array, other) for array, other in given if object not in (array.dtype, other.dtype)]
    if not numbers:
        return Difference(f"inputs {', '.join(after)}", f"inputs {', '.join(before)}", np.zeros(0), False, "")
    value, other = next(((element, other) for element, other in numbers if not _is_same(element, other)), numbers[0])
    layer = _rescaling(value, other) if len(before) == 1 else ""
    return Difference(describe(other), describe(value), other, is_other_scale(value, other), layer)


def is_other_scale(array: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether the standard deviations of two arrays differ by a factor of 10, or only one is centered at 0."""
    low, high = sorted(float(values.std(dtype=np.float64)) for values in (array, other))
    return low > 0 and (low * OTHER_SCALE <= high or _is_centered(array) != _is_centered(other))


def _is_centered(values: np.ndarray) -> bool:
    """Returns whether values are centered at 0. Augmentation of brightness or contrast does not center values."""
    return values.min() < 0 and abs(values.mean(dtype=np.float64)) < values.std(dtype=np.float64)


def describe(values: np.ndarray) -> str:
    """Describes the dtype and range of values, such as "uint8 values from 0 to 255"."""
    return f"{values.dtype} values from {values.min(initial=0):.3g} to {values.max(initial=0):.3g}"


def _first_inputs(data: tf.data.Dataset) -> dict[str, np.ndarray]:
    x: Any = next(iter(data))
    while isinstance(x, tuple):  # (x, y, weight), or ((x, y), keys)
        x = x[0]
    named = x if isinstance(x, dict) else {"": x}
    return {name: item.numpy() for name, item in named.items() if isinstance(item, tf.Tensor)}


def _is_same(array: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and array.shape == other.shape and bool((array == other).all())


def _rescaling(array: np.ndarray, other: np.ndarray) -> str:
    """Returns Python code for a `Rescaling` layer that converts `array` to `other`; "" if no such layer exists."""
    if array.shape != other.shape or not other.dtype.kind == "f" or not array.std():
        return ""
    before, after = (values.astype(np.float64).reshape(-1) for values in (array, other))
    scale, offset = np.polyfit(before, after, 1)
    if np.abs(before * scale + offset - after).max() > 1e-4 * max(1.0, np.abs(after).max()):
        return ""
    for (usual_scale, usual_offset), text in _USUAL.items():
        if abs(scale / usual_scale - 1) < 1e-4 and abs(offset - usual_offset) < 1e-4:
            return f"keras.layers.Rescaling({text})"
    return f"keras.layers.Rescaling({scale:.9g}, offset={offset:.9g})"
