"""Defines the default preprocessing function of `recordmill analyze`.

Images are decoded and cropped as in the reader. Each channel is normalized by its mean and variance over all pixels.
Class labels are not changed, but the examples of each class are counted. Examples without images are not changed.
"""

import dataclasses
import functools
import math
from typing import Any, Callable, Mapping

import tensorflow as tf

from beam_pipelines.errors import UserError
from beam_pipelines.transform.tft_modules import tft
from tf_input.dataset_format import IMAGE, OBJECTS, Feature
from tf_input.features.decode_images import NUM_CHANNELS
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.schema import sides_of
from tf_input.features.roles import depends_on_crop
from tf_input.features.bbox import VALID, object_features
from tf_input.read_config import ReadConfig

_CENTRE = 128  # Center of the pixel values. Subtracting it makes the sums smaller.
_MAX_SQUARE = _CENTRE**2
_MAX_BATCH = 1 << 20


@dataclasses.dataclass(frozen=True)
class DefaultPreprocessing:
    """The preprocessing function for analyses without a user's module.

    Attributes:
        schema: The features of an example.
        image_size: The (height, width) of the output images, if there are images.
        fit: How an image is cropped or padded, as in `ReadConfig.fit`.
        num_examples: The number of examples to analyze.
        channels: The number of image channels in batches, as in the reader.

    Raises:
        UserError: Images are not encoded, a feature cannot be cropped with its image, or there are too many pixels.
    """

    schema: tuple[Feature, ...]
    image_size: tuple[int, int]
    fit: str | None
    num_examples: int
    channels: int = NUM_CHANNELS

    def __post_init__(self) -> None:
        image = {feature.name: feature for feature in self.schema}.get(IMAGE)
        if image is None:
            return
        if not image.is_image or image.dtype:
            image_type = f"{image.kind} of {image.dtype}" if image.dtype else f"{image.kind} of shape {image.shape}"
            raise UserError(
                f"the default preprocessing needs images of uint8, and {IMAGE!r} is {image_type}. Pass "
                "--preprocessing_module."
            )
        try:
            self._decoder()
        except ValueError as error:
            raise UserError(f"--fit={self.fit or 'crop or pad, as none is given'}: {error}") from None
        if self.num_examples * math.prod(self.image_size) * _MAX_SQUARE >= 1 << 63:
            too_many = f"{self.num_examples} images of {self.image_size} have too many pixels for 64-bit sums"
            raise UserError(f"{too_many}. Use a smaller --image_size.")

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Transforms parsed features.

        Args:
            inputs: The features by name, from `tf_input.decoding.schema.parse_examples`, with or without image sizes.
        """
        outputs = dict(inputs)
        if self.has_images:
            outputs = {name: value for name, value in inputs.items() if name not in self._sides}
            seen = _traced_preprocessing(self)({name: inputs[name] for name in self._decoder().wanted()})
            outputs |= {name: _cast_for_output(value) for name, value in seen.items()}
            for name in self._images:
                outputs[name] = _normalise(name, seen[name], self.image_size)
        for feature in self.schema:
            if feature.is_categorical and feature.label_names:
                _count_classes(feature, inputs[feature.name])
        return outputs

    @property
    def has_images(self) -> bool:
        """Whether the schema has images."""
        return any(feature.name == IMAGE for feature in self.schema)

    def describe(self, output: Feature) -> Feature:
        """Returns the feature that describes an output. Object features are unchanged, except that boxes are cropped."""
        known = {feature.name: feature for feature in self.schema}
        return known[output.name] if output.is_of_objects else output

    @property
    def _images(self) -> list[str]:
        return [feature.name for feature in self.schema if feature.is_image]

    @property
    def _sides(self) -> set[str]:
        return {side for name in self._images for side in sides_of(name)}

    def _decoder(self) -> ExampleDecoder:
        """Returns a decoder that does not need stored image sizes, because serving provides only the image bytes."""
        features = {feature.name: feature for feature in self.schema if feature.name not in self._sides}
        objects = set(object_features(features).values())
        names = [name for name, feature in features.items() if depends_on_crop(feature) and name not in objects]
        inputs = tuple(names + [OBJECTS] if objects else names)
        image = features[IMAGE]
        config = ReadConfig(_MAX_BATCH, image_size=self.image_size, fit=self.fit, inputs=inputs)
        return ExampleDecoder(
            parse=lambda *unused: {},
            features=features,
            config=config,
            targets=(),
            image_size=self.image_size,
            stored_size=image.shape[:2] or None,
            mask_dtype=tf.uint16,
            stored_channels=self.channels,
        )

    def _crop_dependent_features(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the features that change when the image is cropped: images, masks, dense targets and objects."""
        decoder = self._decoder()
        outputs = decoder.outputs(dict(inputs))
        seen = dict(outputs) if len(decoder.config.input_names) > 1 else {IMAGE: outputs}
        objects = seen.pop(OBJECTS, None)
        if objects is not None:
            counts = tf.reduce_sum(tf.cast(objects.pop(VALID), tf.int32), axis=1)
            seen |= {f"{OBJECTS}/{name}": _ragged(column, counts) for name, column in objects.items()}
        return seen


@functools.lru_cache(maxsize=1)
def _traced_preprocessing(preprocessing: DefaultPreprocessing) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns a graph function, so that TensorFlow Transform traces the preprocessing only once."""
    return tf.function(preprocessing._crop_dependent_features, autograph=False)


def _cast_for_output(value: Any) -> Any:
    """Casts a value to a dtype that TensorFlow Transform supports for outputs."""
    if value.dtype.is_floating:
        return tf.cast(value, tf.float32)
    return tf.cast(value, tf.int64) if value.dtype.is_integer or value.dtype.is_bool else value


def _ragged(padded: tf.Tensor, counts: tf.Tensor) -> tf.RaggedTensor:
    """Converts a padded tensor [batch, most, ...] to a ragged tensor [batch, None, ...]."""
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(padded, tf.sequence_mask(counts, tf.shape(padded)[1])), counts)


def _normalise(name: str, images: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """Normalizes uint8 images [batch, height, width, channels] to float32.

    Each channel of a feature gets mean 0 and variance 1 over all examples. Sums are computed with integers, so the
    result does not depend on the order of the examples.
    """
    values = tf.cast(images, tf.int32) - _CENTRE
    num_pixels = tft.sum(tf.fill(tf.shape(images)[:1], tf.constant(math.prod(image_size), tf.int64)))
    sums, squares = (tft.sum(_sum_pixels(item), reduce_instance_dims=False) for item in (values, values * values))
    offset = tf.cast(sums, tf.float64) / tf.cast(num_pixels, tf.float64)
    variance = tf.cast(squares, tf.float64) / tf.cast(num_pixels, tf.float64) - offset**2
    of_which = "" if name == IMAGE else f"_{name}"
    mean = tf.identity(offset + _CENTRE, name=f"channel_mean{of_which}")
    variance = tf.identity(variance, name=f"channel_variance{of_which}")
    deviation = tf.where(variance > 0, tf.sqrt(variance), 1.0)  # A constant channel becomes 0.
    return (tf.cast(images, tf.float32) - tf.cast(mean, tf.float32)) / tf.cast(deviation, tf.float32)


def _sum_pixels(values: tf.Tensor) -> tf.Tensor:
    """Computes the sum over all pixels of each image and channel, int64 [batch, channels]."""
    return tf.reduce_sum(tf.cast(tf.reduce_sum(values, axis=2), tf.int64), axis=1)


def _count_classes(feature: Feature, labels: tf.Tensor | tf.RaggedTensor) -> None:
    """Writes an asset file with the number of examples of each class."""
    values = labels.flat_values if isinstance(labels, tf.RaggedTensor) else tf.reshape(labels, [-1])
    names = tf.gather(tf.constant(feature.label_names), values)
    tft.vocabulary(names, vocab_filename=vocabulary_name(feature.name), store_frequency=True)


def vocabulary_name(feature: str) -> str:
    """Returns the name of the asset file with class counts. Each line has a count and a class name, in this order."""
    return feature.replace("/", "-")
