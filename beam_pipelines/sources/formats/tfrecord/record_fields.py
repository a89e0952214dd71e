"""Reads values, such as the position of the image and the objects, from a record whose layout is known."""

import dataclasses
import math
from typing import Any, Mapping, Sequence

import numpy as np

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.input_record import ArrayPart, FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.columns.keypoints import to_points
from beam_pipelines.images.annotations import Objects
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.cells.array_cells import resolve_array
from beam_pipelines.sources.cells.cells import in_column
from beam_pipelines.sources.cells.objects import ObjectReader
from beam_pipelines.sources.formats.tfrecord.record_layouts import Layout, ObjectsLayout
from beam_pipelines.storage import MAX_FILE_BYTES
from tf_input.dataset_format import OBJECTS, Feature
from tf_input.first_records import as_pixels, stated_shape, wrong_size
from tf_input.record_layouts import DTYPES
from tf_input.serialized_example import BadExampleError, SerializedExample


def add_image(image: InputRecord, example: SerializedExample, layout: Layout, start: int) -> InputRecord:
    """Adds the location of the image in a record to an input, if the layout has images.

    Args:
        image: The input.
        example: The record.
        layout: The layout of the record.
        start: The offset of the record's data in the file, in bytes.

    Raises:
        BadExampleError: There is not exactly one image, or its size differs from the size in the record.
    """
    if not layout.image:
        return image
    spans = example.spans(layout.image)
    if len(spans) != 1:
        raise BadExampleError(f"{len(spans)} images in feature {layout.image!r}; it must have one")
    offset, num_bytes = spans[0]
    if not 0 < num_bytes <= MAX_FILE_BYTES:
        raise BadExampleError(f"an image of {num_bytes} bytes in feature {layout.image!r}; it must have 1 to {MAX_FILE_BYTES}")
    raw = layout.raw or _read_raw(example, layout, num_bytes)
    if raw and raw.num_bytes != num_bytes:
        raise BadExampleError(wrong_size(layout.image, num_bytes, raw[:3], np.dtype(raw.dtype).name))
    return image._replace(num_bytes=num_bytes, offset=start + offset, raw=raw)


def _read_raw(example: SerializedExample, layout: Layout, num_bytes: int) -> RawImage | None:
    if layout.image not in layout.numbers:
        return None
    dtype, num_values, shape = _read_shape(example, layout, layout.image, num_bytes)
    try:
        return RawImage(*as_pixels(shape, num_values, dtype), dtype=stored_dtype(dtype))
    except ValueError as error:
        raise BadExampleError(printable(str(error))) from None


def _read_shape(example: SerializedExample, layout: Layout, name: str, num_bytes: int) -> tuple[str, int, tuple[int, ...]]:
    """Returns the dtype, the count and the shape of the numbers that a bytes value contains. Raises `BadExampleError`
    if the record contains no valid shape."""
    item = layout.numbers[name]
    dtype = item.dtype or "uint8"
    num_values = num_bytes // DTYPES[dtype]
    values = {side.name: example.values(side.name) for side in map(layout.stated.items.__getitem__, layout.sides) if side.names}
    try:
        return dtype, num_values, item.shape or stated_shape(layout.stated, layout.sides, values, num_values)
    except ValueError as error:
        raise BadExampleError(printable(str(error))) from None


class RecordObjects(ObjectReader):
    """Reads the objects of records.

    Args:
        layout: The features with the objects.
        source: The options for class names.
        names: Feature -> class names, if its integers are class indices.
    """

    def __init__(self, layout: ObjectsLayout, source: SourceConfig, names: Mapping[str, tuple[str, ...]]) -> None:
        self._boxes, self._label, self._flags, declared = layout
        self._declared = {feature.name: feature for feature in declared}
        integers = sorted(flag for flag, name in self._flags.items() if name not in self._declared)
        super().__init__(source, integers, names.get(self._label, ()))
        self.features += declared

    @property
    def label_names(self) -> dict[str, tuple[str, ...]]:
        declared = {name: feature.label_names for name, feature in self._declared.items() if feature.is_categorical}
        return super().label_names | declared

    def read(self, row: Mapping[str, Any]) -> Objects:
        """Returns the objects of the record in the cell `objects`. Raises `InvalidInput` if a class or a box is invalid,
        and `BadExampleError` if the features have different numbers of values."""
        example: SerializedExample = row[OBJECTS]
        sides = [example.values(name) for name in self._boxes]
        if len(sides) == 1:
            sides = [sides[0][side::4] for side in range(4)]
        num_objects = len(sides[0])
        labels = example.values(self._label)
        for name, values in ((self._boxes[-1], sides[-1]), *zip(self._boxes, sides), (self._label, labels)):
            _check_count(name, values, num_objects)
        read = {
            flag: _read_flag(name, example.values(name), num_objects, self._declared.get(name))
            for flag, name in self._flags.items()
        }
        if not all(isinstance(value, float) and math.isfinite(value) for side in sides for value in side):
            raise InvalidInput("bad_box", f"feature {self._boxes[0]!r} has a box with a number that is not finite")
        names = tuple(in_column(self._label, self._class, self._label, value) for value in labels)
        with_points = {name for name, feature in self._declared.items() if feature.shape[1:]}
        points = {flag: read[flag] for flag, name in self._flags.items() if name in with_points}
        flags = {flag: values for flag, values in read.items() if flag not in points}
        return Objects(tuple(zip(*sides)), names, flags, is_relative=True, points=points)


def _read_flag(name: str, values: Sequence[Any], num_objects: int, feature: Feature | None) -> tuple[Any, ...]:
    """Returns the value of a flag for each object: a number, a class name, or points. `feature` is the feature that the
    dataset declares, or None for an integer. Raises `BadExampleError` if a value is missing or invalid."""
    point_shape = feature.shape[1:] if feature else ()
    _check_count(name, values, num_objects * math.prod(point_shape))
    number = float if feature and feature.storage != "int64" else int
    if not all(type(value) is number for value in values):
        raise BadExampleError(f"some values of feature {name!r} are not of the type {number.__name__}")
    if point_shape:
        return tuple(to_points(points) for points in np.array(values).reshape(num_objects, *point_shape))
    if feature and feature.is_categorical:
        if not all(0 <= value < len(feature.label_names) for value in values):
            raise BadExampleError(f"some values of feature {name!r} are not class numbers")
        return tuple(feature.label_names[value] for value in values)
    return tuple(values)


def _check_count(name: str, values: Sequence[Any], num_values: int) -> None:
    if len(values) != num_values:
        raise BadExampleError(f"{len(values)} values in feature {name!r}; the number of objects requires {num_values}")


def read_cell(name: str, values: list[bytes] | list[float] | list[int], is_list: bool = False) -> Any:
    """Returns the only value of a feature, or None if there are no values. If there are several values or `is_list` is
    true, returns a list and decodes bytes to strings. Raises `InvalidInput` if bytes in the list are not UTF-8."""
    if len(values) == 1 and not is_list:
        return values[0]
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in values] or None
    except UnicodeDecodeError:
        raise InvalidInput("bad_value", f"feature {name!r} is not valid UTF-8") from None


def resolve_by_record(example: SerializedExample, column: Column) -> Column:
    """Determines the shape and dtype of an array column from a `.npy` file in a bytes feature. Raises `InvalidInput` if
    the feature does not contain exactly one `.npy` file."""
    name = column.names[0]
    values = example.values(name)
    if len(values) != 1 or has_numbers(example, name):
        stored = "numbers, whose shape is not stated" if has_numbers(example, name) else "values; it must be one .npy file"
        raise InvalidInput("bad_array", f"{len(values)} {stored}")
    return resolve_array(column, values[0])


def read_part(path: str, start: int, example: SerializedExample, name: str, layout: Layout) -> FilePart | ArrayPart | list | None:
    """Returns the location of a mask, image or array in the file `path`. If an array is stored as a list of numbers,
    returns this list. Returns None if the feature is missing. `start` is the offset of the record's data in the file.
    Raises `BadExampleError` if the number of bytes does not match the shape in the record."""
    if has_numbers(example, name):
        return example.values(name) or None
    spans = example.spans(name)
    if len(spans) != 1:
        return None
    ((offset, num_bytes),) = spans
    if name not in layout.numbers:
        return FilePart(path, start + offset, num_bytes)
    dtype, _, shape = _read_shape(example, layout, name, num_bytes)
    if name == layout.mask:
        shape = shape[:2]
    if math.prod(shape) * DTYPES[dtype] != num_bytes:
        raise BadExampleError(wrong_size(name, num_bytes, shape, dtype))
    return ArrayPart(path, start + offset, num_bytes, stored_dtype(dtype), shape)


def stored_dtype(dtype: str) -> str:
    """Returns a dtype in NumPy's notation for little-endian numbers."""
    return np.dtype(dtype).newbyteorder("<").str


def has_numbers(example: SerializedExample, name: str) -> bool:
    """Returns whether a feature is a list of numbers."""
    return name in example.features and example.features[name].storage in ("float", "int64")


def resolve_shapes(
    columns: tuple[Column, ...], example: SerializedExample, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Column, ...]:
    """Adds shapes from the metadata of the dataset to the columns. Raises `UserError` if a column has a single number, but
    the first record has several."""
    return tuple(_resolve_shape(column, example, shapes.get(column.names[0], ())) for column in columns)


def _resolve_shape(column: Column, example: SerializedExample, known: tuple[int, ...]) -> Column:
    name = column.names[0]
    form = form_of(column)
    is_array = form.is_nested and not form.is_typed
    if column.shape or len(column.names) > 1 or not (is_array or form.value_type is float) or not has_numbers(example, name):
        return column
    if len(known) > 1 or (known and is_array):
        return dataclasses.replace(column, kind="array", shape=known)
    num_values = len(example.values(name))
    if not is_array and num_values > 1:
        if known == (num_values,):
            return dataclasses.replace(column, shape=known)
        shown = printable(name)
        raise UserError(
            f"{shown!r} has {num_values} numbers in the first record. Use {shown}:float[{num_values}], or, if they "
            f"form an array, {shown}:array[HEIGHT,WIDTH,…]."
        )
    return column
