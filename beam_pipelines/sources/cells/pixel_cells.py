"""Reads images whose pixels are numbers in the cells of a table: in one cell, or in one column for each pixel."""

import itertools
import math
import re
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.config.image_config import MAX_IMAGE_PIXELS
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.cells.cells import is_empty, shown

ONE_CELL = ("pixels", "pixel_values")  # names of a column whose cells have all pixels
_NUMBERED = re.compile(r"(?:pixel|pix|px)[ _-]?(\d{1,8})", re.IGNORECASE)
_GRID = re.compile(r"(\d{1,5})x(\d{1,5})")
_MIN_PIXELS = 4
_NUMBERS = re.compile(r"\s*\[?\s*\d+(?:\.\d*)?(?:[\s,]+\d+(?:\.\d*)?){3,}\s*\]?\s*")


class PixelColumns(NamedTuple):
    """The columns with the pixels of images.

    Attributes:
        names: One column for each pixel, row by row; or a single column, whose cells contain all pixels of an image.
        shape: The height, the width and optionally the number of channels of each image.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]

    def read(self, row: Mapping[str, Any]) -> tuple[bytes, RawImage]:
        """Returns the pixels of an image as uint8 values, and their layout. Raises `InvalidInput` if the cells do not
        have the right number of integers from 0 to 255."""
        cells = [row.get(name) for name in self.names]
        numbers = cells if len(cells) > 1 else _split(cells[0])
        where = f"column {printable(self.names[0])!r}" if len(cells) == 1 else f"the columns {printable(self.names[0])!r} and following"
        try:
            values = np.array(numbers, np.float64).ravel()
        except (ValueError, TypeError, OverflowError):
            bad = next((cell for cell in cells if not isinstance(cell, (int, float))), numbers) if len(cells) > 1 else numbers
            raise InvalidInput("bad_image", f"{where}: found {shown(bad)}; pixels must be integers from 0 to 255") from None
        if values.size != math.prod(self.shape):
            sides = " x ".join(map(str, self.shape))
            raise InvalidInput("bad_image", f"{where}: {values.size:,} numbers instead of {sides} = {math.prod(self.shape):,}")
        is_pixel = (values >= 0) & (values <= 255) & (values == np.floor(values))
        if not is_pixel.all():
            bad = values[np.argmin(is_pixel)]
            raise InvalidInput("bad_image", f"{where}: found {bad:g}; pixels must be integers from 0 to 255")
        height, width, num_channels = (*self.shape, 1)[:3]
        return values.astype(np.uint8).tobytes(), RawImage(height, width, num_channels)


def _split(cell: Any) -> Any:
    if isinstance(cell, str):
        return cell.strip().strip("[]").replace(",", " ").split()
    return [] if is_empty(cell) else cell


def find_pixel_columns(columns: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the columns that are named like pixels, such as `pixel0` or `28x28`, in the order of the pixels, and the
    shape of the image. The shape is empty if the names do not indicate it."""
    numbered = sorted((int(match[1]), name) for name in columns if (match := _NUMBERED.fullmatch(name)))
    first = numbered[0][0] if numbered else 0
    if len(numbered) >= _MIN_PIXELS and first in (0, 1) and [number for number, _ in numbered] == [*range(first, first + len(numbered))]:
        return tuple(name for _, name in numbered), ()
    grid = sorted((int(match[1]), int(match[2]), name) for name in columns if (match := _GRID.fullmatch(name)))
    if len(grid) < _MIN_PIXELS or grid[0][:2] not in ((0, 0), (1, 1)):
        return (), ()
    start, (height, width) = grid[0][0], (1 + end - start for start, end in zip(grid[0][:2], grid[-1][:2]))
    full = [(y + start, x + start) for y, x in itertools.product(range(height), range(width))] if height * width == len(grid) else []
    return (tuple(name for *_, name in grid), (height, width)) if [cell[:2] for cell in grid] == full else ((), ())


def num_pixels(cell: Any) -> int:
    """Returns the number of pixels in a cell, or 0 if the cell does not contain a list of numbers."""
    if isinstance(cell, str):
        return len(_split(cell)) if _NUMBERS.fullmatch(cell) else 0
    try:
        values = np.array(cell) if isinstance(cell, list) else np.array([])
    except ValueError:  # nested lists of different lengths
        return 0
    return values.size if values.size >= _MIN_PIXELS and values.dtype.kind in "iufb" else 0


def square_shape(num: int) -> tuple[int, ...]:
    """Returns the shape of a gray square image with `num` pixels, or an empty tuple if there is no such shape."""
    side = math.isqrt(num)
    return (side, side) if side * side == num and num <= MAX_IMAGE_PIXELS else ()
