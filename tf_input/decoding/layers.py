"""Keras layers for batches of uint8 images, on whatever device the model is: normalisation, and augmentation in training.

They use Keras alone, and so run on TensorFlow, JAX and torch. A saved model with an augmentation layer is loaded after
`import tf_input.decoding.layers`.
"""

import math
from typing import Any, Mapping

import keras

from tf_input.dataset_format import Feature
from tf_input.decoding import colors
from tf_input.read_config import Augmentation

_MOST_OF_8_BITS, _MOST_OF_16_BITS = 0xFF, 0xFFFF
_OPTIONS = ("flip", "brightness", "contrast", "saturation", "hue")  # of an Augmentation


def normalization_layer(
    statistics: Mapping[str, Any],
    image: Feature,
    split: str = "train",
    stored_channels: int = len(colors.LUMA),
    channels: int | None = None,
) -> keras.layers.Normalization:
    """A layer after which each channel of a split's images has mean 0 and variance 1.

        model = keras.Sequential([flowers.normalization_layer(), ...])

    Args:
        statistics: The contents of `statistics.json`.
        image: The feature that is normalised.
        split: The split, of whose images a sample was looked into.
        stored_channels: The number of channels of encoded images: 1 where all are grey, else 3.
        channels: The number of channels of images in batches; None: as many as are stored.

    Returns:
        A layer from images of any dtype, 0..255 (0..65535 where they keep 16 bits, and of tensors whatever they hold), [batch, height,
        width, channels], to the layer's own dtype: float32, or for 8 bits what a policy says. A channel that has one value only becomes 0.

    Raises:
        ValueError: The statistics say nothing about such pixels.
    """
    if image.kind not in ("image", "pixels", "tensor"):
        raise ValueError(f"{image.name!r} is {image.kind}, transformed already; expected images, or keras.layers.Normalization().adapt")
    stored_channels = stored_channels if image.kind == "image" else image.shape[-1]
    channels = channels or stored_channels
    expected = (stored_channels,) if image.kind == "tensor" else (1, len(colors.LUMA))
    if channels not in expected:
        raise ValueError(
            f"{image.name!r} has {channels} channels; expected {stored_channels if image.kind == 'tensor' else '3 (RGB) or 1 (grey)'}"
        )
    if channels < stored_channels:
        raise ValueError(
            f"channels={channels}: nobody computed the variance of colours made grey; expected 3, or keras.layers.Normalization().adapt"
        )
    pixels = statistics["splits"][split]["pixels"]
    if pixels is None:
        if image.kind == "tensor":
            raise ValueError(
                f"of the numbers in {image.name!r} of {split!r} no variance is known; expected keras.layers.Normalization().adapt"
            )
        raise ValueError(f"no image of {split!r} was decoded to prepare it; expected --check=decode, or strict")
    mean, variance = (pixels[name][:channels] for name in ("mean", "variance"))  # of grey images the three are the same
    scale = _MOST_OF_16_BITS / _MOST_OF_8_BITS if image.kind == "image" and image.dtype else 1
    mean, variance = [one * scale for one in mean], [one * scale**2 or 1.0 for one in variance]
    dtype = None if image.kind != "tensor" and scale == 1 else "float32"  # float16 ends at 65,504
    return keras.layers.Normalization(axis=-1, mean=mean, variance=variance, dtype=dtype, name="normalization")


def augmentation_layer(augmentation: Augmentation, seed: int | None = None) -> "RandomFlipAndColors":
    """Flips and colours of an `Augmentation` as a layer, for a GPU that has time left where the CPU has none.

    Random crops are made while images are decoded, where they save work: read with `augment=Augmentation(flip=False)`, and
    the same `min_area`.

    Args:
        augmentation: The options that say how images vary; `crop` and `min_area` are not this layer's business.
        seed: The seed of what the layer draws; None: runs differ.

    Raises:
        ValueError: Nothing is left to vary.
    """
    if not augmentation.flip and not augmentation.jitters:
        raise ValueError(f"{augmentation}: expected flip, brightness, contrast, saturation or hue")
    options = {name: getattr(augmentation, name) for name in _OPTIONS}
    return RandomFlipAndColors(**options, seed=seed, name="augmentation")


@keras.saving.register_keras_serializable("tf_input")
class RandomFlipAndColors(keras.layers.Layer):
    """Mirrors every other image and changes the colours of each, in training alone; what `Augmentation` does on the CPU.

    From images of any dtype but uint16, 0..255, [batch, height, width, 3 or 1], to the same in the layer's own dtype (float32, or what a
    policy says), without rounding.

    Keras's own layers mean other things: RandomBrightness adds, RandomContrast has a mean for each channel, RandomSaturation and
    RandomHue work in HSV; and all vary images also where a model is called without `training`.

    Attributes:
        flip, brightness, contrast, saturation, hue: The options of these names, as `Augmentation` has them.
        seed: The seed of what the layer draws; None: runs differ.
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
        Augmentation(flip=flip, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)  # checks them
        self.flip = flip
        self.brightness, self.contrast, self.saturation, self.hue = brightness, contrast, saturation, hue
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if input_shape[-1] not in (1, len(colors.LUMA)):
            raise ValueError(f"images have {input_shape[-1]} channels: {self.name!r} expects 3 (RGB) or 1 (grey)")

    def call(self, images: Any, training: bool | None = None) -> Any:
        if keras.backend.standardize_dtype(images.dtype) == "uint16":
            raise ValueError(
                f"images of uint16: {self.name!r} expects 0..255; `batches` mirrors others, with augment=Augmentation(flip=True)"
            )
        if not training:
            return keras.ops.cast(images, self.compute_dtype)
        draws = keras.random.uniform((5, keras.ops.shape(images)[0], 1, 1), -1.0, 1.0, "float32", self.seed_generator)
        images = keras.ops.cast(images, "float32")  # not in half precision, for which the sum over an image is too much
        if self.flip:
            images = keras.ops.where(draws[4][..., None] < 0, keras.ops.flip(images, axis=2), images)
        if self.brightness or self.contrast or self.saturation or self.hue:
            images = self._change_colors(images, draws)
        return keras.ops.cast(images, self.compute_dtype)

    def _change_colors(self, images: Any, draws: Any) -> Any:
        """Changes the colours of images, as `colors` says.

        Args:
            images: The images, float32 [batch, height, width, 3 or 1].
            draws: The numbers that were drawn, float32 [4 or more, batch, 1, 1], from -1 to 1.
        """
        brightness, contrast = 1 + self.brightness * draws[0], 1 + self.contrast * draws[1]  # [batch, 1, 1] each
        saturation, angle = 1 + self.saturation * draws[2], 2 * math.pi * self.hue * draws[3]
        shape = keras.ops.shape(images)
        pixels = keras.ops.reshape(images, (shape[0], -1, shape[-1]))
        mean = keras.ops.mean(pixels, axis=1, keepdims=True)  # [batch, 1, channels]
        if shape[-1] > 1:
            constants = (colors.LUMA, colors.GREY, colors.CHROMA, colors.TURN)
            luma, grey, chroma, turn = map(keras.ops.convert_to_tensor, constants)
            mean = keras.ops.sum(mean * luma, axis=-1, keepdims=True)
            turned = keras.ops.cos(angle) * chroma + keras.ops.sin(angle) * turn  # [batch, 3, 3]
            pixels = keras.ops.matmul(pixels, grey + saturation * turned)
        pixels = keras.ops.clip(brightness * (contrast * pixels + (1 - contrast) * mean), 0.0, 255.0)
        return keras.ops.reshape(pixels, shape)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in (*_OPTIONS, "seed")}}
