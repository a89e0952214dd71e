"""Selects the examples for the report, and their captions."""

from typing import Iterable, NamedTuple

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.thumbnails import measure_brightness
from beam_pipelines.report.pictures import Picture, Pictures
from beam_pipelines.report.sample import ExampleLocation, Sample, read_examples

# The number of class pictures: one per 500 examples, within these limits. The report then takes only a small part of
# the run time.
_EXAMPLES_A_PICTURE, _MIN_PICTURES, _MAX_PICTURES = 500, 96, 1_000
_DRAWINGS_AS_MANY = 3  # Pictures with boxes or masks are larger, so the report shows fewer of them.

_MAX_NAME = 100


class Shown(NamedTuple):
    """An example in the report.

    Attributes:
        key: The key of the example.
        caption: The caption of the example.
        pictures: The images of the example. Empty if no image can be decoded, or if the size limit is reached.
    """

    key: str
    caption: str
    pictures: list[Picture]


class Album:
    """Collects the pictures for the report up to a size limit.

    Args:
        sample: The first examples of the dataset.
        pictures: Converts examples to pictures.
        max_bytes: The maximum total size of the pictures in the page, in bytes.

    Attributes:
        num_decoded: The maximum number of examples that are decoded only for comparison.
        num_wanted: The number of examples to show for all classes together.
    """

    def __init__(self, sample: Sample, pictures: Pictures, max_bytes: int) -> None:
        self._sample, self._pictures = sample, pictures
        self._loaded: dict[ExampleLocation, list[Picture]] = {}
        self._num_bytes_left = max_bytes
        num_examples = sum(map(sample.manifest.num_examples, sample.manifest.splits))
        self.num_decoded = min(max(num_examples // _EXAMPLES_A_PICTURE, _MIN_PICTURES), _MAX_PICTURES)
        self.num_wanted = self.num_decoded // (_DRAWINGS_AS_MANY if pictures.has_boxes or pictures.has_masks or pictures.marks_noun else 1)

    def load(self, rows: Iterable[int]) -> None:
        """Decodes the examples in the given rows of the sample."""
        self.load_examples(map(self._sample.location, rows))

    def load_examples(self, locations: Iterable[ExampleLocation]) -> None:
        """Decodes the examples at the given locations."""
        wanted = [location for location in dict.fromkeys(locations) if location not in self._loaded] if self._pictures.has_any else []
        for location, example in read_examples(self._sample.directory, self._sample.manifest, wanted):
            self._loaded[location] = self._pictures.of(example) if example else []

    def show(self, rows: list[int], captions: list[str] | None = None) -> list[Shown]:
        """Returns the loaded examples in the given rows. Without captions, the keys are the captions."""
        keys = [key[:_MAX_NAME] for key in self._sample.texts("key", rows)]
        locations = map(self._sample.location, rows)
        return [
            self.show_pictures(key, caption, self._loaded.get(location, []))
            for key, caption, location in zip(keys, captions or keys, locations)
        ]

    def show_example(self, location: ExampleLocation | None, key: str, caption: str) -> Shown:
        """Returns the example at a location. An example that was not loaded has no pictures."""
        return self.show_pictures(key, caption, self._loaded.get(location, []) if location else [])

    def show_pictures(self, key: str, caption: str, pictures: Iterable[Picture]) -> Shown:
        """Returns an example, without pictures that no longer fit into the size limit of the report."""
        shown_pictures = []
        for picture in pictures:
            if picture.num_bytes <= self._num_bytes_left:
                self._num_bytes_left -= picture.num_bytes
                shown_pictures.append(picture)
        return Shown(key, caption, shown_pictures)

    def brightness(self, rows: list[int]) -> np.ndarray:
        """Returns the mean brightness of each example's first image, from 0 to 1. NaN means unknown."""
        pictures = (self._loaded[self._sample.location(row)] for row in rows)
        return np.array([_brightness(picture[0]) if picture else np.nan for picture in pictures])


def _brightness(picture: Picture) -> float:
    try:
        return measure_brightness(picture.encoded)
    except InvalidInput:  # The JPEG is small and was never decoded. Browsers display as much of it as possible.
        return np.nan
