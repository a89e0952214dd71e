"""Feature kind `mask`: a PNG with the class of each pixel of the image."""

from typing import Any

import numpy as np

from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics
from beam_pipelines.features.feature_kind import TFDS, EncodedExample, Encoder, EncoderOptions, FeatureKind, StoredImages
from beam_pipelines.images.annotations import Regions, Segments, follows_rotation
from beam_pipelines.images.class_masks import check_ids, draw_regions, draw_segments, encode_mask, has_classes, read_colors, read_mask, transform_mask
from beam_pipelines.images.mask_classes import MaskClasses
from tf_input.dataset_format import LABEL, OBJECTS, Feature
from tf_input.serialized_example import SerializedExample


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
            _add_facts(mask, example.facts)
            return encode_mask(mask)

        return encode

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> np.ndarray | None:
        return read_mask(example.values(feature.name)[0]) if decodes else None

    def recount(
        self, feature: Feature, example: SerializedExample, decoded: Any, split: SplitStatistics, statistics: ImageStatistics, is_sampled: bool
    ) -> None:
        if decoded is not None:
            statistics.mask_values.add([int(decoded.min()), int(decoded.max())])
            statistics.mask_bits.add([8 * decoded.itemsize])

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


def _add_facts(mask: np.ndarray, facts: dict[str, Any]) -> None:
    """Adds the statistics of a mask to the fields of `Extras`."""
    smallest, largest = facts.get("mask_values", (mask.min(), mask.max()))
    facts["mask_values"] = (min(int(mask.min()), int(smallest)), max(int(mask.max()), int(largest)))
    facts["mask_bits"] = max(8 * mask.itemsize, facts.get("mask_bits", 0))
    if (has_classes_in_mask := has_classes(mask)) is not None:
        count = "num_class_masks" if has_classes_in_mask else "num_black_white_masks"
        facts[count] = facts.get(count, 0) + 1
