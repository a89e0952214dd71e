"""Reads cells that describe the objects in an image, in the format of Hugging Face's libraries."""

from typing import Any, Callable, Collection, Iterable, Mapping, Sequence

from beam_pipelines.config.prepare_config import OBJECT_LABEL, SourceConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.features.feature_kind import Points, to_points
from beam_pipelines.features.kinds import KINDS
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.annotations.object_features import object_features
from beam_pipelines.sources.cells.box_forms import NUMBERS, BoxForms, box_sides
from beam_pipelines.sources.cells.cells import in_column, read_flag, read_numbers, shown
from beam_pipelines.sources.cells.class_cells import known, name_integers, read_class
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from tf_input.dataset_format import OBJECTS, Feature

_BOXES = ("bbox", "bboxes", "boxes")
_CATEGORIES = ("category", "categories", "label", "labels")
_FLAGS = ("is_crowd", "is_difficult", "is_truncated", "difficult", "truncated")  # flags that datasets of other formats also have


class ObjectsColumn:
    """Reads the objects of each image from the cells of a column.

    Args:
        fields: The names of the fields that the objects have.
        source: The options for class names and boxes.
        names: Field of the objects -> class names for its class indices, if the source states them.
        first_cells: The cells of the first rows, which determine the number of keypoints.

    Attributes:
        features: The features of the objects: boxes, classes, existing flags and keypoints.
        class_names: The class names of the objects, in order, if the source states them; otherwise empty.
        unused_fields: The fields of the objects that are not kept.
        boxes: Counts of the boxes that were read since the last `take`.
    """

    def __init__(
        self, fields: Collection[str], source: SourceConfig, names: Mapping[str, Sequence[str]], first_cells: Callable[[], Iterable[Any]] = tuple
    ) -> None:
        self._format, self._is_relative = source.box_format or "xywh", source.box_unit == "relative"
        numbers = NUMBERS[self._format]
        self._expected = f'{{"bbox": [{numbers}, …], "category": [name, …]}}, with the same number of each'
        self.boxes = BoxForms()
        class_names = source.names_of(OBJECT_LABEL)
        self._flags = tuple(name for name in _FLAGS if name in fields)
        self._others = tuple(name for name in _FLAGS if name not in fields)
        self._allowed = class_names
        self.unused_fields = UnusedFields()
        category_names = names.get(next((name for name in _CATEGORIES if name in fields), ""), ())
        self.class_names = () if class_names else tuple(category_names)
        self._shapes = {name: shape for name in KINDS if name in fields and (shape := _find_shape(name, first_cells()))}
        positions = (Feature(f"{OBJECTS}/{name}", name, (None, *shape)) for name, shape in self._shapes.items())
        self.features = (*object_features(dict.fromkeys(self._flags, "integer")), *positions)

    def read(self, row: Mapping[str, Any]) -> Objects:
        """Reads the objects of a row. Raises `InvalidInput` if the cell with the objects is invalid."""
        return in_column(OBJECTS, self._read_cell, row.get(OBJECTS))

    def _read_cell(self, cell: Any) -> Objects:
        """Reads `{"bbox": [[x, y, width, height], …], "category": […]}`, or a list of dictionaries with one box each.
        Raises `InvalidInput` for other values, a class that is not allowed, or a flag that the first objects lack."""
        if cell is None:
            cell = []
        several = isinstance(cell, list) and all(isinstance(item, dict) for item in cell)
        if not several and not isinstance(cell, dict):
            raise InvalidInput("bad_objects", f"has {shown(cell)}; it must be {self._expected}")
        for name in self._others:
            values = [_field(element, (name,)) for element in cell] if several else cell.get(name)
            if any(values) if isinstance(values, list) else values:
                raise InvalidInput(
                    "bad_objects",
                    f"has the field {name}, which the first objects do not have. Add it to the first objects",
                )
        boxes, categories, *flags = (
            [_field(entry, names) for entry in cell] if several else _field(cell, names)
            for names in (_BOXES, _CATEGORIES, *((name,) for name in self._flags))
        )
        if isinstance(boxes, list):  # a missing flag is false
            flags = [[None] * len(boxes) if values is None else values for values in flags]
        if not all(
            isinstance(values, list) and isinstance(boxes, list) and len(values) == len(boxes) for values in (boxes, categories, *flags)
        ):
            same_number = f", and the same number of each of {', '.join(self._flags)}" if self._flags else ""
            raise InvalidInput("bad_objects", f"has {shown(cell)}; it must be {self._expected}{same_number}")
        if self.class_names:
            categories = name_integers(categories, self.class_names)
        labels = tuple([known(read_class(category), self._allowed) for category in categories])
        numbers = {name: tuple([int(read_flag(value)) for value in values]) for name, values in zip(self._flags, flags)}
        for fields in cell if several else [cell]:
            kept = [*_FLAGS, *self._shapes, *(name for names in (_BOXES, _CATEGORIES) if (name := _name(fields, names)))]
            self.unused_fields.add(name for name in fields if name not in kept)
        points = {name: self._read_points(cell, name, len(boxes)) for name in self._shapes}
        return Objects(tuple(map(self._read_box, boxes)), labels, numbers, is_relative=self._is_relative, points=points)

    def _read_points(self, cell: Any, name: str, num_objects: int) -> tuple[Points, ...]:
        """Reads the positions, such as keypoints, of all objects. A missing value has no labeled points."""
        kind, shape = KINDS[name], self._shapes[name]
        values = _values(cell, name) or [None] * num_objects
        if len(values) != num_objects:
            raise InvalidInput("bad_objects", f"has {len(values)} values of {name} for {num_objects} objects")
        missing = [None] * (shape[0] * shape[1])
        return tuple([to_points(kind.read(read_numbers(value) if value else missing, shape)) for value in values])

    def _read_box(self, box: Any) -> tuple[float, float, float, float]:
        is_box = isinstance(box, list) and len(box) == 4 and all(type(number) in (int, float) for number in box)
        if not is_box or not all(-1e9 < number < 1e9 for number in box):  # also rejects NaN
            raise InvalidInput("bad_objects", f"has a box {shown(box)}; it must be {NUMBERS[self._format]}")
        box = tuple(map(float, box))
        self.boxes.add(box)
        return box_sides(box, self._format)


def _values(cell: Any, name: str) -> list[Any]:
    """Returns the values of a field for all objects, or [] if the cell has no list of them."""
    if isinstance(cell, list):
        return [item.get(name) if isinstance(item, dict) else None for item in cell]
    values = cell.get(name) if isinstance(cell, dict) else None
    return values if isinstance(values, list) else []


def _find_shape(name: str, cells: Iterable[Any]) -> tuple[int, ...]:
    """Returns the shape of the first valid value of the field `name`, such as `keypoints`, or () if there is none."""
    for value in (value for cell in cells for value in _values(cell, name)):
        try:
            return KINDS[name].resolve_shape(read_numbers(value), is_of_object=True)
        except InvalidInput:  # becomes a dead letter during listing
            continue
    return ()


def _name(fields: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in fields), None)


def _field(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return fields.get(_name(fields, names))
