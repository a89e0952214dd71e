"""Feature kind `mask`: a grayscale PNG with the class of each pixel of the image. Masks follow the crops of `image`."""

from __future__ import annotations

from typing import Any, Mapping

from tf_input.dataset_format import IMAGE, Feature
from tf_input.features.crop_geometry import crop_masks
from tf_input.features.decode_images import center_on_canvas, given
from tf_input.features.feature_kind import BatchContext, Decoder, FeatureKind, stored_size_of
from tf_input.features.roles import NUM_DENSE_DIMENSIONS
from tf_input.lazy_tensorflow import tf

_HEADERS = (b"\x08\x00", b"\x10\x00")  # bit depth, and 0 for grayscale
_HEADER_OFFSET = 24
_SIZE_MESSAGE = "a mask differs in size from its image"


class Mask(FeatureKind):
    """The feature kind `mask`."""

    num_dimensions = NUM_DENSE_DIMENSIONS

    def pixel_bytes(self, feature: Feature, decoder: Decoder) -> int:
        return decoder.mask_dtype.itemsize

    def decode(self, value: Any, feature: Feature, decoder: Decoder, batch_size: int | None = None) -> Any:
        if value.dtype != tf.string:
            return value
        return tf.cast(decode_masks(value, stored_size_of(feature, decoder)), decoder.mask_dtype)

    def output(self, feature: Feature, batch: BatchContext) -> tf.Tensor:
        value, crops = batch.parsed[feature.name], batch.crops.get(IMAGE)
        if crops is None:
            mask = self.decode(value, feature, batch.decoder)
        elif value.dtype != tf.string:
            mask = crop_masks(value, crops)
        else:
            mask = decode_mask_boxes(value, crops.sizes, crops.boxes, crops.image_size, crops.flipped, crops.extents)
        return tf.cast(mask, batch.decoder.mask_dtype)


def decode_masks(encoded: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """Decodes masks that all have one size.

    Args:
        encoded: The masks as 8-bit or 16-bit grayscale PNGs, string [batch].
        image_size: The (height, width) of the masks in pixels.

    Returns:
        uint16 [batch, height, width, 1].

    Raises:
        tf.errors.InvalidArgumentError: A mask is not a grayscale PNG, or has another size. Raised when the tensor is
            computed.
    """
    signature = tf.TensorSpec((*image_size, 1), tf.uint16)
    masks = tf.map_fn(lambda item: tf.ensure_shape(_decode_mask(item), signature.shape), encoded, fn_output_signature=signature)
    return _unscaled(masks, encoded)


def decode_mask_boxes(
    encoded: tf.Tensor,
    sizes: tf.Tensor,
    boxes: tf.Tensor,
    image_size: tuple[int, int],
    flipped: tf.Tensor | None = None,
    extents: tf.Tensor | None = None,
) -> tf.Tensor:
    """Decodes one crop box of each mask and resizes the pixels by nearest-neighbor sampling.

    Args:
        encoded: The masks as 8-bit or 16-bit grayscale PNGs, string [batch].
        sizes: The heights and widths of the images, int32 [batch, 2]. The masks must have these sizes.
        boxes, image_size, flipped, extents: The boxes, output size, flips and extents, as in `decode_boxes`.

    Returns:
        uint16 [batch, height, width, 1].

    Raises:
        tf.errors.InvalidArgumentError: A mask is not a grayscale PNG, or has another size. Raised when the tensor is
            computed.
    """

    def decode_one(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        mask, box = _decode_mask(inputs["encoded"]), inputs["box"]
        with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(mask)[:2], inputs["size"], _SIZE_MESSAGE)]):
            mask = tf.slice(mask, [box[0], box[1], 0], [box[2], box[3], 1])
        return center_on_canvas(tf.image.resize(mask, inputs.get("extent", image_size), "nearest"), image_size, inputs)

    signature = tf.TensorSpec((*image_size, 1), tf.uint16)
    inputs = given(encoded=encoded, size=sizes, box=boxes, extent=extents, is_flipped=flipped)
    return _unscaled(tf.map_fn(decode_one, inputs, fn_output_signature=signature), encoded)


def _decode_mask(encoded: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_png(encoded, channels=1, dtype=tf.uint16)


def _unscaled(masks: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    """Converts 8-bit masks that were decoded as 16-bit masks back to the stored values, and rejects color PNGs."""
    headers = tf.strings.substr(encoded, _HEADER_OFFSET, len(_HEADERS[0]))
    is_mask = tf.reduce_any([headers == header for header in _HEADERS], axis=0)
    message = "a mask must be a grayscale PNG of 8 or 16 bits"
    with tf.control_dependencies([tf.debugging.assert_equal(is_mask, True, message)]):
        has_8_bits = (headers == _HEADERS[0])[:, tf.newaxis, tf.newaxis, tf.newaxis]
    return tf.where(has_8_bits, masks // 257, masks)
