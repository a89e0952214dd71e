"""The preprocessing that `recordmill analyze` has where the user gives none.

Images are decoded and cropped exactly as the reader does, and normalised by the moments of their channels over all pixels. Class
labels pass as they are; how often each class occurs is counted. So it is of examples without images, which all pass as they are.
"""

import dataclasses
import functools
import math
from typing import Any, Callable, Mapping

import tensorflow as tf

from beam_pipelines.errors import UserError
from beam_pipelines.transform.tft_modules import tft
from tf_input.dataset_format import IMAGE, OBJECTS, Feature
from tf_input.decoding.decode import NUM_CHANNELS
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.schema import IMAGE_KINDS, is_seen, sides_of
from tf_input.decoding.targets import VALID, object_features
from tf_input.read_config import ReadConfig

_CENTRE = 128  # of pixel values: sums of smaller numbers
_MAX_SQUARE = _CENTRE**2
_MAX_BATCH = 1 << 20


@dataclasses.dataclass(frozen=True)
class DefaultPreprocessing:
    """The preprocessing function that is used where the user gives none.

    Attributes:
        schema: The features of an example.
        image_size: The (height, width) of the images that come out, if there are any.
        fit: The part of an image that is seen, as `ReadConfig.fit` has it; None as there.
        num_examples: The number of examples that will be analysed.
        channels: The number of channels of images in batches, as the reader has them.

    Raises:
        UserError: The images are not encoded, or there is something that can't follow them, or too many pixels to be summed.
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
        if image.kind not in ("image", "pixels") or image.dtype:
            found = f"{image.kind} of {image.dtype}" if image.dtype else f"{image.kind} of shape {image.shape}"
            raise UserError(f"the default preprocessing is for images of uint8, and {IMAGE!r} is {found}; expected --preprocessing_module")
        try:
            self._decoder()
        except ValueError as error:
            raise UserError(f"--fit={self.fit or 'crop or pad, as none is given'}: {error}") from None
        if self.num_examples * math.prod(self.image_size) * _MAX_SQUARE >= 1 << 63:
            too_many = f"{self.num_examples} images of {self.image_size} are too many pixels for sums of 64 bits"
            raise UserError(f"{too_many}; expected a smaller --image_size")

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Parsed features by name -> transformed ones.

        Args:
            inputs: As `tf_input.decoding.schema.parse_examples` gives them; of what states images' sizes, nothing is needed.
        """
        outputs = dict(inputs)
        if self.has_images:
            outputs = {name: value for name, value in inputs.items() if name not in self._sides}
            seen = _seen_once(self)({name: inputs[name] for name in self._decoder().wanted()})
            outputs |= {name: _let_out(value) for name, value in seen.items()}
            for name in self._images:
                outputs[name] = _normalise(name, seen[name], self.image_size)
        for feature in self.schema:
            if feature.kind == "class_label" and feature.label_names:
                _count_classes(feature, inputs[feature.name])
        return outputs

    @property
    def has_images(self) -> bool:
        """Whether there are any."""
        return any(feature.name == IMAGE for feature in self.schema)

    def describe(self, output: Feature) -> Feature:
        """An output by what its tensor is -> by what it means: objects stay what they are where they move with their image."""
        known = {feature.name: feature for feature in self.schema}
        return known[output.name] if output.name.startswith(f"{OBJECTS}/") else output

    @property
    def _images(self) -> list[str]:
        return [feature.name for feature in self.schema if feature.kind in IMAGE_KINDS]

    @property
    def _sides(self) -> set[str]:
        return {side for name in self._images for side in sides_of(name)}

    def _decoder(self) -> ExampleDecoder:
        """The reader's own. Without the stated sizes of images it needs nothing but their bytes: serving has no more."""
        features = {feature.name: feature for feature in self.schema if feature.name not in self._sides}
        objects = set(object_features(features).values())
        names = [name for name, feature in features.items() if is_seen(feature) and name not in objects]
        inputs = tuple(names + [OBJECTS] if objects else names)
        image = features[IMAGE]
        config = ReadConfig(_MAX_BATCH, image_size=self.image_size, fit=self.fit, inputs=inputs, use_weights=False)
        return ExampleDecoder(
            parse=lambda *unused: {},
            features=features,
            config=config,
            targets=(),
            image_size=self.image_size,
            stored_size=image.shape[:2] if image.kind == "pixels" else None,
            mask_dtype=tf.uint16,
            stored_channels=self.channels,
        )

    def _seen(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What depends on what is seen of the images: themselves, masks and maps, and objects."""
        decoder = self._decoder()
        outputs = decoder.outputs(dict(inputs))
        seen = dict(outputs) if len(decoder.config.input_names) > 1 else {IMAGE: outputs}
        objects = seen.pop(OBJECTS, None)
        if objects is not None:
            counts = tf.reduce_sum(tf.cast(objects.pop(VALID), tf.int32), axis=1)
            seen |= {f"{OBJECTS}/{name}": _ragged(column, counts) for name, column in objects.items()}
        return seen


@functools.lru_cache(maxsize=1)
def _seen_once(preprocessing: DefaultPreprocessing) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """`_seen`, traced once for the many times that TensorFlow Transform traces a preprocessing: it is most of what there is to trace."""
    return tf.function(preprocessing._seen, autograph=False)


def _let_out(value: Any) -> Any:
    """In a type that TensorFlow Transform lets out."""
    if value.dtype.is_floating:
        return tf.cast(value, tf.float32)
    return tf.cast(value, tf.int64) if value.dtype.is_integer or value.dtype.is_bool else value


def _ragged(padded: tf.Tensor, counts: tf.Tensor) -> tf.RaggedTensor:
    """[batch, most, ...] -> [batch, None, ...]."""
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(padded, tf.sequence_mask(counts, tf.shape(padded)[1])), counts)


def _normalise(name: str, images: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """uint8 [batch, height, width, channels] -> float32, of mean 0 and variance 1 in each channel over all examples: a feature's own.

    Sums are integers, so that they are the same in whatever order batches arrive.
    """
    values = tf.cast(images, tf.int32) - _CENTRE
    num_pixels = tft.sum(tf.fill(tf.shape(images)[:1], tf.constant(math.prod(image_size), tf.int64)))
    sums, squares = (tft.sum(_sum_pixels(one), reduce_instance_dims=False) for one in (values, values * values))
    offset = tf.cast(sums, tf.float64) / tf.cast(num_pixels, tf.float64)
    variance = tf.cast(squares, tf.float64) / tf.cast(num_pixels, tf.float64) - offset**2
    of_which = "" if name == IMAGE else f"_{name}"
    mean = tf.identity(offset + _CENTRE, name=f"channel_mean{of_which}")
    variance = tf.identity(variance, name=f"channel_variance{of_which}")
    deviation = tf.where(variance > 0, tf.sqrt(variance), 1.0)  # a channel of one value becomes 0
    return (tf.cast(images, tf.float32) - tf.cast(mean, tf.float32)) / tf.cast(deviation, tf.float32)


def _sum_pixels(values: tf.Tensor) -> tf.Tensor:
    """int32 [batch, height, width, channels] -> int64 [batch, channels]; no row comes near the limits of int32."""
    return tf.reduce_sum(tf.cast(tf.reduce_sum(values, axis=2), tf.int64), axis=1)


def _count_classes(feature: Feature, labels: tf.Tensor | tf.RaggedTensor) -> None:
    """Writes the asset that says how often each class occurs, by name."""
    values = labels.flat_values if isinstance(labels, tf.RaggedTensor) else tf.reshape(labels, [-1])
    names = tf.gather(tf.constant(feature.label_names), values)
    tft.vocabulary(names, vocab_filename=vocabulary_name(feature.name), store_frequency=True)


def vocabulary_name(feature: str) -> str:
    """The file in `transform_fn/assets` with the classes of a feature, the most frequent first: a count and a name a line."""
    return feature.replace("/", "-")
