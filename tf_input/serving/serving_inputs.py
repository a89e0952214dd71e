"""What a served model is fed with: raw features in, what the model was trained on out."""

import dataclasses
from typing import Any, Mapping

import numpy as np
import tensorflow as tf

from tf_input.batches import Reading
from tf_input.dataset_format import IMAGE
from tf_input.decoding import decode, schema, whole_images
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.schema import SIDES
from tf_input.serving.serving_limits import check_pixels

_ANY_NUMBER = 1  # a batch size that unrolls nothing


class ServingInputs:
    """The way from raw features to the model, without records, targets, and what is known of stored images.

    Args:
        origin: What the model was trained on, as `serving_origin.find_origin` has it.
        max_pixels: Of an image that is taken.

    Attributes:
        decoder: Makes the training batches.
        specs: Of the raw features on which the inputs depend, by name: [batch, ...] as they are parsed from records.

    Raises:
        ValueError: An option has a wrong value, or raw features differ in size, which no signature takes.
    """

    def __init__(self, origin: Reading, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        dataset, split, config = self._origin = origin
        self._records = dataset.plan(split, dataclasses.replace(config, memory_budget=0)).reader
        plan = dataset.plan(split, config)
        self.decoder = plan.decoder
        self._schema = dataset.manifest.schema
        self._transform = dataset.loaded_transform if config.transform else None
        self._any_size = _of_any_size(self.decoder)
        self._same_size = _of_same_size(self.decoder, is_held=plan.held is not None)
        names = self._any_size.wanted()
        raw = names if self._transform is None else self._transform.graph.inputs_of(names)
        for name in raw:
            if dataset.features[name].shape.count(None) > 1:
                found = f"{name!r} is a tensor of different sizes, {dataset.features[name].shape}"
                raise ValueError(f"inputs={self._any_size.config.input_names!r}: {found}, which no signature takes; expected tensors of one shape")
        self.specs = {}
        for name, spec in schema.feature_spec(dataset.features[name] for name in raw).items():
            if isinstance(spec, tf.io.RaggedFeature):
                found = f"inputs={self._any_size.config.input_names!r} depend on {name!r}"
                raise ValueError(f"{found}, of which examples differ in how many values they have; expected others")
            self.specs[name] = tf.TensorSpec([None, *spec.shape], spec.dtype, name)

    @property
    def rounding(self) -> int:
        """By how much pixels may differ: TensorFlow computes where it samples whole images in the order that it likes."""
        return 0 if self._same_size is None else 1

    @property
    def tracked(self) -> Any:
        """What an exported model has to hold."""
        return None if self._transform is None else self._transform.graph.model

    def __call__(self, raw: Mapping[str, tf.Tensor]) -> Any:
        """Raw features of a batch, as `specs` says -> `x`, as `batches` gives it."""
        features = self._origin.dataset.features
        parsed = {name: check_pixels(one, self._max_pixels) if features[name].kind == "image" else one for name, one in raw.items()}
        if self._transform is not None:
            parsed = self._transform.graph.apply(parsed, self._any_size.wanted())
        if self._same_size is None:
            return self._any_size.outputs(parsed)
        # Small images of one size, and those that are held in memory, are decoded whole for training, which rounds otherwise.
        sizes = decode.stored_sizes(parsed[IMAGE])
        is_same = tf.reduce_all(sizes == tf.constant(self.decoder.stored_size, sizes.dtype))
        same_size = self._same_size
        return tf.cond(is_same, lambda: same_size.outputs(same_size.decode_stored(parsed)), lambda: self._any_size.outputs(parsed))

    def sample(self, count: int) -> tuple[dict[str, np.ndarray], Any]:
        """Some examples of the data set: the first ones, which the shuffle drew from all over it.

        Returns:
            Their raw features, and `x` as `batches` has it; NumPy arrays.
        """
        dataset, split, config = self._origin
        records = self._records.read(np.arange(min(count, self._records.num_examples)))
        raw = schema.parse_examples(tf.constant(records), self._schema, list(self.specs))
        options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        x = next(iter(dataset.batches(split, **options)))
        x = x[0] if self.decoder.targets else x
        if not all(isinstance(one, tf.Tensor) for one in tf.nest.flatten(x)):
            raise ValueError(f"inputs={self.decoder.config.input_names!r}: ragged tensors are not served")
        raw = {name: value.numpy() for name, value in raw.items()}
        # Of damaged records that are left out, others may stand in a batch that is held in memory, after these.
        return raw, tf.nest.map_structure(lambda one: one[: len(records)].numpy(), x)


def _of_any_size(decoder: ExampleDecoder) -> ExampleDecoder:
    """Without targets; images of any size, of which nothing is known but their bytes."""
    alone = _alone(decoder)
    names = decoder.config.input_names
    if not any(decoder.features[name].kind == "image" for name in names if name in decoder.features):
        return alone
    features = {name: one for name, one in decoder.features.items() if name not in SIDES or name in names}
    return dataclasses.replace(alone, features=features, stored_size=None, max_size=None)


def _of_same_size(decoder: ExampleDecoder, is_held: bool) -> ExampleDecoder | None:
    """For images of the stored size; None where that makes no difference."""
    size, image = decoder.stored_size, decoder.features.get(IMAGE)
    if size is None or size == decoder.image_size or image is None or image.kind != "image":
        return None
    if not is_held and not whole_images.is_small(size):
        return None
    return _alone(decoder)


def _alone(decoder: ExampleDecoder) -> ExampleDecoder:
    """Without targets; of channels that are said, as nobody knows whether images that come are grey."""
    channels = decoder.channels if any(one.kind in ("image", "pixels") for one in decoder.features.values()) else None
    config = dataclasses.replace(decoder.config, batch_size=_ANY_NUMBER, channels=channels)
    return dataclasses.replace(decoder, config=config, targets=(), class_weights={}, stored_channels=decode.NUM_CHANNELS)
