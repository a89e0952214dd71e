"""Converts raw features, such as encoded images, to the inputs of a served model."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

import numpy as np

from tf_input.batches import Reading
from tf_input.dataset_format import IMAGE, Feature
from tf_input.decoding import schema
from tf_input.decoding.example_decoder import ExampleDecoder, ImageSizes
from tf_input.decoding.schema import sides_of
from tf_input.features.decode_images import NUM_CHANNELS, stored_sizes
from tf_input.features.image import is_small
from tf_input.features.roles import is_list
from tf_input.lazy_tensorflow import tf
from tf_input.serving.serving_limits import check_pixels

_ANY_NUMBER = 1  # a batch size that prevents unrolled loops, which would fix the number of images
_LENGTH_SUFFIX = "_length"  # suffix of the feature with the lengths of lists


class ServingInputs:
    """A function that converts raw features, such as encoded images, to the inputs of a model.

    Args:
        origin: The training data, as returned by `serving_origin.find_origin`.
        max_pixels: The largest accepted image, as height times width in pixels.

    Attributes:
        decoder: The decoder of training batches.
        specs: The specs of the required raw features by name, [batch, ...], as parsed from records. A variable-length
            list consists of NAME, padded [batch, n, ...], and its lengths NAME_length, int64 [batch].

    Raises:
        ValueError: An option has a wrong value, or a raw feature has a variable shape that no signature can express.
    """

    def __init__(self, origin: Reading, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        dataset, split, config = self._origin = origin
        reader = dataset.split_reader(split)
        self._records = reader.plan(dataclasses.replace(config, cache_in_memory=0)).reader
        plan = reader.plan(config)
        self.decoder = plan.decoder
        self._schema = dataset.manifest.schema
        self._transform = dataset.files.transform if config.transform else None
        self._any_size = _of_any_size(self.decoder)
        self._is_cached = plan.cached is not None
        self._same_size = _of_same_size(self.decoder, self._is_cached)
        names = self._any_size.wanted()
        raw = names if self._transform is None else self._transform.graph.inputs_of(names)
        for name in raw:
            if dataset.features[name].shape.count(None) > 1:
                problem = f"{name!r} has different sizes, {dataset.features[name].shape}"
                raise ValueError(
                    f"inputs={self._any_size.config.input_names!r}: {problem}, which a serving signature does not "
                    "support. "
                    "Use tensors of one shape."
                )
        self.specs: dict[str, tf.TensorSpec] = {}
        self._lists: dict[str, str] = {}  # list name -> name of its lengths
        for name, spec in schema.feature_spec(dataset.features[name] for name in raw).items():
            if not isinstance(spec, tf.io.RaggedFeature):
                self.specs[name] = tf.TensorSpec([None, *spec.shape], spec.dtype, name)
                continue
            feature, length = dataset.features[name], f"{name}{_LENGTH_SUFFIX}"
            problem = f"inputs={self._any_size.config.input_names!r} include {name!r}"
            if not is_list(feature) and (not feature.is_categorical or feature.is_of_objects):
                raise ValueError(
                    f"{problem}, which can have any number of values. Use other inputs, or lists of numbers, strings or "
                    "classes."
                )
            if length in dataset.features:
                raise ValueError(
                    f"{problem}, whose list lengths are served as {length!r}, but a feature has this name already. Use "
                    "other inputs."
                )
            self._lists[name] = length
            self.specs |= {name: tf.TensorSpec([None, *feature.shape], spec.dtype, name), length: tf.TensorSpec([None], tf.int64, length)}

    @property
    def rounding(self) -> int:
        """The tolerance for differences of pixel values: 1 if the order of operations may differ, otherwise 0."""
        return 0 if self._same_size is None else 1

    @property
    def tracked(self) -> Any:
        """The objects that an exported model must reference."""
        return None if self._transform is None else self._transform.graph.model

    def __call__(self, raw: Mapping[str, tf.Tensor]) -> Any:
        """Converts raw features that match `specs` to the model inputs that `batches` returns as `x`."""
        features = self._origin.dataset.features
        parsed = {name: raw[name] for name in raw if name not in self._lists.values()}
        parsed = {name: check_pixels(item, self._max_pixels) if features[name].is_image_file else item for name, item in parsed.items()}
        parsed |= {name: _to_lists(raw[name], raw[length]) for name, length in self._lists.items()}
        if self._transform is not None:
            parsed = self._transform.graph.apply(parsed, self._any_size.wanted())
        if self._same_size is None:
            return self._any_size.outputs(parsed)
        # Training decodes small images of one size and cached images as a whole, which rounds differently.
        same_size, is_same = self._same_size, tf.constant(True)
        for name, size in _stored_sizes(self.decoder).items():
            sizes = stored_sizes(parsed[name])
            is_same &= tf.reduce_all(sizes == tf.constant(size, sizes.dtype))
        decode_stored = same_size.decode_stored if self._is_cached else lambda parsed: parsed
        return tf.cond(is_same, lambda: same_size.outputs(decode_stored(parsed)), lambda: self._any_size.outputs(parsed))

    def sample(self, count: int) -> tuple[dict[str, np.ndarray], Any, Any]:
        """Returns the first examples of the dataset. The examples are a random sample, because the dataset was shuffled
        when it was written.

        Returns:
            The raw features of the examples, and `x` as in `batches`, all as NumPy arrays; and the specs of `x` for any
            number of examples.
        """
        dataset, split, config = self._origin
        records = self._records.read(np.arange(min(count, self._records.num_examples)))
        raw = schema.parse_examples(tf.constant(records), self._schema, [name for name in self.specs if name not in self._lists.values()])
        for name, length in self._lists.items():
            raw |= {length: tf.cast(raw[name].row_lengths(), tf.int64), name: raw[name].to_tensor()}
        options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        batches = dataset.batches(split, **options)
        x, spec = next(iter(batches)), batches.element_spec
        x, spec = (x[0], spec[0]) if self.decoder.targets else (x, spec)
        if not all(isinstance(entry, tf.Tensor) for entry in tf.nest.flatten(x)):
            raise ValueError(
                f"inputs={self.decoder.config.input_names!r}: ragged tensors can't be served. Use padding=True."
            )
        raw = {name: value.numpy() for name, value in raw.items()}
        # If corrupt records were dropped, a cached batch may have other examples at its end.
        specs = tf.nest.map_structure(lambda element: tf.TensorSpec([None, *element.shape[1:]], element.dtype), spec)
        return raw, tf.nest.map_structure(lambda item: item[: len(records)].numpy(), x), specs


def _to_lists(values: tf.Tensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Converts padded lists, [batch, n, ...], and their lengths, int64 [batch], to a ragged tensor."""
    most = tf.shape(values, tf.int64)[1]
    message = ["lengths must be from 0 to", most, "and are", lengths]
    check = tf.debugging.Assert(tf.reduce_all((lengths >= 0) & (lengths <= most)), message)
    with tf.control_dependencies([check]):
        return tf.RaggedTensor.from_tensor(values, tf.identity(lengths), row_splits_dtype=tf.int32)


def _of_any_size(decoder: ExampleDecoder) -> ExampleDecoder:
    """Returns a copy of the decoder that accepts images of any size and returns no targets."""
    alone, encoded = _without_augmentation(decoder), _encoded_inputs(decoder)
    if not encoded:
        return alone
    others = decoder.others | {name: ImageSizes(decoder.sizes_of(name).shown) for name in encoded if name != IMAGE}
    return dataclasses.replace(alone, features=_without_sides(decoder), stored_size=None, max_size=None, others=others)


def _encoded_inputs(decoder: ExampleDecoder) -> list[str]:
    """Returns the names of the model's inputs that are encoded images."""
    return [name for name in decoder.config.input_names if name in decoder.features and decoder.features[name].is_image_file]


def _without_sides(decoder: ExampleDecoder) -> dict[str, Feature]:
    """Returns all features except image heights and widths, which requests do not contain. Model inputs are kept."""
    sides = {side for name in (IMAGE, *decoder.others) for side in sides_of(name)}.difference(decoder.config.input_names)
    return {name: item for name, item in decoder.features.items() if name not in sides}


def _of_same_size(decoder: ExampleDecoder, is_cached: bool) -> ExampleDecoder | None:
    """Returns a decoder for images of the stored size; None if the general decoder gives the same results."""
    resized = [size for name, size in _stored_sizes(decoder).items() if size != decoder.sizes_of(name).shown]
    if not any(is_cached or is_small(size) for size in resized):
        return None
    return dataclasses.replace(_without_augmentation(decoder), features=_without_sides(decoder))


def _stored_sizes(decoder: ExampleDecoder) -> dict[str, tuple[int, int]]:
    """Returns the (height, width) of encoded input images by feature name, for features with one known size."""
    return {name: size for name in _encoded_inputs(decoder) if (size := decoder.sizes_of(name).stored) is not None}


def _without_augmentation(decoder: ExampleDecoder) -> ExampleDecoder:
    """Returns a copy of the decoder that accepts images with any number of channels and returns no targets."""
    channels = decoder.channels if any(feature.is_image for feature in decoder.features.values()) else None
    config = dataclasses.replace(decoder.config, batch_size=_ANY_NUMBER, channels=channels)
    return dataclasses.replace(decoder, config=config, targets=(), class_weights={}, stored_channels=NUM_CHANNELS)
