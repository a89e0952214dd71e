"""Defines the base class of feature kinds. Other packages call its methods instead of comparing names of kinds."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Protocol

import numpy as np

from tf_input.dataset_format import Feature
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig


class Crops(Protocol):
    """The crops of the images in a batch, as in `decoding.crop_geometry.CropGeometry`.

    Attributes:
        flipped: Whether each image is flipped left to right, bool [batch]. None if no image is flipped.
    """

    flipped: tf.Tensor | None

    def canvas_boxes(self) -> tf.Tensor:
        """Returns the part of the stored image that each output image shows, (ymin, xmin, ymax, xmax) in fractions of
        the stored image, float32 [batch, 4]. If the output image has padding, some values are outside 0..1."""


class FeatureKind:
    """A feature kind. By default, the methods do nothing. `tf_input.stored_kinds` declares further properties of kinds.

    The defaults are correct for values that do not depend on the crop of the image. They are also correct for boxes and
    masks, because `decoding` crops them.
    """

    def check_options(self, config: ReadConfig, features: Mapping[str, Feature]) -> None:
        """Checks the options for features of this kind.

        Args:
            config: The reading options.
            features: The features of this kind that are read, by name.

        Raises:
            ValueError: An option does not fit the features.
        """

    def move(
        self, values: tf.Tensor, crops: Crops, feature: Feature, config: ReadConfig, images: tf.Tensor | None = None
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
