"""Feature kind `mask`: a PNG with the class of each pixel of the image."""

from typing import Any, NamedTuple

import numpy as np

from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics
from beam_pipelines.features.feature_kind import TFDS, EncodedExample, Encoder, EncoderOptions, FeatureKind, StoredImages
from beam_pipelines.images.annotations import Regions, Segments, follows_rotation
from beam_pipelines.images.class_masks import check_ids, draw_regions, draw_segments, encode_mask, has_classes, read_colors, read_mask, transform_mask
from beam_pipelines.images.mask_classes import MaskClasses
from tf_input.dataset_format import LABEL, OBJECTS, Feature
from tf_input.serialized_example import SerializedExample


class _MaskFacts(NamedTuple):
    """The value range, the number of bits per pixel, and the result of `has_classes` for a mask."""

    smallest: int
    largest: int
    num_bits: int
    has_classes: bool | None


class Mask(FeatureKind):
    """The feature kind `mask`."""

    task = "image-segmentation"

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        classes = MaskClasses(feature.label_names, options.source.mask_colors, options.source.mask_values)

        def encode(value: Any, example: EncodedExample) -> bytes:
            geometry = example.geometry
            mask = _mask_of(value, example, classes)
            if isinstance(value, Regions) or geometry.source_size == geometry.upright:
                example.note_rotation(value.image_size if isinstance(value, Regions) else mask.shape)
            mask = transform_mask(mask, geometry, options.source.drawn_on)
            example.facts.append((self, feature, _facts_of(mask)))
            return encode_mask(mask)

        return encode

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> np.ndarray | None:
        return read_mask(example.values(feature.name)[0]) if decodes else None

    def recount(
        self, feature: Feature, example: SerializedExample, decoded: Any, split: SplitStatistics, statistics: ImageStatistics, is_sampled: bool
    ) -> None:
        if decoded is not None:
            self.count(feature, _facts_of(decoded), split, statistics)

    def count(self, feature: Feature, fact: "_MaskFacts", split: SplitStatistics, statistics: ImageStatistics) -> None:
        statistics.add_range("mask_values", [fact.smallest, fact.largest])
        statistics.add_range("mask_bits", [fact.num_bits])
        if fact.has_classes is not None:
            statistics.nums["num_class_masks" if fact.has_classes else "num_black_white_masks"] += 1

    def statistics(self, statistics: ImageStatistics) -> dict[str, Any]:
        """Returns the value range and the maximum bit depth of all masks."""
        if (values := statistics.ranges.get("mask_values")) is None:
            return {"mask": None}
        return {"mask": {"min": values.smallest, "max": values.largest, "bits": statistics.ranges["mask_bits"].largest}}

    def describe_tfds(self, feature: Feature, images: StoredImages) -> dict[str, Any]:
        image: dict[str, Any] = {"shape": {"dimensions": ["-1", "-1", "1"]}, "dtype": f"uint{images.mask_bits}", "encodingFormat": "png"}
        if not feature.label_names:
            return {"pythonClassName": f"{TFDS}.image_feature.Image", "image": image}
        image["label"] = {"numClasses": str(len(feature.label_names))}
        return {"pythonClassName": f"{TFDS}.labeled_image.LabeledImage", "image": image}


def _mask_of(value: FilePart | ArrayPart | Regions | Segments, example: EncodedExample, classes: MaskClasses) -> np.ndarray:
    """Returns a mask in its original orientation and size."""
    if isinstance(value, Regions):
        geometry = example.geometry
        is_rotated = follows_rotation(value.image_size, geometry, "outlines were", example.options.source.drawn_on)
        value = value._replace(image_size=geometry.source_size if is_rotated else geometry.upright)
        return draw_regions(value, () if value.are_values else _object_names(example))
    if isinstance(value, Segments):
        return draw_segments(read_colors(example.read(FilePart(value.path))), value, _object_names(example))
    if isinstance(value, ArrayPart):
        return classes.of_values(check_ids(example.read_numbers(value)))
    return read_mask(example.read(value), classes)


def _object_names(example: EncodedExample) -> tuple[str, ...]:
    return example.options.features[f"{OBJECTS}/{LABEL}"].label_names


def _facts_of(mask: np.ndarray) -> _MaskFacts:
    return _MaskFacts(int(mask.min()), int(mask.max()), 8 * mask.itemsize, has_classes(mask))
