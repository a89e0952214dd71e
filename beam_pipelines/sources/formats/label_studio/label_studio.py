"""Source `label_studio`: boxes, masks and classes from Label Studio's JSON and JSON-MIN exports.

Images are matched by file name. URLs of images are not downloaded. If a task has several annotations, the first
annotation that is not canceled is used.
"""

from typing import Any, Iterator, Mapping, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.listed_source import ListedSource
from beam_pipelines.sources.annotations.shapes import Outline, Point, Shape, bitmap, ellipse, polygon, rectangle, rotated
from beam_pipelines.sources.annotations.shapes import read_coordinate, read_image_size, read_points
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.files.label_files import LABEL_STUDIO
from beam_pipelines.sources.formats.label_studio.brush import decode_brush
from beam_pipelines.sources.formats.label_studio.tasks import Task, read_tasks
from tf_input.dataset_format import LABEL

_SEVERAL = "tasks have several annotations. The first annotation that is not cancelled is used."
_POINTS = "keypointlabels"
_SIDES = ("original_width", "original_height", "image_rotation")


class LabelStudio(ListedSource):
    """Lists the images of Label Studio's tasks with their objects or classes."""

    kind = SourceKind(
        name="label_studio",
        summary="Label Studio",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "has_corners", "image_root"),
        synonyms=("labelstudio", "label-studio"),
        has_image_classes=True,
    )
    file_format, extensions = LABEL_STUDIO, (".json",)
    is_relative = True
    class_fields = None
    has_points = True

    def _find_labels(self) -> Sequence[Column] | None:
        """Returns the label columns. By default, choices become the label if the first tasks have no shapes."""
        labels = self._options.source.labels
        if labels is not None or self._options.source.has_masks:
            return labels
        tasks = self._first_entries()
        fields = {field: max(len(task.classes.get(field, ())) for task in tasks) for task in tasks for field in task.classes}
        if not fields or any(task.regions for task in tasks):
            return None
        if len(fields) > 1:
            names = ", ".join(map(printable, sorted(fields)))
            raise UserError(f"--label: the tasks have several choices: {names}. Pass --label with one of them.")
        ((field, most),) = fields.items()
        return self._detected("choices of", Column(LABEL, (field,), "multi_label" if most > 1 else "class"))

    def read(self, path: str, name: str) -> Iterator[tuple[Sequence[str], Task]]:
        for task in read_tasks(path, name):
            if task.has_more:
                self._note(_SEVERAL)
            if task.names:
                yield task.names, task

    def parse(self, entry: Task) -> Annotation:
        if entry.problem and self.features:
            raise entry.problem
        self.unused_fields.add(entry.others)
        sizes: set[tuple[int, int]] = set()
        shapes = self._read_shapes(entry.regions, lambda region: self._read_shape(region, sizes), "region")
        if len(sizes) > 1:
            raise InvalidInput("size_mismatch", f"regions refer to images of different sizes: {sorted(sizes)}")
        return self._make_annotation(entry.names[0], shapes, next(iter(sizes), None), entry.classes)

    def _read_shape(self, value: Mapping[str, Any], sizes: set[tuple[int, int]]) -> Shape | None:
        kind = value["type"]
        field = next((field for field in _OUTLINES if field in value), None)
        if field is None and kind == _POINTS:
            return self._read_points(lambda: _read_point(value, sizes if self._point_columns else set()))
        if field is None:
            self.unused_fields.add([f"regions of type {kind}"])
            return None
        label, size = _read_label(value, kind), _read_size(value)
        sizes.add(size)
        return Shape(self._read_label(label), _OUTLINES[field](value, *size))


def _read_label(value: Mapping[str, Any], kind: str) -> Any:
    labels = value.get(kind)
    if not isinstance(labels, list) or len(labels) != 1:
        raise InvalidInput("bad_label", f"has the {kind} {shown(labels)}; it must have one class")
    return labels[0]


def _read_size(value: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the (height, width) of the image in pixels. Raises `InvalidInput` if the size is missing or the image is
    rotated."""
    size = read_image_size(value.get("original_height"), value.get("original_width"))
    if size is None or value.get("image_rotation"):
        stated = {side: value.get(side) for side in _SIDES}
        raise InvalidInput("size_mismatch", f"has {shown(stated)}; it needs an image size and no rotation of the image")
    return size


def _read_point(value: Mapping[str, Any], sizes: set[tuple[int, int]]) -> tuple[Any, list[Point]]:
    label, (height, width) = _read_label(value, _POINTS), _read_size(value)
    point = _percent(value, "x", width), _percent(value, "y", height)
    sizes.add((height, width))
    return label, [point]


def _percent(value: Mapping[str, Any], name: str, side: int) -> float:
    return read_coordinate(value.get(name), name) / 100 * side


def _read_rectangle(value: Mapping[str, Any], height: int, width: int) -> Outline:
    left, top = _percent(value, "x", width), _percent(value, "y", height)
    outline = rectangle(left, top, _percent(value, "width", width), _percent(value, "height", height))
    return rotated(outline, read_coordinate(value.get("rotation") or 0, "rotation"), (left, top))


def _read_polygon(value: Mapping[str, Any], height: int, width: int) -> Outline:
    return polygon([(x / 100 * width, y / 100 * height) for x, y in read_points(value["points"], 3)])


def _read_ellipse(value: Mapping[str, Any], height: int, width: int) -> Outline:
    center = _percent(value, "x", width), _percent(value, "y", height)
    radii = _percent(value, "radiusX", width), _percent(value, "radiusY", height)
    return ellipse(center, *radii, read_coordinate(value.get("rotation") or 0, "rotation"))


def _read_brush(value: Mapping[str, Any], height: int, width: int) -> Outline:
    return bitmap(decode_brush(value["rle"], height, width), 0, 0, (height, width))


# The function that reads each type of region. The key is a field that only this type has.
_OUTLINES = {"rle": _read_brush, "points": _read_polygon, "radiusX": _read_ellipse, "height": _read_rectangle}
