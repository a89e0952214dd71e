"""Keras layers for uint8 images: normalization, and augmentation during training.

The layers depend only on Keras, and run on TensorFlow, JAX and torch. Before loading a saved model with an augmentation
layer, import `tf_input.decoding.layers`.
"""

import math
from typing import Any, Mapping

import keras

from tf_input.dataset_format import Feature
from tf_input.features import colors
from tf_input.read_config import Augmentation

_MOST_OF_8_BITS, _MOST_OF_16_BITS = 0xFF, 0xFFFF
_OPTIONS = ("flip", "brightness", "contrast", "saturation", "hue")  # attributes of `Augmentation`


def normalization_layer(
    statistics: Mapping[str, Any],
    image: Feature,
    split: str = "train",
    stored_channels: int = len(colors.LUMA),
    channels: int | None = None,
) -> keras.layers.Normalization:
    """Returns a layer that normalizes each channel of a split's images to mean 0 and variance 1.

    Examples:
        ```python
        model = keras.Sequential([flowers.normalization_layer(), ...])
        ```

    Args:
        statistics: The contents of `statistics.json`.
        image: The feature to normalize.
        split: The split whose statistics are used. They are computed from a sample of its images. Default: `train`.
        stored_channels: The number of channels of encoded images: 1 if all are grayscale, else 3. Default: 3.
        channels: The number of channels of images in batches. Default: None, the stored number.

    Returns:
        A Keras layer for images [batch, height, width, channels] of any dtype. Values are 0..255, or 0..65535 for
        uint16 images, or arbitrary for tensors. The output has the dtype of the Keras policy for 8-bit images, and
        float32 otherwise. A channel that is constant becomes 0.

    Raises:
        ValueError: The statistics do not contain pixels of this feature, split and number of channels.
    """
    if not image.may_be_image:
        raise ValueError(
            f"{image.name!r} is {image.kind} and already transformed. Use keras.layers.Normalization().adapt instead."
        )
    stored_channels = stored_channels if image.is_file else image.shape[-1]
    channels = channels or stored_channels
    expected = (stored_channels,) if image.is_tensor else (1, len(colors.LUMA))
    if channels not in expected:
        raise ValueError(
            f"{image.name!r} can't have {channels} channels. Pass "
            f"channels={stored_channels if image.is_tensor else '3 (RGB) or channels=1 (gray)'}."
        )
    if channels < stored_channels:
        raise ValueError(
            f"channels={channels}: the variance of these images in gray was not computed. Use channels=3, or "
            "keras.layers.Normalization().adapt."
        )
    pixels = statistics["splits"][split]["pixels"]
    if pixels is None:
        if image.is_tensor:
            raise ValueError(
                f"The variance of {image.name!r} in {split!r} is unknown. Use keras.layers.Normalization().adapt "
                "instead."
            )
        raise ValueError(
            f"No image of {split!r} was decoded when the dataset was prepared. Prepare it with --check=decode or "
            "--check=strict."
        )
    mean, variance = (pixels[name][:channels] for name in ("mean", "variance"))  # equal for grayscale images
    scale = _MOST_OF_16_BITS / _MOST_OF_8_BITS if image.is_file and image.dtype else 1
    mean, variance = [item * scale for item in mean], [entry * scale**2 or 1.0 for entry in variance]
    dtype = None if not image.is_tensor and scale == 1 else "float32"  # float16 ends at 65,504
    return keras.layers.Normalization(axis=-1, mean=mean, variance=variance, dtype=dtype, name="normalization")


def augmentation_layer(augmentation: Augmentation, seed: int | None = None) -> "RandomFlipAndColors":
    """Returns a Keras layer that applies the flips and color changes of an `Augmentation` on the GPU.

    The reader still applies random crops, because decoding a crop is faster than decoding the whole image. Read with
    `augment=Augmentation(flip=False)` and the same `min_area`.

    Args:
        augmentation: The augmentation options. `crop` and `min_area` have no effect on the layer.
        seed: The random seed of the layer. Default: None, a new random seed in each run.

    Raises:
        ValueError: The options contain neither flips nor color changes.
    """
    if not augmentation.flip and not augmentation.jitters:
        raise ValueError(
            f"{augmentation} changes nothing in a layer. Set flip, brightness, contrast, saturation or hue."
        )
    options = {name: getattr(augmentation, name) for name in _OPTIONS}
    return RandomFlipAndColors(**options, seed=seed, name="augmentation")


@keras.saving.register_keras_serializable("tf_input")
class RandomFlipAndColors(keras.layers.Layer):
    """During training, flips images with probability 0.5 and changes their colors, in the same way as `Augmentation`.

    The input is [batch, height, width, 3 or 1] with values 0..255, of any dtype except uint16. The output has the same
    shape as the input, and its values are not rounded. The dtype of the output is float32 or the dtype of the Keras
    policy.

    Keras's own layers work differently. RandomBrightness adds a constant. RandomContrast uses a separate mean for each
    channel. RandomSaturation and RandomHue work in HSV. Keras's layers also change images if a model is called without
    the argument `training`.

    Attributes:
        flip, brightness, contrast, saturation, hue: The options of the same names in `Augmentation`.
        seed: The random seed; None for a new random seed in each run.
    """

    def __init__(
        self,
        flip: bool = True,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        hue: float = 0.0,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # checks the values
        Augmentation(flip=flip, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
        self.flip = flip
        self.brightness, self.contrast, self.saturation, self.hue = brightness, contrast, saturation, hue
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if input_shape[-1] not in (1, len(colors.LUMA)):
            raise ValueError(
                f"{self.name!r} needs 3 channels (RGB) or 1 (gray); the images have {input_shape[-1]} channels"
            )

    def call(self, images: Any, training: bool | None = None) -> Any:
        if keras.backend.standardize_dtype(images.dtype) == "uint16":
            raise ValueError(
                f"{self.name!r} needs pixels from 0 to 255, and the images are of uint16. To flip them, read with "
                "augment=Augmentation(flip=True)."
            )
        if not training:
            return keras.ops.cast(images, self.compute_dtype)
        draws = keras.random.uniform((5, keras.ops.shape(images)[0], 1, 1), -1.0, 1.0, "float32", self.seed_generator)
        images = keras.ops.cast(images, "float32")  # float16 can't hold the sum over an image
        if self.flip:
            images = keras.ops.where(draws[4][..., None] < 0, keras.ops.flip(images, axis=2), images)
        if self.brightness or self.contrast or self.saturation or self.hue:
            images = self._change_colors(images, draws)
        return keras.ops.cast(images, self.compute_dtype)

    def _change_colors(self, images: Any, draws: Any) -> Any:
        """Changes the colors of images as described in the module `colors`.

        Args:
            images: The images, float32 [batch, height, width, 3 or 1].
            draws: The random numbers, float32 [4 or more, batch, 1, 1], from -1 to 1.
        """
        brightness, contrast = 1 + self.brightness * draws[0], 1 + self.contrast * draws[1]  # [batch, 1, 1] each
        saturation, angle = 1 + self.saturation * draws[2], 2 * math.pi * self.hue * draws[3]
        shape = keras.ops.shape(images)
        pixels = keras.ops.reshape(images, (shape[0], -1, shape[-1]))
        mean = keras.ops.mean(pixels, axis=1, keepdims=True)  # [batch, 1, channels]
        if shape[-1] > 1:
            constants = (colors.LUMA, colors.GREY, colors.CHROMA, colors.HUE_ROTATION)
            luma, grey, chroma, turn = map(keras.ops.convert_to_tensor, constants)
            mean = keras.ops.sum(mean * luma, axis=-1, keepdims=True)
            flipped_boxes = keras.ops.cos(angle) * chroma + keras.ops.sin(angle) * turn  # [batch, 3, 3]
            pixels = keras.ops.matmul(pixels, grey + saturation * flipped_boxes)
        pixels = keras.ops.clip(brightness * (contrast * pixels + (1 - contrast) * mean), 0.0, 255.0)
        return keras.ops.reshape(pixels, shape)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in (*_OPTIONS, "seed")}}
