"""Encoded images -> uint8 tensors, a batch at a time; of a JPEG, what will be cropped away is not decoded to pixels.

A box is (top, left, height, width) in pixels of the stored image. Grey, palette, alpha and 16-bit images all become
8-bit RGB: `tf.io` repeats grey, drops alpha and keeps the upper 8 of 16 bits.
"""

import tensorflow as tf

_NUM_CHANNELS = 3


def decode_image(encoded: tf.Tensor) -> tf.Tensor:
    """string [] -> uint8 [height, width, 3]; of an animation the first frame."""
    return tf.io.decode_image(encoded, channels=_NUM_CHANNELS, expand_animations=False)


def decode_images(encoded: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """Decodes images that all have one size.

    Args:
        encoded: string [batch].
        image_size: Their (height, width).

    Returns:
        uint8 [batch, height, width, 3].

    Raises:
        tf.errors.InvalidArgumentError: One has another size, or is damaged. Raised when the tensor is computed.
    """
    shape = (*image_size, _NUM_CHANNELS)
    return tf.map_fn(
        lambda one: tf.ensure_shape(decode_image(one), shape), encoded, fn_output_signature=tf.TensorSpec(shape, tf.uint8)
    )


def decode_boxes(
    encoded: tf.Tensor, boxes: tf.Tensor, image_size: tuple[int, int], mirrored: tf.Tensor | None = None
) -> tf.Tensor:
    """Decodes one box of each image and resizes it, bilinearly and without antialiasing, which would cost a third.

    Of a JPEG, only the box goes through the inverse DCT. Where its chroma is subsampled, the box's outermost pixels can
    differ a little from those of a whole decode.

    Args:
        encoded: string [batch].
        boxes: int32 [batch, 4], each within its image.
        image_size: (height, width) to resize to.
        mirrored: bool [batch], which to turn left to right; None: none.

    Returns:
        uint8 [batch, height, width, 3].

    Raises:
        tf.errors.InvalidArgumentError: An image is damaged, or smaller than its box. Raised when the tensor is computed.
    """

    def decode_one(inputs: tuple[tf.Tensor, ...]) -> tf.Tensor:
        image = tf.image.resize(_decode_box(*inputs[:2]), image_size)  # float32
        image = tf.cast(image + 0.5, tf.uint8)  # rounded; bilinear values stay within 0..255
        if mirrored is None:
            return image
        # Reversed along the axes 1 .. 1, or none of them: cheaper than a tf.cond.
        return tf.reverse(image, axis=tf.range(1, 1 + tf.cast(inputs[2], tf.int32)))

    inputs = (encoded, boxes) if mirrored is None else (encoded, boxes, mirrored)
    # uint8 already within the loop: a float32 batch has four times the bytes.
    return tf.map_fn(decode_one, inputs, fn_output_signature=tf.TensorSpec((*image_size, _NUM_CHANNELS), tf.uint8))


def _decode_box(encoded: tf.Tensor, box: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_and_crop_jpeg(encoded, box, channels=_NUM_CHANNELS),
        lambda: tf.slice(decode_image(encoded), [box[0], box[1], 0], [box[2], box[3], _NUM_CHANNELS]),
    )


def stored_sizes(encoded: tf.Tensor) -> tf.Tensor:
    """The images' sizes, for records that do not state them: from the header of a JPEG, by decoding a PNG.

    Args:
        encoded: string [batch].

    Returns:
        int32 [batch, 2], heights and widths.
    """

    def size_of(one: tf.Tensor) -> tf.Tensor:
        shape = tf.cond(
            tf.io.is_jpeg(one), lambda: tf.io.extract_jpeg_shape(one), lambda: tf.shape(decode_image(one))
        )
        return shape[:2]

    return tf.map_fn(size_of, encoded, fn_output_signature=tf.TensorSpec((2,), tf.int32))


def central_boxes(sizes: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """The largest box in the middle of each image that has the proportions of `image_size`.

    Resizing it is the usual "resize the short side, then crop the centre", without resizing what is cropped away.

    Args:
        sizes: int32 [batch, 2], heights and widths.
        image_size: (height, width).

    Returns:
        int32 [batch, 4].
    """
    target = tf.constant(image_size, tf.float32)
    scale = tf.reduce_min(tf.cast(sizes, tf.float32) / target, axis=1, keepdims=True)  # [batch, 1]
    extents = tf.clip_by_value(tf.cast(tf.round(target * scale), tf.int32), 1, sizes)
    return tf.concat([(sizes - extents) // 2, extents], axis=1)
