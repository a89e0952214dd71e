"""Detects features that may be image coordinates, which are wrong after the image has been rotated or resized."""

import dataclasses
from typing import Any

import numpy as np

from beam_pipelines.images.resize import Geometry
from tf_input.coordinate_names import NUM_DISTINCT, are_pixels


@dataclasses.dataclass
class CoordinateFacts:
    """Statistics about the numbers of one feature, which show whether the numbers may be image coordinates.

    Only examples whose image was rotated or resized are counted.

    Attributes:
        num_rotated: The number of images that were rotated or flipped because of EXIF.
        num_resized: The number of images that were resized.
        smallest: The smallest number of the feature. None if there are no numbers.
        largest: The largest number of the feature. None if there are no numbers.
        distinct: The smallest distinct numbers of the feature, at most `NUM_DISTINCT`.
        longest_side: The longest side of the images before resizing, in pixels.
    """

    num_rotated: int = 0
    num_resized: int = 0
    smallest: float | None = None
    largest: float | None = None
    distinct: tuple[float, ...] = ()
    longest_side: int = 0

    @classmethod
    def of(cls, values: Any, geometry: Geometry) -> "CoordinateFacts":
        """Returns the statistics of the numbers in one example. NaN and infinity are ignored."""
        numbers = np.asarray(values, np.float64).reshape(-1)
        distinct = np.unique(numbers[np.isfinite(numbers)]).tolist()
        is_rotated, is_resized = geometry.orientation != 1, geometry.stored != geometry.upright
        ends = (distinct[0], distinct[-1]) if distinct else (None, None)
        return cls(int(is_rotated), int(is_resized), *ends, tuple(distinct[:NUM_DISTINCT]), max(geometry.upright))

    def merge(self, other: "CoordinateFacts") -> None:
        """Adds the statistics in `other`."""
        ends = [end for end in (self.smallest, self.largest, other.smallest, other.largest) if end is not None]
        self.num_rotated += other.num_rotated
        self.num_resized += other.num_resized
        self.smallest, self.largest = (min(ends), max(ends)) if ends else (None, None)
        self.distinct = tuple(sorted({*self.distinct, *other.distinct})[:NUM_DISTINCT])
        self.longest_side = max(self.longest_side, other.longest_side)

    def are_pixels(self, has_name: bool) -> bool:
        """Returns whether the numbers look like pixel coordinates; see `coordinate_names.are_pixels`."""
        if self.smallest is None or self.largest is None:
            return False
        return are_pixels(self.smallest, self.largest, len(self.distinct), has_name, self.longest_side)
