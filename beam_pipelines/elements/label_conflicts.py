"""Finds near-duplicate images that have different labels."""

import dataclasses
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.elements.listed_values import decode_values
from beam_pipelines.errors import printable
from beam_pipelines.storage.spool import SpoolReader
from tf_input.dataset_format import LABEL, OBJECTS, Feature

# A class name. For features with any number of classes, a sorted tuple of distinct class names.
Label = str | tuple[str, ...]

_NUM_SHOWN = 10  # Maximum number of conflicts to list.
_NUM_IMAGES_SHOWN = 3  # Maximum number of images to list for each conflict.


class Conflict(NamedTuple):
    """A cluster of near-duplicate images whose labels differ.

    Attributes:
        feature: The name of the label feature.
        images: The key and label of the first image with each label, for the first few labels.
    """

    feature: str
    images: tuple[tuple[str, Label], ...]

    def describe(self) -> str:
        """Formats the conflict as one line."""
        images = ", ".join(f"{printable(key)!r} is {printable(show_label(label))!r}" for key, label in self.images)
        return f"of {printable(self.feature)} {images}"


@dataclasses.dataclass(frozen=True)
class Conflicts:
    """The label conflicts in all clusters of near-duplicates.

    Attributes:
        num: The number of clusters with a conflict in any class feature.
        of_features: A mapping from class feature to the number of clusters with a conflict.
        first: The first few conflicts.
    """

    num: int = 0
    of_features: Mapping[str, int] = dataclasses.field(default_factory=dict)
    first: tuple[Conflict, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the label conflicts in the format of `leaks.json`."""
        conflicts = []
        for feature, images in self.first:
            conflicts.append({"feature": feature, "images": [{"key": key, "label": to_plain(label)} for key, label in images]})
        return {"num_conflicts": self.num, "num_conflicts_of": dict(self.of_features), "conflicts": conflicts}


def find_conflicts(clusters: np.ndarray, key_of: Callable[[int], str], labels: Mapping[str, Sequence[Label | None]]) -> Conflicts:
    """Finds clusters whose images have different labels.

    Args:
        clusters: The cluster number of each image in ascending order, int64 [num_images]. See `order_clusters`.
        key_of: A function that returns the key of an image, given its index.
        labels: A mapping from class feature to the label of each image. None is an unknown label, which never
            conflicts.
    """
    spanning = {}
    for name, values in labels.items():
        numbers: dict[Label, int] = {}
        codes = np.array([numbers.setdefault(value, len(numbers)) for value in values if value is not None], np.int64)
        known = clusters[[value is not None for value in values]]
        starts = np.flatnonzero(np.diff(known, prepend=-1))
        differs = np.minimum.reduceat(codes, starts) != np.maximum.reduceat(codes, starts) if len(starts) else []
        spanning[name] = known[starts[differs]]
    conflicts = sorted((cluster, name) for name, of_feature in spanning.items() for cluster in of_feature[:_NUM_SHOWN].tolist())
    first = []
    for cluster, name in conflicts[:_NUM_SHOWN]:
        images: dict[Label, str] = {}
        for image in range(*np.searchsorted(clusters, [cluster, cluster + 1]).tolist()):
            if (label := labels[name][image]) is not None and label not in images and len(images) < _NUM_IMAGES_SHOWN:
                images[label] = key_of(image)
        first.append(Conflict(name, tuple((key, label) for label, key in images.items())))
    num = len(np.unique(np.concatenate([np.zeros(0, np.int64), *spanning.values()])))
    return Conflicts(num, {name: len(of_feature) for name, of_feature in spanning.items()}, tuple(first))


def order_clusters(clusters: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images of all clusters with at least two images, in a reproducible order.

    Args:
        clusters: The cluster number of each image, int64 [num_images].
        ranks: The rank of each image's key in sorted order, int64 [num_images].

    Returns:
        The indices of the images, ordered by the first key of their cluster, then by key. Also the new cluster number
        of each image, counted from 0 in this order.
    """
    _, numbers, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    first = np.full(len(sizes), len(ranks))
    np.minimum.at(first, numbers, ranks)
    members = np.flatnonzero(sizes[numbers] > 1)
    members = members[np.lexsort((ranks[members], first[numbers[members]]))]
    return members, np.cumsum(np.diff(clusters[members], prepend=-1) != 0) - 1


def read_labels(schema: Iterable[Feature], labels: Sequence[bytes], values: Sequence[bytes], spool: SpoolReader) -> dict[str, list[Label]]:
    """Returns the labels of all inputs for each class feature."""
    features = [feature for feature in schema if feature.is_categorical]
    labels_by_feature: dict[str, list[Label]] = {feature.name: [] for feature in features}
    others = [feature for feature in features if not _is_one_class(feature)]
    if len(others) < len(features):
        labels_by_feature[LABEL] = [label.decode() for label in labels]
    for data in values if others else ():
        read = decode_values(data, spool) or {}
        for feature in others:
            names = read[OBJECTS].classes(feature.name) if feature.is_of_objects else read[feature.name]
            labels_by_feature[feature.name].append(as_label(names) if feature.shape else str(names))
    return labels_by_feature


def _is_one_class(feature: Feature) -> bool:
    return feature.name == LABEL and not feature.shape


def as_label(names: Iterable[str]) -> Label:
    """Creates a label from the class names of an example that can have several classes."""
    return tuple(sorted(set(names)))


def to_plain(label: Label) -> str | list[str]:
    """Returns a label as a JSON-serializable value."""
    return label if isinstance(label, str) else list(label)


def show_label(label: Label | Sequence[str]) -> str:
    """Formats a label for messages."""
    return label if isinstance(label, str) else ", ".join(label) or "none"
