"""Images without a format."""

from typing import NamedTuple


class RawImage(NamedTuple):
    """Pixels without a format: uint8, row by row.

    Attributes:
        height: In pixels.
        width: Likewise.
        num_channels: 1 or 3.
        is_planar: Whether a channel comes after the other; else a pixel's channels lie together.
    """

    height: int
    width: int
    num_channels: int
    is_planar: bool = False
