"""Describes raw images, which are arrays of numbers without an image format."""

import math
from typing import NamedTuple

_PIXEL_CHANNELS = (1, 3, 4)


class RawImage(NamedTuple):
    """The layout of a raw image in row-major order.

    Attributes:
        height: The height of the image, in pixels.
        width: The width of the image, in pixels.
        num_channels: The number of channels: 1 for gray, 3 for RGB, 4 for RGB with alpha. Any other number makes the
            image a tensor.
        is_planar: Whether the layout is [channels, height, width] instead of [height, width, channels].
        dtype: The dtype in NumPy's notation, such as `|u1`, `<f4` or `>u2`. Any dtype except `|u1` makes the image a
            tensor.
    """

    height: int
    width: int
    num_channels: int
    is_planar: bool = False
    dtype: str = "|u1"

    @property
    def kind(self) -> tuple[int, bool, str]:
        """The layout without the size."""
        return self[2:]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the stored array."""
        return (self.num_channels, self.height, self.width) if self.is_planar else self[:3]

    @property
    def num_bytes(self) -> int:
        """The size of the image, in bytes."""
        return self.height * self.width * self.num_channels * int(self.dtype[2:])

    @property
    def is_tensor(self) -> bool:
        """Whether the image is stored as a tensor, because a PNG cannot represent it."""
        return self.dtype != "|u1" or self.num_channels not in _PIXEL_CHANNELS


def layout_of(shape: tuple[int, ...], dtype: str) -> RawImage | None:
    """Returns the image layout of an array, or None if its shape or dtype is not suitable for an image.

    An array with two dimensions has one channel. In an array with three dimensions, the last dimension contains the
    channels. However, if the size of the first dimension of a uint8 array is 1, 3 or 4 and that of the last dimension
    is not, the first dimension contains the channels.
    """
    if len(shape) not in (2, 3) or not math.prod(shape):
        return None
    if len(shape) == 2:
        return RawImage(*shape, 1, dtype=dtype)
    if dtype == "|u1" and shape[0] in _PIXEL_CHANNELS and shape[2] not in _PIXEL_CHANNELS:
        return RawImage(*shape[1:], shape[0], is_planar=True, dtype=dtype)
    return RawImage(*shape, dtype=dtype)
