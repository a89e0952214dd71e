"""Known layouts of TFRecords from other tools, and a parser for layouts that users write.

`recordmill prepare --layout` and `tf_input.open_tfrecords(layout=...)` accept the same layouts. This module uses only
the standard library, so that both packages can import it.

A layout is a name of `LAYOUTS`, or a list of items such as `image=pixels,height=28,width=28,depth=1,label=digit`:

    ITEM=FEATURE          meaning of ITEM
    image                 an encoded image; raw uint8 pixels, row by row, if it has a type or a shape
    label                 the target: one class, several classes, or a vector of floats
    key                   the key of the example
    mask                  the class of each pixel, as a PNG; with a type, as raw bytes of the image's height and width
    weight                the weight of the example
    objects/bbox          boxes: ymin, xmin, ymax, xmax in sequence; or objects/bbox/ymin, … for each side
    objects/label         the classes of the boxes; objects/NAME: further features of objects
    height, width, depth  the shape of raw numbers, in one feature each; depth is optional
    shape                 the shape of raw numbers, in one feature
    any other             a feature to keep under this name

    FEATURE               meaning of FEATURE
    NAME                  the feature with this name
    NAME:TYPE             a string of raw numbers of a type in `DTYPES`, little-endian, row by row
    NAME:TYPE[7,20]       raw numbers of this shape, which overrides stored shapes
    NAME:image            another encoded image
    NAME[]                any number of values, even if the first records all have the same number
    NAME?                 an optional feature
    NAME?VALUE            one class, number or text; VALUE is used for records without it
    A|B                   the first of these features that can be read
    28                    a fixed number, for height, width and depth
"""

import dataclasses
import re
from typing import Any, Iterable, Mapping, NamedTuple

from tf_input.dataset_format import IMAGE, KEY, LABEL, MASK, OBJECTS, WEIGHT
from tf_input.stored_kinds import TENSOR_DTYPES

# type -> bytes per number
DTYPES = {dtype: max(1, int("0" + re.sub(r"\D", "", dtype)) // 8) for dtype in TENSOR_DTYPES}
SIDES = tuple(f"{OBJECTS}/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
BBOX = f"{OBJECTS}/bbox"
MAPPING = "mapping"  # the name of layouts from users
_NO_OTHER_IMAGES = (IMAGE, MASK, KEY, WEIGHT, "height", "width", "depth", "shape")
VALUES = "values"  # the name of the layout for records without images: all features by their names

# In the order of detection: layouts with more requirements come first.
_BOXES = ",".join(f"{side}=image/object/{side.removeprefix('objects/')}" for side in SIDES)
_CORNERS = ",".join(f"{side}{corner}=image/object/bbox/{side}{corner}?" for corner in range(1, 5) for side in "xy")
_FLAGS = ",".join(f"objects/{name}=image/object/{name}?" for name in ("difficult", "is_crowd", "truncated"))
_CLASS = "image/object/class/text|image/object/class/label"
LAYOUTS: Mapping[str, str] = {
    "detection": f"image=image/encoded,{_BOXES},objects/label={_CLASS},{_FLAGS},key=image/source_id?",
    # ImageNet records also have image/object/bbox/label, with the class of the image.
    "slim": "image=image/encoded,label=image/class/label,key=image/filename?",
    "text_boxes": f"image=image/encoded,{_BOXES},objects/label=image/object/bbox/label,{_CORNERS},key=image/filename?",
    "segmentation": "image=image/encoded,mask=image/segmentation/class/encoded,key=image/filename?",
    "images": "image=image/encoded,key=image/filename?",
    "raw": "image=image_raw,height=height,width=width,depth=depth?,label=label",
    "raw_masks": "image=image_raw,mask=mask_raw:uint8,height=height,width=width,depth=depth?",
    "name_shape_data": "image=data,shape=shape,name=name?",
    "feature_shape_label": "image=feature,shape=shape,label=label",
    "image_label": "image=image,label=label,shape=shape?,filename=filename?",
}
_ITEM = re.compile(rf"{OBJECTS}/bbox/(ymin|xmin|ymax|xmax)|({OBJECTS}/)?[A-Za-z][A-Za-z0-9_.-]{{0,63}}")
_FEATURE = re.compile(r"(?P<names>[^:\[\]?]+)(?::(?P<dtype>\w+))?(?P<shape>\[[\d,]*\])?(?P<optional>\?(?P<default>[^?\[\]]*))?")


class Item(NamedTuple):
    """An item of a layout, such as the image or the label, with the names of the features that store the item.

    Attributes:
        names: The names of stored features, of which the first readable one is used. Empty for a number.
        dtype: The dtype of raw numbers, one of `DTYPES`; empty if it is not given.
        shape: The shape of raw numbers; None if it is stored in other features.
        is_list: Whether the number of values varies.
        is_optional: Whether records may lack the feature.
        number: A fixed value of the item; None if the value is read from a feature.
        is_image: Whether the item is an encoded image other than `image`.
        default: The default for records without the feature, as a string; empty if there is no default.
    """

    names: tuple[str, ...]
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    is_list: bool = False
    is_optional: bool = False
    number: int | None = None
    is_image: bool = False
    default: str = ""

    @property
    def name(self) -> str:
        """The first of `names`. After the layout is detected, each item has only one name."""
        return self.names[0]

    def __str__(self) -> str:
        if self.number is not None:
            return str(self.number)
        shape = "[]" if self.is_list else "" if self.shape is None else f"[{','.join(map(str, self.shape))}]"
        kind = IMAGE if self.is_image else self.dtype
        return f"{'|'.join(self.names)}{kind and ':'}{kind}{shape}{'?' * (self.is_optional or bool(self.default))}{self.default}"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The meaning of the features of records.

    Attributes:
        name: The name of the layout: one of `LAYOUTS`, or `MAPPING` or `VALUES`.
        items: The items, by the names of the resulting features.
    """

    name: str
    items: Mapping[str, Item]

    def __str__(self) -> str:
        return ",".join(f"{name}={item}" for name, item in self.items.items())

    @property
    def targets(self) -> tuple[str, ...]:
        """The target features: the label, or else the objects, or else the mask."""
        return default_targets(self.items)

    @property
    def box_names(self) -> tuple[str, ...]:
        """The names of the features that store boxes: none, one feature, or one feature for each of the four sides."""
        keys = (BBOX,) if BBOX in self.items else tuple(side for side in SIDES if side in self.items)
        return tuple(self.items[name].name for name in keys)


def default_targets(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the default targets, given the names of all features."""
    tops = {name if name in (LABEL, MASK) else OBJECTS * name.startswith(BBOX) for name in names}
    return tuple(name for name in (LABEL, OBJECTS, MASK) if name in tops)[:1]


def parse_layout(layout: str | Mapping[str, Any]) -> Layout:
    """Parses a layout that a user wrote.

    Args:
        layout: The name of a layout, or items, as a string or as a mapping from ITEM to FEATURE. In a mapping,
            `objects/bbox` may be a list of four sides, a list of one name means `NAME[]`, and numbers may be integers.

    Raises:
        ValueError: The layout is invalid.
    """
    if isinstance(layout, str) and layout in LAYOUTS:
        return Layout(layout, parse_layout(LAYOUTS[layout]).items)
    items: dict[str, Item] = {}
    for name, text in _split(layout):
        match = _FEATURE.fullmatch(text)
        is_number = text.isdecimal() and name in ("height", "width", "depth")
        names = match["names"].split("|") if match else []
        if not _ITEM.fullmatch(name) or name in items or not match or not all(names):
            raise _error(layout, "write items as ITEM=FEATURE[:TYPE], each once")
        is_image = match["dtype"] == IMAGE
        if match["dtype"] and not is_image and match["dtype"] not in DTYPES:
            raise _error(layout, f"{name} has type {match['dtype']!r}; use one of {', '.join(DTYPES)}, {IMAGE}")
        if is_image and (name in _NO_OTHER_IMAGES or name.startswith(f"{OBJECTS}/") or match["shape"]):
            raise _error(
                layout,
                f"{name}={text}: {IMAGE} is only the type of further images; write for example "
                f"right={match['names']}:{IMAGE}",
            )
        numbers = [int(number) for number in re.findall(r"\d+", match["shape"] or "")]
        if is_number and not 0 < int(text) < 1 << 31 or 0 in numbers or numbers and not match["dtype"]:
            raise _error(layout, f"{name}={text}: use numbers above 0, and a type before a shape")
        shape = tuple(numbers) if numbers else None
        is_optional, default = match["optional"] is not None, match["default"] or ""
        if default and (name in _NO_OTHER_IMAGES or name.startswith(f"{OBJECTS}/") or match["dtype"] or match["shape"]):
            raise _error(
                layout,
                f"{name}={text}: only one class, number or string can have a default value; write {name}={names[0]}?",
            )
        if is_number:
            items[name] = Item((), number=int(text))
        else:
            dtype = "" if is_image else match["dtype"] or ""
            items[name] = Item(tuple(names), dtype, shape, match["shape"] == "[]", is_optional, is_image=is_image, default=default)
    if not items:
        raise _error(layout, "write items as ITEM=FEATURE[:TYPE], each once")
    sides = [side for side in SIDES if side in items]
    if sides and (len(sides) < 4 or BBOX in items):
        raise _error(layout, f"boxes have only the sides {', '.join(sides)}; give all four sides, or only {BBOX}")
    return Layout(MAPPING, items)


def _split(layout: str | Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if isinstance(layout, str):
        for part in re.split(r",(?![^\[]*\])", layout):
            name, _, text = part.partition("=")
            yield name.strip(), text.strip()
        return
    for name, value in layout.items():
        if name == BBOX and isinstance(value, (list, tuple)) and len(value) == len(SIDES):
            yield from zip(SIDES, value)
        elif isinstance(value, (list, tuple)):
            if len(value) != 1:
                raise _error(
                    layout,
                    f"{name} has {len(value)} features, {list(value)}; give one"
                    f"{', or the four sides of boxes' * (name == BBOX)}",
                )
            yield name, f"{value[0]}[]"
        else:
            yield name, str(value)


def _error(layout: Any, problem: str) -> ValueError:
    text = layout if isinstance(layout, str) else dict(layout)
    return ValueError(f"layout={text}: {problem}, or use a layout's name: {', '.join(LAYOUTS)}")
