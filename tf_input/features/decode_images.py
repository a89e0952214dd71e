"""Decodes batches of images to tensors. Only the visible part of a JPEG is decoded.

A crop box is (top, left, height, width) in pixels of the stored image. By default, grayscale, palette, alpha and 16-bit
images become 8-bit RGB. For this conversion, `tf.io` repeats gray values, drops alpha channels, and keeps the upper 8
of 16 bits.

channels    grayscale image     color image           image with alpha
1           unchanged           luma                  as without alpha
3           repeated            unchanged             colors without alpha
4           repeated, opaque    unchanged, opaque     unchanged
"""

from __future__ import annotations

import functools
import math
from typing import Mapping, Sequence

from tf_input.features.colors import LUMA
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import Interpolation

NUM_CHANNELS = 3  # the default of images
RATIOS = (1, 2, 4, 8)  # factors by which a JPEG decoder can downscale its blocks of 8 x 8
MAX_SMALL_SIDE = 96  # pixels; up to this size, loop overhead is measurable

_JPEG_START, _PNG_START = b"\xff\xd8\xff", b"\x89PNG"
_PNG_DEPTH_OFFSET = 24
_HAS_TRANSPARENCY = r"\C*tRNS\C*"  # the PNG chunk for transparency, among any bytes


def decode_image(encoded: tf.Tensor, channels: int = NUM_CHANNELS, dtype: tf.DType | str = "uint8") -> tf.Tensor:
    """Decodes an image file. Only the first frame of an animation is decoded.

    Args:
        encoded: The contents of the image file, string [].
        channels: The number of channels: 1, 3 or 4. Default: 3.
        dtype: The dtype of the pixels: uint8, or uint16, to which 8-bit values are stretched. Default: uint8.

    Returns:
        The pixels, [height, width, channels], with the dtype `dtype`.
    """
    dtype = tf.as_dtype(dtype)

    def decode(channels: int, dtype: tf.DType) -> tf.Tensor:
        return tf.io.decode_image(encoded, channels, dtype, expand_animations=False)

    def convert() -> tf.Tensor:
        image = convert_channels(decode(NUM_CHANNELS, tf.uint8), channels)
        # the op maps 255 to a smaller number than the maximum of `dtype`
        return image if dtype == tf.uint8 else tf.cast(image, dtype) * (dtype.max // tf.uint8.max)

    if (channels, dtype) == (NUM_CHANNELS, tf.uint8):
        return decode(channels, dtype)
    # The op decodes other formats, JPEG with alpha and 16-bit JPEG only to three channels of 8 bits.
    formats = [_JPEG_START, _PNG_START] if (channels, dtype) == (1, tf.uint8) else [_PNG_START]
    is_known = tf.reduce_any([tf.strings.substr(encoded, 0, len(start)) == start for start in formats])
    if channels > NUM_CHANNELS:
        is_known &= _keeps_alpha(encoded)
    return tf.cond(is_known, lambda: decode(channels, dtype), convert)


def _keeps_alpha(encoded: tf.Tensor) -> tf.Tensor:
    """Returns whether `tf.io.decode_png` adds a correct alpha channel. Its values are wrong if the PNG has fewer than
    8 bits and no alpha."""
    depth = tf.strings.substr(encoded, _PNG_DEPTH_OFFSET, 1)
    is_complete = (depth == b"\x08") | (depth == b"\x10")
    return tf.cond(is_complete, lambda: tf.constant(True), lambda: tf.strings.regex_full_match(encoded, _HAS_TRANSPARENCY))


def convert_channels(images: tf.Tensor, channels: int) -> tf.Tensor:
    """Converts the channels of uint8 or uint16 images, [..., height, width, 1, 3 or 4], to 1, 3 or 4."""
    num_channels, dtype = images.shape[-1], images.dtype
    if num_channels == channels:
        return images
    if channels == 1:
        luma = tf.reduce_sum(tf.cast(images[..., :NUM_CHANNELS], tf.float32) * LUMA, axis=-1, keepdims=True)
        return tf.cast(luma + 0.5, dtype)
    colors = images[..., :NUM_CHANNELS] if num_channels > 1 else tf.repeat(images, NUM_CHANNELS, axis=-1)
    opaque = tf.fill(tf.shape(images[..., :1]), tf.constant(dtype.max, dtype))
    return tf.concat([colors, opaque], axis=-1) if channels > NUM_CHANNELS else colors


def decode_boxes(
    encoded: tf.Tensor,
    boxes: tf.Tensor,
    image_size: tuple[int, int],
    flipped: tf.Tensor | None = None,
    extents: tf.Tensor | None = None,
    ratios: tf.Tensor | None = None,
    channels: int = NUM_CHANNELS,
    dtype: tf.DType | str = "uint8",
    interpolation: Interpolation = "bilinear",
) -> tf.Tensor:
    """Decodes one crop box of each image and resizes the pixels.

    For a JPEG, the inverse DCT is computed only within the crop box. If the JPEG has chroma subsampling, pixels at the
    edges of the box can differ slightly from the pixels of a completely decoded image.

    Args:
        encoded: The image files, string [batch].
        boxes: The boxes, each within its image, int32 [batch, 4].
        image_size: The (height, width) of the results in pixels.
        flipped: Whether to flip each image left to right, bool [batch]. Default: None, no flips.
        extents: The (height, width) to which each box is resized, int32 [batch, 2]. The rest of the canvas is black.
            Default: None, `image_size`.
        ratios: The factor of `RATIOS` by which each JPEG is downscaled during decoding, int32 [batch]. The crop box
            must be a multiple of this factor. Default: None, no downscaling.
        channels: The number of channels: 1, 3 or 4. Default: 3.
        dtype: The dtype of the pixels: uint8 or uint16. Default: uint8.
        interpolation: How pixels are computed, as in `ReadConfig.interpolation`. For images of 1,024 pixels, decoding and
            resizing with "antialiased" takes 1.2 times as long for PNGs, and twice as long for JPEGs, as
            resizing with "bilinear". Default: "bilinear".

    Returns:
        The pixels of the boxes, [batch, height, width, channels], with the dtype `dtype`.

    Raises:
        tf.errors.InvalidArgumentError: An image is corrupt or smaller than its box. Raised when the tensor is computed.
    """
    ways = RATIOS if ratios is not None else RATIOS[:1]  # ways to decode a JPEG; there is one way for other formats
    if dtype != tf.uint8:  # the JPEG op returns uint8 only
        ways = ()
    is_jpeg = tf.strings.substr(encoded, 0, len(_JPEG_START)) == _JPEG_START

    def decode_one(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        image = _decode_box(inputs["encoded"], inputs["box"], inputs["way"], ways, channels, dtype)
        image = resize_image(image, inputs.get("extent", image_size), interpolation)
        image = tf.cast(image + 0.5, dtype)  # rounded
        return center_on_canvas(image, image_size, inputs)

    # uint8 within the loop, because a float32 batch is four times as large.
    signature = tf.TensorSpec((*image_size, channels), dtype)
    way = 0 if ratios is None else tf.reduce_sum(tf.cast(ratios[:, tf.newaxis] > tf.constant(ways, tf.int32), tf.int32), axis=1)
    way = tf.where(is_jpeg, way, len(ways))
    inputs = given(encoded=encoded, box=boxes, way=way, extent=extents, is_flipped=flipped)
    return tf.map_fn(decode_one, inputs, fn_output_signature=signature)


def _decode_box(
    encoded: tf.Tensor, box: tf.Tensor, way: tf.Tensor, ratios: Sequence[int], channels: int, dtype: tf.DType
) -> tf.Tensor:
    """Decodes a box of an image. `way` is the index of a JPEG's ratio in `ratios`; `len(ratios)` for other formats."""

    def decode_jpeg(ratio: int) -> tf.Tensor:
        small_box = box // ratio  # in pixels of the smaller image
        image = tf.io.decode_and_crop_jpeg(encoded, small_box, channels=min(channels, NUM_CHANNELS), ratio=ratio)
        return convert_channels(image, channels)

    def decode_other() -> tf.Tensor:
        begin, extent = tf.split(box, 2)
        return tf.slice(decode_image(encoded, channels, dtype), tf.concat([begin, [0]], axis=0), tf.concat([extent, [channels]], axis=0))

    decode = decode_other
    for position, ratio in reversed([*enumerate(ratios)]):
        # Nested conditions, because TensorFlow Transform does not support switches.
        decode = functools.partial(tf.cond, way == position, functools.partial(decode_jpeg, ratio), decode)
    return decode()


def given(**inputs: tf.Tensor | None) -> dict[str, tf.Tensor]:
    return {name: value for name, value in inputs.items() if value is not None}


def resize_image(image: tf.Tensor, size: tf.Tensor | tuple[int, int], interpolation: Interpolation) -> tf.Tensor:
    """Resizes an image to a (height, width), and returns float32. Pixels of integers stay in the range of their dtype."""
    if interpolation in ("bilinear", "antialiased"):
        return tf.image.resize(image, size, antialias=interpolation == "antialiased")
    resized = tf.image.resize(image, size, interpolation, antialias=True)
    return resized if image.dtype.is_floating else tf.clip_by_value(resized, image.dtype.min, image.dtype.max)


def center_on_canvas(image: tf.Tensor, image_size: tuple[int, int], inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Centers an image on a black canvas if `inputs` contains `extent`. Flips the image if `is_flipped` is True."""
    if "extent" in inputs:
        gaps = tf.constant(image_size) - inputs["extent"]
        image = tf.pad(image, tf.concat([tf.stack([gaps // 2, gaps - gaps // 2], axis=1), [[0, 0]]], axis=0))
    if "is_flipped" in inputs:
        image = tf.cond(inputs["is_flipped"], lambda: tf.reverse(image, axis=[1]), lambda: tf.identity(image))
    return image


def decode_pixels(stored: tf.Tensor, shape: tuple[int, int, int]) -> tf.Tensor:
    """Decodes a batch of raw images.

    Args:
        stored: The raw pixels, row by row, string [batch].
        shape: The (height, width, channels) of each image.

    Returns:
        uint8 [batch, *shape].

    Raises:
        tf.errors.InvalidArgumentError: An image has a wrong number of bytes. Raised when the tensor is computed.
    """
    pixels = tf.ensure_shape(tf.io.decode_raw(stored, tf.uint8), (None, math.prod(shape)))
    return tf.reshape(pixels, (-1, *shape))


def stored_sizes(encoded: tf.Tensor) -> tf.Tensor:
    """Determines the sizes of images. JPEGs are not decoded, because their headers contain the size.

    Args:
        encoded: The image files, string [batch].

    Returns:
        The heights and widths in pixels, int32 [batch, 2].
    """

    def size_of(encoded_image: tf.Tensor) -> tf.Tensor:
        shape = tf.cond(
            tf.io.is_jpeg(encoded_image), lambda: tf.io.extract_jpeg_shape(encoded_image), lambda: tf.shape(decode_image(encoded_image))
        )
        return shape[:2]

    return tf.map_fn(size_of, encoded, fn_output_signature=tf.TensorSpec((2,), tf.int32))


def central_boxes(sizes: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """For each image, returns the largest centered crop box with the aspect ratio of `image_size`.

    Resizing this crop box is equivalent to resizing the short side of the image and cropping the center.

    Args:
        sizes: The heights and widths of the images in pixels, int32 [batch, 2].
        image_size: The (height, width) that defines the aspect ratio.

    Returns:
        The boxes (top, left, height, width), int32 [batch, 4].
    """
    target = tf.constant(image_size, tf.float32)
    scale = tf.reduce_min(tf.cast(sizes, tf.float32) / target, axis=1, keepdims=True)  # [batch, 1]
    extents = tf.clip_by_value(tf.cast(tf.round(target * scale), tf.int32), 1, sizes)
    return tf.concat([(sizes - extents) // 2, extents], axis=1)
