"""What an example has beside its image and its label, encoded."""

from typing import NamedTuple


class Extras(NamedTuple):
    """What becomes of one example's values.

    Attributes:
        entries: As `tfrecord.example_encoder.encode_extras` gives them.
        labels: Feature with class names -> the example's labels.
        mask_values: The smallest and the largest value of its masks, if there is one.
        mask_bits: Of a pixel of its masks, 8 or 16 at most; 0 where there is none.
        num_dropped_boxes: Boxes that were left out, because nothing of them is inside the image.
        num_clipped_boxes: Boxes of which a part was outside.
    """

    entries: bytes
    labels: dict[str, list[int]]
    mask_values: tuple[int, int] | None = None
    mask_bits: int = 0
    num_dropped_boxes: int = 0
    num_clipped_boxes: int = 0
