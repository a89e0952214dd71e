"""Defines the options and input properties that all shard writers of a run share."""

import dataclasses
import functools

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.stage_spec import StageSpec
from beam_pipelines.elements.dead_letters import max_dead_letters
from beam_pipelines.elements.extras import Extras
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.statistics import is_sampled
from beam_pipelines.shards.extras_encoder import ExtrasEncoder
from beam_pipelines.tfrecord.example_encoder import ExampleEncoder, is_core
from tf_input.dataset_format import IMAGE, LABEL, Feature


@dataclasses.dataclass(frozen=True)
class WriteSpec(StageSpec):
    """The values that workers need to read, check and write images. See `PrepareOptions` for the fields."""

    name: str
    source: SourceConfig
    images: ImageConfig
    check: str
    hashes_images: bool
    max_bad_fraction: float


@dataclasses.dataclass(frozen=True)
class WriteContext:
    """The options and input properties that all shard writers of a run share."""

    spec: WriteSpec
    listing: Listing

    def __getstate__(self) -> dict[str, object]:
        return {"spec": self.spec, "listing": self.listing}

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        """The features of an example, by name."""
        return {feature.name: feature for feature in self.listing.schema}

    @functools.cached_property
    def has_labels(self) -> bool:
        """Whether each example has exactly one class, which is then also stored in the index."""
        return LABEL in self.features and is_core(self.features[LABEL])

    @functools.cached_property
    def labels(self) -> dict[bytes, int]:
        """A mapping from the class names of the feature `label` to the integers that are stored."""
        names = self.features[LABEL].label_names if self.has_labels else ("",)
        return {name.encode(): position for position, name in enumerate(names)}

    @functools.cached_property
    def pixel_bytes(self) -> int | None:
        """The size of each image in bytes if images are stored as raw pixels. Otherwise None."""
        feature = self.features.get(IMAGE)
        return int(np.prod(feature.shape)) if feature is not None and feature.is_image and feature.shape else None

    @functools.cached_property
    def tensor(self) -> Feature | None:
        """The image feature if images are stored as tensors. Otherwise None."""
        feature = self.features.get(IMAGE)
        return feature if feature is not None and feature.is_tensor else None

    @functools.cached_property
    def extras(self) -> ExtrasEncoder:
        """The encoder of extra features."""
        spec = self.spec
        return ExtrasEncoder(self.listing.schema, self.listing.root, spec.source, spec.check, spec.images)

    @functools.cached_property
    def encoder(self) -> ExampleEncoder:
        """The encoder of serialized examples."""
        return ExampleEncoder(self.listing.schema)

    def encode(self, example: InputRecord, extras: Extras | None) -> bytes:
        """Serializes an example without an image."""
        values = {"key": example.key.encode(), LABEL: self.labels[example.label.encode()]}
        return self.encoder.encode_all(values, extras.entries if extras else ())

    def is_sampled(self, orders: np.ndarray) -> np.ndarray:
        """Returns which images, given by shuffle key, contribute to the pixel statistics, bool [num_images]."""
        return is_sampled(orders, self.listing.num_inputs)

    @functools.cached_property
    def max_dead_letters(self) -> int:
        """The maximum number of dead letters in a successful run."""
        return max_dead_letters(self.spec.max_bad_fraction, self.listing.num_inputs)
