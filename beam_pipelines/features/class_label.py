"""Feature kind `class_label`: one class, or any number of classes, as indices into the class names."""

from typing import Any

from beam_pipelines.features.feature_kind import TFDS, Encoder, EncoderOptions, FeatureKind, StoredImages
from tf_input.dataset_format import Feature
from tf_input.serialized_example import BadExampleError, SerializedExample


class ClassLabel(FeatureKind):
    """The feature kind `class_label`."""

    task = "image-classification"
    has_tfds_lists = True

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        labels = {name: label for label, name in enumerate(feature.label_names)}
        if feature.shape:
            return lambda names, example: sorted(labels[name] for name in names)
        return lambda name, example: labels[name]

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> None:
        outside = [label for label in example.values(feature.name) if not 0 <= label < len(feature.label_names)]
        if outside:
            raise BadExampleError(f"label {outside[0]} is not from 0 to {len(feature.label_names) - 1}")

    def describe_tfds(self, feature: Feature, images: StoredImages) -> dict[str, Any]:
        label = {"numClasses": str(len(feature.label_names))}
        return {"pythonClassName": f"{TFDS}.class_label_feature.ClassLabel", "classLabel": label}
