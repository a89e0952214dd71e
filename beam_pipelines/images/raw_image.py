"""Numbers that come without an image format, as arrays and fixed-length records have them: pixels, or tensors."""

import math
from typing import NamedTuple

_PIXEL_CHANNELS = (1, 3, 4)


class RawImage(NamedTuple):
    """How an image lies that comes without a format: number after number, row by row.

    Attributes:
        height: The image's height in pixels.
        width: The image's width in pixels.
        num_channels: The number of channels: 1 for grey, 3 for red, green and blue, 4 with alpha; any other number makes it a tensor.
        is_planar: Whether one channel comes after the other, [channels, height, width]; else [height, width, channels].
        dtype: The type of a number, as NumPy writes it, with its byte order: `|u1`, `<f4`, `>u2`. Any other than `|u1` makes it a tensor.
    """

    height: int
    width: int
    num_channels: int
    is_planar: bool = False
    dtype: str = "|u1"

    @property
    def kind(self) -> tuple[int, bool, str]:
        """All of the layout but the image's size."""
        return self[2:]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the array of the image's numbers."""
        return (self.num_channels, self.height, self.width) if self.is_planar else self[:3]

    @property
    def num_bytes(self) -> int:
        """The size of the whole image in bytes."""
        return self.height * self.width * self.num_channels * int(self.dtype[2:])

    @property
    def is_tensor(self) -> bool:
        """Whether the image is stored as its numbers; else it is an image of uint8, which a PNG holds."""
        return self.dtype != "|u1" or self.num_channels not in _PIXEL_CHANNELS


def layout_of(shape: tuple[int, ...], dtype: str) -> RawImage | None:
    """How an image of an array's shape and type lies; None: such an array is no image.

    `[HEIGHT,WIDTH]` has one channel. Of three dimensions the last is that of the channels, unless of pixels of uint8 the first alone is 1,
    3 or 4; a tensor is what it is.
    """
    if len(shape) not in (2, 3) or not math.prod(shape):
        return None
    if len(shape) == 2:
        return RawImage(*shape, 1, dtype=dtype)
    if dtype == "|u1" and shape[0] in _PIXEL_CHANNELS and shape[2] not in _PIXEL_CHANNELS:
        return RawImage(*shape[1:], shape[0], is_planar=True, dtype=dtype)
    return RawImage(*shape, dtype=dtype)
