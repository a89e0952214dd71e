"""Feature kind `float`: numbers, or lists and arrays of numbers, stored as float32."""

from typing import Any

from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.features.feature_kind import EncodedExample, Encoder, EncoderOptions, FeatureKind
from beam_pipelines.images.array_values import check_upright, read_array, to_float32
from tf_input.dataset_format import Feature


class Float(FeatureKind):
    """The feature kind `float`."""

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        def encode(value: Any, example: EncodedExample) -> Any:
            if isinstance(value, FilePart):
                return read_array(example.read(value), feature.shape, example.array_geometry)
            check_upright(feature.shape, example.array_geometry)
            return to_float32(example.read_numbers(value)) if isinstance(value, ArrayPart) else value

        return encode
