"""Detects the layout of TFRecords from other tools, and the shapes of their raw arrays, from the first records.

The writer and the reader of datasets share this module, so that both detect the same layouts and give the same
messages. The module uses only the standard library.
"""

import dataclasses
import difflib
import math
import re
import struct
from typing import Any, Iterable, Mapping, Sequence

from tf_input.dataset_format import IMAGE, LABEL, OBJECTS
from tf_input.record_layouts import DTYPES, LAYOUTS, MAPPING, SIDES, VALUES, Item, Layout, parse_layout

MAX_RECORDS, MAX_BYTES = 64, 32 << 20  # the sample ends when either limit is reached
NUM_CHANNELS = (1, 3, 4)  # channels of images; images with other numbers become tensors

# Features that describe an image and are not labels.
_OF_IMAGES = re.compile(r"image/(format|filename|height|width|depth|channels|colorspace|shape)")
_MAX_SHAPE_BYTES = 64  # size limit of a stored shape
_ENCODED = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF")


@dataclasses.dataclass(frozen=True)
class FieldValues:
    """The values of one feature in the first records.

    Attributes:
        values: The values of the feature in the first record that contains the feature.
        counts: The numbers of values in all records whose values have the same type as `values`.
        storages: The storage types of the feature in all records, such as "bytes".
        are_flags: Whether all values are 0 or 1.
    """

    values: Sequence[Any] = ()
    counts: frozenset[int] = frozenset([0])
    storages: frozenset[str] = frozenset()
    are_flags: bool = False

    @property
    def storage(self) -> str:
        """The storage types of the values, such as "bytes"; "empty" if there are no values."""
        return " and ".join(sorted(self.storages)) or "empty"

    @property
    def kind(self) -> str:
        """The feature kind that fits the values. If types differ, the first record decides."""
        first = next(iter(self.values), 0)
        return "text" if isinstance(first, bytes) else "float" if isinstance(first, float) else "integer"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one record's values. The first dimension is None if its size varies between records."""
        count, *others = self.counts
        return (None,) if others or not count else () if count == 1 else (count,)

    @property
    def is_multi_hot(self) -> bool:
        """Whether the values are multi-hot vectors, with a 0 or 1 for each class."""
        return self.are_flags and self.storage == "int64" and self.shape not in ((), (None,))

    def __str__(self) -> str:
        return f"{self.storage} × {'..'.join(str(count) for count in sorted({min(self.counts), max(self.counts)}))}"


# The features of one record: name -> (storage type, values). The storage type of an empty feature is "".
Stored = Mapping[str, tuple[str, Sequence[Any]]]


def read_values(examples: Sequence[Stored]) -> dict[str, FieldValues]:
    """Returns the values of all features in the records, by feature name."""
    seen = {}
    for name in dict.fromkeys(name for example in examples for name in example):
        lists = [example.get(name, ("", ())) for example in examples]
        storages = dict.fromkeys(storage for storage, some in lists if some) or dict.fromkeys(storage for storage, _ in lists if storage)
        # values of other types are errors
        values = [some for storage, some in lists if not some or storage == next(iter(storages))]
        are_flags = all(isinstance(item, int) and item in (0, 1) for some in values for item in some)
        seen[name] = FieldValues(next(filter(len, values), ()), frozenset(map(len, values)), frozenset(storages), are_flags)
    return seen


def find_layout(
    layout: str | Mapping[str, Any] | None,
    seen: Mapping[str, FieldValues],
    message_start: str,
    *,
    prefers_text: bool,
    needs_label: bool = True,
) -> Layout:
    """Returns the layout of the records. In the result, each item refers to exactly one stored feature.

    Args:
        layout: The user's layout, as for `parse_layout`. None selects the first of `LAYOUTS` that matches. If no
            feature contains bytes, None selects all features under their own names.
        seen: The features of the first records, by name.
        message_start: The beginning of messages, such as "its first records have".
        prefers_text: Whether to prefer a feature with strings to one with numbers if an item has alternatives.
        needs_label: Whether records must contain the label, or the labels of objects, if the layout has them. Default:
            True.

    Raises:
        ValueError: The layout is invalid, no layout matches, or features are missing.
    """
    has = f"{message_start} {describe_fields(seen)}"
    if layout is None:
        known = map(parse_layout, LAYOUTS)
        chosen = next((candidate for candidate in known if not _missing(candidate, seen, needs_label) and _matches(candidate, seen)), None)
        if chosen is None and seen and not any("bytes" in values.storages for values in seen.values()):
            chosen = Layout(VALUES, {name: Item((name,)) for name in sorted(seen)})
        if chosen is None:
            raise ValueError(f"{has}, which is no known layout ({', '.join(LAYOUTS)}). {_advise(seen)}")
    else:
        chosen = parse_layout(layout)
        objects = {feature for name, item in chosen.items.items() if name.startswith(f"{OBJECTS}/") for feature in item.names}
        may_come_later = chosen.name != MAPPING and seen.keys().isdisjoint(objects)  # the first images may have no objects
        if missing := [names for names in _missing(chosen, seen, needs_label) if not (may_come_later and objects.issuperset(names))]:
            near = difflib.get_close_matches(missing[0][0], seen, n=1) if chosen.name == MAPPING else ()
            needed = ", ".join(map(" or ".join, missing))
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"layout {chosen.name} needs {needed}; {has}{guess}")
    items = {}
    for name, item in chosen.items.items():
        stored_names = [name_in_records for name_in_records in item.names if name_in_records in seen]
        stored_names.sort(key=lambda stored_name: (not seen[stored_name].storages, ("bytes" in seen[stored_name].storages) != prefers_text))
        if stored_names or not item.is_optional or item.default:
            items[name] = item._replace(names=tuple(stored_names[:1] or item.names[-1:]), is_optional=False)
    return Layout(chosen.name, items)


def _missing(layout: Layout, seen: Mapping[str, FieldValues], needs_label: bool) -> list[tuple[str, ...]]:
    """Returns the required features that are missing from the records. Each missing feature is returned as a tuple of
    its possible names."""
    optional_names = () if needs_label else (LABEL, f"{OBJECTS}/{LABEL}")
    needed = [item.names for name, item in layout.items.items() if item.names and not item.is_optional and name not in optional_names]
    return [names for names in needed if seen.keys().isdisjoint(names)]


def _matches(layout: Layout, seen: Mapping[str, FieldValues]) -> bool:
    """Returns whether a layout fits the records. The layout "images", which has no label, matches only records without
    a feature that could be a label."""
    return layout.name != "images" or all(name == "image/encoded" or _OF_IMAGES.fullmatch(name) for name in seen)


def _advise(seen: Mapping[str, FieldValues]) -> str:
    """Returns advice for records that match no known layout."""
    known = [item.name for item in (parse_layout(name).items[IMAGE] for name in LAYOUTS) if item.name in seen]
    image = max(known, key=len, default="FEATURE")
    if image == "image/encoded":
        has_boxes = all(f"image/object/{side.removeprefix('objects/')}" in seen for side in SIDES)
        problem = "This layout needs classes for boxes. " * has_boxes
        return f"{problem}To read only images, pass the layout image={image}; with labels, image={image},label=FEATURE."
    return (
        f"Pass a layout such as image={image},label=FEATURE, or without label=FEATURE if there are no labels. Raw pixels "
        "also need height=FEATURE,width=FEATURE or shape=FEATURE, or numbers, as in height=28,width=28,depth=1."
    )


def describe_fields(seen: Mapping[str, FieldValues]) -> str:
    """Describes the features of records for messages."""
    shown = [f"{_printable(name)} ({item})" for name, item in sorted(seen.items())[:20]]
    return ", ".join(shown) + (f" and {len(seen) - 20} more" if len(seen) > 20 else "") or "no features"


def _printable(name: str) -> str:
    return name[:64] if name.isprintable() else repr(name[:64])[1:-1]


def number_items(layout: Layout, seen: Mapping[str, FieldValues]) -> tuple[str, ...]:
    """Returns the items of a layout that store raw arrays: items with a dtype, and raw images."""
    typed = tuple(name for name, item in layout.items.items() if item.dtype)
    image, sides = layout.items.get(IMAGE), _sides(layout)
    if image is None or image.dtype or not sides:
        return typed
    (data, *_) = (*seen.get(image.name, FieldValues()).values, b"")
    if isinstance(data, bytes) and data.startswith(_ENCODED):
        try:  # raw pixels may begin like a BMP
            shape = stated_shape(layout, sides, {name: entry.values for name, entry in seen.items()}, len(data))
        except ValueError:
            return typed
        if len(shape) not in (2, 3) or math.prod(as_pixels(shape, len(data))[:3]) != len(data):
            return typed
    return (*typed, IMAGE)


def side_items(layout: Layout, seen: Mapping[str, FieldValues]) -> tuple[str, ...]:
    """Returns the items that define the shapes of raw arrays; empty if no raw array needs a stored shape."""
    return _sides(layout) if any(layout.items[name].shape is None for name in number_items(layout, seen)) else ()


def _sides(layout: Layout) -> tuple[str, ...]:
    if {"height", "width"} <= layout.items.keys():
        return tuple(name for name in ("height", "width", "depth") if name in layout.items)
    return ("shape",) if "shape" in layout.items else ()


def is_encoded(data: bytes) -> bool:
    """Returns whether bytes start with the signature of an image format."""
    return data.startswith(_ENCODED)


def stated_shape(layout: Layout, sides: Sequence[str], values: Mapping[str, Sequence[Any]], num_values: int) -> tuple[int, ...]:
    """Returns the shape that a record specifies.

    Args:
        layout: The layout of the record.
        sides: The names of the items that define the sides, from `side_items`.
        values: The values of the record's features, at least of those that define sides.
        num_values: The number of values in the array. It shows whether a stored shape has 32-bit or 64-bit integers.

    Raises:
        ValueError: The record specifies no valid shape. The message is one line.
    """
    numbers: list[int] = []
    for side in sides:
        item = layout.items[side]
        name = side if item.number is not None else item.name
        stated = [item.number] if item.number is not None else _integers(values.get(name, ()), num_values)
        if len(stated) != 1 and side != "shape" or not stated or not all(type(entry) is int and 0 < entry < 1 << 31 for entry in stated):
            raise ValueError(
                f"feature {name!r} has {len(stated)} values, {stated[:4]!r:.80}. A shape must consist of integers "
                f"from 1 to {(1 << 31) - 1}."
            )
        numbers += stated
    return tuple(numbers)


def record_shapes(layout: Layout, sides: Sequence[str], item: Item, examples: Iterable[Stored]) -> list[tuple[int, ...]]:
    """Returns the shape of a raw array in each of the first records. Records that store no shape are skipped.

    Raises:
        ValueError: No record states a shape, or the numbers of sides differ. The message is one line.
    """
    if item.shape is not None:
        return [item.shape]
    shapes, example_shape = [], f"{item.name}:{item.dtype or 'uint8'}[28,28,1]"
    problem = f"{item.name} has no shape. Add shape=FEATURE to the layout, or write {example_shape}."
    for example in examples:
        values = {name: some for name, (_, some) in example.items()}
        (data, *_) = (*values.get(item.name, ()), b"")
        try:
            if isinstance(data, bytes) and data and sides:
                shapes.append(stated_shape(layout, sides, values, len(data) // DTYPES[item.dtype or "uint8"]))
        except ValueError as error:
            problem = str(error)
    if not shapes or len(set(map(len, shapes))) > 1:
        sides = sorted(set(map(len, shapes)))
        raise ValueError(f"records have shapes of {sides} sides; all must have the same number" if shapes else problem)
    return shapes


def common_shape(shapes: Sequence[tuple[int, ...]], is_list: bool) -> tuple[int | None, ...]:
    """Returns the common shape of an array in all records, with None for dimensions that differ.

    If `is_list` is True, all dimensions except the channels of images may differ between records.
    """
    sides = tuple(result[0] if len(set(result)) == 1 else None for result in zip(*shapes))
    may_differ = len(sides) - (len(sides) == 3) if is_list else 0
    return (None,) * may_differ + sides[may_differ:]


def _integers(values: Sequence[Any], num_values: int) -> list[Any]:
    """Returns the integers of a feature, which may be stored as the bytes of a 32-bit or 64-bit array."""
    if len(values) != 1 or not isinstance(values[0], bytes):
        return list(values)
    data = values[0]
    sizes = [(code, size) for code, size in (("q", 8), ("i", 4)) if len(data) in range(size, _MAX_SHAPE_BYTES + 1, size)]
    read = [[*struct.unpack(f"<{len(data) // size}{code}", data)] for code, size in sizes]
    # one third: a shape without channels, of RGB pixels
    fitting = [item for item in read if math.prod(item) in (num_values, num_values // 3)]
    return (fitting or read[:1] or [[]])[0]


def as_pixels(shape: Sequence[int], num_values: int, dtype: str = "uint8") -> tuple[int, int, int, bool]:
    """Returns (height, width, channels, whether channels come first) of a raw image.

    Args:
        shape: The stated shape: height, width and channels; channels, height and width; or height and width.
        num_values: The number of values, from which missing channels are computed.
        dtype: The dtype of the values. Arrays of other dtypes than uint8 become tensors, whose sides are not reordered.
            Default: uint8.

    Raises:
        ValueError: The shape is not the shape of an image. The message is one line.
    """
    shape = tuple(shape)
    if len(shape) == 2:
        shape += (3 if num_values == 3 * math.prod(shape) else 1,)
    if len(shape) != 3:
        raise ValueError(f"shape {list(shape)} is not an image. It must have a height, a width and channels.")
    if dtype == "uint8" and shape[0] in NUM_CHANNELS and shape[2] not in NUM_CHANNELS:
        return shape[1], shape[2], shape[0], True
    return *shape, False


def wrong_size(name: str, num_bytes: int, shape: Sequence[int], dtype: str = "uint8") -> str:
    """Returns the error message for a raw array whose number of bytes does not match its shape."""
    others = [f"{name}:{item}" for item in ("float32", "float64", "uint8") if DTYPES[item] * math.prod(shape) == num_bytes]
    hint = f". To read them as {others[0].rpartition(':')[2]}, use the layout {others[0]}." if others else ""
    return f"feature {name!r} has {num_bytes} bytes, which do not fit {'x'.join(map(str, shape))} of {dtype}{hint}"
