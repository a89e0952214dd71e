"""The examples that a page shows: which ones, and how they are told."""

from typing import Iterable, NamedTuple

import numpy as np

from beam_pipelines.report.pictures import Picture, Pictures
from beam_pipelines.report.sample import Sample

# Of classes: one picture for so many examples, so that a page takes no more than a small part of its run; but not fewer or more than these.
_EXAMPLES_A_PICTURE, _MIN_PICTURES, _MAX_PICTURES = 500, 96, 1_000
_DRAWINGS_AS_MANY = 3  # pictures with boxes or masks are larger

_NUM_ODD = 4
_MAX_NAME = 100


class Shown(NamedTuple):
    """One example.

    Attributes:
        key: Its own.
        caption: What is told of it.
        pictures: Its images; none where it has none that can be decoded, or where the page is full.
    """

    key: str
    caption: str
    pictures: list[Picture]


class Album:
    """Examples with their pictures, as many as a page has room for.

    Args:
        sample: Of the data set.
        pictures: What makes them.
        max_bytes: Of all pictures together, as they stand in the page.
    """

    def __init__(self, sample: Sample, pictures: Pictures, max_bytes: int) -> None:
        self._sample, self._pictures = sample, pictures
        self._loaded: dict[int, list[Picture]] = {}
        self._left = max_bytes
        num_examples = sum(map(sample.manifest.num_examples, sample.manifest.splits))
        most = min(max(num_examples // _EXAMPLES_A_PICTURE, _MIN_PICTURES), _MAX_PICTURES)
        self.num_wanted = most // (_DRAWINGS_AS_MANY if pictures.has_boxes or pictures.has_masks else 1)

    def load(self, rows: Iterable[int]) -> None:
        """Decodes examples, in the order of the shards."""
        wanted = [row for row in dict.fromkeys(rows) if row not in self._loaded] if self._pictures.has_any else []
        for row, example in self._sample.examples(wanted):
            self._loaded[row] = self._pictures.of(example) if example else []

    def show(self, rows: list[int], told: list[str] | None = None) -> list[Shown]:
        """Some examples that were loaded, with what is told of each, or else with their keys."""
        keys = [key[:_MAX_NAME] for key in self._sample.texts("key", rows)]
        shown = []
        for row, key, caption in zip(rows, keys, told or keys):
            found = []
            for picture in self._loaded.get(row, ()):
                if picture.num_bytes <= self._left:
                    self._left -= picture.num_bytes
                    found.append(picture)
            shown.append(Shown(key, caption, found))
        return shown


def find_oddest(sample: Sample) -> list[tuple[str, list[int], list[str]]]:
    """What is at an end of something: a title, rows of the sample, and of each what it is there for."""
    heights, widths, sizes = (sample.numbers(name) for name in ("height", "width", "num_bytes"))
    if heights is None or widths is None or sizes is None or not (heights > 0).any():
        return []
    known = np.flatnonzero((heights > 0) & (widths > 0))
    height, width, num_bytes = heights[known], widths[known], sizes[known]
    pixels = height * width
    density = num_bytes / pixels
    sides = lambda at: f"{width[at]} × {height[at]}"
    dense = lambda at: f"{density[at]:.2f} bytes a pixel"
    by = [
        ("Largest", -pixels, sides),
        ("Smallest", pixels, sides),
        ("Widest for their height", -(width / height), sides),
        ("Highest for their width", -(height / width), sides),
        ("Fewest bytes a pixel: plain, or compressed hard", density, dense),
        ("Most bytes a pixel: full of detail, or noise", -density, dense),
    ]
    found: list[tuple[str, list[int], list[str]]] = []
    for title, values, told in by:
        order = np.argsort(values, kind="stable")[:_NUM_ODD]
        if values.min() < values.max() and known[order].tolist() not in (rows for _, rows, _ in found):
            keys = sample.texts("key", known[order])
            found.append((title, known[order].tolist(), [f"{told(at)}: {key[:_MAX_NAME]}" for at, key in zip(order.tolist(), keys)]))
    return found
