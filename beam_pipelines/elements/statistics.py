"""Exact statistics of the written examples.

Sums are computed with integers, and division is the last step. Therefore, the statistics do not depend on the order in
which parts are merged.
"""

import dataclasses
from collections import Counter
from typing import Any, Iterable, Sequence

import numpy as np

from beam_pipelines.elements.coordinate_facts import CoordinateFacts
from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.extras import Extras
from beam_pipelines.elements.merging import Mergeable
from beam_pipelines.elements.tensor_sums import TensorSums
from beam_pipelines.images.images import StoredImage
from tf_input.dataset_format import IMAGE

# Approximate number of images whose pixels are summed. The number is enough for normalization, and is fast.
NUM_PIXEL_SAMPLES = 512
_SMALL_IMAGE_PIXELS = 128 * 128


def is_sampled(orders: np.ndarray, num_inputs: int) -> np.ndarray:
    """Selects about `NUM_PIXEL_SAMPLES` images for the pixel statistics.

    The selection is the same in every run, and evenly distributed over the shards.

    Args:
        orders: The first 8 bytes of the images' shuffle keys, uint64 [num_images].
        num_inputs: The number of inputs of the dataset.

    Returns:
        Whether each image is selected, bool [num_images].
    """
    below = min(2**64 - 1, NUM_PIXEL_SAMPLES * 2**64 // max(num_inputs, 1))
    return orders << np.uint64(32) < np.uint64(below)  # The low bits have the least influence on the shard.


def sum_pixels(pixels: np.ndarray) -> TensorSums:
    """Returns the channel sums of an image, uint8 [height, width, 3].

    In large images, only every fourth pixel of every fourth row is summed.
    """
    step = 1 if pixels.shape[0] * pixels.shape[1] <= _SMALL_IMAGE_PIXELS else 4
    return TensorSums.of(pixels[::step, ::step].tobytes(), "uint8", 3)


@dataclasses.dataclass
class Range:
    """Minimum, maximum and sum of integers."""

    smallest: int | None = None
    largest: int | None = None
    total: int = 0

    def add(self, values: Sequence[int]) -> None:
        """Adds integers."""
        if values:
            self.merge(Range(min(values), max(values), sum(values)))

    def merge(self, other: "Range") -> None:
        """Adds the integers that `other` summarizes."""
        if other.smallest is not None and other.largest is not None:
            self.smallest = other.smallest if self.smallest is None else min(self.smallest, other.smallest)
            self.largest = other.largest if self.largest is None else max(self.largest, other.largest)
        self.total += other.total

    def to_json(self, count: int) -> dict[str, Any] | None:
        """Returns the minimum, maximum and mean of `count` integers. Returns None if there are no integers."""
        return None if self.smallest is None else {"min": self.smallest, "max": self.largest, "mean": self.total / count}


@dataclasses.dataclass
class ImageFacts(Mergeable):
    """Statistics of the images of one feature.

    Attributes:
        formats: A mapping from format to the number of images. Empty if images were not inspected.
        reencoded: A mapping from the reason for re-encoding to the number of images.
        channels: A mapping from the number of stored channels, including alpha, to the number of images. Empty if
            images were not inspected or are tensors.
        heights: The heights of the stored images, in pixels.
        widths: The widths of the stored images, in pixels.
        num_bytes: The sizes of the stored images, in bytes.
        num_deep: The number of images whose source has 16 bits per channel.
        num_odd: The number of images whose source causes libjpeg warnings, although no pixel is missing or corrupt.
        num_with_more_pages: The number of images whose source has more pages or images than the one that is stored.
    """

    formats: Counter[str] = dataclasses.field(default_factory=Counter)
    reencoded: Counter[str] = dataclasses.field(default_factory=Counter)
    channels: Counter[int] = dataclasses.field(default_factory=Counter)
    heights: Range = dataclasses.field(default_factory=Range)
    widths: Range = dataclasses.field(default_factory=Range)
    num_bytes: Range = dataclasses.field(default_factory=Range)
    num_deep: int = 0
    num_odd: int = 0
    num_with_more_pages: int = 0

    def add(self, images: Sequence[StoredImage]) -> None:
        """Adds images."""
        of = dict(zip(images[0]._fields, zip(*images))) if images else {}
        for counter, name in ((self.formats, "format"), (self.reencoded, "reencoded"), (self.channels, "num_channels")):
            counter.update(filter(None, of.get(name, ())))
        for numbers, name in ((self.heights, "height"), (self.widths, "width"), (self.num_bytes, "num_bytes")):
            numbers.add([*filter(None, of.get(name, ()))])
        self.num_deep += sum(of.get("is_deep", ()))
        self.num_odd += sum(of.get("is_odd", ()))
        self.num_with_more_pages += sum(of.get("has_more_pages", ()))

    def to_json(self, num: int) -> dict[str, Any]:
        """Returns the statistics of `num` images in the format of `statistics.json`."""
        return {
            "num_images": num,
            "formats": dict(sorted(self.formats.items())) or None,
            "reencoded": dict(sorted(self.reencoded.items())),
            "channels": {str(channels): count for channels, count in sorted(self.channels.items())} or None,
            "height": self.heights.to_json(num),
            "width": self.widths.to_json(num),
            "bytes": self.num_bytes.to_json(num),
        }


@dataclasses.dataclass
class SplitStatistics(Mergeable):
    """Statistics of the images of one split.

    Attributes:
        num_examples: The number of examples.
        num_bytes: The size of the stored images, in bytes.
        labels: A mapping from each label of the single-class feature `label` to the number of examples.
        pixels: The channel sums of a uniform sample of the images `image`.
        other_labels: A mapping from each other class feature to the count of each label.
        tensors: A mapping from each tensor feature except `image` to its sums over the sample.
        counts: A mapping from each feature of a kind in `features.kinds` to the statistics of its numbers.
    """

    num_examples: int = 0
    num_bytes: int = 0
    labels: Counter[int] = dataclasses.field(default_factory=Counter)
    pixels: TensorSums = dataclasses.field(default_factory=TensorSums)
    other_labels: dict[str, Counter[int]] = dataclasses.field(default_factory=dict)
    tensors: dict[str, TensorSums] = dataclasses.field(default_factory=dict)
    counts: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)

    def add_tensor(self, name: str, sums: TensorSums) -> None:
        """Adds the sums of a tensor feature."""
        self.tensors.setdefault(name, TensorSums()).merge(sums)


@dataclasses.dataclass
class ImageStatistics(Mergeable):
    """Statistics of images, by split and feature.

    Attributes:
        splits: A mapping from the index of a split in the listing to its statistics.
        images: A mapping from each image feature, including `image`, to the statistics of its images.
        dead_letters: The number of dead letters, and the first few.
        ranges: Ranges of integers, such as the pixel values of masks, by name. Each feature kind chooses its names.
        nums: Numbers of events, such as dropped boxes, by name. Each feature kind chooses its names.
        coordinates: A mapping from each feature that may contain coordinates to the statistics of its numbers.
        num_outside: A mapping from each feature with positions to the number of positions that were removed because
            they are outside the image.
    """

    splits: dict[int, SplitStatistics] = dataclasses.field(default_factory=dict)
    images: dict[str, ImageFacts] = dataclasses.field(default_factory=dict)
    dead_letters: DeadLetterCount = dataclasses.field(default_factory=DeadLetterCount)
    ranges: dict[str, Range] = dataclasses.field(default_factory=dict)
    nums: Counter[str] = dataclasses.field(default_factory=Counter)
    coordinates: dict[str, CoordinateFacts] = dataclasses.field(default_factory=dict)
    num_outside: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def num_examples(self) -> int:
        """The number of examples in all splits."""
        return sum(split.num_examples for split in self.splits.values())

    def images_of(self, name: str) -> ImageFacts:
        """Returns the statistics of an image feature. Creates empty statistics for a new feature."""
        return self.images.setdefault(name, ImageFacts())

    def add_range(self, name: str, values: Sequence[int]) -> None:
        """Adds integers to a range."""
        self.ranges.setdefault(name, Range()).add(values)

    def add_extras(self, split: SplitStatistics, extras: Extras) -> None:
        """Adds the values of one example. `split` must belong to these statistics."""
        for name, labels in extras.labels.items():
            split.other_labels.setdefault(name, Counter()).update(labels)
        for name, image in extras.images.items():
            self.images_of(name).add([image])
        for kind, feature, fact in extras.facts:
            kind.count(feature, fact, split, self)
        self.nums.update(extras.nums)
        for name, facts in extras.coordinates.items():
            self.coordinates.setdefault(name, CoordinateFacts()).merge(facts)

    def to_json(self) -> dict[str, Any]:
        """Returns the statistics of each image feature in the format of `statistics.json`."""
        facts_by_name = {name: facts.to_json(self.num_examples) for name, facts in sorted(self.images.items())}
        images = facts_by_name.pop(IMAGE, None) or ImageFacts().to_json(self.num_examples)
        return {"images": images} | ({"other_images": facts_by_name} if facts_by_name else {})


def merge_statistics(parts: Iterable[ImageStatistics]) -> ImageStatistics:
    """Merges the statistics of several parts."""
    merged = ImageStatistics()
    for part in parts:
        merged.merge(part)
    return merged
