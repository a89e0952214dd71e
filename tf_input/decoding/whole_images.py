"""Images of one size, decoded whole. Where they are small, what surrounds each decoding costs as much as it does."""

import tensorflow as tf

from tf_input.decoding import decode

_MIN_UNROLLED, _MAX_UNROLLED = 16, 256  # ops


def decode_images(encoded: tf.Tensor, image_size: tuple[int, int], batch_size: int | None = None) -> tf.Tensor:
    """Decodes images that all have one size.

    Args:
        encoded: string [batch].
        image_size: Their (height, width).
        batch_size: The most that there are, and mostly are: so many small images are decoded by one op each instead of in a loop.
            None: any number.

    Returns:
        uint8 [batch, height, width, 3].

    Raises:
        tf.errors.InvalidArgumentError: One has another size, or is damaged, or they are too many. Raised when the tensor is
            computed.
    """
    shape = (*image_size, decode.NUM_CHANNELS)
    width = _unrolled_width(batch_size) if batch_size and is_small(image_size) else 1

    def decode_one(one: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(decode.decode_image(one), shape)

    def decode_row(row: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.stack([decode.decode_image(one) for one in tf.unstack(row)]), (width, *shape))

    if width == 1:
        return tf.map_fn(decode_one, encoded, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
    num_images = tf.shape(encoded)[0]
    black = tf.io.encode_jpeg(tf.zeros(shape, tf.uint8))  # what a last batch lacks
    filled = tf.concat([encoded, tf.fill([batch_size - num_images], black)], axis=0)  # an error if they are too many
    rows = tf.reshape(filled, (batch_size // width, width))
    if width == batch_size:
        images = decode_row(rows[0])
    else:
        images = tf.map_fn(decode_row, rows, fn_output_signature=tf.TensorSpec((width, *shape), tf.uint8))
    images = tf.reshape(images, (batch_size, *shape))[:num_images]
    return tf.ensure_shape(images, (encoded.shape[0], *shape))


def is_small(image_size: tuple[int, int]) -> bool:
    """Whether images are so small that it is cheaper to decode them whole and at once than to look at a part of each."""
    return max(image_size) <= decode.MAX_SMALL_SIDE


def _unrolled_width(batch_size: int) -> int:
    """Images that have an op each, in a loop over the rest: the most that divide a batch; 1 where hardly any do."""
    width = next(width for width in range(min(batch_size, _MAX_UNROLLED), 0, -1) if batch_size % width == 0)
    return width if width >= min(batch_size, _MIN_UNROLLED) else 1
