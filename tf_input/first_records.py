"""What the first of TFRecords that others wrote tell of all: which layout they have, and the shapes of bytes that are numbers.

Standard library only, like `record_layouts`, so that writer and reader find the same, and say it in the same words.
"""

import dataclasses
import difflib
import math
import re
import struct
from typing import Any, Iterable, Mapping, Sequence

from tf_input.dataset_format import IMAGE, LABEL, OBJECTS
from tf_input.record_layouts import DTYPES, LAYOUTS, MAPPING, SIDES, VALUES, Item, Layout, parse_layout

MAX_RECORDS, MAX_BYTES = 64, 32 << 20  # that are looked at: either is enough
NUM_CHANNELS = (1, 3, 4)  # of pixels; any other number makes an image a tensor

# Beside an image these say what is known of it, and are no labels.
_OF_IMAGES = re.compile(r"image/(format|filename|height|width|depth|channels|colorspace|shape)")
_MAX_SHAPE_BYTES = 64  # of an array of integers that is a shape
_ENCODED = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF")


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the first records have by one name.

    Attributes:
        values: The values of the first record that has any.
        counts: The numbers of values that records have, of those with values of the first one's type.
        storages: The storages in which records have it: "bytes", "float", "int64".
        are_flags: Whether all values are 0 or 1.
    """

    values: Sequence[Any] = ()
    counts: frozenset[int] = frozenset([0])
    storages: frozenset[str] = frozenset()
    are_flags: bool = False

    @property
    def storage(self) -> str:
        """The kinds of list that the values came in, such as "bytes"; "empty" where there was no value."""
        return " and ".join(sorted(self.storages)) or "empty"

    @property
    def kind(self) -> str:
        """The kind of a feature for such values: those of the first record where they differ."""
        first = next(iter(self.values), 0)
        return "text" if isinstance(first, bytes) else "float" if isinstance(first, float) else "integer"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one record's values; None for a first dimension that differs from record to record."""
        count, *others = self.counts
        return (None,) if others or not count else () if count == 1 else (count,)

    @property
    def is_multi_hot(self) -> bool:
        """Whether it is a 0 or 1 for each of several classes; as class numbers, of which there may be any number, all would be 0 and 1."""
        return self.are_flags and self.storage == "int64" and self.shape not in ((), (None,))

    def __str__(self) -> str:
        return f"{self.storage} × {'..'.join(str(count) for count in sorted({min(self.counts), max(self.counts)}))}"


# What one record has: name -> (storage, values). The storage of a feature without a list is empty.
Stored = Mapping[str, tuple[str, Sequence[Any]]]


def look_at(examples: Sequence[Stored]) -> dict[str, Seen]:
    """What records have, by the names that any of them has."""
    seen = {}
    for name in dict.fromkeys(name for example in examples for name in example):
        lists = [example.get(name, ("", ())) for example in examples]
        storages = dict.fromkeys(storage for storage, some in lists if some) or dict.fromkeys(storage for storage, _ in lists if storage)
        values = [some for storage, some in lists if not some or storage == next(iter(storages))]  # others are of another type, and wrong
        are_flags = all(isinstance(one, int) and one in (0, 1) for some in values for one in some)
        seen[name] = Seen(next(filter(len, values), ()), frozenset(map(len, values)), frozenset(storages), are_flags)
    return seen


def find_layout(
    layout: str | Mapping[str, Any] | None,
    seen: Mapping[str, Seen],
    they_have: str,
    *,
    prefers_text: bool,
    needs_label: bool = True,
) -> Layout:
    """The layout of records, each item of a feature that they have.

    Args:
        layout: The layout as the user gave it, for `parse_layout`; None: the first of `LAYOUTS` that fits, or all features by their names
            if none is of bytes.
        seen: The features that the first records have, by name.
        they_have: The beginning of a message that says so: `its first 64 records have`.
        prefers_text: Whether a feature with texts is meant, or one with numbers, where an item may be one of several.
        needs_label: Whether records must have the layout's label, or that of its objects.

    Raises:
        ValueError: It is none, or none is known, or they lack something.
    """
    has = f"{they_have} {describe_seen(seen)}"
    if layout is None:
        known = map(parse_layout, LAYOUTS)
        found = next((one for one in known if not _missing(one, seen, needs_label) and _says_all(one, seen)), None)
        if found is None and seen and not any("bytes" in one.storages for one in seen.values()):
            found = Layout(VALUES, {name: Item((name,)) for name in sorted(seen)})
        if found is None:
            raise ValueError(f"{has}, which is no known layout ({', '.join(LAYOUTS)}); {_advise(seen)}")
    else:
        found = parse_layout(layout)
        objects = {feature for name, item in found.items.items() if name.startswith(f"{OBJECTS}/") for feature in item.names}
        come_later = found.name != MAPPING and seen.keys().isdisjoint(objects)  # the first images show none
        if missing := [names for names in _missing(found, seen, needs_label) if not (come_later and objects.issuperset(names))]:
            near = difflib.get_close_matches(missing[0][0], seen, n=1) if found.name == MAPPING else ()
            needed = ", ".join(map(" or ".join, missing))
            raise ValueError(f"layout {found.name} needs {needed}; {has}{f'; did you mean {near[0]!r}?' if near else ''}")
    items = {}
    for name, item in found.items.items():
        there = [one for one in item.names if one in seen]
        there.sort(key=lambda one: (not seen[one].storages, ("bytes" in seen[one].storages) != prefers_text))
        if there or not item.is_optional or item.default:
            items[name] = item._replace(names=tuple(there[:1] or item.names[-1:]), is_optional=False)
    return Layout(found.name, items)


def _missing(layout: Layout, seen: Mapping[str, Seen], needs_label: bool) -> list[tuple[str, ...]]:
    """Features of which records must have one, and lack all."""
    spared = () if needs_label else (LABEL, f"{OBJECTS}/{LABEL}")
    needed = [item.names for name, item in layout.items.items() if item.names and not item.is_optional and name not in spared]
    return [names for names in needed if seen.keys().isdisjoint(names)]


def _says_all(layout: Layout, seen: Mapping[str, Seen]) -> bool:
    """Images alone are meant only where nothing else could be a label."""
    return layout.name != "images" or all(name == "image/encoded" or _OF_IMAGES.fullmatch(name) for name in seen)


def _advise(seen: Mapping[str, Seen]) -> str:
    """What a user may say of records whose layout is none that is known."""
    known = [item.name for item in (parse_layout(name).items[IMAGE] for name in LAYOUTS) if item.name in seen]
    image = max(known, key=len, default="FEATURE")
    if image == "image/encoded":
        has_boxes = all(f"image/object/{side.removeprefix('objects/')}" in seen for side in SIDES)
        problem = "boxes without classes are not kept; " * has_boxes
        return f"{problem}expected the layout image={image} for the images alone, or image={image},label=FEATURE"
    return (
        f"expected a layout such as image={image},label=FEATURE; of pixels without a format also height=FEATURE,width=FEATURE or "
        "shape=FEATURE, or their numbers, as in height=28,width=28,depth=1; without a label drop label=FEATURE"
    )


def describe_seen(seen: Mapping[str, Seen]) -> str:
    """What records have, as a message shows it."""
    shown = [f"{_printable(name)} ({one})" for name, one in sorted(seen.items())[:20]]
    return ", ".join(shown) + (f" and {len(seen) - 20} more" if len(seen) > 20 else "") or "no features"


def _printable(name: str) -> str:
    return name[:64] if name.isprintable() else repr(name[:64])[1:-1]


def number_items(layout: Layout, seen: Mapping[str, Seen]) -> tuple[str, ...]:
    """The items that are bytes of numbers: those with a type, and an image without a format."""
    typed = tuple(name for name, item in layout.items.items() if item.dtype)
    image, sides = layout.items.get(IMAGE), _sides(layout)
    if image is None or image.dtype or not sides:
        return typed
    (data, *_) = (*seen.get(image.name, Seen()).values, b"")
    if isinstance(data, bytes) and data.startswith(_ENCODED):
        try:  # pixels may begin like a BMP
            shape = stated_shape(layout, sides, {name: one.values for name, one in seen.items()}, len(data))
        except ValueError:
            return typed
        if len(shape) not in (2, 3) or math.prod(as_pixels(shape, len(data))[:3]) != len(data):
            return typed
    return (*typed, IMAGE)


def side_items(layout: Layout, seen: Mapping[str, Seen]) -> tuple[str, ...]:
    """The items that say the shape of bytes of numbers, and are no features of their own; none where no such bytes need them."""
    return _sides(layout) if any(layout.items[name].shape is None for name in number_items(layout, seen)) else ()


def _sides(layout: Layout) -> tuple[str, ...]:
    if {"height", "width"} <= layout.items.keys():
        return tuple(name for name in ("height", "width", "depth") if name in layout.items)
    return ("shape",) if "shape" in layout.items else ()


def is_encoded(data: bytes) -> bool:
    """Whether bytes begin as those of an image that has a format."""
    return data.startswith(_ENCODED)


def stated_shape(layout: Layout, sides: Sequence[str], values: Mapping[str, Sequence[Any]], num_values: int) -> tuple[int, ...]:
    """The shape that a record states.

    Args:
        layout: The layout of the record.
        sides: The names of the items that say the sides, as `side_items` gives them.
        values: The values of the record's features, of those at least that say sides.
        num_values: The number of values that it is the shape of, which tells what integers the bytes of a shape are.

    Raises:
        ValueError: It states none; one line.
    """
    numbers: list[int] = []
    for side in sides:
        item = layout.items[side]
        name = side if item.number is not None else item.name
        stated = [item.number] if item.number is not None else _integers(values.get(name, ()), num_values)
        if len(stated) != 1 and side != "shape" or not stated or not all(type(one) is int and 0 < one < 1 << 31 for one in stated):
            raise ValueError(f"{len(stated)} values in feature {name!r}, {stated[:4]!r:.80}; expected integers above 0, a shape")
        numbers += stated
    return tuple(numbers)


def record_shapes(layout: Layout, sides: Sequence[str], item: Item, examples: Iterable[Stored]) -> list[tuple[int, ...]]:
    """The shapes of bytes of numbers in the first records that state one.

    Raises:
        ValueError: None does, or they differ in how many sides they have; one line.
    """
    if item.shape is not None:
        return [item.shape]
    shapes, problem = [], f"no shape beside {item.name}; expected shape=FEATURE, or {item.name}:{item.dtype or 'uint8'}[28,28,1]"
    for example in examples:
        values = {name: some for name, (_, some) in example.items()}
        (data, *_) = (*values.get(item.name, ()), b"")
        try:
            if isinstance(data, bytes) and data and sides:
                shapes.append(stated_shape(layout, sides, values, len(data) // DTYPES[item.dtype or "uint8"]))
        except ValueError as error:
            problem = str(error)
    if not shapes or len(set(map(len, shapes))) > 1:
        raise ValueError(f"shapes of {sorted(set(map(len, shapes)))} sides; expected as many in each record" if shapes else problem)
    return shapes


def common_shape(shapes: Sequence[tuple[int, ...]], is_list: bool) -> tuple[int | None, ...]:
    """The shape that all have; None for a side in which they differ, or may: all but the channels of images, if it is a list."""
    sides = tuple(found[0] if len(set(found)) == 1 else None for found in zip(*shapes))
    may_differ = len(sides) - (len(sides) == 3) if is_list else 0
    return (None,) * may_differ + sides[may_differ:]


def _integers(values: Sequence[Any], num_values: int) -> list[Any]:
    """Integers, or those of an array that was written as bytes, of 32 or 64 bits."""
    if len(values) != 1 or not isinstance(values[0], bytes):
        return list(values)
    data = values[0]
    sizes = [(code, size) for code, size in (("q", 8), ("i", 4)) if len(data) in range(size, _MAX_SHAPE_BYTES + 1, size)]
    read = [[*struct.unpack(f"<{len(data) // size}{code}", data)] for code, size in sizes]
    fitting = [one for one in read if math.prod(one) in (num_values, num_values // 3)]  # a third: of two sides, of pixels in colour
    return (fitting or read[:1] or [[]])[0]


def as_pixels(shape: Sequence[int], num_values: int, dtype: str = "uint8") -> tuple[int, int, int, bool]:
    """(height, width, channels, whether one channel comes after the other) of an image without a format.

    Args:
        shape: The shape that is stated: height, width and channels, or channels, height and width; or without channels.
        num_values: The number of values: it tells how many channels there are where nothing else does.
        dtype: The dtype of a number: with any but uint8 it is a tensor, whose sides are what they are.

    Raises:
        ValueError: It is none of an image; one line.
    """
    shape = tuple(shape)
    if len(shape) == 2:
        shape += (3 if num_values == 3 * math.prod(shape) else 1,)
    if len(shape) != 3:
        raise ValueError(f"shape {list(shape)}; expected a height, a width, and channels")
    if dtype == "uint8" and shape[0] in NUM_CHANNELS and shape[2] not in NUM_CHANNELS:
        return shape[1], shape[2], shape[0], True
    return *shape, False


def wrong_size(name: str, num_bytes: int, shape: Sequence[int], dtype: str = "uint8") -> str:
    """What to say of bytes that are not as many as their shape says."""
    others = [f"{name}:{one}" for one in ("float32", "float64", "uint8") if DTYPES[one] * math.prod(shape) == num_bytes]
    hint = f"; the layout {others[0]} reads them as {others[0].rpartition(':')[2]}" if others else ""
    return f"{num_bytes} bytes in feature {name!r}; expected {'x'.join(map(str, shape))}, of {dtype}{hint}"
