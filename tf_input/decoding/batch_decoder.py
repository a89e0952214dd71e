"""Decodes batches of a split or a mixture. Each component of a mixture has its own decoder."""

from __future__ import annotations

import dataclasses
from typing import Any, Collection, Iterator, Mapping, Sequence

from tf_input.dataset_format import LABEL
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.features.bbox import NO_LABEL, VALID
from tf_input.lazy_tensorflow import tf

_TUPLE = ("x", "y", "weight")


@dataclasses.dataclass(frozen=True)
class BatchDecoder:
    """A function that decodes the inputs of a batch to `x`, `(x, y)` or `(x, y, weight)`.

    Attributes:
        decoders: The decoder of each component of a mixture, or the only decoder of a split.
        names: The names of the components of a mixture; empty for a split.
        labels: For each component, the class labels whose class indices change in the mixture, with the new index of
            each class.
        size: The number of examples in each batch of a mixture; None if it varies.
    """

    decoders: tuple[ExampleDecoder, ...]
    names: tuple[str, ...] = ()
    labels: tuple[Mapping[str, Sequence[int]], ...] = ({},)
    size: int | None = None

    def __call__(
        self, inputs: Sequence[tf.Tensor | Mapping[str, Any]], seed: tf.Tensor | None = None, slots: Sequence[tf.Tensor] | None = None
    ) -> Any:
        """Decodes a batch.

        Args:
            inputs: For each component, records, string [n], or features from `ExampleDecoder.parse_batch` or
                `decode_stored`.
            seed: The random seed, as in `ExampleDecoder.outputs`.
            slots: For each component, batch slots, int64 [n], as in `ExampleDecoder.outputs`. None for a whole batch of
                a split.

        Returns:
            The examples of all components in the order of their batch slots, followed by padding. Objects are padded to
            the largest number in all components.

        Raises:
            ValueError: Components return different features.
        """
        outputs = [self._decode(component, item, seed, slots and slots[component]) for component, item in enumerate(inputs)]
        return self._join(outputs, slots) if self.names else outputs[0]

    def pad(self, has_padding: bool) -> "BatchDecoder":
        """Returns the decoder of batches that may contain padding examples; see `ExampleDecoder`."""
        if not has_padding:
            return self
        return dataclasses.replace(self, decoders=tuple(dataclasses.replace(decoder, has_padding=True) for decoder in self.decoders))

    @property
    def num_output_bytes(self) -> int:
        """The approximate size of an example in a batch, in bytes."""
        return max(decoder.num_output_bytes for decoder in self.decoders)

    def join_slots(self, slots: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the batch slot of each example that the decoder returns, int64 [batch]."""
        return tf.gather(tf.concat(slots, axis=0), _order(slots)) if self.names else slots[0]

    def _decode(self, component: int, inputs: tf.Tensor | Mapping[str, Any], seed: tf.Tensor | None, slots: tf.Tensor | None) -> Any:
        parsed = dict(inputs) if isinstance(inputs, Mapping) else self.decoders[component].parse_batch(inputs)
        for name, numbers in self.labels[component].items():
            if name in parsed:
                parsed[name] = _renumber(parsed[name], numbers)
        return self.decoders[component].outputs(parsed, seed, slots)

    def _join(self, outputs: Sequence[Any], slots: Sequence[tf.Tensor]) -> Any:
        leaves = [dict(_leaves(output)) for output in outputs]
        for name, component_leaves in zip(self.names, leaves):
            if differing := sorted(set(component_leaves) ^ set(leaves[0])):
                raise ValueError(
                    f"{self.names[0]} has {', '.join(leaves[0])}, and {name} has {', '.join(component_leaves)}. All components of a "
                    "mixture must "
                    f"have the same features: {differing[0]} is not in both."
                )
        order = _order(slots)
        indices = tf.split(tf.argsort(order), [tf.size(slot) for slot in slots], num=len(slots))
        of_objects = {f"{path.removesuffix(VALID)}{LABEL}" for path in leaves[0] if path.endswith(f"/{VALID}")}
        joined = [
            self._join_leaf(
                path,
                [component_leaves[path] for component_leaves in leaves],
                indices,
                order,
                NO_LABEL if path in of_objects else 0,
            )
            for path in leaves[0]
        ]
        return tf.nest.pack_sequence_as(outputs[0], joined)

    def _join_leaf(self, path: str, values: Sequence[Any], indices: Sequence[tf.Tensor], order: tf.Tensor, fill: int) -> Any:
        shapes, dtypes = [entry.shape[1:] for entry in values], {value.dtype for value in values}
        are_ragged = {isinstance(element, tf.RaggedTensor) for element in values}
        if len(dtypes) > 1 or len(are_ragged) > 1 or any(not member.is_compatible_with(shapes[0]) for member in shapes):
            descriptions = [f"{name} has {value.dtype.name} {[*value.shape[1:]]}" for name, value in zip(self.names, values)]
            raise ValueError(
                f"{path}: {', '.join(descriptions)}. All components must have the same type and "
                f"shape{_advice(shapes, dtypes)}."
            )
        if True in are_ragged:
            return tf.gather(tf.concat(values, axis=0), order)
        if not all(item.is_fully_defined() for item in shapes):
            values = _padded(values, fill)
        shape = [self.size, *(None if len(set(sizes)) > 1 else sizes[0] for sizes in zip(*shapes))]
        return tf.ensure_shape(tf.dynamic_stitch(indices, values), shape)


def _order(slots: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the indices that sort examples by batch slot, int32 [batch]. Padding examples are last."""
    joined = tf.concat(slots, axis=0)
    return tf.argsort(tf.where(joined < 0, joined.dtype.max, joined), stable=True)


def _advice(shapes: Sequence[tf.TensorShape], dtypes: Collection[tf.DType]) -> str:
    """Returns advice on making the size or the channels of all images equal; "" if the values are not images."""
    if len(dtypes) > 1 or any(shape.rank != 3 for shape in shapes):
        return ""
    option = "image_size" if len({(*item[:2],) for item in shapes}) > 1 else "channels"
    return f": pass {option}=..."


def _renumber(labels: tf.Tensor | tf.RaggedTensor, numbers: Sequence[int]) -> tf.Tensor | tf.RaggedTensor:
    """Replaces labels by their new numbers. A missing label, -1, is unchanged."""
    table = tf.constant([NO_LABEL, *numbers], tf.int64)
    return tf.ragged.map_flat_values(lambda values: tf.gather(table, values + 1), labels)


def _leaves(outputs: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields pairs (path, tensor) for all tensors in a nested structure, in the order of `tf.nest.flatten`."""
    if isinstance(outputs, Mapping):
        chunks = [(name, outputs[name]) for name in sorted(outputs)]
    elif isinstance(outputs, tuple):
        chunks = list(zip(_TUPLE, outputs))
    else:
        yield path or _TUPLE[0], outputs
        return
    for name, value in chunks:
        yield from _leaves(value, f"{path}/{name}" if path else name)


def _padded(values: Sequence[tf.Tensor], fill: int) -> list[tf.Tensor]:
    """Pads tensors to a common shape, the maximum in each dimension."""
    sizes = [tf.shape(item)[1:] for item in values]
    most = tf.reduce_max(tf.stack(sizes), axis=0)
    margins = [tf.pad(tf.stack([tf.zeros_like(most), most - size], axis=1), [[1, 0], [0, 0]]) for size in sizes]
    fills = [tf.cast(fill, entry.dtype) if entry.dtype != tf.string else "" for entry in values]
    return [tf.pad(element, margin, constant_values=value) for element, margin, value in zip(values, margins, fills)]
