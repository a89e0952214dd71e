"""A cell with the objects in an image, as Hugging Face's libraries have it."""

from typing import Any, Collection, Mapping

from beam_pipelines.errors import Refusal
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.cells.class_cells import known, read_class

_BOXES = ("bbox", "bboxes", "boxes")
_CATEGORIES = ("category", "categories", "label", "labels")
_EXPECTED = '{"bbox": [[x, y, width, height], …], "category": [name, …]}, as many of each'


def read_objects(cell: Any, label_names: Collection[str]) -> Objects:
    """`{"bbox": [[x, y, width, height], …], "category": […]}`, in pixels, or a list of such objects with one of each.

    Raises:
        Refusal: It is not of that form, or a class name is none that a label may have.
    """
    if cell is None:
        return Objects((), ())
    if isinstance(cell, list) and all(isinstance(one, dict) for one in cell):
        boxes, categories = [_field(one, _BOXES) for one in cell], [_field(one, _CATEGORIES) for one in cell]
    elif isinstance(cell, dict):
        boxes, categories = _field(cell, _BOXES), _field(cell, _CATEGORIES)
    else:
        boxes = categories = None
    if not isinstance(boxes, list) or not isinstance(categories, list) or len(boxes) != len(categories):
        raise Refusal("bad_objects", f"has {shown(cell)}; expected {_EXPECTED}")
    return Objects(tuple(map(_read_box, boxes)), tuple([known(read_class(one), label_names) for one in categories]))


def _field(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _read_box(box: Any) -> tuple[float, float, float, float]:
    is_box = isinstance(box, list) and len(box) == 4 and all(type(number) in (int, float) for number in box)
    if not is_box or not all(-1e9 < number < 1e9 for number in box):  # NaN is not between
        raise Refusal("bad_objects", f"has a box {shown(box)}; expected [x, y, width, height] in pixels")
    x, y, width, height = map(float, box)
    return y, x, y + height, x + width
