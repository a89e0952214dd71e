"""Reads the objects in an image: boxes, their classes, flags and keypoints."""

import abc
import contextlib
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence

from beam_pipelines.config.source_config import OBJECT_LABEL, SourceConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.columns.forms import POINT_FORMS
from beam_pipelines.columns.keypoints import to_points
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.annotations.object_features import object_features
from beam_pipelines.sources.cells.box_columns import BoxColumns
from beam_pipelines.sources.cells.box_forms import NUMBERS, Box, BoxForms, box_sides
from beam_pipelines.sources.cells.cells import bad_cell, in_column, is_empty, is_missing, shown
from beam_pipelines.sources.cells.cells import read_float, read_integer, read_list, read_numbers
from beam_pipelines.sources.cells.class_cells import name_integers, read_one_class
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from tf_input.dataset_format import OBJECTS, Feature

_BOXES = ("bbox", "bboxes", "boxes")
_CATEGORIES = ("category", "categories", "label", "labels")
_FLAG_NAMES = ("is_crowd", "is_difficult", "is_truncated", "difficult", "truncated")  # as in other formats
_FLAGS = {"0": 0, "1": 1, "-1": -1, "false": 0, "true": 1}
ONLY_CLASS = "object"  # the class of all boxes if no column has classes


class ObjectReader(abc.ABC):
    """The base class of readers of objects.

    Attributes:
        features: The features of the objects: boxes, classes, flags and keypoints.
        class_names: The class names of the objects, in order, if the source specifies them; otherwise empty.
        unused_fields: The fields of the objects that are not kept.
        boxes: Counts of the boxes that were read since the last `take`.
    """

    def __init__(self, source: SourceConfig, flags: Iterable[str], class_names: Sequence[str]) -> None:
        self._format, self._is_relative = source.box_format or "xywh", source.box_unit == "relative"
        self._allowed = source.names_of(OBJECT_LABEL)
        self.class_names = () if self._allowed else tuple(class_names)
        self.features: tuple[Feature, ...] = object_features(dict.fromkeys(flags, "integer"))
        self.unused_fields, self.boxes = UnusedFields(), BoxForms()

    @property
    def label_names(self) -> dict[str, tuple[str, ...]]:
        """A mapping from the class features of objects to their class names, in order, if the source specifies them."""
        return {OBJECT_LABEL: self.class_names} if self.class_names else {}

    @abc.abstractmethod
    def read(self, row: Mapping[str, Any]) -> Objects:
        """Reads the objects of a row. Raises `InvalidInput` if the objects are invalid."""

    def _sides(self, box: Sequence[float]) -> Box:
        """Converts a box to (ymin, xmin, ymax, xmax), and counts it. Raises `InvalidInput` for huge numbers and NaN."""
        if not all(-1e9 < number < 1e9 for number in box):
            raise InvalidInput("bad_objects", f"has a box {shown(list(box))}; it must be {NUMBERS[self._format]}")
        box = (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
        self.boxes.add(box)
        return box_sides(box, self._format)

    def _class(self, name: str, cell: Any) -> str:
        return read_one_class(name, name_integers(cell, self.class_names) if self.class_names else cell, self._allowed)


class ObjectsColumn(ObjectReader):
    """Reads the objects of each image from the cells of the column `objects`, as Hugging Face's libraries write them:
    `{"bbox": [[x, y, width, height], …], "category": […]}`, or a list of dictionaries with one box each.

    Args:
        fields: The names of the fields that the objects have.
        source: The options for class names and boxes.
        names: Field of the objects -> class names for its class indices, if the source specifies them.
        first_cells: The cells of the first rows, which determine the number of keypoints.
    """

    def __init__(
        self,
        fields: Collection[str],
        source: SourceConfig,
        names: Mapping[str, Sequence[str]],
        first_cells: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self._flags = tuple(name for name in _FLAG_NAMES if name in fields)
        super().__init__(source, self._flags, names.get(_find(fields, _CATEGORIES), ()))
        self._shapes = {name: shape for name in POINT_FORMS if name in fields and (shape := _find_shape(name, first_cells()))}
        self.features += tuple(Feature(f"{OBJECTS}/{name}", name, (None, *shape)) for name, shape in self._shapes.items())

    def read(self, row: Mapping[str, Any]) -> Objects:
        return in_column(OBJECTS, self._read, row.get(OBJECTS))

    def _read(self, cell: Any) -> Objects:
        objects = _to_dicts(cell)
        if objects is None:
            expected = f'{{"bbox": [{NUMBERS[self._format]}, …], "category": [name, …]}}, with the same number of each field'
            raise InvalidInput("bad_objects", f"has {shown(cell)}; it must be {expected}")
        for item in [cell] if isinstance(cell, dict) else objects:
            used = (_find(item, _BOXES), _find(item, _CATEGORIES), *self._flags, *self._shapes)
            self.unused_fields.add(name for name in item if name not in used)
        boxes = tuple([self._box(item.get(_find(item, _BOXES))) for item in objects])
        labels = tuple([self._class("category", item.get(_find(item, _CATEGORIES))) for item in objects])
        flags = {name: tuple([_read_flag(item.get(name)) for item in objects]) for name in self._flags}
        points = {
            name: tuple([to_points(POINT_FORMS[name].read(_numbers(item.get(name), shape), shape)) for item in objects])
            for name, shape in self._shapes.items()
        }
        return Objects(boxes, labels, flags, is_relative=self._is_relative, points=points)

    def _box(self, box: Any) -> Box:
        if not isinstance(box, list) or len(box) != 4 or not all(type(number) in (int, float) for number in box):
            raise InvalidInput("bad_objects", f"has a box {shown(box)}; it must be {NUMBERS[self._format]}")
        return self._sides(box)


class RowBoxes(ObjectReader):
    """Reads the objects of an image from a table of boxes. Each row is a box, and several rows can name the same image.

    Args:
        columns: The columns with the boxes, classes and flags.
        source: The options for class names and boxes.
        class_names: The class names for class indices in the class column; empty if unknown.
    """

    def __init__(self, columns: BoxColumns, source: SourceConfig, class_names: Sequence[str] = ()) -> None:
        super().__init__(source, sorted(columns.flags.values()), class_names)
        self._columns = columns
        self._only_class = self._allowed[0] if len(self._allowed) == 1 else ONLY_CLASS

    def read(self, row: Mapping[str, Any]) -> Objects:
        """Reads the boxes from the numbered table rows in `row["objects"]`. Skips rows whose box cells are all empty."""
        columns, objects = self._columns, []
        for number, box_row in row[OBJECTS]:
            try:
                if not all(is_missing(box_row.get(name)) for name in columns.box):
                    flags = [in_column(name, _read_flag, box_row.get(name)) for name in columns.flags]
                    objects.append((self._box(box_row), self._label(box_row), flags))
            except InvalidInput as error:
                raise InvalidInput(error.reason, f"in row {number} {error}") from None
        boxes, labels, flags = zip(*objects) if objects else ((), (), ())
        of_flags = {flag: tuple(item[index] for item in flags) for index, flag in enumerate(columns.flags.values())}
        sides = [0 if is_empty(row.get(name)) else in_column(name, _read_side, row[name]) for name in columns.size]
        size = (sides[0], sides[1]) if sides and all(sides) else None  # (height, width)
        return Objects(tuple(boxes), tuple(labels), of_flags, size, is_relative=self._is_relative)

    def _box(self, row: Mapping[str, Any]) -> Box:
        first, *others = self._columns.box
        if others:
            return self._sides([in_column(name, read_float, row.get(name)) for name in self._columns.box])
        return in_column(first, lambda cell: self._sides(read_list(cell, read_float, 4)), row.get(first))

    def _label(self, row: Mapping[str, Any]) -> str:
        name = self._columns.label
        return in_column(name, self._class, name, row.get(name)) if name else self._only_class


def _to_dicts(cell: Any) -> list[dict[str, Any]] | None:
    """Converts a cell to a list with a dictionary for each object, or to None if the cell has another form."""
    if isinstance(cell, list) and all(isinstance(item, dict) for item in cell) or cell is None:
        return cell or []
    if not isinstance(cell, dict) or not isinstance(boxes := cell.get(_find(cell, _BOXES)), list):
        return None
    read = (*_BOXES, *_CATEGORIES, *_FLAG_NAMES, *POINT_FORMS)
    columns = {name: values for name, values in cell.items() if name in read and values is not None}
    if not columns.keys() & set(_CATEGORIES) or not all(isinstance(v, list) and len(v) == len(boxes) for v in columns.values()):
        return None
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _numbers(value: Any, shape: tuple[int, ...]) -> list[Any]:
    """Returns the numbers of keypoints. A missing value has no labeled points."""
    return read_numbers(value) if value else [None] * (shape[0] * shape[1])


def _find_shape(name: str, cells: Iterable[Any]) -> tuple[int, ...]:
    """Returns the shape of the first valid value of the field `name`, such as `keypoints`, or () if there is none."""
    for item in (item for cell in cells for item in _to_dicts(cell) or ()):
        with contextlib.suppress(InvalidInput):  # becomes a dead letter during listing
            return POINT_FORMS[name].resolve_shape(read_numbers(item.get(name)), is_of_object=True)
    return ()


def _find(fields: Collection[str], names: tuple[str, ...]) -> str:
    """Returns the first of the given names that is a field, or ""."""
    return next((name for name in names if name in fields), "")


def _read_flag(cell: Any) -> int:
    """Reads a flag of a box: 0 or 1, false or true, or -1 if the flag is unknown. A missing flag is 0."""
    text = cell.strip().lower() if isinstance(cell, str) else None
    if text in _FLAGS:
        return _FLAGS[text]
    flag = 0 if is_missing(cell) else read_integer(cell)
    if flag not in (-1, 0, 1):
        raise bad_cell("bad_value", cell, "0, 1, or -1 if unknown")
    return flag


def _read_side(cell: Any) -> int:
    side = read_integer(cell)
    if not 0 <= side < 1 << 31:
        raise bad_cell("bad_value", cell, "a number of pixels")
    return side
