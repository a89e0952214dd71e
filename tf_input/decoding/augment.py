"""Random crop, flip and colours, drawn for a whole batch at once, from a seed alone."""

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_input.decoding import colors
from tf_input.decoding.decode import central_boxes
from tf_input.read_config import Augmentation

_NUM_ATTEMPTS = 10
_MAX_STRETCH = 4 / 3
_COLORS = 1  # folded into a batch's seed, so that colours do not depend on what was drawn for views
_GROUP = 4  # pixels that are multiplied at a time: rows of three are too short for a processor


class Rows(NamedTuple):
    """The rows of a batch that something is drawn for, where these are not the first ones: so a host draws what all of them would.

    Attributes:
        numbers: The numbers of the rows, int64 [n]; those below 0 get any draw.
        count: The number of rows of the whole batch.
    """

    numbers: tf.Tensor
    count: int


def random_views(
    sizes: tf.Tensor, image_size: tuple[int, int], augmentation: Augmentation, seed: tf.Tensor, rows: Rows | None = None
) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """Draws the part of each image that a model gets to see, and which way round: boxes and `mirrored` for `decode.decode_boxes`.

    Args:
        sizes: The heights and widths of the images, int32 [batch, 2].
        image_size: The (height, width) that the boxes will be resized to.
        augmentation: The options that say how images vary.
        seed: The seed, int64 or int32 [2]; the same seed, the same views.
        rows: The rows of the batch that these images are; None: the first ones.

    Returns:
        int32 [batch, 4] (None where no image is to be cropped at random), and bool [batch] (None where none is to be mirrored).
    """
    boxes_seed, flip_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    boxes = random_boxes(sizes, image_size, augmentation.min_area, boxes_seed, rows) if augmentation.crop else None
    if not augmentation.flip:
        return boxes, None
    return boxes, _draw(tf.shape(sizes)[0], (), flip_seed, rows) < 0.5


def seed_of(image: str, seed: tf.Tensor) -> tf.Tensor:
    """A seed for what is drawn of one of several images in an example, from that of its batch: another name, another seed."""
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(zlib.crc32(image.encode()) >> 1, seed.dtype))


def random_boxes(
    sizes: tf.Tensor, image_size: tuple[int, int], min_area: float, seed: tf.Tensor, rows: Rows | None = None
) -> tf.Tensor:
    """A random box in each image, as in Szegedy et al., https://arxiv.org/abs/1409.4842: of any area, place and proportions.

    Resizing it stretches the image by up to 4/3. Where none of ten attempts fits into an image (a panorama), it is the
    central box.

    Args:
        sizes: The heights and widths of the images, int32 [batch, 2].
        image_size: The (height, width) that the boxes will be resized to.
        min_area: The smallest share of an image's area.
        seed: The seed, int64 or int32 [2]; the same seed, the same boxes.
        rows: The rows of the batch that these images are; None: the first ones.

    Returns:
        int32 [batch, 4]: (top, left, height, width).
    """
    shape_seed, stretch_seed, place_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    num_images, attempts = tf.shape(sizes)[0], (_NUM_ATTEMPTS,)
    height, width = tf.unstack(tf.cast(sizes, tf.float32)[..., tf.newaxis], axis=1)  # [batch, 1] each
    area = _exact(height * width * _draw(num_images, attempts, shape_seed, rows, min_area, 1.0))
    log_stretch = _draw(num_images, attempts, stretch_seed, rows, -math.log(_MAX_STRETCH), math.log(_MAX_STRETCH))
    aspect = tf.exp(_exact(log_stretch)) * (image_size[1] / image_size[0])
    extents = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=-1)  # [batch, attempts, 2]
    extents = tf.maximum(tf.cast(tf.round(extents), tf.int32), 1)
    fits = tf.reduce_all(extents <= sizes[:, tf.newaxis], axis=-1)
    first = tf.argmax(tf.cast(fits, tf.int32), axis=1)  # the first that fits; 0 where none does
    extents = tf.gather(extents, first, axis=1, batch_dims=1)  # [batch, 2]
    places = _draw(num_images, (2,), place_seed, rows)
    corners = tf.cast(places * tf.cast(sizes - extents + 1, tf.float32), tf.int32)
    corners = tf.minimum(corners, sizes - extents)  # float32 rounds up where a side is long
    boxes = tf.concat([corners, extents], axis=1)
    return tf.where(tf.reduce_any(fits, axis=1, keepdims=True), boxes, central_boxes(sizes, image_size))


def _draw(
    num_images: tf.Tensor, shape: tuple[int, ...], seed: tf.Tensor, rows: Rows | None, least: float = 0.0, most: float = 1.0
) -> tf.Tensor:
    """Uniform numbers for each image: float32 [num_images, *shape]."""
    if rows is None:
        return _uniform((num_images, *shape), seed, least, most)
    return tf.gather(_uniform((rows.count, *shape), seed, least, most), tf.maximum(rows.numbers, 0))


def _uniform(shape: tuple[Any, ...], seed: tf.Tensor, least: float, most: float) -> tf.Tensor:
    """`tf.random.stateless_uniform`, number by number, in half the ops: who calls `batches` waits for each of them."""
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    algorithm = tf.random.Algorithm.AUTO_SELECT.value
    numbers = tf.raw_ops.StatelessRandomUniformV2(shape=tf.stack(shape), key=key, counter=counter, alg=algorithm)
    span = np.float32(most) - np.float32(least)
    numbers = numbers if span == 1 else numbers * span
    return numbers + np.float32(least) if least else numbers


def _exact(numbers: tf.Tensor) -> tf.Tensor:
    """For functions such as `exp` and `cos`, whose last bit in float32 depends on how many numbers there are beside one: on the part
    of a batch that a host has. Their float64, rounded, is the same for all.
    """
    return tf.cast(numbers, tf.float64)


class ColorChanges(NamedTuple):
    """How the colours of each image of a batch change; `colors` says what the numbers mean.

    Attributes:
        brightness, saturation: The factors of brightness and of saturation, float32 [batch].
        angle: The angle by which hues turn, float32 [batch], in radians.
        contrast: The factors of contrast, float32 [batch]; None: all 1, and no mean is computed.
    """

    brightness: tf.Tensor
    saturation: tf.Tensor
    angle: tf.Tensor
    contrast: tf.Tensor | None = None


def jitter_colors(images: tf.Tensor, augmentation: Augmentation, seed: tf.Tensor, rows: Rows | None = None) -> tf.Tensor:
    """Changes the colours of each image at random.

    Args:
        images: The images, uint8 [batch, height, width, channels], 3 (RGB) or 1 (grey, which has no saturation and no hue); height and
            width known.
        augmentation: The options that say how much they vary; nothing is computed where they do not.
        seed: The seed, int64 or int32 [2]; the same seed, the same changes, whatever was drawn from it for views.
        rows: The rows of the batch that these images are; None: the first ones.

    Returns:
        uint8, of the same shape; rounded, and clipped once, after all changes.
    """
    if not augmentation.jitters:
        return images
    return change_colors(images, random_colors(tf.shape(images)[0], augmentation, seed, rows))


def random_colors(num_images: tf.Tensor, augmentation: Augmentation, seed: tf.Tensor, rows: Rows | None = None) -> ColorChanges:
    """A random change for each image; a kind of change is the same whichever others there are."""
    seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(_COLORS, seed.dtype))
    draws = _draw(num_images, (4,), seed, rows, -1.0, 1.0)
    brightness, contrast, saturation, turn = tf.unstack(draws, axis=1)
    return ColorChanges(
        1 + augmentation.brightness * brightness,
        1 + augmentation.saturation * saturation,
        2 * math.pi * augmentation.hue * turn,
        1 + augmentation.contrast * contrast if augmentation.contrast else None,
    )


def change_colors(images: tf.Tensor, changes: ColorChanges) -> tf.Tensor:
    """Changes each image as it is said, in one multiplication for all four.

    Args:
        images: uint8 [batch, height, width, 3 or 1]; height and width known.
        changes: One for each image.

    Returns:
        uint8, of the same shape.

    Raises:
        ValueError: The images have another number of channels.
    """
    height, width, channels = images.shape[1:]
    if channels not in (1, len(colors.LUMA)):
        raise ValueError(f"images have {channels} channels: to change colours, expected 3 (RGB) or 1 (grey)")
    brightness, saturation, angle = (one[:, tf.newaxis, tf.newaxis] for one in changes[:3])  # [batch, 1, 1] each
    if channels == 1:
        luma, matrix = np.ones(1), brightness
    else:
        cos, sin = (tf.cast(function(_exact(angle)), tf.float32) for function in (tf.cos, tf.sin))
        luma = colors.LUMA
        matrix = brightness * (colors.GREY + saturation * (cos * colors.CHROMA + sin * colors.TURN))  # [batch, 3, 3]
    group = math.gcd(height * width, _GROUP)
    pixels = tf.reshape(tf.cast(images, tf.float32), (-1, height * width // group, group * channels))
    offset = 0.5  # rounds
    if changes.contrast is not None:
        contrast = changes.contrast[:, tf.newaxis, tf.newaxis]
        # Of integers, which are added up without rounding, in whatever order: float32 has room for a column, float64 for an image.
        sums = tf.reduce_sum(tf.reshape(pixels, (-1, height, width * channels)), axis=1)
        sums = tf.reduce_sum(tf.reshape(_exact(sums), (-1, width, channels)), axis=1)
        mean_luma = tf.cast(tf.reduce_sum(sums * luma, axis=1) / (height * width), tf.float32)  # [batch]
        offset += brightness * (1 - contrast) * mean_luma[:, tf.newaxis, tf.newaxis]
        matrix *= contrast
    # [batch, group, channels, group, channels]: the same for each pixel of a group, and nothing from one to another
    matrices = tf.eye(group)[:, tf.newaxis, :, tf.newaxis] * matrix[:, tf.newaxis, :, tf.newaxis]
    changed = tf.matmul(pixels, tf.reshape(matrices, (-1, *[group * channels] * 2))) + offset
    return tf.reshape(tf.cast(tf.clip_by_value(changed, 0, 255), tf.uint8), tf.shape(images))
