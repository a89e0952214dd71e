"""What `transform_fn/transform.json` says: what `recordmill analyze` looked at, and what its graph gives.

Standard library only, like `dataset_format`. `transform_fn/` is a SavedModel as TensorFlow Transform writes it, and beside it lies
`transformed_metadata/`, so that `tft.TFTransformOutput(OUT)` opens both; this file ties them to one version of the data set.
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
    """What is known of a transform without loading its graph.

    Attributes:
        manifest_sha256: The digest of the `manifest.json` of the data set that was analysed: `manifest_digest`.
        splits: The names of the splits that were analysed.
        num_examples: The number of examples that were analysed.
        schema: The features of a transformed example, by name in ascending order. One that the preprocessing passes on unchanged
            is what it is in the data set, class names and all; any other is `float`, `integer` or `text`.
        targets: The names of those features that a model is to predict.
        channels: The statistics of the default preprocessing: "mean" and "variance" of each channel's pixels, 0..255; None where it is the
            user's.
    """

    manifest_sha256: str
    splits: tuple[str, ...]
    num_examples: int
    schema: tuple[Feature, ...]
    targets: tuple[str, ...]
    channels: Mapping[str, list[float]] | None = None

    @property
    def features(self) -> dict[str, Feature]:
        """The features that transformed examples have, by name."""
        return {feature.name: feature for feature in self.schema}

    def to_json(self) -> str:
        """Returns the text of the file beside the graph."""
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
        """Reads what `transform.json` says.

        Raises:
            ValueError: It is none, or of another format version.
        """
        fields: dict[str, Any] = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("format", None) != "recordmill transform":
            raise ValueError("not what `recordmill analyze` writes")
        version = fields.pop("format_version")
        if version != TRANSFORM_VERSION:
            raise ValueError(f"format version {version}; this reader knows version {TRANSFORM_VERSION}")
        label_names = tuple(fields.pop("label_names"))
        fields["schema"] = tuple(Feature.from_json(feature, label_names) for feature in fields["schema"])
        return cls(**{**fields, "splits": tuple(fields["splits"]), "targets": tuple(fields["targets"])})


def manifest_digest(manifest: Manifest) -> str:
    """What ties a transform to a version of a data set: another manifest, another version."""
    return hashlib.sha256(manifest.to_json().encode()).hexdigest()


def decode_transform(data: bytes, path: str | os.PathLike[str], manifest: Manifest) -> TransformInfo:
    """From the bytes of `transform.json`.

    Raises:
        ValueError: It is damaged, of another format version, or of another version of the data set; the message names the path.
    """
    try:
        info = TransformInfo.from_json(data.decode())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if info.manifest_sha256 != manifest_digest(manifest):
        raise ValueError(
            f"{path}: made from another version of the data set (its manifest is {info.manifest_sha256[:12]}…, "
            f"this one's {manifest_digest(manifest)[:12]}…); expected a new `recordmill analyze`"
        )
    return info
