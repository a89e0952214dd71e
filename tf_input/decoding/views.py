"""The part of each image that a model gets to see, and how masks, maps and boxes follow it."""

from typing import NamedTuple

import tensorflow as tf

from tf_input.decoding import augment
from tf_input.decoding.decode import MAX_SMALL_SIDE, RATIOS, central_boxes, frame_image
from tf_input.read_config import Augmentation

FRAMED = ("pad", "unscaled")  # ways to fit an image, in which it may not fill its frame


class Views(NamedTuple):
    """What is seen of each image of a batch.

    Attributes:
        sizes: int32 [batch, 2], heights and widths of the stored images.
        boxes: int32 [batch, 4], what is seen of each: (top, left, height, width) in its pixels.
        mirrored: bool [batch], which are turned left to right; None: none.
        extents: int32 [batch, 2], the (height, width) that each box is resized to, in the middle of a black frame; None: boxes
            fill the frame.
        image_size: (height, width) of the frame.
        ratios: int32 [batch], by which a JPEG may be decoded at a smaller size; boxes are of multiples of it. None: by none.
        antialias: Whether all pixels of a box are averaged when it is resized.
    """

    sizes: tf.Tensor
    boxes: tf.Tensor
    mirrored: tf.Tensor | None
    extents: tf.Tensor | None
    image_size: tuple[int, int]
    ratios: tf.Tensor | None = None
    antialias: bool = False

    def frames(self) -> tf.Tensor:
        """float32 [batch, 4]: (ymin, xmin, ymax, xmax) of the frame where a stored image has 0..1; beyond that it is black."""
        sizes = tf.cast(self.sizes, tf.float32)
        starts, sides = tf.split(tf.cast(self.boxes, tf.float32), 2, axis=1)  # [batch, 2] each
        if self.extents is not None:
            scale = sides / tf.cast(self.extents, tf.float32)  # stored pixels to a pixel of the frame
            starts -= scale * tf.cast((tf.constant(self.image_size) - self.extents) // 2, tf.float32)
            sides = scale * tf.constant(self.image_size, tf.float32)
        return tf.concat([starts, starts + sides], axis=1) / tf.tile(sizes, [1, 2])

    def same_parts(self, sizes: tf.Tensor) -> tf.Tensor:
        """int32 [batch, 4]: boxes of the same parts of other images, int32 [batch, 2]; where these have one size, the same boxes."""
        own, others = (tf.cast(one, tf.int64) for one in (self.sizes, sizes))
        corners, extents = tf.split(tf.cast(self.boxes, tf.int64), 2, axis=1)
        starts, ends = ((2 * edges * others + own) // (2 * own) for edges in (corners, corners + extents))  # rounded
        starts = tf.minimum(starts, others - 1)
        return tf.cast(tf.concat([starts, tf.maximum(ends - starts, 1)], axis=1), tf.int32)


def make_views(
    sizes: tf.Tensor,
    image_size: tuple[int, int],
    fit: str,
    augmentation: Augmentation | None = None,
    seed: tf.Tensor | None = None,
    scales: bool = False,
    rows: augment.Rows | None = None,
    leader: Views | None = None,
) -> Views:
    """Makes the views of images: what a model gets to see of them.

    Args:
        sizes: The heights and widths of the images, int32 [batch, 2].
        image_size: The (height, width) that views are resized to.
        fit: The way in which an image fits its frame, as `ReadConfig.fit` has it; where the augmentation crops, it decides.
        augmentation: The options that say how images vary; None: they don't.
        seed: The seed, int64 [2], with an augmentation; the same seed, the same views.
        scales: Whether JPEGs much larger than `image_size` are decoded at a smaller size. The edges of their boxes move a
            little then, by less than a pixel of the view, so that a pixel of the smaller image is either in a box or not.
        rows: The rows of the batch that these images are; None: the first ones.
        leader: The view of other images of the same examples, whose random crop and turn these share; None: of none.
    """
    boxes, mirrored = None, None
    if augmentation is not None and leader is not None:
        boxes, mirrored = leader.same_parts(sizes), leader.mirrored
    elif augmentation is not None:
        boxes, mirrored = augment.random_views(sizes, image_size, augmentation, seed, rows)
    if augmentation is None or not augmentation.crop:
        boxes = central_boxes(sizes, image_size) if fit == "crop" else tf.concat([tf.zeros_like(sizes), sizes], axis=1)
    extents = fitting_extents(sizes, image_size) if fit in FRAMED else None
    if fit == "unscaled":
        extents = tf.minimum(extents, sizes)
    if not scales:
        return Views(sizes, boxes, mirrored, extents, image_size)
    ratios = _ratios(sizes, boxes, tf.constant(image_size) if extents is None else extents)
    return Views(sizes, _snap(boxes, sizes, ratios), mirrored, extents, image_size, ratios)


def _ratios(sizes: tf.Tensor, boxes: tf.Tensor, extents: tf.Tensor) -> tf.Tensor:
    """int32 [batch]: the largest of `RATIOS` by which a box may become smaller, and is still as large as its extent.

    1 for small images, so that they look the same whether it is known beforehand that all are small or not.
    """
    most = tf.reduce_min(boxes[:, 2:] // extents, axis=1, keepdims=True)  # [batch, 1]
    most = tf.where(tf.reduce_max(sizes, axis=1, keepdims=True) <= MAX_SMALL_SIDE, 1, most)
    return tf.reduce_max(tf.where(most >= RATIOS, RATIOS, 1), axis=1)


def _snap(boxes: tf.Tensor, sizes: tf.Tensor, ratios: tf.Tensor) -> tf.Tensor:
    """Boxes near these, of multiples of a ratio; without the last pixels of an image that make no whole one."""
    ratios = ratios[:, tf.newaxis]
    corners, extents = tf.split((boxes + ratios // 2) // ratios, 2, axis=1)  # rounded
    extents = tf.minimum(extents, sizes // ratios)
    corners = tf.minimum(corners, sizes // ratios - extents)
    return tf.concat([corners, extents], axis=1) * ratios


def fitting_extents(sizes: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """The largest (height, width) with an image's proportions that lies within `image_size`: int32 [batch, 2]."""
    target, sides = tf.constant(image_size, tf.float32), tf.cast(sizes, tf.float32)
    scale = tf.reduce_min(target / sides, axis=1, keepdims=True)  # [batch, 1]
    return tf.clip_by_value(tf.cast(tf.round(sides * scale), tf.int32), 1, tf.constant(image_size))


def value_rows(values: tf.RaggedTensor) -> tf.Tensor:
    """The row that each value belongs to, int32 [num_values]: `value_rowids` in a fifth of its ops, as each takes a while to begin."""
    splits = values.row_splits
    ends = tf.raw_ops.UpperBound(sorted_inputs=tf.expand_dims(splits, 0), values=tf.expand_dims(tf.range(splits[-1]), 0))
    return tf.squeeze(ends, 0) - 1


def move_boxes(boxes: tf.RaggedTensor, views: Views) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Boxes of the stored images, as they lie in the views.

    Args:
        boxes: float32 [batch, None, 4], (ymin, xmin, ymax, xmax) in 0..1 of the stored image.
        views: The views of the images.

    Returns:
        The boxes in 0..1 of the view, clipped to it; and bool [batch, None], whether a box's centre is in the view.
    """
    images = value_rows(boxes)
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


def view_pixels(pixels: tf.Tensor, views: Views) -> tf.Tensor:
    """The views of images that are pixels already, or of maps that lie over their images; a whole batch at once.

    Args:
        pixels: [batch, rows, columns, channels]; of whole images, whatever their resolution.
        views: The views of the images.

    Returns:
        float32 [batch, *views.image_size, channels].
    """
    return _average_pixels(pixels, views) if views.antialias else _frame_pixels(pixels, views, views.image_size)


def _average_pixels(pixels: tf.Tensor, views: Views) -> tf.Tensor:
    """`view_pixels` with antialiasing, image by image."""
    sizes = tf.tile(tf.shape(pixels)[tf.newaxis, 1:3], [tf.shape(pixels)[0], 1])
    given = {"pixels": pixels, "box": views.same_parts(sizes), "extent": views.extents, "is_mirrored": views.mirrored}

    def view_one(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        top, left, height, width = tf.unstack(inputs["box"])
        box = inputs["pixels"][top : top + height, left : left + width]
        return frame_image(tf.image.resize(box, inputs.get("extent", views.image_size), antialias=True), views.image_size, inputs)

    signature = tf.TensorSpec((*views.image_size, pixels.shape[-1]), tf.float32)
    return tf.map_fn(view_one, {name: one for name, one in given.items() if one is not None}, fn_output_signature=signature)


def view_masks(masks: tf.Tensor, views: Views) -> tf.Tensor:
    """The views of masks that are pixels already, to the nearest values, as `decode.decode_mask_boxes` has them of encoded ones.

    Args:
        masks: [batch, height, width, 1], of the size of their images.
        views: The views of the images.

    Returns:
        [batch, *views.image_size, 1], of the same dtype.
    """
    for axis in range(2):
        start, side = views.boxes[:, axis, tf.newaxis], views.boxes[:, 2 + axis, tf.newaxis]  # [batch, 1]
        samples, extent = _samples(views, axis)
        scale = tf.cast(side, tf.float32) / tf.cast(extent, tf.float32)
        nearest = tf.cast(tf.floor((tf.cast(samples, tf.float32) + 0.5) * scale), tf.int32)
        masks = tf.gather(masks, start + tf.clip_by_value(nearest, 0, side - 1), axis=1 + axis, batch_dims=1)
    return masks if views.extents is None else tf.where(frame_masks(views), masks, tf.zeros((), masks.dtype))


def frame_masks(views: Views) -> tf.Tensor:
    """Whether each pixel of the frames shows the image: bool [batch, *views.image_size, 1]."""
    placed = (_samples(views, axis) for axis in range(2))
    rows, columns = ((samples >= 0) & (samples < extent) for samples, extent in placed)
    return (rows[:, :, tf.newaxis] & columns[:, tf.newaxis])[..., tf.newaxis]


def _samples(views: Views, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the rows or columns of the frame lie, counted from the image's first, int32 [batch, num_samples], and how many the image has
    there, int32 [batch, 1]."""
    num_samples = views.image_size[axis]
    extent = tf.fill([tf.shape(views.boxes)[0], 1], num_samples) if views.extents is None else views.extents[:, axis, tf.newaxis]
    samples = tf.range(num_samples) - (num_samples - extent) // 2
    if axis == 1 and views.mirrored is not None:
        samples = tf.where(views.mirrored[:, tf.newaxis], samples[:, ::-1], samples)
    return samples, extent


def view_maps(maps: tf.Tensor, views: Views) -> tf.Tensor:
    """Cuts the views of images out of their maps, at the maps' own resolution: float32 [batch, rows, columns, channels]."""
    return _frame_pixels(maps, views, tuple(maps.shape[1:3]))


def _frame_pixels(pixels: tf.Tensor, views: Views, size: tuple[int, int]) -> tf.Tensor:
    """Samples as `tf.image.resize` does, where 0..1 is from edge to edge; for the op it is from the centre of the first pixel to
    that of the last. A border of one pixel has the outermost half pixels."""
    stored = tf.cast(tf.shape(pixels)[1:3], tf.float32)
    starts, ends = tf.split(views.frames(), 2, axis=1)
    halves = (ends - starts) / (2 * tf.constant(size, tf.float32))  # half a sample
    positions = [(edge * stored + 0.5) / (stored + 1) for edge in (starts + halves, ends - halves)]
    ymin, xmin, ymax, xmax = tf.unstack(tf.concat(positions, axis=1), axis=1)
    if views.mirrored is not None:  # the op samples from right to left where xmax comes first
        xmin, xmax = tf.where(views.mirrored, xmax, xmin), tf.where(views.mirrored, xmin, xmax)
    bordered = tf.concat([pixels[:, :1], pixels, pixels[:, -1:]], axis=1)  # a fraction of what tf.pad takes
    bordered = tf.concat([bordered[:, :, :1], bordered, bordered[:, :, -1:]], axis=2)
    boxes = tf.stack([ymin, xmin, ymax, xmax], axis=1)
    seen = tf.image.crop_and_resize(bordered, boxes, tf.range(tf.shape(boxes)[0]), size)
    if views.extents is None:
        return seen
    # [batch, height], [batch, width]
    rows, columns = (_is_within(starts[:, axis], halves[:, axis], size[axis]) for axis in (0, 1))
    if views.mirrored is not None:
        columns = tf.where(views.mirrored[:, tf.newaxis], columns[:, ::-1], columns)
    return tf.where((rows[:, :, tf.newaxis] & columns[:, tf.newaxis])[..., tf.newaxis], seen, 0)  # black, not the border


def _is_within(starts: tf.Tensor, halves: tf.Tensor, num_samples: int) -> tf.Tensor:
    """Whether each sample lies in the image: bool [batch, num_samples]."""
    samples = starts[:, tf.newaxis] + halves[:, tf.newaxis] * (2 * tf.range(num_samples, dtype=tf.float32) + 1)
    return (samples >= 0) & (samples <= 1)
