"""The examples that a page shows: which ones, and how they are told."""

from typing import Iterable, NamedTuple

import numpy as np

from beam_pipelines.errors import Refusal
from beam_pipelines.images.thumbnails import measure_brightness
from beam_pipelines.report.pictures import Picture, Pictures
from beam_pipelines.report.sample import Place, Sample, read_places

# Of classes: one picture for so many examples, so that a page takes no more than a small part of its run; but not fewer or more than these.
_EXAMPLES_A_PICTURE, _MIN_PICTURES, _MAX_PICTURES = 500, 96, 1_000
_DRAWINGS_AS_MANY = 3  # pictures with boxes or masks are larger

_MAX_NAME = 100


class Shown(NamedTuple):
    """One example on the page.

    Attributes:
        key: The key of the example.
        caption: The text that is told of the example.
        pictures: The images of the example; none where it has none that can be decoded, or where the page is full.
    """

    key: str
    caption: str
    pictures: list[Picture]


class Album:
    """Examples with their pictures, as many as a page has room for.

    Args:
        sample: The first examples of the data set.
        pictures: The maker of the pictures.
        max_bytes: The size of all pictures together, as they stand in the page, in bytes.

    Attributes:
        num_decoded: The number of examples that a page may decode without showing them.
        num_wanted: The number of examples that it shows of classes.
    """

    def __init__(self, sample: Sample, pictures: Pictures, max_bytes: int) -> None:
        self._sample, self._pictures = sample, pictures
        self._loaded: dict[Place, list[Picture]] = {}
        self._left = max_bytes
        num_examples = sum(map(sample.manifest.num_examples, sample.manifest.splits))
        self.num_decoded = min(max(num_examples // _EXAMPLES_A_PICTURE, _MIN_PICTURES), _MAX_PICTURES)
        self.num_wanted = self.num_decoded // (_DRAWINGS_AS_MANY if pictures.has_boxes or pictures.has_masks else 1)

    def load(self, rows: Iterable[int]) -> None:
        """Decodes examples of the sample, in the order of the shards."""
        self.load_places(map(self._sample.place, rows))

    def load_places(self, places: Iterable[Place]) -> None:
        """Decodes any examples, likewise."""
        wanted = [place for place in dict.fromkeys(places) if place not in self._loaded] if self._pictures.has_any else []
        for place, example in read_places(self._sample.directory, self._sample.manifest, wanted):
            self._loaded[place] = self._pictures.of(example) if example else []

    def show(self, rows: list[int], told: list[str] | None = None) -> list[Shown]:
        """Some examples that were loaded, with what is told of each, or else with their keys."""
        keys = [key[:_MAX_NAME] for key in self._sample.texts("key", rows)]
        places = map(self._sample.place, rows)
        return [self.show_pictures(key, caption, self._loaded.get(place, [])) for key, caption, place in zip(keys, told or keys, places)]

    def show_place(self, place: Place | None, key: str, caption: str) -> Shown:
        """An example by its place, if it has one and was loaded."""
        return self.show_pictures(key, caption, self._loaded.get(place, []) if place else [])

    def show_pictures(self, key: str, caption: str, pictures: Iterable[Picture]) -> Shown:
        """Pictures with what is told of them, as far as there is room."""
        found = []
        for picture in pictures:
            if picture.num_bytes <= self._left:
                self._left -= picture.num_bytes
                found.append(picture)
        return Shown(key, caption, found)

    def brightness(self, rows: list[int]) -> np.ndarray:
        """The brightness of the first image of examples that were loaded, 0 to 1; NaN where it can't be decoded: float64 [len(rows)]."""
        pictures = (self._loaded[self._sample.place(row)] for row in rows)
        return np.array([_brightness(found[0]) if found else np.nan for found in pictures])


def _brightness(picture: Picture) -> float:
    try:
        return measure_brightness(picture.encoded)
    except Refusal:  # a small JPEG that nobody has looked into, and that browsers show as far as they can
        return np.nan
