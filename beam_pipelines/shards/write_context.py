"""What every shard of a run shares: its options, and what is known of its inputs."""

import dataclasses
import functools

import numpy as np

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.extras import Extras
from beam_pipelines.elements.labeled_image import LabeledImage
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.statistics import NUM_PIXEL_SAMPLES
from beam_pipelines.shards.extras_encoder import ExtrasEncoder
from beam_pipelines.tfrecord.example_encoder import ExampleEncoder, is_core
from tf_input.dataset_format import IMAGE, LABEL, Feature


@dataclasses.dataclass(frozen=True)
class WriteContext:
    """What the writers of a run's shards share. It travels pickled, and what follows from it is made where it is needed."""

    config: PrepareJob
    listing: Listing

    def __getstate__(self) -> dict[str, object]:
        return {"config": self.config, "listing": self.listing}

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        """The features of an example, by name."""
        return {feature.name: feature for feature in self.listing.schema}

    @functools.cached_property
    def has_labels(self) -> bool:
        """Whether an example has one class, which the index then speaks of."""
        return LABEL in self.features and is_core(self.features[LABEL])

    @functools.cached_property
    def labels(self) -> dict[bytes, int]:
        """Class name of `label` -> its position; an image without that feature has the name "" and the position 0."""
        names = self.features[LABEL].label_names if self.has_labels else ("",)
        return {name.encode(): position for position, name in enumerate(names)}

    @functools.cached_property
    def pixel_bytes(self) -> int | None:
        """The bytes of each image's pixels, where images are stored without a format; None where they have one, or there are none."""
        feature = self.features.get(IMAGE)
        return int(np.prod(feature.shape)) if feature is not None and feature.kind == "pixels" else None

    @functools.cached_property
    def tensor(self) -> Feature | None:
        """The feature of images that are tensors; None where they are of uint8."""
        feature = self.features.get(IMAGE)
        return feature if feature is not None and feature.kind == "tensor" else None

    @functools.cached_property
    def extras(self) -> ExtrasEncoder:
        """What encodes an example's values beside its image."""
        config = self.config
        return ExtrasEncoder(self.listing.schema, self.listing.root, config.source, config.check, config.images)

    @functools.cached_property
    def encoder(self) -> ExampleEncoder:
        """What makes records of values."""
        return ExampleEncoder(self.listing.schema)

    def encode(self, example: LabeledImage, extras: Extras | None) -> bytes:
        """The serialized example of an input without an image."""
        values = {"key": example.key.encode(), LABEL: self.labels[example.label.encode()]}
        return self.encoder.encode_all(values, extras.entries if extras else b"")

    def is_sampled(self, orders: np.ndarray) -> np.ndarray:
        """The images that lend their pixels to the statistics: about `NUM_PIXEL_SAMPLES`, always the same ones, and as many of each shard.

        Args:
            orders: The shuffle keys of the images, uint64 [num_images].

        Returns:
            Whether each image is one of them, bool [num_images].
        """
        below = min(2**64 - 1, NUM_PIXEL_SAMPLES * 2**64 // max(self.listing.num_inputs, 1))
        return orders << np.uint64(32) < np.uint64(below)  # the bits that decide about shards the least

    @functools.cached_property
    def max_dead_letters(self) -> int:
        """How many inputs of the run may be dead letters: with more of them it fails."""
        return int(self.config.max_bad_fraction * self.listing.num_inputs)
