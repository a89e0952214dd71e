"""Crops images and applies the same crops to masks, dense targets and boxes."""

from __future__ import annotations

from typing import NamedTuple

from tf_input.features import augment
from tf_input.features.decode_images import MAX_SMALL_SIDE, RATIOS, central_boxes, center_on_canvas, resize_image
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import Augmentation, Interpolation

FRAMED = ("pad", "unscaled")  # values of `fit` for which an image may not fill its canvas


class CropGeometry(NamedTuple):
    """The crop of each image in a batch, and the position of the crop on a canvas.

    Attributes:
        sizes: The heights and widths of the stored images, int32 [batch, 2].
        boxes: The visible part of each image, (top, left, height, width) in its pixels, int32 [batch, 4].
        flipped: Whether each image is flipped left to right, bool [batch]; None if no image is flipped.
        extents: The (height, width) to which each box is resized, centered on a black canvas, int32 [batch, 2]; None if
            boxes fill the canvas.
        image_size: The (height, width) of the canvas.
        ratios: The factor by which each JPEG may be downscaled during decoding, int32 [batch]. Boxes are multiples of
            this factor. None disables downscaling.
        interpolation: How pixels are computed, as in `ReadConfig.interpolation`.
    """

    sizes: tf.Tensor
    boxes: tf.Tensor
    flipped: tf.Tensor | None
    extents: tf.Tensor | None
    image_size: tuple[int, int]
    ratios: tf.Tensor | None = None
    interpolation: Interpolation = "bilinear"

    def canvas_boxes(self) -> tf.Tensor:
        """Returns the edges of the canvas in relative image coordinates, (ymin, xmin, ymax, xmax), float32 [batch, 4].

        The image spans 0..1 in both directions. The canvas outside the image is black.
        """
        sizes = tf.cast(self.sizes, tf.float32)
        starts, sides = tf.split(tf.cast(self.boxes, tf.float32), 2, axis=1)  # [batch, 2] each
        if self.extents is not None:
            scale = sides / tf.cast(self.extents, tf.float32)  # stored pixels per canvas pixel
            starts -= scale * tf.cast((tf.constant(self.image_size) - self.extents) // 2, tf.float32)
            sides = scale * tf.constant(self.image_size, tf.float32)
        return tf.concat([starts, starts + sides], axis=1) / tf.tile(sizes, [1, 2])

    def same_parts(self, sizes: tf.Tensor) -> tf.Tensor:
        """Scales the crop boxes to other image sizes, int32 [batch, 2], and returns them, int32 [batch, 4]."""
        own, others = (tf.cast(item, tf.int64) for item in (self.sizes, sizes))
        corners, extents = tf.split(tf.cast(self.boxes, tf.int64), 2, axis=1)
        starts, ends = ((2 * edges * others + own) // (2 * own) for edges in (corners, corners + extents))  # rounded
        starts = tf.minimum(starts, others - 1)
        return tf.cast(tf.concat([starts, tf.maximum(ends - starts, 1)], axis=1), tf.int32)


def compute_crops(
    sizes: tf.Tensor,
    image_size: tuple[int, int],
    fit: str,
    augmentation: Augmentation | None = None,
    seed: tf.Tensor | None = None,
    scales: bool = False,
    slots: augment.BatchSlots | None = None,
    leader: CropGeometry | None = None,
) -> CropGeometry:
    """Computes the crop of each image.

    Args:
        sizes: The heights and widths of the images in pixels, int32 [batch, 2].
        image_size: The (height, width) to which the crops are resized.
        fit: How images are fitted, as in `ReadConfig.fit`. Random crops override it.
        augmentation: The augmentation options. Default: None, no augmentation.
        seed: The seed of the augmentation, int64 [2]. Equal seeds give equal results.
        scales: Whether JPEGs much larger than `image_size` are downscaled during decoding. The edges of their boxes are
            then rounded to whole pixels of the smaller image, by less than an output pixel.
        slots: The indices of these images in the global batch. Default: None, 0 to batch - 1.
        leader: The crops of another image feature of the same examples, which these images share. Default: None,
            independent crops.
    """
    boxes, flipped = None, None
    if augmentation is not None and leader is not None:
        boxes, flipped = leader.same_parts(sizes), leader.flipped
    elif augmentation is not None:
        boxes, flipped = augment.random_crops(sizes, image_size, augmentation, seed, slots)
    if augmentation is None or not augmentation.crop:
        boxes = central_boxes(sizes, image_size) if fit == "crop" else tf.concat([tf.zeros_like(sizes), sizes], axis=1)
    extents = fitting_extents(sizes, image_size) if fit in FRAMED else None
    if fit == "unscaled":
        extents = tf.minimum(extents, sizes)
    if not scales:
        return CropGeometry(sizes, boxes, flipped, extents, image_size)
    ratios = _ratios(sizes, boxes, tf.constant(image_size) if extents is None else extents)
    return CropGeometry(sizes, _snap(boxes, sizes, ratios), flipped, extents, image_size, ratios)


def _ratios(sizes: tf.Tensor, boxes: tf.Tensor, extents: tf.Tensor) -> tf.Tensor:
    """Returns the largest JPEG downscaling ratio that keeps each crop at least as large as its output, int32 [batch].

    Small images are not downscaled, so that decoding whole images gives the same pixels as decoding crops.
    """
    most = tf.reduce_min(boxes[:, 2:] // extents, axis=1, keepdims=True)  # [batch, 1]
    most = tf.where(tf.reduce_max(sizes, axis=1, keepdims=True) <= MAX_SMALL_SIDE, 1, most)
    return tf.reduce_max(tf.where(most >= RATIOS, RATIOS, 1), axis=1)


def _snap(boxes: tf.Tensor, sizes: tf.Tensor, ratios: tf.Tensor) -> tf.Tensor:
    """Rounds boxes to multiples of a ratio. Incomplete JPEG blocks at the edges of an image are ignored."""
    ratios = ratios[:, tf.newaxis]
    corners, extents = tf.split((boxes + ratios // 2) // ratios, 2, axis=1)  # rounded
    extents = tf.minimum(extents, sizes // ratios)
    corners = tf.minimum(corners, sizes // ratios - extents)
    return tf.concat([corners, extents], axis=1) * ratios


def fitting_extents(sizes: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """Returns the largest (height, width) within `image_size` with the image's aspect ratio, int32 [batch, 2]."""
    target, sides = tf.constant(image_size, tf.float32), tf.cast(sizes, tf.float32)
    scale = tf.reduce_min(target / sides, axis=1, keepdims=True)  # [batch, 1]
    return tf.clip_by_value(tf.cast(tf.round(sides * scale), tf.int32), 1, tf.constant(image_size))


def value_rows(values: tf.RaggedTensor) -> tf.Tensor:
    """Returns the row of each value in a ragged tensor, int32 [n]. Uses a fifth as many ops as `value_rowids`."""
    splits = values.row_splits
    ends = tf.raw_ops.UpperBound(sorted_inputs=tf.expand_dims(splits, 0), values=tf.expand_dims(tf.range(splits[-1]), 0))
    return tf.squeeze(ends, 0) - 1


def crop_pixels(pixels: tf.Tensor, crops: CropGeometry) -> tf.Tensor:
    """Crops and resizes a whole batch of decoded images or dense targets at once.

    Args:
        pixels: Whole images in any resolution, [batch, rows, columns, channels].
        crops: The crops of the images.

    Returns:
        float32 [batch, *crops.image_size, channels].
    """
    if crops.interpolation == "bilinear":
        return _canvas_pixels(pixels, crops, crops.image_size)
    return _resize_each(pixels, crops)


def _resize_each(pixels: tf.Tensor, crops: CropGeometry) -> tf.Tensor:
    """Crops and resizes decoded images with the kernels of `tf.image.resize`, image by image."""
    sizes = tf.tile(tf.shape(pixels)[tf.newaxis, 1:3], [tf.shape(pixels)[0], 1])
    given = {"pixels": pixels, "box": crops.same_parts(sizes), "extent": crops.extents, "is_flipped": crops.flipped}

    def crop_single(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        top, left, height, width = tf.unstack(inputs["box"])
        box = inputs["pixels"][top : top + height, left : left + width]
        resized = resize_image(box, inputs.get("extent", crops.image_size), crops.interpolation)
        return center_on_canvas(resized, crops.image_size, inputs)

    signature = tf.TensorSpec((*crops.image_size, pixels.shape[-1]), tf.float32)
    return tf.map_fn(crop_single, {name: item for name, item in given.items() if item is not None}, fn_output_signature=signature)


def crop_masks(masks: tf.Tensor, crops: CropGeometry) -> tf.Tensor:
    """Crops and resizes decoded masks by nearest-neighbor sampling, like `mask.decode_mask_boxes`.

    Args:
        masks: Masks of the size of their images, [batch, height, width, 1].
        crops: The crops of the images.

    Returns:
        [batch, *crops.image_size, 1], with the same dtype.
    """
    for axis in range(2):
        start, side = crops.boxes[:, axis, tf.newaxis], crops.boxes[:, 2 + axis, tf.newaxis]  # [batch, 1]
        samples, extent = _samples(crops, axis)
        scale = tf.cast(side, tf.float32) / tf.cast(extent, tf.float32)
        nearest = tf.cast(tf.floor((tf.cast(samples, tf.float32) + 0.5) * scale), tf.int32)
        masks = tf.gather(masks, start + tf.clip_by_value(nearest, 0, side - 1), axis=1 + axis, batch_dims=1)
    return masks if crops.extents is None else tf.where(canvas_masks(crops), masks, tf.zeros((), masks.dtype))


def canvas_masks(crops: CropGeometry) -> tf.Tensor:
    """Returns a mask of the canvas pixels that the image covers, bool [batch, *crops.image_size, 1]."""
    placed = (_samples(crops, axis) for axis in range(2))
    rows, columns = ((samples >= 0) & (samples < extent) for samples, extent in placed)
    return (rows[:, :, tf.newaxis] & columns[:, tf.newaxis])[..., tf.newaxis]


def _samples(crops: CropGeometry, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Converts the rows (axis 0) or columns (axis 1) of the canvas to rows or columns of the resized image.

    Returns:
        The row or column of the image, int32 [batch, num_samples], and the image's height or width, int32 [batch, 1].
    """
    num_samples = crops.image_size[axis]
    extent = tf.fill([tf.shape(crops.boxes)[0], 1], num_samples) if crops.extents is None else crops.extents[:, axis, tf.newaxis]
    samples = tf.range(num_samples) - (num_samples - extent) // 2
    if axis == 1 and crops.flipped is not None:
        samples = tf.where(crops.flipped[:, tf.newaxis], samples[:, ::-1], samples)
    return samples, extent


def crop_dense_targets(dense_targets: tf.Tensor, crops: CropGeometry) -> tf.Tensor:
    """Applies the crops of images to dense targets, float32 [batch, rows, columns, channels], without resizing."""
    return _canvas_pixels(dense_targets, crops, tuple(dense_targets.shape[1:3]))


def _canvas_pixels(pixels: tf.Tensor, crops: CropGeometry, size: tuple[int, int]) -> tf.Tensor:
    """Samples pixels in the coordinates of `tf.image.resize`, in which 0 and 1 are the outer edges of the image.

    The op `crop_and_resize` samples only from the center of the first pixel to the center of the last pixel. Therefore,
    the pixels at the edges are repeated, which adds a border of one pixel.
    """
    stored = tf.cast(tf.shape(pixels)[1:3], tf.float32)
    starts, ends = tf.split(crops.canvas_boxes(), 2, axis=1)
    halves = (ends - starts) / (2 * tf.constant(size, tf.float32))  # half the distance between samples
    positions = [(edge * stored + 0.5) / (stored + 1) for edge in (starts + halves, ends - halves)]
    ymin, xmin, ymax, xmax = tf.unstack(tf.concat(positions, axis=1), axis=1)
    if crops.flipped is not None:  # if xmax comes first, the op flips the image
        xmin, xmax = tf.where(crops.flipped, xmax, xmin), tf.where(crops.flipped, xmin, xmax)
    bordered = tf.concat([pixels[:, :1], pixels, pixels[:, -1:]], axis=1)  # much faster than tf.pad
    bordered = tf.concat([bordered[:, :, :1], bordered, bordered[:, :, -1:]], axis=2)
    boxes = tf.stack([ymin, xmin, ymax, xmax], axis=1)
    seen = tf.image.crop_and_resize(bordered, boxes, tf.range(tf.shape(boxes)[0]), size)
    if crops.extents is None:
        return seen
    # [batch, height], [batch, width]
    rows, columns = (_is_within(starts[:, axis], halves[:, axis], size[axis]) for axis in (0, 1))
    if crops.flipped is not None:
        columns = tf.where(crops.flipped[:, tf.newaxis], columns[:, ::-1], columns)
    # black instead of the border pixels
    return tf.where((rows[:, :, tf.newaxis] & columns[:, tf.newaxis])[..., tf.newaxis], seen, 0)


def _is_within(starts: tf.Tensor, halves: tf.Tensor, num_samples: int) -> tf.Tensor:
    """Returns whether each sample is inside the image, bool [batch, num_samples]."""
    samples = starts[:, tf.newaxis] + halves[:, tf.newaxis] * (2 * tf.range(num_samples, dtype=tf.float32) + 1)
    return (samples >= 0) & (samples <= 1)
