"""Decodes the run-length encoding of masks that are drawn with Label Studio's brush.

The encoding is a stream of bits that contains the RGBA values of all pixels, row by row. Its header consists of the
number of values (32 bits), the number of bits per value minus 1 (5 bits), and four bit widths for run lengths, each
minus 1 (4 bits each). The header is followed by runs. Each run starts with a flag (1 bit), the index of one of the bit
widths (2 bits), and the length of the run minus 1 (in this bit width). If the flag is 1, a single value follows, which
is repeated. Otherwise, all values of the run follow. A pixel belongs to the object if its alpha value is not 0.
"""

from typing import Any

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.image_headers import check_size

_VALUE_BITS = 8
_CHANNELS = 4


def decode_brush(encoding: Any, height: int, width: int) -> np.ndarray:
    """Returns the pixels of an object, bool [height, width].

    Args:
        encoding: The bytes of the encoding, as a list of integers.
        height: The height of the image in pixels.
        width: The width of the image in pixels.

    Raises:
        InvalidInput: The encoding is corrupt, or its number of pixels differs from the image.
    """
    check_size("mask", height, width)
    try:
        bits = _Bits(bytes(encoding))
    except (TypeError, ValueError):
        raise _corrupt("is not a list of bytes") from None
    num_values = bits.read(32)
    if num_values != height * width * _CHANNELS:
        raise _corrupt(f"has {num_values} values instead of {height} x {width} x {_CHANNELS}")
    if bits.read(5) + 1 != _VALUE_BITS:
        raise _corrupt(f"does not have values of {_VALUE_BITS} bits")
    sizes = [bits.read(4) + 1 for _ in range(4)]
    pixels = np.zeros(height * width, bool)
    start = 0
    while start < num_values:
        is_repeated, size = bits.read(1), sizes[bits.read(2)]
        end = min(start + 1 + bits.read(size), num_values)
        if is_repeated:
            pixels[start // _CHANNELS : end // _CHANNELS] = bits.read(_VALUE_BITS) > 0
        else:
            alpha = (_CHANNELS - 1 - start) % _CHANNELS  # index of the first alpha value in the run
            pixels[start // _CHANNELS : end // _CHANNELS] = bits.read_bytes(end - start)[alpha::_CHANNELS] > 0
        start = end
    return pixels.reshape(height, width)


class _Bits:
    """Reads numbers from a stream of bits."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._bits = np.unpackbits(np.frombuffer(data, np.uint8))
        self._position = 0

    def read(self, num_bits: int) -> int:
        """Reads an unsigned integer of at most 32 bits."""
        start, end = self._advance(num_bits)
        number = int.from_bytes(self._data[start // 8 : (end + 7) // 8], "big")
        return number >> (-end % 8) & ((1 << num_bits) - 1)

    def read_bytes(self, num_bytes: int) -> np.ndarray:
        """Reads bytes, uint8 [num_bytes]."""
        start, end = self._advance(8 * num_bytes)
        return np.packbits(self._bits[start:end])

    def _advance(self, num_bits: int) -> tuple[int, int]:
        start, self._position = self._position, self._position + num_bits
        if self._position > len(self._bits):
            raise _corrupt("ends within a run")
        return start, self._position


def _corrupt(problem: str) -> InvalidInput:
    return InvalidInput("bad_mask", f"has a brush encoding that {problem}")
