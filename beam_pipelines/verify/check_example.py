"""Checks an example against the schema."""

import math
from typing import Iterator, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.features.kinds import kind_of
from beam_pipelines.images.images import CheckedImage
from tf_input.dataset_format import Feature, stored_features
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
                if (decoded := kind_of(feature).check(feature, example, self._decodes, is_sampled)) is not None:
                    self.decoded[feature.name] = decoded
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
        return count


def _expected_count(feature: Feature) -> tuple[int, bool]:
    """Returns the expected number of values of a feature, and whether multiples of this number are also valid."""
    if feature.is_packed:
        return 1, False
    return math.prod(feature.shape[1:] if feature.is_ragged else feature.shape), feature.is_ragged
