"""What is read of a record by its layout: where its image lies, the objects in it, its cells."""

import dataclasses
import math
import struct
from typing import Any, Mapping, NamedTuple

from beam_pipelines.config.columns import Column
from beam_pipelines.elements.labeled_image import FilePart
from beam_pipelines.errors import CONTROL, Refusal, UserError, printable
from beam_pipelines.images.annotations import Objects
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.cells.class_cells import known, read_class
from beam_pipelines.sources.folders.image_folder import nfc
from beam_pipelines.sources.records.record_layouts import Layout, ObjectsLayout
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.tfrecord.example_reader import BadExampleError, ExampleReader
from tf_input.dataset_format import LABEL, OBJECTS, Feature

_CHANNELS = (1, 3)
# Bytes of a shape that was written as an array -> how: two or three integers of 32 or 64 bits.
_SHAPES = {8: "<2i", 12: "<3i", 16: "<2q", 24: "<3q"}


class ImageSpan(NamedTuple):
    """Where in a record its image is.

    Attributes:
        offset: From the record's first byte of data.
        num_bytes: Its length.
        raw: How to read pixels that have no format; None: the image has one.
    """

    offset: int
    num_bytes: int
    raw: RawImage | None


def find_image(example: ExampleReader, layout: Layout) -> ImageSpan | None:
    """Finds the bytes of a record's image, and what it states about them; None: it is to have none.

    Raises:
        BadExampleError: There is no image, or more than one, or it is not of the size that the record states.
    """
    if not layout.image:
        return None
    spans = example.spans(layout.image)
    if len(spans) != 1:
        raise BadExampleError(f"{len(spans)} images in feature {layout.image!r}; expected one")
    offset, num_bytes = spans[0]
    if not 0 < num_bytes <= MAX_FILE_BYTES:
        raise BadExampleError(
            f"an image of {num_bytes} bytes in feature {layout.image!r}; expected 1 to {MAX_FILE_BYTES}"
        )
    raw = layout.raw or _read_raw(example, layout, num_bytes)
    if raw and raw.num_bytes != num_bytes:
        num_values = raw.height * raw.width * raw.num_channels
        kind = {4 * num_values: "float32", 8 * num_values: "float64"}.get(num_bytes)
        hint = f"; these may be of {kind}, and only uint8 is read" if kind else ""
        raise BadExampleError(
            f"{num_bytes} bytes in feature {layout.image!r}; expected {raw.height}x{raw.width}x{raw.num_channels}, of uint8{hint}"
        )
    return ImageSpan(offset, num_bytes, raw)


def _read_raw(example: ExampleReader, layout: Layout, num_bytes: int) -> RawImage | None:
    if layout.shape:
        shape = _read_shape(example, layout.shape)
    elif layout.height:
        shape = [_read_size(example, layout.height), _read_size(example, layout.width)]
        if layout.depth:
            shape.append(_read_size(example, layout.depth))
    else:
        return None
    if len(shape) == 2 and 0 not in shape:
        shape.append(3 if num_bytes == 3 * math.prod(shape) else 1)
    if len(shape) == 3 and min(shape) > 0 and max(shape) < 1 << 31:
        if shape[2] in _CHANNELS:
            return RawImage(*shape)
        if shape[0] in _CHANNELS:
            return RawImage(shape[1], shape[2], shape[0], is_planar=True)
    raise BadExampleError(f"shape {shape}; expected height, width and 1 or 3 channels")


def _read_shape(example: ExampleReader, name: str) -> list[int]:
    values = example.values(name)
    if len(values) == 1 and isinstance(values[0], bytes) and len(values[0]) in _SHAPES:
        return [*struct.unpack(_SHAPES[len(values[0])], values[0])]
    if not 2 <= len(values) <= 3 or not all(type(value) is int for value in values):
        raise BadExampleError(f"{len(values)} values in feature {name!r}; expected a shape of two or three integers")
    return [*values]


def _read_size(example: ExampleReader, name: str) -> int:
    values = example.values(name)
    if len(values) != 1 or type(values[0]) is not int:
        raise BadExampleError(f"{len(values)} values in feature {name!r}; expected one integer")
    return values[0]


class ObjectsReader:
    """Reads the objects of records.

    Args:
        layout: Their features.
        example: A record that has objects, if there is one: what it does not have, others are not asked for.
        names: Feature -> names of its integers.
        label_names: The class names that are given; empty: any.
    """

    def __init__(
        self,
        layout: ObjectsLayout,
        example: ExampleReader,
        names: dict[str, tuple[str, ...]],
        label_names: tuple[str, ...],
    ) -> None:
        self._boxes = layout.boxes
        is_there = (example.values, example.features.get)  # a feature without a value is better than none
        self._label = next((name for has in is_there for name in layout.labels if has(name)), layout.labels[-1])
        self._flags = {ours: theirs for ours, theirs in layout.flags.items() if theirs in example.features}
        self.class_names = () if label_names else names.get(self._label, ())
        self._label_names = label_names
        self.features = (
            Feature(f"{OBJECTS}/bbox", "bbox", (None, 4)),
            Feature(f"{OBJECTS}/{LABEL}", "class_label", (None,)),
            *(Feature(f"{OBJECTS}/{name}", "integer", (None,)) for name in sorted(self._flags)),
        )

    def read(self, example: ExampleReader) -> Objects:
        """The objects of one record.

        Raises:
            Refusal: A class or a box is not what is expected.
            BadExampleError: Features differ in how many values they have.
        """
        sides = [example.values(name) for name in self._boxes]
        if len(sides) == 1:
            sides = [sides[0][side::4] for side in range(4)]
        num_objects = len(sides[0])
        labels = example.values(self._label)
        flags = {ours: tuple(example.values(theirs)) for ours, theirs in self._flags.items()}
        for name, values in (
            (self._boxes[-1], sides[-1]),
            *zip(self._boxes, sides),
            (self._label, labels),
            *flags.items(),
        ):
            if len(values) != num_objects:
                raise BadExampleError(f"{len(values)} values of {num_objects} objects in feature {name!r}")
        if not all(isinstance(value, float) and math.isfinite(value) for side in sides for value in side):
            raise Refusal("bad_box", f"feature {self._boxes[0]!r} has a box that is not of finite numbers")
        if not all(type(value) is int for values in flags.values() for value in values):
            raise BadExampleError("flags that are no integers")
        return Objects(tuple(zip(*sides)), tuple(map(self._read_label, labels)), flags, is_relative=True)

    def _read_label(self, value: Any) -> str:
        names = self.class_names
        if names and type(value) is int:
            if not 0 <= value < len(names):
                raise Refusal("bad_label", f"feature {self._label!r} has {value}; expected 0 to {len(names) - 1}")
            return names[value]
        return known(read_class(value), self._label_names)


def read_cell(name: str, values: list[bytes] | list[float] | list[int], is_list: bool = False) -> Any:
    """The values of a feature: the one, or a list; None, if it has none.

    Args:
        name: Of the feature.
        values: Of the record.
        is_list: One value is a list, too.

    Raises:
        Refusal: Several are bytes, and one of them is no text.
    """
    if len(values) == 1 and not is_list:
        return values[0]
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in values] or None
    except UnicodeDecodeError:
        raise Refusal("bad_value", f"feature {name!r} is not UTF-8") from None


def read_key(example: ExampleReader, name: str) -> str:
    """The key that a feature has.

    Raises:
        Refusal: It is not text on one line.
    """
    values = example.values(name)
    text = values[0] if len(values) == 1 else b""
    try:
        key = nfc(text.decode() if isinstance(text, bytes) else str(text))
    except UnicodeDecodeError:
        key = ""
    if not key or CONTROL.search(key):
        raise Refusal("bad_key", f"feature {name!r} has {str(text)[:80]!r}; expected text on one line")
    return key


def read_array_start(example: ExampleReader, name: str) -> bytes:
    """The `.npy` file that a feature of bytes has.

    Raises:
        Refusal: It has not one, or numbers.
    """
    values = example.values(name)
    if has_numbers(example, name):
        raise Refusal("bad_array", f"it has {len(values)} numbers, and nothing says in what shape")
    if len(values) != 1:
        raise Refusal("bad_array", f"{len(values)} values; expected one, a .npy file")
    return values[0]


def read_part(path: str, start: int, example: ExampleReader, name: str) -> FilePart | list | None:
    """A mask or an array: where in the file it lies, or its numbers where these are a list; None: there is none.

    Args:
        path: Of the file.
        start: Of the record's data in it.
    """
    if has_numbers(example, name):
        return example.values(name) or None
    spans = example.spans(name)
    return FilePart(path, start + spans[0][0], spans[0][1]) if len(spans) == 1 else None


def has_numbers(example: ExampleReader, name: str) -> bool:
    """Whether a feature is a list of numbers."""
    return name in example.features and example.features[name].kind in ("float", "int64")


def settle_shapes(
    columns: tuple[Column, ...], example: ExampleReader, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Column, ...]:
    """The columns, with the shapes that the data set knows.

    Raises:
        UserError: One number is expected of a feature that has several in the first record.
    """
    return tuple(_settle_shape(column, example, shapes.get(column.names[0], ())) for column in columns)


def _settle_shape(column: Column, example: ExampleReader, known: tuple[int, ...]) -> Column:
    name = column.names[0]
    if column.shape or len(column.names) > 1 or column.kind not in ("float", "array") or not has_numbers(example, name):
        return column
    if len(known) > 1 or (known and column.kind == "array"):
        return dataclasses.replace(column, kind="array", shape=known)
    num_values = len(example.values(name))
    if column.kind == "float" and num_values > 1:
        if known == (num_values,):
            return dataclasses.replace(column, shape=known)
        shown = printable(name)
        raise UserError(
            f"{shown!r} has {num_values} numbers in the first record; expected {shown}:float[{num_values}], "
            f"or, if they are an array, {shown}:array[HEIGHT,WIDTH,…]"
        )
    return column
