"""Applies random crops, flips and color changes to whole batches. The random numbers depend only on a seed."""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np

from tf_input.features import colors
from tf_input.features.decode_images import central_boxes
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import Augmentation

_NUM_ATTEMPTS = 10
_MAX_STRETCH = 4 / 3
_COLORS = 1  # folded into the seed of a batch, so that color changes are independent of crops and flips
_GROUP = 4  # number of pixels in one matrix row; rows of one pixel, with 3 values, are too short to be fast


class BatchSlots(NamedTuple):
    """The indices of examples in a global batch. Random numbers depend on these indices, so that the number of hosts
    does not change the augmentation.

    Attributes:
        numbers: The indices in the global batch, int64 [n]. Negative indices are padding.
        count: The number of examples in the global batch.
    """

    numbers: tf.Tensor
    count: int


def random_crops(
    sizes: tf.Tensor, image_size: tuple[int, int], augmentation: Augmentation, seed: tf.Tensor, slots: BatchSlots | None = None
) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """Draws random crop boxes and flips of images, for `decode.decode_boxes`.

    Args:
        sizes: The heights and widths of the images in pixels, int32 [batch, 2].
        image_size: The (height, width) to which the boxes will be resized.
        augmentation: The augmentation options.
        seed: The seed, int64 or int32 [2]. Equal seeds give equal results.
        slots: The indices of these images in the global batch. Default: None, 0 to batch - 1.

    Returns:
        The boxes (top, left, height, width), int32 [batch, 4], or None if there are no random crops; and whether to
        flip each image, bool [batch], or None if no image is flipped.
    """
    boxes_seed, flip_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    boxes = random_boxes(sizes, image_size, augmentation.min_area, boxes_seed, slots) if augmentation.crop else None
    if not augmentation.flip:
        return boxes, None
    return boxes, _draw(tf.shape(sizes)[0], (), flip_seed, slots) < 0.5


def seed_of(image: str, seed: tf.Tensor) -> tf.Tensor:
    """Derives the seed of an image feature from the seed of the batch and the name of the feature."""
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(zlib.crc32(image.encode()) >> 1, seed.dtype))


def random_boxes(
    sizes: tf.Tensor, image_size: tuple[int, int], min_area: float, seed: tf.Tensor, slots: BatchSlots | None = None
) -> tf.Tensor:
    """Draws a crop box of random area, position and aspect ratio in each image, as in https://arxiv.org/abs/1409.4842.

    Resizing a crop box to the output size changes the aspect ratio of the image by a factor of at most 4/3. If ten
    consecutive random boxes do not fit into an image, such as a panorama, the centered box is used.

    Args:
        sizes: The heights and widths of the images in pixels, int32 [batch, 2].
        image_size: The (height, width) to which the boxes will be resized.
        min_area: The smallest fraction of an image's area.
        seed: The seed, int64 or int32 [2]. Equal seeds give equal boxes.
        slots: The indices of these images in the global batch. Default: None, 0 to batch - 1.

    Returns:
        The boxes (top, left, height, width) in pixels, int32 [batch, 4].
    """
    shape_seed, chunk_seed, place_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    num_images, attempts = tf.shape(sizes)[0], (_NUM_ATTEMPTS,)
    height, width = tf.unstack(tf.cast(sizes, tf.float32)[..., tf.newaxis], axis=1)  # [batch, 1] each
    area = _exact(height * width * _draw(num_images, attempts, shape_seed, slots, min_area, 1.0))
    log_range = _draw(num_images, attempts, chunk_seed, slots, -math.log(_MAX_STRETCH), math.log(_MAX_STRETCH))
    aspect = tf.exp(_exact(log_range)) * (image_size[1] / image_size[0])
    extents = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=-1)  # [batch, attempts, 2]
    extents = tf.maximum(tf.cast(tf.round(extents), tf.int32), 1)
    fits = tf.reduce_all(extents <= sizes[:, tf.newaxis], axis=-1)
    first = tf.argmax(tf.cast(fits, tf.int32), axis=1)  # the first that fits; 0 if none does
    extents = tf.gather(extents, first, axis=1, batch_dims=1)  # [batch, 2]
    fractions = _draw(num_images, (2,), place_seed, slots)
    corners = tf.cast(fractions * tf.cast(sizes - extents + 1, tf.float32), tf.int32)
    corners = tf.minimum(corners, sizes - extents)  # float32 may round up if a side is long
    boxes = tf.concat([corners, extents], axis=1)
    return tf.where(tf.reduce_any(fits, axis=1, keepdims=True), boxes, central_boxes(sizes, image_size))


def _draw(
    num_images: tf.Tensor, shape: tuple[int, ...], seed: tf.Tensor, slots: BatchSlots | None, low: float = 0.0, high: float = 1.0
) -> tf.Tensor:
    """Returns uniform random numbers for each image, float32 [num_images, *shape]."""
    if slots is None:
        return _uniform((num_images, *shape), seed, low, high)
    return tf.gather(_uniform((slots.count, *shape), seed, low, high), tf.maximum(slots.numbers, 0))


def _uniform(shape: tuple[Any, ...], seed: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Returns the same numbers as `tf.random.stateless_uniform`, but uses half as many ops."""
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    algorithm = tf.random.Algorithm.AUTO_SELECT.value
    numbers = tf.raw_ops.StatelessRandomUniformV2(shape=tf.stack(shape), key=key, counter=counter, alg=algorithm)
    span = np.float32(high) - np.float32(low)
    numbers = numbers if span == 1 else numbers * span
    return numbers + np.float32(low) if low else numbers


def _exact(numbers: tf.Tensor) -> tf.Tensor:
    """Converts a tensor to float64 before functions such as `exp` and `cos` are applied.

    In float32, the last bit of `exp` and `cos` depends on the number of values in the tensor, and therefore on the
    number of hosts. Rounding a float64 result removes this dependence.
    """
    return tf.cast(numbers, tf.float64)


class ColorChanges(NamedTuple):
    """The parameters of the color changes of each image in a batch; see the module `colors`.

    Attributes:
        brightness, saturation: The factors of brightness and saturation, float32 [batch].
        angle: The rotation of hues in radians, float32 [batch].
        contrast: The factors of contrast, float32 [batch]; None if contrast does not change, so that no means are
            needed.
    """

    brightness: tf.Tensor
    saturation: tf.Tensor
    angle: tf.Tensor
    contrast: tf.Tensor | None = None


def jitter_colors(images: tf.Tensor, augmentation: Augmentation, seed: tf.Tensor, slots: BatchSlots | None = None) -> tf.Tensor:
    """Randomly changes the colors of each image.

    Args:
        images: The images, uint8 [batch, height, width, 3 or 1], with known height and width. With one channel
            (grayscale), saturation and hue have no effect.
        augmentation: The augmentation options. Without color changes, the images are returned unchanged.
        seed: The seed, int64 or int32 [2]. Equal seeds give equal color changes, independently of crops and flips.
        slots: The indices of these images in the global batch. Default: None, 0 to batch - 1.

    Returns:
        The changed images, uint8 of the same shape, rounded and clipped once after all changes.
    """
    if not augmentation.jitters:
        return images
    return change_colors(images, random_colors(tf.shape(images)[0], augmentation, seed, slots))


def random_colors(num_images: tf.Tensor, augmentation: Augmentation, seed: tf.Tensor, slots: BatchSlots | None = None) -> ColorChanges:
    """Draws a random color change for each image. Disabling one kind of color change does not affect the random numbers
    of other kinds."""
    seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(_COLORS, seed.dtype))
    draws = _draw(num_images, (4,), seed, slots, -1.0, 1.0)
    brightness, contrast, saturation, turn = tf.unstack(draws, axis=1)
    return ColorChanges(
        1 + augmentation.brightness * brightness,
        1 + augmentation.saturation * saturation,
        2 * math.pi * augmentation.hue * turn,
        1 + augmentation.contrast * contrast if augmentation.contrast else None,
    )


def change_colors(images: tf.Tensor, changes: ColorChanges) -> tf.Tensor:
    """Applies color changes to images, with one matrix multiplication.

    Args:
        images: The images, uint8 [batch, height, width, 3 or 1], with known height and width.
        changes: The changes of each image.

    Returns:
        The changed images, uint8 of the same shape.

    Raises:
        ValueError: The images have another number of channels.
    """
    height, width, channels = images.shape[1:]
    if channels not in (1, len(colors.LUMA)):
        raise ValueError(f"images have {channels} channels. Changing colors needs 3 channels (RGB) or 1 (gray).")
    brightness, saturation, angle = (change[:, tf.newaxis, tf.newaxis] for change in changes[:3])  # [batch, 1, 1] each
    if channels == 1:
        luma, matrix = np.ones(1), brightness
    else:
        cos, sin = (tf.cast(function(_exact(angle)), tf.float32) for function in (tf.cos, tf.sin))
        luma = colors.LUMA
        matrix = brightness * (colors.GREY + saturation * (cos * colors.CHROMA + sin * colors.HUE_ROTATION))  # [batch, 3, 3]
    group = math.gcd(height * width, _GROUP)
    pixels = tf.reshape(tf.cast(images, tf.float32), (-1, height * width // group, group * channels))
    offset = 0.5  # rounds to the nearest integer
    if changes.contrast is not None:
        contrast = changes.contrast[:, tf.newaxis, tf.newaxis]
        # Sums of integers are exact in any order: float32 suffices for a column, float64 for an image.
        sums = tf.reduce_sum(tf.reshape(pixels, (-1, height, width * channels)), axis=1)
        sums = tf.reduce_sum(tf.reshape(_exact(sums), (-1, width, channels)), axis=1)
        mean_luma = tf.cast(tf.reduce_sum(sums * luma, axis=1) / (height * width), tf.float32)  # [batch]
        offset += brightness * (1 - contrast) * mean_luma[:, tf.newaxis, tf.newaxis]
        matrix *= contrast
    # [batch, group, channels, group, channels]: block diagonal, with the same matrix for each pixel of a group
    matrices = tf.eye(group)[:, tf.newaxis, :, tf.newaxis] * matrix[:, tf.newaxis, :, tf.newaxis]
    changed = tf.matmul(pixels, tf.reshape(matrices, (-1, *[group * channels] * 2))) + offset
    return tf.reshape(tf.cast(tf.clip_by_value(changed, 0, 255), tf.uint8), tf.shape(images))
