"""Reads the boxes of an image from the rows of a table in which each row is a box."""

from typing import Any, Mapping, Sequence

from beam_pipelines.config.prepare_config import OBJECT_LABEL, SourceConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.annotations.object_features import object_features
from beam_pipelines.sources.cells.box_columns import BoxColumns
from beam_pipelines.sources.cells.box_forms import NUMBERS, Box, BoxForms, box_sides
from beam_pipelines.sources.cells.cells import bad_cell, in_column, is_empty, read_float, read_integer, read_list
from beam_pipelines.sources.cells.class_cells import name_integers, read_one_class
from beam_pipelines.sources.cells.missing_cells import is_missing
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from tf_input.dataset_format import OBJECTS

ONLY_CLASS = "object"  # the class of all boxes if no column has classes
_MAX_SIDE = 1 << 31
_FLAGS = {"0": 0, "1": 1, "-1": -1, "false": 0, "true": 1}


class RowBoxes:
    """Reads the objects of an image from the rows that name the image.

    Args:
        columns: The columns with the boxes, classes and flags.
        source: The options for class names and boxes.
        class_names: The class names for class indices in the class column; empty if unknown.

    Attributes:
        features: The features of the objects: boxes, classes and flags.
        class_names: The class names of the objects, in order, if the table states them.
        unused_fields: Always empty, because the source reports unused columns.
        boxes: Counts of the boxes that were read since the last `take`.
    """

    def __init__(self, columns: BoxColumns, source: SourceConfig, class_names: Sequence[str] = ()) -> None:
        self._columns = columns
        self._format, self._is_relative = source.box_format or "xywh", source.box_unit == "relative"
        self._allowed = source.names_of(OBJECT_LABEL)
        self._only_class = self._allowed[0] if len(self._allowed) == 1 else ONLY_CLASS
        self.class_names = () if self._allowed else tuple(class_names)
        self.unused_fields = UnusedFields()
        self.boxes = BoxForms()
        self.features = object_features(dict.fromkeys(sorted(columns.flags.values()), "integer"))

    def read(self, row: Mapping[str, Any]) -> Objects:
        """Reads the boxes of an image from the numbered table rows in `row["objects"]`. Skips table rows without a box,
        whose box cells are all empty. Raises `InvalidInput` if a cell is invalid."""
        objects = []
        for number, box_row in row[OBJECTS]:
            try:
                if not all(is_missing(box_row.get(name)) for name in self._columns.box):
                    objects.append((self._read_box(box_row), self._read_label(box_row), self._read_flags(box_row)))
            except InvalidInput as error:
                raise InvalidInput(error.reason, f"in row {number} {error}") from None
        boxes, labels, flags = zip(*objects) if objects else ((), (), ())
        names = {flag: tuple(item[flag] for item in flags) for flag in self._columns.flags.values()}
        return Objects(tuple(boxes), tuple(labels), names, self._read_size(row), is_relative=self._is_relative)

    def _read_box(self, row: Mapping[str, Any]) -> Box:
        if len(self._columns.box) == 1:
            (name,) = self._columns.box
            box = in_column(name, read_list, row.get(name), read_float, 4)
        else:
            box = tuple([in_column(name, read_float, row.get(name)) for name in self._columns.box])
        if not all(-1e9 < number < 1e9 for number in box):
            raise InvalidInput("bad_objects", f"the box is {list(box)}; it must be {NUMBERS[self._format]}")
        self.boxes.add(box)
        return box_sides(box, self._format)

    def _read_label(self, row: Mapping[str, Any]) -> str:
        name = self._columns.label
        if name is None:
            return self._only_class
        cell = in_column(name, name_integers, row.get(name), self.class_names) if self.class_names else row.get(name)
        return in_column(name, read_one_class, name, cell, self._allowed)

    def _read_flags(self, row: Mapping[str, Any]) -> dict[str, int]:
        cells = ((name, flag, row.get(name)) for name, flag in self._columns.flags.items())
        return {flag: _FLAGS[cell] if type(cell) is str and cell in _FLAGS else in_column(name, _read_flag, cell) for name, flag, cell in cells}

    def _read_size(self, row: Mapping[str, Any]) -> tuple[int, int] | None:
        """Returns the (height, width) of the image in pixels, or None if the row lacks one of them."""
        sides = [0 if is_empty(row.get(name)) else in_column(name, _read_side, row[name]) for name in self._columns.size]
        return (sides[0], sides[1]) if sides and all(sides) else None


def _read_flag(cell: Any) -> int:
    """Reads a flag of a box: 0 or 1, false or true, or -1 if the flag is unknown. A missing flag is 0."""
    if is_missing(cell):
        return 0
    text = cell.strip().lower() if isinstance(cell, str) else None
    flag = _FLAGS[text] if text in _FLAGS else read_integer(cell)
    if flag not in (-1, 0, 1):
        raise bad_cell("bad_value", cell, "0, 1, or -1 if unknown")
    return flag


def _read_side(cell: Any) -> int:
    side = read_integer(cell)
    if not 0 <= side < _MAX_SIDE:
        raise bad_cell("bad_value", cell, "a number of pixels")
    return side
