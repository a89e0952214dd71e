"""Feature kind `text`: strings in UTF-8."""

from typing import Any

from beam_pipelines.features.feature_kind import TFDS, Encoder, EncoderOptions, FeatureKind, StoredImages
from tf_input.dataset_format import Feature
from tf_input.serialized_example import SerializedExample


class Text(FeatureKind):
    """The feature kind `text`."""

    has_tfds_lists = True

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        if feature.shape:
            return lambda texts, example: [text.encode() for text in texts]
        return lambda text, example: text.encode()

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> None:
        for value in example.values(feature.name):
            value.decode()

    def describe_tfds(self, feature: Feature, images: StoredImages) -> dict[str, Any]:
        if feature.shape:
            return super().describe_tfds(feature, images)
        return {"pythonClassName": f"{TFDS}.text_feature.Text", "text": {}}
