"""Defines the encoded features of an example, except its image and label."""

from typing import Any, Mapping, NamedTuple

from beam_pipelines.elements.coordinate_facts import CoordinateFacts
from beam_pipelines.elements.tensor_sums import TensorSums


class OtherImage(NamedTuple):
    """Properties of an additional image of an example.

    Attributes:
        path: The path of the image file, relative to the source's root.
        num_bytes: The size of the stored image, in bytes.
        format: The format of the source image, or an empty string if the image was not inspected.
        reencoded: The reason why the stored bytes differ from the source, or an empty string.
        height: The height of the stored image in pixels, or 0 if the image was not inspected.
        width: The width of the stored image in pixels, or 0 if the image was not inspected.
        num_channels: The number of channels of the stored image, including alpha. 0 if the image was not inspected.
        is_deep: Whether the source image is a PNG or TIFF with 16 bits per channel.
        is_odd: Whether libjpeg warns about the source image, although no pixel is missing or corrupt.
        has_more_pages: Whether the source file has more pages or images than the one that is stored.
    """

    path: str
    num_bytes: int
    format: str = ""
    reencoded: str = ""
    height: int = 0
    width: int = 0
    num_channels: int = 0
    is_deep: bool = False
    is_odd: bool = False
    has_more_pages: bool = False


class Extras(NamedTuple):
    """The encoded features of an example, except its image and label, and statistics about the feature values.

    Attributes:
        entries: The encoded features, from `tfrecord.example_encoder.encode_extras`.
        labels: A mapping from class feature to the labels of the example.
        values: A mapping from each other feature in the catalog to its number, or to its UTF-8 string.
        mask_values: The smallest and largest pixel value of the example's masks. None if there are no masks.
        mask_bits: The largest number of bits per mask pixel, 8 or 16. 0 if there are no masks.
        num_black_white_masks: The number of masks that contain only the values 0 and 255.
        num_class_masks: The number of masks that contain other values.
        num_dropped_boxes: The number of boxes that were dropped because they are completely outside the image.
        num_clipped_boxes: The number of boxes that were clipped because they are partly outside the image.
        is_turn_guessed: Whether EXIF rotates the image without information on whether boxes and masks rotate.
        images: A mapping from the name of each additional image to its properties.
        tensors: A mapping from tensor feature to its sums. Empty if the example is not sampled for statistics.
        coordinates: A mapping from each feature that may contain coordinates to its statistics. Empty if the image was
            neither rotated nor resized.
        counts: A mapping from each feature of a kind in `features.kinds` to the statistics of its numbers.
        num_outside: A mapping from each of these features to the number of positions that were removed because they are
            outside the image.
    """

    entries: bytes
    labels: dict[str, list[int]]
    values: Mapping[str, Any] = {}
    mask_values: tuple[int, int] | None = None
    mask_bits: int = 0
    num_black_white_masks: int = 0
    num_class_masks: int = 0
    num_dropped_boxes: int = 0
    num_clipped_boxes: int = 0
    is_turn_guessed: bool = False
    images: Mapping[str, OtherImage] = {}
    tensors: Mapping[str, TensorSums] = {}
    coordinates: Mapping[str, CoordinateFacts] = {}
    counts: Mapping[str, Mapping[str, int]] = {}
    num_outside: Mapping[str, int] = {}
