"""Pixels that come without an image format, as arrays and fixed-length records have them."""

from typing import NamedTuple


class RawImage(NamedTuple):
    """How an image's pixels lie that come without a format: as uint8, row by row.

    Attributes:
        height: The image's height in pixels.
        width: The image's width in pixels.
        num_channels: 1 for grey, 3 for red, green and blue.
        is_planar: Whether one channel comes after the other, [channels, height, width]; else [height, width, channels].
    """

    height: int
    width: int
    num_channels: int
    is_planar: bool = False
