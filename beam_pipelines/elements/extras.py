"""Defines the encoded features of an example, except its image and label."""

from typing import Any, Mapping, NamedTuple, Sequence

from beam_pipelines.elements.coordinate_facts import CoordinateFacts
from beam_pipelines.images.images import StoredImage
from tf_input.dataset_format import Feature


class Extras(NamedTuple):
    """The encoded features of an example, except its image and label, and statistics about the feature values.

    Attributes:
        entries: The entry of each encoded feature, from `tfrecord.example_encoder.encode_extras`.
        labels: A mapping from class feature to the labels of the example.
        values: A mapping from each other feature in the catalog to its number, or to its UTF-8 string.
        images: A mapping from the name of each additional image to its properties.
        paths: A mapping from the name of each additional image to the path of its file, relative to the source's root.
        facts: The kind, the feature and the fact of each value that the statistics count (see `FeatureKind.count`).
        nums: Numbers of events for `ImageStatistics.nums`, by name.
        coordinates: A mapping from each feature that may contain coordinates to its statistics. Empty if the image was
            neither rotated nor resized.
    """

    entries: Sequence[bytes]
    labels: dict[str, list[int]]
    values: Mapping[str, Any]
    images: Mapping[str, StoredImage]
    paths: Mapping[str, str]
    facts: Sequence[tuple[Any, Feature, Any]]
    nums: Mapping[str, int]
    coordinates: Mapping[str, CoordinateFacts] = {}
