"""Detects tables in which each row is a box, by the column names."""

import difflib
import re
from typing import Collection, Mapping, NamedTuple, Sequence

# Names of the four columns of a box, in lower case, without punctuation and without a prefix such as `bbox_`.
_BOXES = {
    "xyxy": (
        *(("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"), ("x0", "y0", "x1", "y1"), ("left", "top", "right", "bottom")),
        *(("minx", "miny", "maxx", "maxy"), ("xtl", "ytl", "xbr", "ybr"), ("startx", "starty", "endx", "endy")),
    ),
    "xywh": (
        *(("x", "y", "w", "h"), ("x", "y", "width", "height"), ("left", "top", "width", "height"), ("xmin", "ymin", "width", "height")),
        ("left", "top", "w", "h"),
    ),
    "cxcywh": tuple(
        (x, y, w, h)
        for x, y in (("xc", "yc"), ("xcenter", "ycenter"), ("centerx", "centery"), ("cx", "cy"))
        for w, h in ("wh", ("width", "height"))
    ),
}
BOX_COLUMNS = "xmin, ymin, xmax, ymax, or to x, y, width, height, or one column to bbox"  # for messages
_PREFIX = re.compile("(?:bounding_?box|bbox|bndbox|box)_?(?=.)")
_MIN_SIMILARITY = 0.8  # of a misspelled column name, from 0 to 1
_ONE_COLUMN = ("bbox", "box", "bndbox", "boundingbox")
_LABELS = (
    *("class", "label", "category", "labels", "classname", "labelname", "categoryname", "classtext"),
    *("cls", "classid", "labelid", "categoryid", "name"),
)
_SIZES = (("height", "width"), ("imageheight", "imagewidth"), ("imgheight", "imgwidth"), ("imheight", "imwidth"))
_FLAG = re.compile("is(crowd|difficult|truncated|occluded|groupof|depiction|inside)|difficult")
_OPEN_IMAGES = {"ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax"}


class BoxColumns(NamedTuple):
    """The columns of a table in which each row is a box.

    Attributes:
        box: Four columns with the numbers of a box, in the order of the format; or one column with all four numbers.
        box_format: The format that the column names indicate, one of `BOX_FORMATS`. Empty for one column.
        box_unit: The unit that the column names indicate, one of `BOX_UNITS`. Empty if unknown.
        label: The column with the class of a box; None if all boxes have the same class.
        flags: Column -> feature name without the prefix `objects/`, such as `IsGroupOf` -> `is_group_of`.
        size: The columns with the height and the width of the image; empty if unknown.
    """

    box: tuple[str, ...]
    box_format: str = ""
    box_unit: str = ""
    label: str | None = None
    flags: Mapping[str, str] = {}
    size: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return (*self.box, *((self.label,) if self.label else ()), *self.flags, *self.size)


def find_box_columns(columns: Sequence[str], image: str | None = None, used: Collection[str] = ()) -> BoxColumns | None:
    """Returns the columns of boxes, or None if no names show that each row is a box.

    Args:
        columns: The names of all columns.
        image: The column with the image, which is skipped.
        used: The columns that have another meaning, such as keypoints. They cannot be the sides of a box.
    """
    box, box_format = _find_box([name for name in columns if name != image and name not in used])
    if not box:
        return None
    plain = {_plain(name): name for name in reversed(columns) if name not in (*box, image)}
    size = next((sides for sides in _SIZES if plain.keys() >= set(sides)), ())
    flags = {name: _flag_name(match[0]) for name in columns if (match := _FLAG.fullmatch(_plain(name)))}
    return BoxColumns(
        box,
        box_format,
        "relative" if _OPEN_IMAGES <= set(columns) else "",
        next((plain[name] for name in _LABELS if name in plain), None),
        {name: flag for number, (name, flag) in enumerate(flags.items()) if flag not in [*flags.values()][:number]},
        tuple(plain[side] for side in size),
    )


def near_box_column(columns: Sequence[str]) -> tuple[str, str] | None:
    """Returns a column that is probably a misspelled side of a box, and the correct name, or None. The other three sides
    of the box are columns."""
    plain = {_plain(name): name for name in reversed(columns)}
    for names in (names for choices in _BOXES.values() for names in choices):
        missing = [name for name in names if name not in plain]
        others = sorted(plain.keys() - {*names, "weight"})  # a correct name that is similar to `height`
        if len(missing) == 1 and (near := difflib.get_close_matches(missing[0], others, 1, _MIN_SIMILARITY)):
            return plain[near[0]], missing[0]
    return None


def _find_box(columns: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Returns the columns of a box in the order of their format, and the format. Columns with a prefix such as `bbox_`
    take precedence, because columns without a prefix may contain the size of the image."""
    plain = {_plain(name): name for name in reversed(columns)}
    prefixed = {_PREFIX.sub("", name): column for name, column in plain.items() if _PREFIX.match(name)}
    for known in (prefixed, {**plain, **prefixed}):
        for box_format, choices in _BOXES.items():
            for names in choices:
                if known.keys() >= set(names):
                    return tuple(known[name] for name in names), box_format
    return tuple(plain[name] for name in _ONE_COLUMN if name in plain)[:1], ""


def _flag_name(name: str) -> str:
    flag = name.removeprefix("is")
    return f"is_{'group_of' if flag == 'groupof' else flag}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
