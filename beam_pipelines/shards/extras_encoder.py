"""Encodes the extra features: all features of an example except its image, key, size and class.

They are encoded after the image, because some values depend on the size of the stored image.
"""

import contextlib
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.elements.coordinate_facts import CoordinateFacts
from beam_pipelines.elements.extras import Extras, OtherImage
from beam_pipelines.elements.input_record import ENTIRE_FILE, ArrayPart, FilePart
from beam_pipelines.elements.tensor_sums import TensorSums
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.features.kinds import KINDS
from beam_pipelines.images.annotations import Objects, Regions, Segments, follows_rotation, is_turn_guessed, place_points, transform_boxes
from beam_pipelines.images.array_values import check_upright, read_array, to_float32
from beam_pipelines.images.class_masks import check_ids, draw_regions, draw_segments, encode_mask, has_classes, read_colors, read_mask, transform_mask
from beam_pipelines.images.image_headers import check_storable
from beam_pipelines.images.images import CheckedImage, check_image, check_pixels
from beam_pipelines.images.mask_classes import MaskClasses
from beam_pipelines.images.raw_image import layout_of
from beam_pipelines.images.resize import Geometry
from beam_pipelines.images.tensor_values import NPY_MAGIC, TensorValue, npy_image, tensor_of_bytes, tensor_of_file
from beam_pipelines.storage.files import Files, read_in_any_form
from beam_pipelines.storage.spool import SpoolReader, read_exactly
from beam_pipelines.tfrecord.example_encoder import encode_extras, extra_features
from tf_input.coordinate_names import has_name_of_coordinates, is_number_or_list
from tf_input.dataset_format import IMAGE, LABEL, OBJECTS, Feature, catalog_features

# A placeholder for the geometry without an image, and for one-dimensional arrays, which do not depend on it.
_NOT_LOOKED_INTO = Geometry((0, 0), 1, (0, 0))


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
        catalog_values: The names of the extra number and string features that have a catalog column.
    """

    def __init__(
        self, schema: Sequence[Feature], root: str, source: SourceConfig, check: str = "strict", images: ImageConfig = ImageConfig()
    ) -> None:
        self.features = extra_features(schema)
        self._root = root
        self._source = source
        self._check = check
        self._images = images
        self._by_name = {feature.name: feature for feature in schema}
        self.catalog_values = tuple(feature.name for feature in catalog_features(schema).values() if not feature.is_categorical)
        self._has_image_shapes = any(feature.name == f"{IMAGE}/shape" for feature in self.features)
        self._object_positions = [
            feature for feature in self.features if feature.kind in KINDS and feature.is_of_objects
        ]
        self._maybe_coordinates = [
            feature for feature in schema if is_number_or_list(feature) and (feature.shape or has_name_of_coordinates(feature))
        ]
        self._positions = {
            feature.name: {name: position for position, name in enumerate(feature.label_names)}
            for feature in self.features
            if feature.is_categorical
        }
        self._mask_classes = {
            feature.name: MaskClasses(feature.label_names, source.mask_colors, source.mask_values)
            for feature in self.features
            if feature.is_mask
        }

    @property
    def label_features(self) -> tuple[str, ...]:
        """The names of the class features."""
        return tuple(self._positions)

    @property
    def image_names(self) -> tuple[str, ...]:
        """The names of all image features except `image`."""
        return tuple(feature.name for feature in self.features if feature.is_image)

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
        encoded: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        if self._has_image_shapes:
            encoded[f"{IMAGE}/shape"] = (*geometry.stored, self._by_name[IMAGE].shape[-1])
        for name, value in values.items():
            if name == OBJECTS:
                self._transform_boxes(value, geometry, encoded, facts)
            elif self._by_name[name].is_mask:
                with _file_named(name, value):
                    mask = self._make_mask(value, geometry, files, spool, self._mask_classes[name])
                if isinstance(value, Regions) or geometry.source_size == geometry.upright:
                    self._note_rotation(value.image_size if isinstance(value, Regions) else mask.shape, geometry, facts)
                with _file_named(name, value):
                    mask = transform_mask(mask, geometry, self._source.drawn_on)
                encoded[name] = encode_mask(mask)
                smallest, largest = facts.get("mask_values", (mask.min(), mask.max()))
                facts["mask_values"] = (min(int(mask.min()), int(smallest)), max(int(mask.max()), int(largest)))
                facts["mask_bits"] = max(8 * mask.itemsize, facts.get("mask_bits", 0))
                if (has_classes_in_mask := has_classes(mask)) is not None:
                    count = "num_class_masks" if has_classes_in_mask else "num_black_white_masks"
                    facts[count] = facts.get(count, 0) + 1
            elif self._by_name[name].is_image:
                with _file_named(name, value):
                    encoded[name], image = self._make_image(value, files, spool)
                encoded |= {f"{name}/height": image.height, f"{name}/width": image.width}
                facts.setdefault("images", {})[name] = image
            elif self._by_name[name].is_tensor:
                with _file_named(name, value):
                    tensor = self._make_tensor(self._by_name[name], value, geometry, files, spool)
                # The schema has `name` or, if the shape varies, `name/value` and `name/shape`.
                encoded |= {name: tensor.data, f"{name}/value": tensor.data, f"{name}/shape": tensor.shape}
                if is_sampled:
                    facts.setdefault("tensors", {})[name] = TensorSums.of(tensor.data, self._by_name[name].dtype)
            elif self._by_name[name].kind in KINDS:
                is_relative = self._source.box_unit == "relative"
                self._encode_positions(self._by_name[name], value, geometry, is_relative, None, encoded, facts)
                self._note_rotation(None, geometry, facts)
            else:
                with _file_named(name, value):
                    encoded[name] = self._convert(self._by_name[name], value, geometry, files, spool)
        if geometry is not None and (geometry.orientation != 1 or geometry.stored != geometry.upright):
            facts["coordinates"] = dict(self._coordinate_facts(encoded, geometry))
        labels = {name: np.atleast_1d(encoded[name]).tolist() for name in self._positions}
        values = {name: encoded[name] for name in self.catalog_values}
        return Extras(encode_extras(self.features, encoded), labels, values, **facts)

    def _coordinate_facts(self, encoded: Mapping[str, Any], geometry: Geometry) -> Iterator[tuple[str, CoordinateFacts]]:
        """Yields statistics of each numeric feature that may contain coordinates in a rotated or resized image."""
        for feature in self._maybe_coordinates:
            if (values := encoded.get(feature.name)) is not None:
                numbers = np.frombuffer(values, feature.dtype) if feature.is_tensor else values
                yield feature.name, CoordinateFacts.of(numbers, geometry)

    def _convert(self, feature: Feature, value: Any, geometry: Geometry | None, files: Files, spool: SpoolReader) -> Any:
        if feature.is_categorical:
            positions = self._positions[feature.name]
            return sorted(positions[name] for name in value) if feature.shape else positions[value]
        if feature.is_text:
            return [item.encode() for item in value] if feature.shape else value.encode()
        if isinstance(value, FilePart):
            return read_array(self._read(value, files, spool), feature.shape, geometry or _NOT_LOOKED_INTO)
        if feature.may_be_dense:
            check_upright(feature.shape, geometry or _NOT_LOOKED_INTO)
        return to_float32(self._read_numbers(value, files, spool)) if isinstance(value, ArrayPart) else value

    def _make_tensor(
        self, feature: Feature, value: Any, geometry: Geometry | None, files: Files, spool: SpoolReader
    ) -> TensorValue:
        if isinstance(value, np.ndarray):
            tensor = tensor_of_bytes(value.tobytes(), value.dtype, value.shape, feature)
        elif isinstance(value, ArrayPart):
            tensor = tensor_of_bytes(self._read(value, files, spool), value.dtype, value.shape, feature)
        else:
            tensor = tensor_of_file(value if isinstance(value, bytes) else self._read(value, files, spool), feature)
        check_upright(tensor.shape, geometry or _NOT_LOOKED_INTO)
        return tensor

    def _transform_boxes(self, value: Objects, geometry: Geometry, encoded: dict[str, Any], facts: dict[str, Any]) -> None:
        try:
            placed = transform_boxes(value, geometry, self._source.bad_boxes, self._source.drawn_on)
        except InvalidInput as error:
            raise InvalidInput(error.reason, f"{error}{self._form_of_boxes(error)}") from None
        label = f"{OBJECTS}/{LABEL}"
        encoded[f"{OBJECTS}/bbox"] = placed.boxes
        encoded[label] = [self._positions[label][value.labels[index]] for index in placed.kept]
        for flag, numbers in value.flags.items():
            encoded[f"{OBJECTS}/{flag}"] = [numbers[index] for index in placed.kept]
        for feature in self._object_positions:
            positions = KINDS[feature.kind].of_objects(feature, value.points.get(feature.name.removeprefix(f"{OBJECTS}/")), len(value.boxes))
            self._encode_positions(feature, positions[list(placed.kept)], geometry, value.is_relative, value.image_size, encoded, facts)
        facts |= {"num_dropped_boxes": placed.num_dropped, "num_clipped_boxes": placed.num_clipped}
        if value.boxes:
            self._note_rotation(value.image_size, geometry, facts)

    def _encode_positions(
        self,
        feature: Feature,
        value: np.ndarray,
        geometry: Geometry,
        is_relative: bool,
        size: tuple[int, int] | None,
        encoded: dict[str, Any],
        facts: dict[str, Any],
    ) -> None:
        """Encodes a value of a kind in `KINDS`, or the values of all objects."""
        place = lambda positions: place_points(positions, geometry, is_relative, size, self._source.drawn_on)
        numbers, num_outside = KINDS[feature.kind].encode(feature, value, place, self._source.bad_boxes)
        encoded[feature.name] = numbers
        facts.setdefault("counts", {})[feature.name] = KINDS[feature.kind].count(feature, numbers)
        facts.setdefault("num_outside", {})[feature.name] = num_outside

    def _form_of_boxes(self, error: InvalidInput) -> str:
        """Returns the box format for an error message about a box, if the source supports several formats."""
        if error.reason != "bad_box" or self._source.kind is None or not self._source.kind.has_box_forms:
            return ""
        return f" (boxes are read as --box_format {self._source.box_format or 'xywh'} --box_unit {self._source.box_unit or 'pixels'})"

    def _note_rotation(self, size: tuple[int, int] | None, geometry: Geometry, facts: dict[str, Any]) -> None:
        """Records if the image size in the annotations does not show whether the annotations are rotated."""
        if self._source.drawn_on is None and is_turn_guessed(size, geometry):
            facts["is_turn_guessed"] = True

    def _make_mask(
        self, value: FilePart | ArrayPart | Regions | Segments, geometry: Geometry, files: Files, spool: SpoolReader, classes: MaskClasses
    ) -> np.ndarray:
        """Returns a mask in its original orientation and size."""
        if isinstance(value, Regions):
            is_rotated = follows_rotation(value.image_size, geometry, "outlines were", self._source.drawn_on)
            value = value._replace(image_size=geometry.source_size if is_rotated else geometry.upright)
            return draw_regions(value, () if value.are_values else self._by_name[f"{OBJECTS}/{LABEL}"].label_names)
        if isinstance(value, Segments):
            colors = read_colors(self._read(FilePart(value.path), files, spool))
            return draw_segments(colors, value, self._by_name[f"{OBJECTS}/{LABEL}"].label_names)
        if isinstance(value, ArrayPart):
            return classes.of_values(check_ids(self._read_numbers(value, files, spool)))
        return read_mask(self._read(value, files, spool), classes)

    def _make_image(self, part: FilePart | ArrayPart, files: Files, spool: SpoolReader) -> tuple[bytes, OtherImage]:
        """Checks and encodes an additional image. Returns the bytes to store and the image's properties."""
        data = self._read(part, files, spool)
        checked = self._check_image(part, data)
        if checked is None:
            return data, OtherImage(part.path, len(data))
        stored = data if checked.encoded is None else checked.encoded
        kept = checked.format, checked.reencoded, checked.height, checked.width, checked.num_channels, checked.is_deep, checked.is_odd, checked.has_more_pages
        return stored, OtherImage(part.path, len(stored), *kept)

    def _check_image(self, part: FilePart | ArrayPart, data: bytes) -> CheckedImage | None:
        """Checks an additional image. Returns None if checks are disabled.

        Images from arrays are always checked, because they are encoded as PNG.
        """
        is_npy = isinstance(part, FilePart) and data.startswith(NPY_MAGIC)
        if isinstance(part, ArrayPart) or is_npy:
            raw, pixels = npy_image(data) if is_npy else (layout_of(part.shape, part.dtype), data)
            # Additional images that are stored as pixels always have three channels.
            return check_pixels(pixels, raw, self._images, is_file=is_npy or self._images.encoding == "raw")
        if self._check == "none":
            if not data:
                raise InvalidInput("unreadable", "the file is empty")
            check_storable(data)
            return None
        return check_image(data, self._check, images=self._images)

    def _read_numbers(self, part: ArrayPart, files: Files, spool: SpoolReader) -> np.ndarray:
        return np.frombuffer(self._read(part, files, spool), part.dtype).reshape(part.shape)

    def _read(self, part: FilePart | ArrayPart, files: Files, spool: SpoolReader) -> bytes:
        if part.spool:
            return read_exactly(spool, part.spool, part.offset, part.num_bytes)
        path = f"{self._root}/{part.path}"
        if part.offset == ENTIRE_FILE:
            return read_in_any_form(files.read, self._root, part.path)
        data = files.read_range(path, part.offset, part.num_bytes)
        if len(data) != part.num_bytes:
            raise InvalidInput("truncated", f"{len(data)} bytes at {part.offset} instead of {part.num_bytes}")
        return data


@contextlib.contextmanager
def _file_named(name: str, value: Any) -> Iterator[None]:
    """Context manager that adds the name of an additional feature, and the path of its file, to an `InvalidInput`."""
    try:
        yield
    except InvalidInput as error:
        if not isinstance(value, (FilePart, ArrayPart, Segments)):
            raise
        raise InvalidInput(error.reason, f"{name}: {printable(value.path)}: {error}") from None
