"""Converts the colors or values of masks to class numbers."""

from typing import Mapping, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput

VOID = 255  # the value of pixels without a class, for any number of classes
_MAX_SHOWN = 12


class MaskClasses:
    """The classes of the colors or values of masks.

    Args:
        names: The class names, in the order of their numbers. Empty if they are unknown.
        colors: A mapping from colors, such as `64,128,64`, or from values, such as `0`, to class names.
        values: A mapping from pixel values to class numbers. If empty, the pixel values are the class numbers.
    """

    def __init__(self, names: Sequence[str] = (), colors: Mapping[str, str] | None = None, values: Mapping[int, int] = {}) -> None:
        numbers = {name: number for number, name in enumerate(names)}
        by_key = {tuple(map(int, key.split(","))): numbers[name] for key, name in (colors or {}).items()}
        self._by_color = {key: number for key, number in by_key.items() if len(key) == 3}
        self._by_value = dict(values) or {key[0]: number for key, number in by_key.items() if len(key) == 1}
        self._table = np.full(1 << 16 if self._by_value else 0, -1, np.int32)
        self._table[list(self._by_value)] = list(self._by_value.values())
        self._num_names = len(names)
        self._by_code = {_code(*color): number for color, number in self._by_color.items()}

    @property
    def has_colors(self) -> bool:
        """Whether colors determine the classes."""
        return bool(self._by_color)

    def of_colors(self, pixels: np.ndarray) -> np.ndarray:
        """Converts colors, uint8 [height, width, 3], to class numbers, uint8 or uint16 [height, width].

        Raises:
            InvalidInput: `bad_mask`: a color has no class.
        """
        codes = pack_colors(pixels)
        numbers, unknown = find_codes(codes, self._by_code)
        if unknown.any():
            top, left = map(int, np.argwhere(unknown)[0])
            num = int(np.count_nonzero(codes == codes[top, left]))
            color = ",".join(map(str, pixels[top, left].tolist()))
            more = len(np.unique(codes[unknown])) - 1
            raise InvalidInput(
                "bad_mask",
                f"the color {color} at x {left}, y {top} (pixels: {num:,}) is not in --mask_colors"
                + (f"; other such colors of the mask: {more:,}" if more else ""),
            )
        return _smallest(numbers)

    def of_values(self, ids: np.ndarray) -> np.ndarray:
        """Converts the values of a mask, uint8 or uint16 [height, width], to class numbers.

        Raises:
            InvalidInput: `bad_mask`: a value has no class.
        """
        if self._by_value:
            numbers = self._table[ids]
            _reject_value(ids, numbers < 0, f"is not among the values with a class ({_shown(self._by_value)}). Add it to --mask_values, or to the file of --mask_colors")
            ids = _smallest(numbers)
        if self._num_names:
            _reject_value(ids, (ids >= self._num_names) & (ids != VOID), f"has no name, because there are {self._num_names:,} class names")
        return ids


def find_codes(codes: np.ndarray, numbers: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Looks up the number of each code. Returns the numbers, int64, and whether each code is missing, bool. Both arrays
    have the shape of `codes`."""
    known = np.array(sorted(numbers), np.int64)
    indices = np.searchsorted(known, codes).clip(max=len(known) - 1)
    return np.array([numbers[code] for code in known.tolist()], np.int64)[indices], known[indices] != codes


def pack_colors(pixels: np.ndarray) -> np.ndarray:
    """Converts the color of each pixel to an integer, int64 [height, width]."""
    return _code(*np.moveaxis(pixels.astype(np.int64), 2, 0))


def describe_colors(pixels: np.ndarray) -> str:
    """Describes the most frequent colors of a mask and the share of pixels of each color."""
    codes, counts = np.unique(pack_colors(pixels), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MAX_SHOWN].tolist()
    shown = "; ".join(f"{codes[index] >> 16},{codes[index] >> 8 & 255},{codes[index] & 255} ({counts[index] / counts.sum():.2%})" for index in order)
    return f"colors ({len(codes):,}): {shown}" + ("; …" if len(codes) > _MAX_SHOWN else "")


def _code(red: int, green: int, blue: int) -> int:
    return red << 16 | green << 8 | blue


def _smallest(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.uint8 if not numbers.size or numbers.max() < 256 else np.uint16)


def _reject_value(ids: np.ndarray, is_bad: np.ndarray, problem: str) -> None:
    if is_bad.any():
        top, left = map(int, np.argwhere(is_bad)[0])
        num = int(np.count_nonzero(ids == ids[top, left]))
        raise InvalidInput("bad_mask", f"the value {ids[top, left]} at x {left}, y {top} (pixels: {num:,}) {problem}")


def _shown(values: Mapping[int, int]) -> str:
    return ", ".join(map(str, sorted(values)[:_MAX_SHOWN])) + (", …" if len(values) > _MAX_SHOWN else "")
