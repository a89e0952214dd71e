"""Encodes the extra features: all features of an example except its image, key, size and class.

They are encoded after the image, because some values depend on the size of the stored image.
"""

import contextlib
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.coordinate_facts import CoordinateFacts
from beam_pipelines.elements.extras import Extras
from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.features.feature_kind import EncodedExample, EncoderOptions
from beam_pipelines.features.kinds import kind_of
from beam_pipelines.features.objects import ObjectsEncoder
from beam_pipelines.images.annotations import Segments
from beam_pipelines.images.resize import Geometry
from beam_pipelines.storage.files import Files
from beam_pipelines.storage.spool import SpoolReader
from beam_pipelines.tfrecord.example_encoder import encode_extras, extra_features
from tf_input.coordinate_names import has_name_of_coordinates, is_number_or_list
from tf_input.dataset_format import IMAGE, OBJECTS, Feature, catalog_features


class ExtrasEncoder:
    """Encodes the extra features of examples.

    Args:
        schema: The schema of the dataset.
        root: The base folder of relative paths.
        source: The configuration of the source, which determines how bad boxes and rotated images are handled.
        check: The level of checks for additional images, one of `config.CHECKS`.
        images: The configuration of stored images.

    Attributes:
        features: The extra features.
        label_features: The names of the class features.
        image_names: The names of all image features except `image`.
        catalog_values: The names of the extra number and string features that have a catalog column.
    """

    def __init__(
        self, schema: Sequence[Feature], root: str, source: SourceConfig, check: str = "strict", images: ImageConfig = ImageConfig()
    ) -> None:
        self.features = extra_features(schema)
        self.label_features = tuple(feature.name for feature in self.features if feature.is_categorical)
        self.image_names = tuple(feature.name for feature in self.features if feature.is_image)
        self.catalog_values = tuple(feature.name for feature in catalog_features(schema).values() if not feature.is_categorical)
        self._options = options = EncoderOptions({feature.name: feature for feature in schema}, root, source, check, images)
        self._encoders = {feature.name: kind_of(feature).encoder(feature, options) for feature in schema if not feature.is_of_objects}
        self._encode_objects = ObjectsEncoder(options)
        self._has_image_shapes = any(feature.name == f"{IMAGE}/shape" for feature in self.features)
        self._maybe_coordinates = [
            feature for feature in schema if is_number_or_list(feature) and (feature.shape or has_name_of_coordinates(feature))
        ]

    def encode(
        self, values: Mapping[str, Any], geometry: Geometry | None, files: Files, spool: SpoolReader, is_sampled: bool = False
    ) -> Extras:
        """Encodes the extra features of an example.

        Args:
            values: The values by feature, as `sources` describes them.
            geometry: The rotation and resizing of the image. None if the image was not checked, or does not exist.
            files: The file system or object store of additional images, masks and arrays.
            spool: The reader of temporary files, for data that cannot be read twice from the source.
            is_sampled: Whether tensors are part of the statistics.

        Raises:
            InvalidInput: A value is invalid.
            OSError: A file could not be read.
        """
        example = EncodedExample(self._options, geometry, files, spool, is_sampled)
        stored, coordinates = example.stored, {}
        if self._has_image_shapes:
            stored[f"{IMAGE}/shape"] = (*geometry.stored, self._options.features[IMAGE].shape[-1])
        for name, value in values.items():
            if name == OBJECTS:
                self._encode_objects(value, example)
            else:
                with _file_named(name, value):
                    stored[name] = self._encoders[name](value, example)
        if geometry is not None and (geometry.orientation != 1 or geometry.stored != geometry.upright):
            coordinates = dict(self._coordinate_facts(stored, geometry))
        labels = {name: np.atleast_1d(stored[name]).tolist() for name in self.label_features}
        values = {name: stored[name] for name in self.catalog_values}
        entries = encode_extras(self.features, stored)
        return Extras(entries, labels, values, example.images, example.paths, example.facts, example.nums, coordinates)

    def _coordinate_facts(self, encoded: Mapping[str, Any], geometry: Geometry) -> Iterator[tuple[str, CoordinateFacts]]:
        """Yields statistics of each numeric feature that may contain coordinates in a rotated or resized image."""
        for feature in self._maybe_coordinates:
            if (values := encoded.get(feature.name)) is not None:
                numbers = np.frombuffer(values, feature.dtype) if feature.is_tensor else values
                yield feature.name, CoordinateFacts.of(numbers, geometry)


@contextlib.contextmanager
def _file_named(name: str, value: Any) -> Iterator[None]:
    """Context manager that adds a feature's name and the path of its file to the message of an `InvalidInput`."""
    try:
        yield
    except InvalidInput as error:
        if not isinstance(value, (FilePart, ArrayPart, Segments)):
            raise
        raise InvalidInput(error.reason, f"{name}: {printable(value.path)}: {error}") from None
