"""Feature kind `float`: numbers, or lists and arrays of numbers, stored as float32."""

from typing import Any

from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.features.feature_kind import EncodedExample, Encoder, EncoderOptions, FeatureKind
from beam_pipelines.images.arrays import FLOAT_DTYPES, check_upright, read_npy, to_float32, to_shape
from tf_input.dataset_format import Feature


class Float(FeatureKind):
    """The feature kind `float`."""

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        def encode(value: Any, example: EncodedExample) -> Any:
            check_upright(feature.shape, example.array_geometry)
            if isinstance(value, FilePart):
                return to_shape(read_npy(example.read(value), "bad_array", FLOAT_DTYPES), feature.shape)
            return to_float32(example.read_numbers(value)) if isinstance(value, ArrayPart) else value

        return encode
