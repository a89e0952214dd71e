"""Reads image sizes from file headers, so that a server can reject large images before decoding them."""

from __future__ import annotations

from tf_input.lazy_tensorflow import tf


_HEADER_BYTES = 30  # in all formats except JPEG, these bytes contain the size


def check_pixels(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Returns the images unchanged, or raises an error if an image has too many pixels.

    Args:
        encoded: The image files, string [batch].
        max_pixels: The largest height times width of an image, in pixels.

    Raises:
        tf.errors.InvalidArgumentError: An image is larger, or is a JPEG without a size. Raised when the tensor is
            computed.
    """
    pixels = count_pixels(encoded)
    message = f"an image has too many pixels: at most {max_pixels} are allowed"
    with tf.control_dependencies([tf.debugging.assert_less_equal(pixels, tf.constant(max_pixels, tf.int64), message)]):
        return tf.identity(encoded)


def count_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the number of pixels stated in the header of each image, int64 [batch]; 0 for unknown formats.

    The supported formats are JPEG, PNG, GIF, BMP and WebP, as in the decoder.
    """
    return tf.map_fn(_pixels_of, encoded, fn_output_signature=tf.int64)


def _pixels_of(encoded_image: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        tf.io.is_jpeg(encoded_image),
        lambda: _product(tf.io.extract_jpeg_shape(encoded_image, tf.int64)),
        lambda: _of_header(encoded_image),
    )


def _product(shape: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(shape[0] * shape[1], [])


def _of_header(encoded_image: tf.Tensor) -> tf.Tensor:
    header = tf.cast(tf.io.decode_raw(encoded_image, tf.uint8, fixed_length=_HEADER_BYTES), tf.int64)  # padded or truncated

    def starts(text: bytes, offset: int = 0) -> tf.Tensor:
        return tf.reduce_all(header[offset : offset + len(text)] == tf.constant(list(text), tf.int64))

    def little(offset: int, num_bytes: int) -> tf.Tensor:
        return tf.reduce_sum(header[offset : offset + num_bytes] * tf.constant([256**index for index in range(num_bytes)], tf.int64))

    def big(offset: int) -> tf.Tensor:
        return tf.reduce_sum(header[offset : offset + 4] * tf.constant([256**index for index in (3, 2, 1, 0)], tf.int64))

    bmp_height = little(22, 4)  # signed 32 bits; negative if rows start at the top
    lossless = little(21, 4)  # width - 1 and height - 1, 14 bits each
    webp_lossless = (lossless % 2**14 + 1) * (lossless // 2**14 % 2**14 + 1)
    zero = tf.constant(0, tf.int64)
    cases = [
        (starts(b"\x89PNG"), big(16) * big(20)),
        (starts(b"GIF8"), little(6, 2) * little(8, 2)),
        (starts(b"BM"), little(18, 4) * tf.where(bmp_height < 2**31, bmp_height, 2**32 - bmp_height)),
        (starts(b"WEBPVP8 ", 8), (little(26, 2) % 2**14) * (little(28, 2) % 2**14)),
        (starts(b"WEBPVP8L", 8), webp_lossless),
        (starts(b"WEBPVP8X", 8), (little(24, 3) + 1) * (little(27, 3) + 1)),
    ]
    return tf.add_n([tf.where(is_one, pixels, zero) for is_one, pixels in cases])
