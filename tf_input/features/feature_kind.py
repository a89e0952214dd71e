"""Defines the base class of feature kinds. Other packages call its methods instead of comparing names of kinds."""

from __future__ import annotations

from typing import Any, Collection, Mapping, NamedTuple, Protocol

import numpy as np

from tf_input.dataset_format import IMAGE, Feature
from tf_input.features import lists
from tf_input.features.augment import BatchSlots
from tf_input.features.crop_geometry import CropGeometry, crop_dense_targets, crop_masks, crop_pixels
from tf_input.features.roles import is_dense_target, is_list
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig


class Decoder(Protocol):
    """The decoder of a split, as `decoding.example_decoder.ExampleDecoder`, which describes the attributes and methods."""

    config: ReadConfig
    mask_dtype: np.dtype
    stored_channels: int
    max_batch_size: int

    def sizes_of(self, name: str) -> Any: ...

    def channels_of(self, feature: Feature | None) -> int: ...

    def seed_of(self, name: str, seed: tf.Tensor | None) -> tf.Tensor | None: ...

    def with_static_shape(self, feature: Feature) -> Feature: ...

    def is_classes(self, feature: Feature) -> bool: ...


class BatchContext(NamedTuple):
    """The values from which the outputs of a batch are made.

    Attributes:
        decoder: The decoder.
        parsed: The parsed or decoded features, by name.
        crops: The crops of each image, by the name of the image; None for images that are neither cropped nor resized.
        seed: The seed of the augmentation; None if there is none.
        slots: The batch slots of the examples; None for 0 to batch - 1.
    """

    decoder: Decoder
    parsed: Mapping[str, Any]
    crops: Mapping[str, CropGeometry | None]
    seed: tf.Tensor | None
    slots: BatchSlots | None


class FeatureKind:
    """A feature kind. `tf_input.stored_kinds` declares further properties of kinds.

    The defaults are correct for numbers and strings. Numbers with three dimensions are dense targets, which are cropped
    like their image.

    Attributes:
        num_dimensions: The number of dimensions of an example's values in a batch; None for the length of the feature's
            shape.
    """

    num_dimensions: int | None = None

    def pixel_bytes(self, feature: Feature, decoder: Decoder) -> int:
        """Returns the size in bytes of one pixel of an image or mask in a batch; 0 for other features."""
        return 0

    def decode(self, value: Any, feature: Feature, decoder: Decoder, batch_size: int | None = None) -> Any:
        """Decodes the stored values of a batch without cropping, for caching. Decoded values are returned unchanged.

        Args:
            value: The parsed values, or decoded values.
            feature: The feature.
            decoder: The decoder of the split.
            batch_size: The largest number of examples, which most batches contain. Default: None, any number.

        Raises:
            ValueError: Images differ in size.
            tf.errors.InvalidArgumentError: A value is corrupt. Raised when the tensor is computed.
        """
        return value

    def output(self, feature: Feature, batch: BatchContext) -> Any:
        """Returns the values of a batch. They are decoded, and follow the crops of the images."""
        config, value, crops = batch.decoder.config, batch.parsed[feature.name], batch.crops.get(IMAGE)
        if is_list(feature):
            padding = config.pads.length_of(feature.name), config.pads.value_of(feature.name)
            return lists.pad(value, *padding) if config.padding else value
        if crops is None:
            return value
        if is_dense_target(feature):
            return crop_pixels(value, crops) if feature.name == IMAGE else crop_dense_targets(value, crops)
        return crop_masks(value, crops) if batch.decoder.is_classes(feature) else value

    def padding_mask(self, feature: Feature, batch: BatchContext) -> tf.Tensor | None:
        """Returns a mask that is False for padding, bool [batch, n, ...]; None if the values are not padded."""
        return lists.mask(batch.parsed[feature.name], batch.decoder.config.pads.length_of(feature.name)) if is_list(feature) else None

    def check_options(self, config: ReadConfig, features: Mapping[str, Feature]) -> None:
        """Checks the options for features of this kind.

        Args:
            config: The reading options.
            features: The features of this kind that are read, by name.

        Raises:
            ValueError: An option does not fit the features.
        """

    def move(
        self, values: tf.Tensor, crops: CropGeometry, feature: Feature, config: ReadConfig, images: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Converts values from the coordinates of stored images to the coordinates of their crops.

        Args:
            values: The values, float32 [n, ...].
            crops: The crops of the images.
            feature: The feature.
            config: The reading options.
            images: The index of the image of each value, int [n]. None if each image has one value.
        """
        return values

    def move_array(
        self, values: np.ndarray, canvas_box: np.ndarray, is_flipped: bool, feature: Feature, config: ReadConfig
    ) -> np.ndarray:
        """Converts values from the coordinates of a stored image to the coordinates of its crop; `move` with NumPy.

        Args:
            values: The values, float32 [...].
            canvas_box: The part of the stored image that the output image shows, (ymin, xmin, ymax, xmax) in fractions of
                the stored image, float32 [4].
            is_flipped: Whether the image is flipped left to right.
            feature: The feature.
            config: The options of reading.
        """
        return values

    def describe_flips(self, feature: Feature, config: ReadConfig) -> str:
        """Returns a warning if flipped values may be wrong; "" otherwise. Called only if images are flipped."""
        return ""

    def draw(self, draw: Any, sides: np.ndarray, feature: Feature, values: np.ndarray, colors: Collection[str]) -> None:
        """Draws the values of one example. Invalid values are skipped.

        Args:
            draw: A `PIL.ImageDraw.ImageDraw`.
            sides: The (height, width) of the drawing in pixels.
            feature: The feature.
            values: The values.
            colors: The colors to use, in order.
        """


def stored_size_of(feature: Feature, decoder: Decoder) -> tuple[int, int]:
    """Returns the (height, width) of all stored images of a feature, or of the images of a mask.

    Raises:
        ValueError: Images differ in size.
    """
    stored = decoder.sizes_of(feature.name).stored
    if stored is None:
        raise ValueError(f"{feature.name}: images differ in size, so they can't be batched. Pass image_size=...")
    return stored
