"""The format of `transform_fn/transform.json`, which describes a transform's dataset and the outputs of its graph.

This module uses only the standard library. `transform_fn/` is a SavedModel in the format of TensorFlow Transform, next
to `transformed_metadata/`, so that `tft.TFTransformOutput(OUT)` can open both. `transform.json` identifies the version
of the dataset from which both folders were computed.
"""

import dataclasses
import hashlib
import json
import os
from typing import Any, Mapping

from tf_input.dataset_format import LABEL, Feature, Manifest, to_json

TRANSFORM_FN = "transform_fn"
TRANSFORMED_METADATA = "transformed_metadata"
TRANSFORM = f"{TRANSFORM_FN}/transform.json"
TRANSFORM_VERSION = 1


@dataclasses.dataclass(frozen=True)
class TransformInfo:
    """The properties of a transform that are known without loading its graph.

    Attributes:
        manifest_sha256: The digest of the manifest of the analyzed dataset, from `manifest_digest`.
        splits: The names of the analyzed splits.
        num_examples: The number of analyzed examples.
        schema: The features of a transformed example, sorted by name. Features that the preprocessing passes through
            unchanged are as in the dataset, including class names. All other features are `float`, `integer` or `text`.
        targets: The names of the target features.
        channels: The statistics of the default preprocessing, "mean" and "variance" of each channel's pixels, 0..255;
            None with a user-defined preprocessing function.
    """

    manifest_sha256: str
    splits: tuple[str, ...]
    num_examples: int
    schema: tuple[Feature, ...]
    targets: tuple[str, ...]
    channels: Mapping[str, list[float]] | None = None

    @property
    def features(self) -> dict[str, Feature]:
        """The features of transformed examples, by name."""
        return {feature.name: feature for feature in self.schema}

    def to_json(self) -> str:
        """Returns the text of `transform.json`."""
        label = self.features.get(LABEL)
        fields = {
            "format": "recordmill transform",
            "format_version": TRANSFORM_VERSION,
            "manifest_sha256": self.manifest_sha256,
            "splits": list(self.splits),
            "num_examples": self.num_examples,
            "schema": [feature.to_json() for feature in self.schema],
            "label_names": list(label.label_names) if label else [],
            "targets": list(self.targets),
            "channels": self.channels,
        }
        return to_json(fields)

    @classmethod
    def from_json(cls, text: str) -> "TransformInfo":
        """Reads the text of `transform.json`.

        Raises:
            ValueError: The text is invalid, or has another format version.
        """
        fields: dict[str, Any] = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("format", None) != "recordmill transform":
            raise ValueError("`recordmill analyze` did not write this file")
        version = fields.pop("format_version")
        if version != TRANSFORM_VERSION:
            raise ValueError(
                f"format version {version} is not supported: this reader knows version {TRANSFORM_VERSION}"
            )
        label_names = tuple(fields.pop("label_names"))
        fields["schema"] = tuple(Feature.from_json(feature, label_names) for feature in fields["schema"])
        return cls(**{**fields, "splits": tuple(fields["splits"]), "targets": tuple(fields["targets"])})


def manifest_digest(manifest: Manifest) -> str:
    """Returns the digest of a manifest, which identifies a version of the dataset."""
    return hashlib.sha256(manifest.to_json().encode()).hexdigest()


def decode_transform(data: bytes, path: str | os.PathLike[str], manifest: Manifest) -> TransformInfo:
    """Decodes the bytes of `transform.json`.

    Raises:
        ValueError: The file is corrupt, has another format version, or belongs to another version of the dataset; the
            message names the path.
    """
    try:
        info = TransformInfo.from_json(data.decode())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if info.manifest_sha256 != manifest_digest(manifest):
        raise ValueError(
            f"{path} belongs to another version of the dataset (its manifest is {info.manifest_sha256[:12]}…, and here "
            f"{manifest_digest(manifest)[:12]}…). Run `recordmill analyze` again."
        )
    return info
