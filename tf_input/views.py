"""Which part of each image a model gets to see, and how masks, maps and boxes follow it."""

from typing import NamedTuple

import tensorflow as tf

from tf_input import augment
from tf_input.decode import central_boxes
from tf_input.read_config import Augmentation


class Views(NamedTuple):
    """What is seen of each image of a batch.

    Attributes:
        sizes: int32 [batch, 2], heights and widths of the stored images.
        boxes: int32 [batch, 4], what is seen of each: (top, left, height, width) in its pixels.
        mirrored: bool [batch], which are turned left to right; None: none.
        extents: int32 [batch, 2], the (height, width) that each box is resized to, in the middle of a black frame; None: boxes
            fill the frame.
        image_size: (height, width) of the frame.
    """

    sizes: tf.Tensor
    boxes: tf.Tensor
    mirrored: tf.Tensor | None
    extents: tf.Tensor | None
    image_size: tuple[int, int]

    def frames(self) -> tf.Tensor:
        """float32 [batch, 4]: (ymin, xmin, ymax, xmax) of the frame where a stored image has 0..1; beyond that it is black."""
        sizes = tf.cast(self.sizes, tf.float32)
        starts, sides = tf.split(tf.cast(self.boxes, tf.float32), 2, axis=1)  # [batch, 2] each
        if self.extents is not None:
            scale = sides / tf.cast(self.extents, tf.float32)  # stored pixels to a pixel of the frame
            starts -= scale * tf.cast((tf.constant(self.image_size) - self.extents) // 2, tf.float32)
            sides = scale * tf.constant(self.image_size, tf.float32)
        return tf.concat([starts, starts + sides], axis=1) / tf.tile(sizes, [1, 2])


def make_views(
    sizes: tf.Tensor,
    image_size: tuple[int, int],
    fit: str,
    augmentation: Augmentation | None = None,
    number: tf.Tensor | None = None,
) -> Views:
    """What a model gets to see.

    Args:
        sizes: int32 [batch, 2], heights and widths.
        image_size: (height, width) that views are resized to.
        fit: See `ReadConfig.fit`; where the augmentation crops, it decides.
        augmentation: How images vary; None: they don't.
        number: int64 [], with an augmentation; the same number, the same views.
    """
    boxes, mirrored = None, None
    if augmentation is not None:
        boxes, mirrored = augment.random_views(sizes, image_size, augmentation, number)
    if augmentation is None or not augmentation.crop:
        boxes = central_boxes(sizes, image_size) if fit == "crop" else tf.concat([tf.zeros_like(sizes), sizes], axis=1)
    extents = fitting_extents(sizes, image_size) if fit == "pad" else None
    return Views(sizes, boxes, mirrored, extents, image_size)


def fitting_extents(sizes: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """The largest (height, width) with an image's proportions that lies within `image_size`: int32 [batch, 2]."""
    target, sides = tf.constant(image_size, tf.float32), tf.cast(sizes, tf.float32)
    scale = tf.reduce_min(target / sides, axis=1, keepdims=True)  # [batch, 1]
    return tf.clip_by_value(tf.cast(tf.round(sides * scale), tf.int32), 1, tf.constant(image_size))


def move_boxes(boxes: tf.RaggedTensor, views: Views) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Boxes of the stored images, as they lie in the views.

    Args:
        boxes: float32 [batch, None, 4], (ymin, xmin, ymax, xmax) in 0..1 of the stored image.
        views: What is seen of the images.

    Returns:
        The boxes in 0..1 of the view, clipped to it; and bool [batch, None], whether a box's centre is in the view.
    """
    images = boxes.value_rowids()
    frames = tf.gather(views.frames(), images)  # [num_boxes, 4]
    starts, ends = tf.split(frames, 2, axis=1)
    moved = (boxes.values - tf.tile(starts, [1, 2])) / tf.tile(ends - starts, [1, 2])
    if views.mirrored is not None:
        ymin, xmin, ymax, xmax = tf.unstack(moved, axis=1)
        turned = tf.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=1)
        moved = tf.where(tf.gather(views.mirrored, images)[:, tf.newaxis], turned, moved)
    centres = (moved[:, :2] + moved[:, 2:]) / 2
    seen = tf.reduce_all((centres >= 0) & (centres <= 1), axis=1)
    return boxes.with_values(tf.clip_by_value(moved, 0, 1)), boxes.with_values(seen)


def view_pixels(pixels: tf.Tensor, views: Views, method: str = "bilinear") -> tf.Tensor:
    """The views of images that are pixels already, or of maps that lie over their images; a whole batch at once.

    Args:
        pixels: [batch, rows, columns, channels]; of whole images, whatever their resolution.
        views: What is seen of the images.
        method: "bilinear" or "nearest".

    Returns:
        float32 [batch, *views.image_size, channels].
    """
    return _frame_pixels(pixels, views, views.image_size, method)


def view_maps(maps: tf.Tensor, views: Views) -> tf.Tensor:
    """The same at the maps' own resolution: float32 [batch, rows, columns, channels]."""
    return _frame_pixels(maps, views, tuple(maps.shape[1:3]), "bilinear")


def _frame_pixels(pixels: tf.Tensor, views: Views, size: tuple[int, int], method: str) -> tf.Tensor:
    """Samples as `tf.image.resize` does, where 0..1 is from edge to edge; for the op it is from the centre of the first pixel to
    that of the last. A border of one pixel has the outermost half pixels."""
    stored = tf.cast(tf.shape(pixels)[1:3], tf.float32)
    starts, ends = tf.split(views.frames(), 2, axis=1)
    halves = (ends - starts) / (2 * tf.constant(size, tf.float32))  # half a sample
    positions = [(edge * stored + 0.5) / (stored + 1) for edge in (starts + halves, ends - halves)]
    ymin, xmin, ymax, xmax = tf.unstack(tf.concat(positions, axis=1), axis=1)
    if views.mirrored is not None:  # the op samples from right to left where xmax comes first
        xmin, xmax = tf.where(views.mirrored, xmax, xmin), tf.where(views.mirrored, xmin, xmax)
    bordered = tf.pad(pixels, [[0, 0], [1, 1], [1, 1], [0, 0]], "SYMMETRIC")
    boxes = tf.stack([ymin, xmin, ymax, xmax], axis=1)
    seen = tf.image.crop_and_resize(bordered, boxes, tf.range(tf.shape(boxes)[0]), size, method)
    if views.extents is None:
        return seen
    # [batch, height], [batch, width]
    rows, columns = (_is_within(starts[:, axis], halves[:, axis], size[axis]) for axis in (0, 1))
    if views.mirrored is not None:
        columns = tf.where(views.mirrored[:, tf.newaxis], columns[:, ::-1], columns)
    return tf.where((rows[:, :, tf.newaxis] & columns[:, tf.newaxis])[..., tf.newaxis], seen, 0)  # black, not the border


def _is_within(starts: tf.Tensor, halves: tf.Tensor, num_samples: int) -> tf.Tensor:
    """Which samples lie in the image: bool [batch, num_samples]."""
    samples = starts[:, tf.newaxis] + halves[:, tf.newaxis] * (2 * tf.range(num_samples, dtype=tf.float32) + 1)
    return (samples >= 0) & (samples <= 1)
