"""What an example has beside its image and its label, encoded."""

from typing import Any, Mapping, NamedTuple

from beam_pipelines.elements.tensor_sums import TensorSums


class OtherImage(NamedTuple):
    """What is kept of another image of an example.

    Attributes:
        path: The path of the file where the image lay, relative to the source's root.
        num_bytes: The size of the image as stored, in bytes.
        format: The format of the source's bytes; empty where nobody looked.
        reencoded: Why the stored bytes are not the source's; else empty.
        height: The height of the image as stored, in pixels; 0 where nobody looked.
        width: The width of the image as stored, in pixels; 0 where nobody looked.
        num_channels: The number of channels of the image as stored, 2 and 4 with alpha; 0 where nobody looked.
        is_deep: Whether the source is a PNG of 16 bits a channel.
        is_odd: Whether libjpeg warns about the source, although no pixel is missing or corrupt.
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


class Extras(NamedTuple):
    """What an example has beside its image and its label, encoded, and what is counted of it.

    Attributes:
        entries: The encoded features, as `tfrecord.example_encoder.encode_extras` gives them.
        labels: Feature with class names -> the example's labels.
        values: Other feature that the catalog has a column of -> the example's number, or its text in UTF-8.
        mask_values: The smallest and the largest value of the example's masks; None: it has none.
        mask_bits: The number of bits of a mask's pixel, 8 or 16, the larger one of several masks; 0 where there is none.
        num_black_white_masks: The number of masks whose values are 0 and 255 alone.
        num_class_masks: The number of masks with another value than 0 and 255.
        num_dropped_boxes: The number of boxes that were left out, because nothing of them is inside the image.
        num_clipped_boxes: The number of boxes of which a part was outside the image.
        is_turn_guessed: Whether EXIF rotates the image, and it is not known on which image its boxes or masks were
            drawn.
        images: Name of another image -> what is kept of it.
        tensors: Name of a tensor -> its sums, where the example is of the sample.
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
