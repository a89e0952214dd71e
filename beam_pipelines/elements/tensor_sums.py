"""Sums of tensors' numbers: exact, so that they are the same in whatever order examples arrive."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np

_CHUNK_VALUES = 1 << 20  # in memory as float64 at a time
_MAX_CHANNELS = 1024


@dataclasses.dataclass
class TensorSums:
    """Sums of the sampled tensors of a feature, by channel where it is an image with not too many.

    A number that is not finite is counted, and left out with all channels of its pixel.

    Attributes:
        num_examples: The number of tensors that were sampled.
        num_pixels: The number of pixels that were summed; of a tensor that is no image, of numbers.
        num_not_finite: The number of NaNs and infinities.
        smallest: The smallest of the numbers that were summed; None: there was none.
        largest: The largest of the numbers that were summed; None: there was none.
        sums: The sum of the numbers of each channel, or one for all.
        squares: The sum of the squares of the numbers of each channel, or one for all.
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
        """Sums the numbers of one tensor.

        Args:
            data: The tensor's numbers, little-endian in C order.
            dtype: The type of the numbers, as NumPy names it.
            num_channels: The number of channels, each of which is summed by itself, unless there are too many.
        """
        found, num_channels = cls(1), num_channels if num_channels <= _MAX_CHANNELS else 1
        pixels = np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(-1, num_channels)
        step = max(_CHUNK_VALUES // num_channels, 1)
        for start in range(0, len(pixels), step):
            found.merge(_sums_of(pixels[start : start + step]))
        return found

    def merge(self, other: "TensorSums") -> None:
        """Adds the sums of another part."""
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
        """The sums as `statistics.json` has them; null where no number was seen."""
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
        """The mean and the variance per channel of an image's pixels.

        None where no pixel was seen, channels were not told apart, or a variance is too large for 64 bits.
        """
        moments = [_moments(total, square, self.num_pixels) for total, square in zip(self.sums, self.squares)]
        if len(moments) != num_channels or any(None in one for one in moments):
            return None
        mean, variance = map(list, zip(*moments))
        return {"num_images": self.num_examples, "num_pixels": self.num_pixels, "mean": mean, "variance": variance}


def _sums_of(pixels: np.ndarray) -> TensorSums:
    """Sums numbers of any type, [pixels, channels]."""
    is_finite = np.isfinite(pixels)
    kept = pixels if is_finite.all() else pixels[is_finite.all(axis=1)]
    num_not_finite = pixels.size - int(np.count_nonzero(is_finite))
    if not len(kept):
        return TensorSums(num_not_finite=num_not_finite)
    numbers = kept.astype(np.float64) + 0.0  # without a negative zero
    has_integers = kept.dtype.kind in "iu"
    smallest, largest = (one.item() for one in ([kept.min(), kept.max()] if has_integers else [numbers.min(), numbers.max()]))
    # What is squared are distances from the first pixel: those of numbers that are large and differ little would be rounded away.
    if has_integers and largest < 2**63 and largest - smallest < 2**62:
        origin = kept[0].tolist()
        numbers = (kept.astype(np.int64) - kept[0].astype(np.int64)).astype(np.float64)
        _, exponent = math.frexp(largest - smallest)
        numbers = np.ldexp(numbers, -exponent)
    else:
        origin = numbers[0].tolist()
        _, exponent = math.frexp(max(abs(smallest), abs(largest)))
        numbers = np.ldexp(numbers, -exponent)  # below 1, so that no square is too large
        numbers = numbers - numbers[0]
    sums, squares = [], []
    for first, total, square in zip(map(Fraction, origin), _totals(numbers).tolist(), _totals(numbers * numbers).tolist()):
        distance = Fraction(total) * Fraction(2) ** exponent
        sums.append(distance + len(kept) * first)
        squares.append(Fraction(square) * Fraction(2) ** (2 * exponent) + 2 * first * distance + len(kept) * first**2)
    return TensorSums(0, len(kept), num_not_finite, smallest, largest, tuple(sums), tuple(squares))


def _totals(values: np.ndarray) -> np.ndarray:
    """Sums over the first axis. By halves, since the order in which NumPy adds, and so its result, depends on the processor."""
    while len(values) > 1:
        half = len(values) // 2
        folded = values[:half] + values[half : 2 * half]
        folded[0] += values[2 * half :].sum(axis=0)  # of one or none
        values = folded
    return values[0]


def _moments(total: Fraction, square: Fraction, num: int) -> tuple[float, float | None]:
    """Mean and variance; None where that is too large for 64 bits."""
    mean = total / num
    variance = max(square / num - mean * mean, Fraction())  # squares are rounded
    try:
        return float(mean), float(variance)
    except OverflowError:
        return float(mean), None
