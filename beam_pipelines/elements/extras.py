"""What an example has beside its image and its label, encoded."""

from typing import Any, Mapping, NamedTuple

from beam_pipelines.elements.tensor_sums import TensorSums


class OtherImage(NamedTuple):
    """What is kept of another image of an example.

    Attributes:
        path: The file where it lay, relative to the source's root.
        num_bytes: As stored.
        format: What the source's bytes are; empty where nobody looked.
        reencoded: Why the stored ones are others; else empty.
        height: As stored, in pixels; 0 where nobody looked.
        width: As stored, in pixels; 0 where nobody looked.
        num_channels: As stored, 2 and 4 with alpha; 0 where nobody looked.
    """

    path: str
    num_bytes: int
    format: str = ""
    reencoded: str = ""
    height: int = 0
    width: int = 0
    num_channels: int = 0


class Extras(NamedTuple):
    """What becomes of one example's values.

    Attributes:
        entries: As `tfrecord.example_encoder.encode_extras` gives them.
        labels: Feature with class names -> the example's labels.
        values: Other feature that the catalog has a column of -> the example's number, or its text in UTF-8.
        mask_values: The smallest and the largest value of its masks, if there is one.
        mask_bits: Of a pixel of its masks, 8 or 16 at most; 0 where there is none.
        num_dropped_boxes: Boxes that were left out, because nothing of them is inside the image.
        num_clipped_boxes: Boxes of which a part was outside.
        is_turn_guessed: Whether EXIF turned its image, and nobody said if its boxes or masks were drawn before that.
        images: Other image -> what is kept of it.
        tensors: Tensor -> its sums, of an example of the sample.
    """

    entries: bytes
    labels: dict[str, list[int]]
    values: Mapping[str, Any] = {}
    mask_values: tuple[int, int] | None = None
    mask_bits: int = 0
    num_dropped_boxes: int = 0
    num_clipped_boxes: int = 0
    is_turn_guessed: bool = False
    images: Mapping[str, OtherImage] = {}
    tensors: Mapping[str, TensorSums] = {}
