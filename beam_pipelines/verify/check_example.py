"""Checks one example against the schema."""

import math
from typing import Iterator, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.images import check_image
from beam_pipelines.tfrecord.example_reader import BadExampleError, ExampleReader
from tf_input.dataset_format import FEATURE_KINDS, OBJECTS, Feature, stored_features


class ExampleCheck:
    """Checks examples against a schema.

    Args:
        schema: The schema of the dataset.
        decodes: Whether to decode images and masks.
    """

    def __init__(self, schema: Sequence[Feature], decodes: bool) -> None:
        self._schema = [(feature, FEATURE_KINDS[feature.kind], *_expected_count(feature)) for feature in stored_features(schema)]
        self._names = {feature.name for feature, *_ in self._schema}
        self._decodes = decodes

    def find(self, example: ExampleReader) -> Iterator[str]:
        """Yields the reasons why an example does not match the schema."""
        for name in sorted(self._names ^ example.features.keys()):
            yield f"it has no feature {name!r}" if name in self._names else f"it has a feature {name!r}, which the schema lacks"
        num_objects = set()
        for feature, stored, expected, is_multiple in self._schema:
            if feature.name not in example.features:
                continue
            try:
                count = self._check(feature, stored, expected, is_multiple, example)
            except (BadExampleError, InvalidInput, UnicodeDecodeError) as error:
                yield f"{feature.name}: {error}"
                continue
            if feature.name.startswith(f"{OBJECTS}/"):
                num_objects.add(count // math.prod(feature.shape[1:]))
        if len(num_objects) > 1:
            yield f"its features of objects have {', '.join(map(str, sorted(num_objects)))} objects; expected one number"

    def _check(self, feature: Feature, stored: str, expected: int, is_multiple: bool, example: ExampleReader) -> int:
        """Checks the values of a feature, and returns their number."""
        count, kind = example.count(feature.name), example.features[feature.name].kind
        if count and kind != stored:
            raise BadExampleError(f"a list of {kind}; expected {stored}")
        if count % expected if is_multiple else count != expected:
            raise BadExampleError(f"{count} values; expected {'a multiple of ' * is_multiple}{expected}")
        if feature.kind == "class_label":
            outside = [label for label in example.values(feature.name) if not 0 <= label < len(feature.label_names)]
            if outside:
                raise BadExampleError(f"label {outside[0]}; expected 0 to {len(feature.label_names) - 1}")
        if feature.kind == "text":
            for value in example.values(feature.name):
                value.decode()
        if feature.kind == "pixels":
            ((_, num_bytes),) = example.spans(feature.name)
            if num_bytes != math.prod(feature.shape):
                raise BadExampleError(f"{num_bytes} bytes of pixels; expected {math.prod(feature.shape)}")
        if feature.kind == "tensor":
            _check_tensor(feature, example)
        if self._decodes and feature.kind == "image":
            check_image(example.values(feature.name)[0], "strict")
        if self._decodes and feature.kind == "mask":
            read_mask(example.values(feature.name)[0])
        return count


def _expected_count(feature: Feature) -> tuple[int, bool]:
    """Returns the expected number of values, and whether multiples of this number are also valid."""
    if FEATURE_KINDS[feature.kind] == "bytes" and feature.kind != "text":
        return 1, False
    return math.prod(feature.shape[1:] if feature.is_ragged else feature.shape), feature.is_ragged


def _check_tensor(feature: Feature, example: ExampleReader) -> None:
    """Checks that the size of a tensor's bytes matches its shape in the schema or in the record."""
    ((_, num_bytes),) = example.spans(feature.name)
    shape, sides = feature.shape, f"{feature.name.removesuffix('/value')}/shape"
    if shape.count(None) > 1 and sides in example.features:
        found = tuple(example.values(sides))
        if len(found) != len(shape) or any(wanted not in (None, side) for side, wanted in zip(found, shape)):
            raise BadExampleError(f"a tensor of shape {found}; expected {shape}")
        shape = found
    unit = math.prod(side for side in shape if side is not None) * np.dtype(feature.dtype).itemsize
    if num_bytes != unit and (None not in shape or unit < 1 or num_bytes % unit):
        raise BadExampleError(
            f"{num_bytes} bytes of {feature.dtype} in the shape {shape}; expected {'a multiple of ' * (None in shape)}{unit}"
        )
