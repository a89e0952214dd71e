"""Checks an example against the schema."""

import math
from typing import Iterator, Sequence

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.features.kinds import KINDS
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.image_headers import NEVER_STORED, identify
from beam_pipelines.images.images import CheckedImage, check_image
from tf_input.dataset_format import IMAGE, Feature, stored_features
from tf_input.serialized_example import BadExampleError, SerializedExample


class ExampleCheck:
    """Checks examples against a schema.

    Args:
        schema: The schema of the dataset.
        decodes: Whether to decode images and masks.

    Attributes:
        decoded: The checked images and the decoded masks of the last example, by feature. Images that `prepare` did not
            check are missing.
    """

    def __init__(self, schema: Sequence[Feature], decodes: bool) -> None:
        self._schema = [(feature, feature.storage, *_expected_count(feature)) for feature in stored_features(schema)]
        self._names = {feature.name for feature, *_ in self._schema}
        self._decodes = decodes
        self.decoded: dict[str, CheckedImage | np.ndarray] = {}

    def find(self, example: SerializedExample, is_sampled: bool = False) -> Iterator[str]:
        """Yields the reasons why an example does not match the schema.

        Args:
            example: The example.
            is_sampled: Whether the pixels of `image` are needed for statistics.
        """
        self.decoded = {}
        for name in sorted(self._names ^ example.features.keys()):
            yield f"feature {name!r} is missing" if name in self._names else f"feature {name!r} is not in the schema"
        num_objects = set()
        for feature, stored, expected, is_multiple in self._schema:
            if feature.name not in example.features:
                continue
            try:
                count = self._check(feature, stored, expected, is_multiple, example)
                if feature.is_image_file:
                    self._check_image(feature, example, is_sampled and self._decodes and feature.name == IMAGE)
                elif self._decodes and feature.is_mask:
                    self.decoded[feature.name] = read_mask(example.values(feature.name)[0])
            except (BadExampleError, InvalidInput, UnicodeDecodeError) as error:
                yield f"{feature.name}: {error}"
                continue
            if feature.is_of_objects:
                num_objects.add(count // math.prod(feature.shape[1:]))
        if len(num_objects) > 1:
            yield (
                f"the features of objects have different numbers of objects: {', '.join(map(str, sorted(num_objects)))}"
            )

    def _check(self, feature: Feature, stored: str, expected: int, is_multiple: bool, example: SerializedExample) -> int:
        """Checks the values of a feature and returns the number of values."""
        count, actual = example.count(feature.name), example.features[feature.name].storage
        if count and actual != stored:
            raise BadExampleError(f"a list of {actual} instead of {stored}")
        if count % expected if is_multiple else count != expected:
            raise BadExampleError(f"{count} values instead of {'a multiple of ' * is_multiple}{expected}")
        if feature.is_categorical:
            outside = [label for label in example.values(feature.name) if not 0 <= label < len(feature.label_names)]
            if outside:
                raise BadExampleError(f"label {outside[0]} is not from 0 to {len(feature.label_names) - 1}")
        if feature.is_text:
            for value in example.values(feature.name):
                value.decode()
        if feature.is_image and not feature.is_file:
            ((_, num_bytes),) = example.spans(feature.name)
            if num_bytes != math.prod(feature.shape):
                raise BadExampleError(f"{num_bytes} bytes of pixels instead of {math.prod(feature.shape)}")
        if feature.is_tensor:
            _check_tensor(feature, example)
        if feature.kind in KINDS:
            KINDS[feature.kind].check(feature, np.array(example.values(feature.name), np.float32))
        return count

    def _check_image(self, feature: Feature, example: SerializedExample, full_scale: bool) -> None:
        """Checks an image and compares its height and width with the record.

        If `prepare` did not check the image, the size in the record is 0 or missing.
        """
        prefix = "" if feature.name == IMAGE else f"{feature.name}/"
        size = tuple(value for side in ("height", "width") for value in _integers(example, f"{prefix}{side}"))
        if not self._decodes and not any(size):
            return
        data = example.values(feature.name)[0]
        if (image_format := identify(data)) in NEVER_STORED:
            raise BadExampleError(f"an image in the format {image_format}, which TensorFlow does not decode")
        images = ImageConfig(format="webp") if image_format == "webp" else ImageConfig()
        checked = check_image(data, "strict" if self._decodes else "header", full_scale=full_scale, images=images)
        if any(size) and size != (checked.height, checked.width):
            stated = " x ".join(map(str, size))
            raise BadExampleError(f"an image of {checked.height} x {checked.width} pixels; the record has {stated}")
        self.decoded[feature.name] = checked


def _integers(example: SerializedExample, name: str) -> list[int]:
    return list(example.values(name)) if name in example.features and example.features[name].storage == "int64" else []


def _expected_count(feature: Feature) -> tuple[int, bool]:
    """Returns the expected number of values of a feature, and whether multiples of this number are also valid."""
    if feature.is_packed:
        return 1, False
    return math.prod(feature.shape[1:] if feature.is_ragged else feature.shape), feature.is_ragged


def _check_tensor(feature: Feature, example: SerializedExample) -> None:
    """Checks that the size of a tensor matches its shape."""
    ((_, num_bytes),) = example.spans(feature.name)
    shape, sides = feature.shape, f"{feature.name.removesuffix('/value')}/shape"
    if shape.count(None) > 1 and sides in example.features:
        actual_shape = tuple(example.values(sides))
        if len(actual_shape) != len(shape) or any(wanted not in (None, side) for side, wanted in zip(actual_shape, shape)):
            raise BadExampleError(f"a tensor of shape {actual_shape} instead of {shape}")
        shape = actual_shape
    unit = math.prod(side for side in shape if side is not None) * np.dtype(feature.dtype).itemsize
    if num_bytes != unit and (None not in shape or unit < 1 or num_bytes % unit):
        raise BadExampleError(
            f"{num_bytes} bytes of {feature.dtype} in the shape {shape} instead of "
            f"{'a multiple of ' * (None in shape)}{unit}"
        )
