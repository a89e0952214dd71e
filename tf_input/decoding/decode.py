"""Encoded images and masks -> tensors, a batch at a time; of a JPEG, what will be cropped away is not decoded to pixels.

A box is (top, left, height, width) in pixels of the stored image. Grey, palette, alpha and 16-bit images all become
8-bit RGB, unless other channels or 16 bits are asked for: `tf.io` repeats grey, drops alpha and keeps the upper 8 of 16 bits. Masks keep
their values.

channels    a grey image        one in colour       one with alpha
1           as it is            its luma            as one without
3           repeated            as it is            its colours, as one without
4           repeated, opaque    as it is, opaque    as it is
"""

import functools
import math
from typing import Mapping, Sequence

import tensorflow as tf

from tf_input.decoding.colors import LUMA

NUM_CHANNELS = 3  # of images, unless others are asked for
RATIOS = (1, 2, 4, 8)  # by which a JPEG decoder can make an image smaller, for it has blocks of 8 x 8
MAX_SMALL_SIDE = 96  # pixels; measured: up to here a loop over the images is noticed

_JPEG_START, _PNG_START = b"\xff\xd8\xff", b"\x89PNG"
_MASK_HEADERS = (b"\x08\x00", b"\x10\x00")  # bit depth, and 0 for grey
_PNG_DEPTH_OFFSET = _MASK_HEADER_OFFSET = 24
_HAS_TRANSPARENCY = r"\C*tRNS\C*"  # the chunk that says it; of any bytes
_SIZE_MESSAGE = "a mask differs in size from its image"


def decode_image(encoded: tf.Tensor, channels: int = NUM_CHANNELS, dtype: tf.DType = tf.uint8) -> tf.Tensor:
    """Decodes an image file; of an animation the first frame.

    Args:
        encoded: The bytes of the image file, string [].
        channels: The number of channels: 1, 3 or 4.
        dtype: The dtype of the pixels: uint8, or uint16, for which 8 bits are stretched.

    Returns:
        The pixels of that dtype, [height, width, channels].
    """

    def decode(channels: int, dtype: tf.DType) -> tf.Tensor:
        return tf.io.decode_image(encoded, channels, dtype, expand_animations=False)

    def convert() -> tf.Tensor:
        image = convert_channels(decode(NUM_CHANNELS, tf.uint8), channels)
        return image if dtype == tf.uint8 else tf.cast(image, dtype) * (dtype.max // tf.uint8.max)  # the op does not reach the maximum

    if (channels, dtype) == (NUM_CHANNELS, tf.uint8):
        return decode(channels, dtype)
    # Other formats, JPEG with alpha, and JPEG of 16 bits, the op knows in three channels of 8 bits alone.
    formats = [_JPEG_START, _PNG_START] if (channels, dtype) == (1, tf.uint8) else [_PNG_START]
    is_known = tf.reduce_any([tf.strings.substr(encoded, 0, len(start)) == start for start in formats])
    if channels > NUM_CHANNELS:
        is_known &= _keeps_alpha(encoded)
    return tf.cond(is_known, lambda: decode(channels, dtype), convert)


def _keeps_alpha(encoded: tf.Tensor) -> tf.Tensor:
    """Whether the op gives the alpha of a PNG: of less than 8 bits without any, it makes what is nearly transparent."""
    depth = tf.strings.substr(encoded, _PNG_DEPTH_OFFSET, 1)
    is_whole = (depth == b"\x08") | (depth == b"\x10")
    return tf.cond(is_whole, lambda: tf.constant(True), lambda: tf.strings.regex_full_match(encoded, _HAS_TRANSPARENCY))


def convert_channels(images: tf.Tensor, channels: int) -> tf.Tensor:
    """Pixels of uint8 or uint16, [..., height, width, 1, 3 or 4], in another number of channels: 1, 3 or 4."""
    found, dtype = images.shape[-1], images.dtype
    if found == channels:
        return images
    if channels == 1:
        luma = tf.reduce_sum(tf.cast(images[..., :NUM_CHANNELS], tf.float32) * LUMA, axis=-1, keepdims=True)
        return tf.cast(luma + 0.5, dtype)
    colors = images[..., :NUM_CHANNELS] if found > 1 else tf.repeat(images, NUM_CHANNELS, axis=-1)
    opaque = tf.fill(tf.shape(images[..., :1]), tf.constant(dtype.max, dtype))
    return tf.concat([colors, opaque], axis=-1) if channels > NUM_CHANNELS else colors


def decode_boxes(
    encoded: tf.Tensor,
    boxes: tf.Tensor,
    image_size: tuple[int, int],
    mirrored: tf.Tensor | None = None,
    extents: tf.Tensor | None = None,
    ratios: tf.Tensor | None = None,
    channels: int = NUM_CHANNELS,
    dtype: tf.DType = tf.uint8,
    antialias: bool = False,
) -> tf.Tensor:
    """Decodes one box of each image and resizes it bilinearly.

    Of a JPEG, only the box goes through the inverse DCT. Where its chroma is subsampled, the box's outermost pixels can
    differ a little from those of a whole decode.

    Args:
        encoded: The image files, string [batch].
        boxes: The boxes, int32 [batch, 4], each within its image.
        image_size: The (height, width) of what is returned.
        mirrored: bool [batch], which to turn left to right; None: none.
        extents: int32 [batch, 2], the (height, width) to resize each box to; the rest, around it, is black. None: `image_size`.
        ratios: int32 [batch], each one of `RATIOS`: a JPEG is decoded at a size that is smaller by this factor, for which its box
            must be of multiples of it. None: as stored.
        channels: The number of channels: 1, 3 or 4.
        dtype: The dtype of the pixels: uint8 or uint16.
        antialias: Whether to average all pixels of a box, and not only the four next to each sample. PNGs of 1,024 pixels take 1.2 times as
            long to decode and resize, and JPEGs, which are decoded at a smaller size, twice as long.

    Returns:
        The boxes' pixels of that dtype, [batch, height, width, channels].

    Raises:
        tf.errors.InvalidArgumentError: An image is damaged, or smaller than its box. Raised when the tensor is computed.
    """
    ways = RATIOS if ratios is not None else RATIOS[:1]  # of decoding a JPEG; anything else is one more
    if dtype != tf.uint8:  # which the op for JPEGs gives
        ways = ()
    is_jpeg = tf.strings.substr(encoded, 0, len(_JPEG_START)) == _JPEG_START

    def decode_one(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        image = _decode_box(inputs["encoded"], inputs["box"], inputs["way"], ways, channels, dtype)
        image = tf.image.resize(image, inputs.get("extent", image_size), antialias=antialias)
        image = tf.cast(image + 0.5, dtype)  # rounded; bilinear values stay between those of the pixels
        return frame_image(image, image_size, inputs)

    # uint8 already within the loop: a float32 batch has four times the bytes.
    signature = tf.TensorSpec((*image_size, channels), dtype)
    way = 0 if ratios is None else tf.reduce_sum(tf.cast(ratios[:, tf.newaxis] > tf.constant(ways, tf.int32), tf.int32), axis=1)
    way = tf.where(is_jpeg, way, len(ways))
    inputs = _given(encoded=encoded, box=boxes, way=way, extent=extents, is_mirrored=mirrored)
    return tf.map_fn(decode_one, inputs, fn_output_signature=signature)


def _decode_box(
    encoded: tf.Tensor, box: tf.Tensor, way: tf.Tensor, ratios: Sequence[int], channels: int, dtype: tf.DType
) -> tf.Tensor:
    """A JPEG at the one of the ratios whose position is `way`; beyond them, another image as it is stored."""

    def decode_jpeg(ratio: int) -> tf.Tensor:
        small_box = box // ratio  # the op wants it in pixels of the smaller image
        image = tf.io.decode_and_crop_jpeg(encoded, small_box, channels=min(channels, NUM_CHANNELS), ratio=ratio)
        return convert_channels(image, channels)

    def decode_other() -> tf.Tensor:
        begin, extent = tf.split(box, 2)
        return tf.slice(decode_image(encoded, channels, dtype), tf.concat([begin, [0]], axis=0), tf.concat([extent, [channels]], axis=0))

    decode = decode_other
    for position, ratio in reversed([*enumerate(ratios)]):
        # One condition each: TensorFlow Transform can't look into a switch.
        decode = functools.partial(tf.cond, way == position, functools.partial(decode_jpeg, ratio), decode)
    return decode()


def _given(**inputs: tf.Tensor | None) -> dict[str, tf.Tensor]:
    return {name: value for name, value in inputs.items() if value is not None}


def frame_image(image: tf.Tensor, image_size: tuple[int, int], inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Puts an image into the middle of a black frame, if `inputs` has its `extent`, and flips it, if `is_mirrored` says so."""
    if "extent" in inputs:
        gaps = tf.constant(image_size) - inputs["extent"]
        image = tf.pad(image, tf.concat([tf.stack([gaps // 2, gaps - gaps // 2], axis=1), [[0, 0]]], axis=0))
    if "is_mirrored" in inputs:
        image = tf.cond(inputs["is_mirrored"], lambda: tf.reverse(image, axis=[1]), lambda: tf.identity(image))
    return image


def decode_pixels(stored: tf.Tensor, shape: tuple[int, int, int]) -> tf.Tensor:
    """Images without a format, a whole batch at once.

    Args:
        stored: The pixels as they are stored, string [batch], each of as many bytes as the shape says, row by row.
        shape: The (height, width, channels) of each image.

    Returns:
        uint8 [batch, *shape].

    Raises:
        tf.errors.InvalidArgumentError: One has another number of bytes. Raised when the tensor is computed.
    """
    pixels = tf.ensure_shape(tf.io.decode_raw(stored, tf.uint8), (None, math.prod(shape)))
    return tf.reshape(pixels, (-1, *shape))


def decode_masks(encoded: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """Decodes masks that all have one size.

    Args:
        encoded: The masks as they are stored, string [batch], each a grey PNG of 8 or 16 bits.
        image_size: The (height, width) of the masks.

    Returns:
        uint16 [batch, height, width, 1].

    Raises:
        tf.errors.InvalidArgumentError: One is no such PNG, or of another size. Raised when the tensor is computed.
    """
    signature = tf.TensorSpec((*image_size, 1), tf.uint16)
    masks = tf.map_fn(lambda one: tf.ensure_shape(_decode_mask(one), signature.shape), encoded, fn_output_signature=signature)
    return _unscaled(masks, encoded)


def decode_mask_boxes(
    encoded: tf.Tensor,
    sizes: tf.Tensor,
    boxes: tf.Tensor,
    image_size: tuple[int, int],
    mirrored: tf.Tensor | None = None,
    extents: tf.Tensor | None = None,
) -> tf.Tensor:
    """Decodes one box of each mask and resizes it to the nearest values: `decode_boxes` for masks.

    Args:
        encoded: The masks as they are stored, string [batch], each a grey PNG of 8 or 16 bits.
        sizes: The heights and widths of the images, which their masks must have, int32 [batch, 2].
        boxes, image_size, mirrored, extents: The box of each mask, the size to resize it to, and which are mirrored or framed: as
            `decode_boxes` takes them.

    Returns:
        uint16 [batch, height, width, 1].

    Raises:
        tf.errors.InvalidArgumentError: One is no such PNG, or of another size. Raised when the tensor is computed.
    """

    def decode_one(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        mask, box = _decode_mask(inputs["encoded"]), inputs["box"]
        with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(mask)[:2], inputs["size"], _SIZE_MESSAGE)]):
            mask = tf.slice(mask, [box[0], box[1], 0], [box[2], box[3], 1])
        return frame_image(tf.image.resize(mask, inputs.get("extent", image_size), "nearest"), image_size, inputs)

    signature = tf.TensorSpec((*image_size, 1), tf.uint16)
    inputs = _given(encoded=encoded, size=sizes, box=boxes, extent=extents, is_mirrored=mirrored)
    return _unscaled(tf.map_fn(decode_one, inputs, fn_output_signature=signature), encoded)


def _decode_mask(encoded: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_png(encoded, channels=1, dtype=tf.uint16)


def _unscaled(masks: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    """Takes back that the decoder stretches 8 bits to 16, and colours to grey."""
    headers = tf.strings.substr(encoded, _MASK_HEADER_OFFSET, len(_MASK_HEADERS[0]))
    is_mask = tf.reduce_any([headers == header for header in _MASK_HEADERS], axis=0)
    with tf.control_dependencies([tf.debugging.assert_equal(is_mask, True, "a mask is a grey PNG of 8 or 16 bits")]):
        has_8_bits = (headers == _MASK_HEADERS[0])[:, tf.newaxis, tf.newaxis, tf.newaxis]
    return tf.where(has_8_bits, masks // 257, masks)


def stored_sizes(encoded: tf.Tensor) -> tf.Tensor:
    """The images' sizes, for records that do not state them: from the header of a JPEG, by decoding a PNG.

    Args:
        encoded: The image files, string [batch].

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
        sizes: The heights and widths of the images, int32 [batch, 2].
        image_size: The (height, width) whose proportions the boxes have.

    Returns:
        int32 [batch, 4].
    """
    target = tf.constant(image_size, tf.float32)
    scale = tf.reduce_min(tf.cast(sizes, tf.float32) / target, axis=1, keepdims=True)  # [batch, 1]
    extents = tf.clip_by_value(tf.cast(tf.round(target * scale), tf.int32), 1, sizes)
    return tf.concat([(sizes - extents) // 2, extents], axis=1)
