"""Describes raw images, which are arrays of pixels without an image format."""

import math
from typing import NamedTuple

_PIXEL_CHANNELS = (1, 3, 4)


class RawImage(NamedTuple):
    """The layout of an image that is stored as numbers in row-major order, without an image format.

    Attributes:
        height: The image's height in pixels.
        width: The image's width in pixels.
        num_channels: The number of channels: 1 for grey, 3 for RGB, 4 with alpha. Any other number makes it a tensor.
        is_planar: Whether the layout is [channels, height, width] instead of [height, width, channels].
        dtype: The dtype of a number in NumPy's notation: `|u1`, `<f4`, `>u2`. Any dtype but `|u1` makes it a tensor.
    """

    height: int
    width: int
    num_channels: int
    is_planar: bool = False
    dtype: str = "|u1"

    @property
    def kind(self) -> tuple[int, bool, str]:
        """The layout without the image's size."""
        return self[2:]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the array that contains the image's numbers."""
        return (self.num_channels, self.height, self.width) if self.is_planar else self[:3]

    @property
    def num_bytes(self) -> int:
        """The number of bytes in the whole image."""
        return self.height * self.width * self.num_channels * int(self.dtype[2:])

    @property
    def is_tensor(self) -> bool:
        """Whether a PNG cannot store the image, so that the image is stored as numbers."""
        return self.dtype != "|u1" or self.num_channels not in _PIXEL_CHANNELS


def layout_of(shape: tuple[int, ...], dtype: str) -> RawImage | None:
    """Returns the image layout of an array, or None if its shape or dtype is not suitable for an image.

    `[HEIGHT,WIDTH]` has one channel. In arrays with three dimensions, the last dimension contains the channels. In
    uint8 arrays, the first dimension contains the channels if its size, but not the size of the last dimension, is 1, 3
    or 4. Tensors are never planar.
    """
    if len(shape) not in (2, 3) or not math.prod(shape):
        return None
    if len(shape) == 2:
        return RawImage(*shape, 1, dtype=dtype)
    if dtype == "|u1" and shape[0] in _PIXEL_CHANNELS and shape[2] not in _PIXEL_CHANNELS:
        return RawImage(*shape[1:], shape[0], is_planar=True, dtype=dtype)
    return RawImage(*shape, dtype=dtype)
