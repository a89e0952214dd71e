"""Feature kind `tensor`: an array of any dtype and shape, stored as raw bytes."""

import math
from typing import Any

import numpy as np

from beam_pipelines.elements.input_record import ArrayPart
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics
from beam_pipelines.elements.tensor_sums import TensorSums
from beam_pipelines.features.feature_kind import EncodedExample, Encoder, EncoderOptions, FeatureKind
from beam_pipelines.features.image import image_data
from beam_pipelines.images.arrays import TensorValue, check_upright, tensor_of_bytes, tensor_of_file
from tf_input.dataset_format import Feature
from tf_input.serialized_example import BadExampleError, SerializedExample


class Tensor(FeatureKind):
    """The feature kind `tensor`."""

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        name = feature.name

        def encode(value: Any, example: EncodedExample) -> bytes:
            tensor = _tensor_of(feature, value, example)
            check_upright(tensor.shape, example.array_geometry)
            # The schema has `name` or, if the shape varies, `name/value` and `name/shape`.
            example.stored |= {f"{name}/value": tensor.data, f"{name}/shape": tensor.shape}
            if example.is_sampled:
                example.facts.append((self, feature, TensorSums.of(tensor.data, feature.dtype)))
            return tensor.data

        return encode

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> None:
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

    def recount(
        self, feature: Feature, example: SerializedExample, decoded: Any, split: SplitStatistics, statistics: ImageStatistics, is_sampled: bool
    ) -> None:
        if is_sampled:
            self.count(feature, TensorSums.of(image_data(feature, example), feature.dtype), split, statistics)

    def count(self, feature: Feature, fact: TensorSums, split: SplitStatistics, statistics: ImageStatistics) -> None:
        split.add_tensor(feature.name, fact)


def _tensor_of(feature: Feature, value: Any, example: EncodedExample) -> TensorValue:
    if isinstance(value, np.ndarray):
        return tensor_of_bytes(value.tobytes(), value.dtype, value.shape, feature)
    if isinstance(value, ArrayPart):
        return tensor_of_bytes(example.read(value), value.dtype, value.shape, feature)
    return tensor_of_file(value if isinstance(value, bytes) else example.read(value), feature)
