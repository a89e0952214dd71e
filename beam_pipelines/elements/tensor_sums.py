"""Computes exact sums of tensor values, which do not depend on the order of examples."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np

_CHUNK_VALUES = 1 << 20  # Number of values in memory as float64 at a time.
_MAX_CHANNELS = 1024


@dataclasses.dataclass
class TensorSums:
    """The sums of the numbers in the sampled tensors of a feature. The channels of an image are summed separately,
    unless there are many.

    NaN and infinite values are counted. Pixels that contain such values are excluded from the sums.

    Attributes:
        num_examples: The number of sampled tensors.
        num_pixels: The number of summed pixels, or of summed numbers if the tensor is not an image.
        num_not_finite: The number of NaN and infinite values.
        smallest: The smallest summed number. None if there are no numbers.
        largest: The largest summed number. None if there are no numbers.
        sums: The sum of each channel, or one sum for all channels.
        squares: The sum of squares of each channel, or one sum for all channels.
    """

    num_examples: int = 0
    num_pixels: int = 0
    num_not_finite: int = 0
    smallest: int | float | None = None
    largest: int | float | None = None
    sums: tuple[Fraction, ...] = ()
    squares: tuple[Fraction, ...] = ()

    @classmethod
    def of(cls, data: bytes, dtype: str, num_channels: int = 1) -> "TensorSums":
        """Returns the sums of one tensor.

        Args:
            data: The tensor's numbers, little-endian in C order.
            dtype: The NumPy name of the number type.
            num_channels: The number of channels. Each channel is summed separately unless there are too many.
        """
        sums, num_channels = cls(1), num_channels if num_channels <= _MAX_CHANNELS else 1
        pixels = np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(-1, num_channels)
        step = max(_CHUNK_VALUES // num_channels, 1)
        for start in range(0, len(pixels), step):
            sums.merge(_sums_of(pixels[start : start + step]))
        return sums

    def merge(self, other: "TensorSums") -> None:
        """Adds the sums of `other`."""
        self.num_examples += other.num_examples
        self.num_pixels += other.num_pixels
        self.num_not_finite += other.num_not_finite
        if other.num_pixels:
            self.smallest = other.smallest if self.smallest is None else min(self.smallest, other.smallest)
            self.largest = other.largest if self.largest is None else max(self.largest, other.largest)
            zeros = (Fraction(),) * len(other.sums)
            self.sums = tuple(map(sum, zip(self.sums or zeros, other.sums)))
            self.squares = tuple(map(sum, zip(self.squares or zeros, other.squares)))

    def to_json(self) -> dict[str, Any]:
        """Returns the sums in the format of `statistics.json`. The statistics are None if there are no numbers."""
        num_values = self.num_pixels * len(self.sums)
        mean, variance = _moments(sum(self.sums), sum(self.squares), num_values) if num_values else (None, None)
        return {
            "num_examples": self.num_examples,
            "num_values": num_values,
            "num_not_finite": self.num_not_finite,
            "min": self.smallest,
            "max": self.largest,
            "mean": mean,
            "std": None if variance is None else math.sqrt(variance),
        }

    def pixels_to_json(self, num_channels: int) -> dict[str, Any] | None:
        """Returns the mean and variance of each channel over the pixels of all sampled images.

        Returns None if there are no pixels, if the channels were not summed separately, or if a variance is too large
        for 64 bits.
        """
        moments = [_moments(total, square, self.num_pixels) for total, square in zip(self.sums, self.squares)]
        if len(moments) != num_channels or any(None in moment for moment in moments):
            return None
        mean, variance = map(list, zip(*moments))
        return {"num_images": self.num_examples, "num_pixels": self.num_pixels, "mean": mean, "variance": variance}


def _sums_of(pixels: np.ndarray) -> TensorSums:
    """Returns the sums over an array of pixels, any numeric type [num_pixels, num_channels]."""
    is_finite = np.isfinite(pixels)
    kept = pixels if is_finite.all() else pixels[is_finite.all(axis=1)]
    num_not_finite = pixels.size - int(np.count_nonzero(is_finite))
    if not len(kept):
        return TensorSums(num_not_finite=num_not_finite)
    if kept.dtype.kind in "iu" and kept.dtype.itemsize == 1:  # for images, many times as fast as the general method
        integers = kept.T.astype(np.int64, order="C")
        sums, squares = integers.sum(axis=1), np.einsum("ij,ij->i", integers, integers)
        ends = int(integers.min()), int(integers.max())
        return TensorSums(0, len(kept), 0, *ends, *(tuple(map(Fraction, item.tolist())) for item in (sums, squares)))
    numbers = kept.astype(np.float64) + 0.0  # Adding 0.0 turns a negative zero into zero.
    has_integers = kept.dtype.kind in "iu"
    smallest, largest = (entry.item() for entry in ([kept.min(), kept.max()] if has_integers else [numbers.min(), numbers.max()]))
    # Squares use the distance from the first pixel. Otherwise, rounding would hide small differences of large numbers.
    if has_integers and largest < 2**63 and largest - smallest < 2**62:
        origin = kept[0].tolist()
        numbers = (kept.astype(np.int64) - kept[0].astype(np.int64)).astype(np.float64)
        _, exponent = math.frexp(largest - smallest)
        numbers = np.ldexp(numbers, -exponent)
    else:
        origin = numbers[0].tolist()
        _, exponent = math.frexp(max(abs(smallest), abs(largest)))
        numbers = np.ldexp(numbers, -exponent)  # All values are below 1, so that no square overflows.
        numbers = numbers - numbers[0]
    sums, squares = [], []
    for first, total, square in zip(map(Fraction, origin), _totals(numbers).tolist(), _totals(numbers * numbers).tolist()):
        distance = Fraction(total) * Fraction(2) ** exponent
        sums.append(distance + len(kept) * first)
        squares.append(Fraction(square) * Fraction(2) ** (2 * exponent) + 2 * first * distance + len(kept) * first**2)
    return TensorSums(0, len(kept), num_not_finite, smallest, largest, tuple(sums), tuple(squares))


def _totals(values: np.ndarray) -> np.ndarray:
    """Sums over the first axis with the same rounding on every processor, unlike NumPy's own sum."""
    while len(values) > 1:
        half = len(values) // 2
        folded = values[:half] + values[half : 2 * half]
        folded[0] += values[2 * half :].sum(axis=0)  # At most one row remains.
        values = folded
    return values[0]


def _moments(total: Fraction, square: Fraction, num: int) -> tuple[float, float | None]:
    """Returns the mean and variance. The variance is None if it is too large for 64 bits."""
    mean = total / num
    variance = max(square / num - mean * mean, Fraction())  # Rounding of the squares can make it negative.
    try:
        return float(mean), float(variance)
    except OverflowError:
        return float(mean), None
