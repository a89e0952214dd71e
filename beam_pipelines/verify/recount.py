"""Recomputes the statistics of a dataset from its records and catalogs, with the code of `prepare`."""

import dataclasses
from collections import Counter
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from beam_pipelines.elements.quality import LabelSequence, ShuffleQualities
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics, is_sampled, sum_pixels
from beam_pipelines.elements.tensor_sums import TensorSums
from beam_pipelines.features.image import image_data, image_facts
from beam_pipelines.features.kinds import kind_of
from beam_pipelines.images.images import CheckedImage, StoredImage, check_pixels
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.publish.metadata import recorded_statistics
from tf_input.dataset_format import IMAGE, KEY, LABEL, Feature, Manifest
from tf_input.serialized_example import SerializedExample

# The precision of pixel statistics. `prepare` sums the pixels of a re-encoded image before encoding it.
EXACT, DECODED, REENCODED = range(3)
_LOSSY = ("jpeg", "webp")


@dataclasses.dataclass(frozen=True)
class ShardCounts:
    """The recomputed statistics of a shard.

    Attributes:
        statistics: The statistics of the records.
        labels: A mapping from class feature to the summary of its labels.
        has_catalog: Whether the shard has a catalog. Without a catalog, the image statistics are incomplete.
        precision: The precision of the pixel statistics: `EXACT`, `DECODED` or `REENCODED`.
    """

    statistics: ImageStatistics
    labels: Mapping[str, LabelSequence]
    has_catalog: bool
    precision: int


class RecordCounter:
    """Computes the statistics of the valid records of a shard.

    Args:
        manifest: The manifest of the dataset.
        split: The split of the shard.

    Attributes:
        images: The properties of the feature `image` of each record. The format is the format of the stored bytes.
    """

    def __init__(self, manifest: Manifest, split: str) -> None:
        self._manifest = manifest
        self._statistics = ImageStatistics()
        self._split = self._statistics.splits[list(manifest.splits).index(split)] = SplitStatistics()
        self._labels: dict[str, list[Any]] = {
            feature.name: [] for feature in manifest.schema if feature.is_categorical
        }
        self._decoded: list[int] = []  # The indices of the lossy images whose pixels are summed.
        self.images: list[StoredImage] = []

    def is_sampled(self, example: SerializedExample) -> bool:
        """Returns whether the pixels and tensors of an example are part of the statistics."""
        keys = example.values(KEY) if KEY in example.features else []
        return bool(is_sampled(shuffle_orders(self._manifest.seed, keys), self._manifest.num_inputs).any())

    def add(self, example: SerializedExample, decoded: Mapping[str, CheckedImage | np.ndarray], is_sampled: bool) -> None:
        """Adds a valid record.

        Args:
            example: The example in the record.
            decoded: The checked images and decoded masks of the example, by feature.
            is_sampled: Whether the pixels and tensors of the example are part of the statistics.
        """
        for feature in self._manifest.schema:
            if feature.is_categorical:
                self._labels[feature.name].append(example.values(feature.name))
            elif feature.name == IMAGE and feature.may_be_image:
                self._add_image(feature, example, decoded.get(IMAGE), is_sampled)
            else:
                kind_of(feature).recount(feature, example, decoded.get(feature.name), self._split, self._statistics, is_sampled)
        self._split.num_examples += 1

    def _add_image(
        self, feature: Feature, example: SerializedExample, checked: CheckedImage | None, is_sampled: bool
    ) -> None:
        image = image_facts(feature, example, checked)
        if is_sampled and feature.is_tensor:
            self._split.pixels.merge(TensorSums.of(image_data(feature, example), feature.dtype, feature.shape[-1]))
        elif is_sampled and (pixels := _pixels(feature, example, checked)) is not None:
            self._split.pixels.merge(sum_pixels(pixels))
            self._decoded += [len(self.images)] * (image.format in _LOSSY)
        self.images.append(image)

    def finish(self, formats: Sequence[str | None] | None, reencoded: Sequence[str | None] | None) -> ShardCounts:
        """Returns the statistics of the shard.

        Args:
            formats: The format of each source image, from the catalog. None if there is no catalog.
            reencoded: The reason why each image was re-encoded, from the catalog. None if there is no catalog.
        """
        precision = DECODED if self._decoded else EXACT
        if formats is not None and reencoded is not None and self.images:
            images = zip(self.images, formats, reencoded)
            sources = [image._replace(reencoded=reason or "", format=name) if name else StoredImage(image.num_bytes) for image, name, reason in images]
            self._statistics.images_of(IMAGE).add(sources)
            if any(reencoded[index] for index in self._decoded):
                precision = REENCODED
        self._split.num_bytes = sum(facts.num_bytes.total for facts in self._statistics.images.values())
        for name, lists in self._labels.items():
            self._split.other_labels[name] = Counter(label for labels in lists for label in labels)
        self._split.labels = self._split.other_labels.pop(LABEL, Counter())
        sequences = {name: LabelSequence.of_examples(lists) for name, lists in self._labels.items()}
        return ShardCounts(self._statistics, sequences, formats is not None, precision)


def _pixels(feature: Feature, example: SerializedExample, checked: CheckedImage | None) -> np.ndarray | None:
    """Returns the RGB pixels of a stored image, or None if their values depend on options of `prepare`."""
    if feature.is_file:
        return None if checked is None else checked.pixels
    if feature.shape[-1] == 4:  # An option of `prepare` sets the background of transparent pixels.
        return None
    return check_pixels(image_data(feature, example), RawImage(*feature.shape), full_scale=True).pixels


def count_all(manifest: Manifest, shards: Iterable[tuple[int, str, ShardCounts]], decodes: bool) -> dict[str, Any]:
    """Returns a JSON object with the recomputed fields of `statistics.json` and the precision of the pixel statistics.

    Args:
        manifest: The manifest of the dataset.
        shards: The index of each shard in the dataset, its split and its statistics, in any order.
        decodes: Whether images and masks were decoded.
    """
    images, precision, has_catalogs = ImageStatistics(), EXACT, True
    for position in range(len(manifest.splits)):
        images.splits[position] = SplitStatistics()
    qualities = {split: ShuffleQualities() for split in manifest.splits}
    for shard_number, split, counts in shards:
        images.merge(counts.statistics)
        qualities[split].add(shard_number, counts.labels)
        precision = max(precision, counts.precision)
        has_catalogs &= counts.has_catalog
    facts = recorded_statistics(images, manifest.schema, manifest.splits, qualities)
    _drop_unknown(facts, manifest, decodes, has_catalogs)
    return {"precision": precision, "statistics": facts}


def _drop_unknown(facts: dict[str, Any], manifest: Manifest, decodes: bool, has_catalogs: bool) -> None:
    """Removes statistics that cannot be recomputed."""
    image = manifest.features.get(IMAGE)
    for other in facts.get("other_images", {}).values():  # Their source formats are not in the catalog.
        del other["formats"], other["reencoded"]
    for images in (facts.get("images"), *facts.get("other_images", {}).values()):
        if images and images["channels"] is None:
            del images["channels"]
    if not decodes:
        facts.pop("mask", None)
    if image is None or (image.is_file and not decodes) or (image.is_image and image.shape[-1:] == (4,)):
        for split in facts["splits"].values():
            split.pop("pixels", None)
    if not has_catalogs:  # `recordmill transform` copies these fields from its input.
        for name in ("images", "other_images", "mask"):
            facts.pop(name, None)
        for split in facts["splits"].values():
            for name in ("image_bytes", "pixels", "tensors"):
                split.pop(name, None)
