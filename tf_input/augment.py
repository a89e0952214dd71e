"""Random crop and flip, drawn for a whole batch at once, from a seed alone."""

import math

import tensorflow as tf

from tf_input.decode import central_boxes
from tf_input.read_config import Augmentation

_NUM_ATTEMPTS = 10
_MAX_STRETCH = 4 / 3


def random_views(
    sizes: tf.Tensor, image_size: tuple[int, int], augmentation: Augmentation, number: tf.Tensor
) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """Which part of each image a model gets to see, and which way round: boxes and `mirrored` for `decode.decode_boxes`.

    Args:
        sizes: int32 [batch, 2], heights and widths.
        image_size: (height, width) that the boxes will be resized to.
        augmentation: How images vary.
        number: int64 []; the same number, the same views.

    Returns:
        int32 [batch, 4] (None where no image is to be cropped at random), and bool [batch] (None where none is to be mirrored).
    """
    boxes_seed, flip_seed = tf.unstack(tf.random.experimental.stateless_split(tf.stack([number, 0]), 2))
    boxes = random_boxes(sizes, image_size, augmentation.min_area, boxes_seed) if augmentation.crop else None
    if not augmentation.flip:
        return boxes, None
    return boxes, tf.random.stateless_uniform(tf.shape(sizes)[:1], flip_seed) < 0.5


def random_boxes(sizes: tf.Tensor, image_size: tuple[int, int], min_area: float, seed: tf.Tensor) -> tf.Tensor:
    """A random box in each image, as in Szegedy et al., https://arxiv.org/abs/1409.4842: of any area, place and proportions.

    Resizing it stretches the image by up to 4/3. Where none of ten attempts fits into an image (a panorama), it is the
    central box.

    Args:
        sizes: int32 [batch, 2], heights and widths.
        image_size: (height, width) that the boxes will be resized to.
        min_area: The smallest share of an image's area.
        seed: int64 or int32 [2]; the same seed, the same boxes.

    Returns:
        int32 [batch, 4]: (top, left, height, width).
    """
    shape_seed, stretch_seed, place_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    attempts = (tf.shape(sizes)[0], _NUM_ATTEMPTS)
    height, width = tf.unstack(tf.cast(sizes, tf.float32)[..., tf.newaxis], axis=1)  # [batch, 1] each
    area = height * width * tf.random.stateless_uniform(attempts, shape_seed, min_area, 1.0)
    log_stretch = tf.random.stateless_uniform(attempts, stretch_seed, -math.log(_MAX_STRETCH), math.log(_MAX_STRETCH))
    aspect = tf.exp(log_stretch) * (image_size[1] / image_size[0])
    extents = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=-1)  # [batch, attempts, 2]
    extents = tf.maximum(tf.cast(tf.round(extents), tf.int32), 1)
    fits = tf.reduce_all(extents <= sizes[:, tf.newaxis], axis=-1)
    first = tf.argmax(tf.cast(fits, tf.int32), axis=1)  # the first that fits; 0 where none does
    extents = tf.gather(extents, first, axis=1, batch_dims=1)  # [batch, 2]
    places = tf.random.stateless_uniform(tf.shape(sizes), place_seed)
    corners = tf.cast(places * tf.cast(sizes - extents + 1, tf.float32), tf.int32)
    corners = tf.minimum(corners, sizes - extents)  # float32 rounds up where a side is long
    boxes = tf.concat([corners, extents], axis=1)
    return tf.where(tf.reduce_any(fits, axis=1, keepdims=True), boxes, central_boxes(sizes, image_size))
