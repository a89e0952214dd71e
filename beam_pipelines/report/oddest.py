"""Finds extreme examples in a sample, such as the largest or the darkest images."""

from typing import Callable, Iterator, NamedTuple

import numpy as np

from beam_pipelines.report.album import Album
from beam_pipelines.report.sample import Sample

_NUM_SHOWN = 4
_MAX_NAME = 100


class Odd(NamedTuple):
    """Extreme examples of one kind.

    Attributes:
        title: The title, such as `the largest images`.
        note: A sentence about the examples that were compared. Empty if the whole sample was compared.
        rows: The rows of the examples in the sample.
        description: The caption of each example, with the extreme value.
    """

    title: str
    note: str
    rows: list[int]
    description: list[str]


def find_oddest(sample: Sample, album: Album, has_brightness: bool) -> list[Odd]:
    """Returns the extreme examples of a sample, or an empty list if the dataset has no catalogs.

    Args:
        sample: The first examples of the dataset.
        album: The pictures of the examples.
        has_brightness: Whether the pictures are as bright as the stored images.
    """
    chosen: list[Odd] = []
    if not sample.table.num_columns:
        return chosen
    for odd in (*_find_by_size(sample), *(_find_by_brightness(sample, album) if has_brightness else ())):
        if odd.rows not in (other.rows for other in chosen):
            chosen.append(odd)
    return chosen


def _find_by_size(sample: Sample) -> Iterator[Odd]:
    known, height, width, num_bytes = _sizes(sample)
    pixels = height * width
    density = num_bytes / pixels
    sides = lambda at: f"{width[at]} × {height[at]}"
    dense = lambda at: f"{density[at]:.2f} bytes per pixel"
    yield from _at_end(sample, "Largest", "", known, -pixels, sides)
    yield from _at_end(sample, "Smallest", "", known, pixels, sides)
    yield from _at_end(sample, "Widest in relation to their height", "", known, -(width / height), sides)
    yield from _at_end(sample, "Tallest in relation to their width", "", known, -(height / width), sides)
    yield from _at_end(sample, "Fewest bytes per pixel (plain or strongly compressed)", "", known, density, dense)
    yield from _at_end(sample, "Most bytes per pixel (many details or noise)", "", known, -density, dense)


def _find_by_brightness(sample: Sample, album: Album) -> Iterator[Odd]:
    """Yields the darkest and the brightest images.

    To save time, only the first images of each split and images with few bytes per pixel are decoded.
    """
    known, height, width, num_bytes = _sizes(sample)
    num = album.num_decoded // 2
    plain = known[np.argsort(num_bytes / (height * width), kind="stable")[:num]]
    rows = np.unique(np.concatenate([_first_of_splits(sample, num), plain]))
    album.load(rows.tolist())
    light = album.brightness(rows.tolist())
    rows, light = rows[np.isfinite(light)], light[np.isfinite(light)]
    note = (
        f"Among {len(rows):,} decoded images: the first of each split, and the images with the fewest bytes per pixel."
    )
    brightness = lambda at: f"brightness {light[at]:.0%}"
    for title, values in (("Darkest", light), ("Brightest", -light)):
        yield from _at_end(sample, title, note if len(rows) < len(sample) else "", rows, values, brightness)


def _sizes(sample: Sample) -> tuple[np.ndarray, ...]:
    """Returns the rows with a known image size, and the height, width and number of bytes of each image."""
    columns = [sample.numbers(name) for name in ("height", "width", "num_bytes")]
    if any(column is None for column in columns):
        return tuple(np.zeros((4, 0), np.int64))
    known = np.flatnonzero((columns[0] > 0) & (columns[1] > 0))
    return known, *(column[known] for column in columns)


def _first_of_splits(sample: Sample, num: int) -> np.ndarray:
    """Returns at most `num` rows, from each split in proportion to its size."""
    place_in_split = np.arange(len(sample)) - np.searchsorted(sample.splits, sample.splits)
    return np.argsort(place_in_split / np.bincount(sample.splits)[sample.splits], kind="stable")[:num]


def _at_end(sample: Sample, title: str, note: str, rows: np.ndarray, values: np.ndarray, tell: Callable[[int], str]) -> Iterator[Odd]:
    """Yields the rows with the smallest values, unless all are equal. `tell` returns the caption for an index."""
    order = np.argsort(values, kind="stable")[:_NUM_SHOWN].tolist()
    if len(rows) and values.min() < values.max():
        keys = sample.texts("key", rows[order])
        yield Odd(title, note, rows[order].tolist(), [f"{tell(at)}: {key[:_MAX_NAME]}" for at, key in zip(order, keys)])
