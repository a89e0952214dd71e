"""Source `via`: boxes and masks from projects of the VGG Image Annotator (VIA) and from its JSON and CSV exports.

The class of a region is the value of one of its attributes. If a project defines no attributes, all regions have the
class `object`.
"""

import csv
import functools
import io
import itertools
import math
from typing import Any, Iterator, Mapping, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.json_stream import open_json, read_entries, read_value, skip_value
from beam_pipelines.sources.annotations.listed_source import ListedSource
from beam_pipelines.sources.annotations.shapes import Outline, Shape, ellipse, polygon, read_coordinate, read_points, rectangle
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.cells.json_text import read_json
from beam_pipelines.sources.cells.objects import ONLY_CLASS
from beam_pipelines.sources.files.label_files import VIA
from beam_pipelines.sources.rows.lines import MAX_LINE
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import read_errors
from tf_input.dataset_format import LABEL, OBJECTS

_MAX_DEPTH = 6  # entry, regions, region, shape_attributes, points
_POINT, _LINE = "point", "polyline"
_OBJECTS = Column(OBJECTS, (OBJECTS,))
_JSON_CELLS = {  # CSV column -> field in a JSON export
    "file_attributes": "file_attributes",
    "region_shape_attributes": "shape_attributes",
    "region_attributes": "region_attributes",
}


class Via(ListedSource):
    """Lists the images that the VGG Image Annotator's files name, with their objects or classes."""

    kind = SourceKind(
        name="via",
        summary="VGG Image Annotator",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "has_corners", "image_root"),
        synonyms=("vgg", "via_json", "via_csv"),
        has_image_classes=True,
    )
    file_format, extensions = VIA, (".json", ".csv")
    class_fields = None
    has_points = True

    def _find_labels(self) -> Sequence[Column] | None:
        """Returns the label columns, and chooses the attribute that contains the classes of regions.

        Raises:
            UserError: A requested attribute does not exist, or several attributes may contain the class.
        """
        labels = self._options.source.labels
        self._attribute: str | None = None
        if labels == ():
            return labels
        regions, files, has_regions = self._probe()
        if labels is None and not has_regions and len(files) == 1 and not self._options.source.has_masks:
            return self._detected("file attribute", Column(LABEL, tuple(files)))
        columns = []
        for column in (_OBJECTS,) if labels is None else labels:
            name = column.names[0]
            if name in regions and form_of(column).is_class:
                self._attribute = name
                column = _OBJECTS
            elif name == OBJECTS or form_of(column).is_points:
                self._attribute = _only(regions)
            elif name not in files:
                known = ", ".join(map(printable, sorted({*regions, *files, OBJECTS})))
                raise UserError(f"--label={printable(name)}: no region and no file has this attribute. Give one of {known}.")
            columns.append(column)
        return columns

    def _probe(self) -> tuple[set[str], set[str], bool]:
        """Returns the attributes of regions, the attributes of files, and whether there are regions in the first entries."""
        entries = self._first_entries()
        regions = [region for entry in entries for region in _regions(entry)]
        attributes = (_attributes(region.get("region_attributes")) for region in regions if isinstance(region, dict))
        files = (_attributes(entry.get("file_attributes")).items() for entry in entries)
        named = {name for items in files for name, value in items if _classes(value)}
        return {name for names in attributes for name in names}, named, bool(regions)

    def read(self, path: str, name: str) -> Iterator[tuple[Sequence[str], Mapping[str, Any]]]:
        for entry in _read_csv(path, name) if path.lower().endswith(".csv") else _read_json(path, name):
            entry = entry if isinstance(entry, dict) else {"filename": entry}
            file_name = entry.get("filename")
            yield [file_name if isinstance(file_name, str) and file_name else "?"], entry

    def parse(self, entry: Mapping[str, Any]) -> Annotation:
        file_name = entry.get("filename")
        if problem := entry.get("problem"):
            raise problem
        if not isinstance(file_name, str) or not file_name:
            raise InvalidInput("bad_annotation", f"'filename' is {shown(file_name)}; it must be the name of an image")
        shapes = self._read_shapes(_regions(entry), self._read_shape, "region")
        classes = {field: _classes(value) for field, value in _attributes(entry.get("file_attributes")).items()}
        return self._make_annotation(file_name, shapes, None, classes)

    def _read_shape(self, region: Any) -> Shape | None:
        shape = region.get("shape_attributes") if isinstance(region, dict) else None
        if not isinstance(shape, dict):
            raise InvalidInput("bad_annotation", f"is {shown(region)}; it must have shape_attributes")
        kind = shape.get("name")
        if kind == _LINE:
            self.unused_fields.add([f"regions of type {kind}"])
            return None
        attributes = _attributes(region.get("region_attributes"))
        if kind == _POINT:
            return self._read_points(lambda: (self._class_of(attributes), read_points([_numbers(shape, "cx", "cy")], 1)))
        if not isinstance(kind, str) or kind not in _OUTLINES:
            raise InvalidInput("bad_annotation", f"has the shape {shown(kind)}, which is unknown")
        self.unused_fields.add(f"region attribute {name}" for name in attributes if name != self._attribute)
        return Shape(self._read_label(self._class_of(attributes)), _OUTLINES[kind](shape))

    def _class_of(self, attributes: Mapping[str, Any]) -> Any:
        if self._attribute is None:
            return self._label_names[0] if len(self._label_names) == 1 else ONLY_CLASS
        classes = _classes(attributes.get(self._attribute))
        if len(classes) != 1:
            attribute = printable(self._attribute)
            raise InvalidInput("bad_label", f"has {len(classes)} values of the attribute {attribute!r}; it must have one")
        return classes[0]


def _only(attributes: set[str]) -> str | None:
    if len(attributes) > 1:
        names = ", ".join(map(printable, sorted(attributes)))
        raise UserError(f"--label: regions have several attributes: {names}. Pass --label with the attribute that contains the class.")
    return next(iter(attributes), None)


def _attributes(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _classes(value: Any) -> list[Any]:
    """Returns the values of an attribute. An attribute with checkboxes maps each value to a flag."""
    if isinstance(value, dict):
        return [name for name, is_set in value.items() if is_set is True]
    return [] if value in (None, "", []) else [value]


def _regions(entry: Mapping[str, Any]) -> list[Any]:
    """Returns the regions of an entry. Old versions of the format store them as an object instead of a list."""
    regions = entry.get("regions")
    return regions if isinstance(regions, list) else [*regions.values()] if isinstance(regions, dict) else []


def _read_json(path: str, name: str) -> Iterator[Any]:
    with open_json(path, name) as events:
        if next(events)[0] != "start_map":
            raise UserError(f"{printable(name)}: not a JSON object. Export the annotations as JSON or CSV.")
        for event, key in events:
            if event == "end_map":
                return
            event, value = next(events)
            if key == "_via_img_metadata" and event == "start_map":
                yield from (entry for _, entry in read_entries(events, event, _MAX_DEPTH))
            elif key.startswith("_via"):
                skip_value(events, event)
            else:
                yield read_value(events, event, value, _MAX_DEPTH)


def _read_csv(path: str, name: str) -> Iterator[Any]:
    """Yields the entries of a CSV file in the structure of a JSON export."""
    csv.field_size_limit(MAX_LINE)  # The limit applies to the whole process. The default is 131,072 characters.
    try:
        with read_errors(path, name), open_file(path) as file:
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            rows = csv.DictReader(iter(functools.partial(text.readline, MAX_LINE), ""))
            rows.fieldnames = [field.lstrip("#") for field in rows.fieldnames or ()]
            for file_name, of_image in itertools.groupby(rows, lambda row: row.get("filename")):
                yield _combine(file_name, of_image)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{printable(name)}: not a CSV file in UTF-8: {printable(str(error)[:200])}. Export it again.") from None


def _combine(file_name: Any, rows: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Combines the CSV rows of an image into one entry, as in a JSON export. Each row has one region."""
    entry: dict[str, Any] = {"filename": file_name, "regions": []}
    for row in list(rows):
        try:
            cells = {field: read_json(row.get(column) or "{}") for column, field in _JSON_CELLS.items()}
        except (ValueError, RecursionError) as error:
            number = len(entry["regions"]) + 1
            return {**entry, "problem": InvalidInput("bad_json", f"region {number} has invalid JSON: {printable(str(error)[:200])}")}
        entry["file_attributes"] = cells.pop("file_attributes")
        if cells["shape_attributes"]:
            entry["regions"].append(cells)
    return entry


def _numbers(shape: Mapping[str, Any], *names: str) -> list[float]:
    return [read_coordinate(shape.get(name), name) for name in names]


def _read_polygon(shape: Mapping[str, Any]) -> Outline:
    xs, ys = shape.get("all_points_x"), shape.get("all_points_y")
    if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
        raise InvalidInput("bad_box", f"has the points {shown(xs)} and {shown(ys)}; they must be lists of equal length")
    return polygon(read_points(list(zip(xs, ys)), 3))


def _read_circle(shape: Mapping[str, Any]) -> Outline:
    x, y, radius = _numbers(shape, "cx", "cy", "r")
    return ellipse((x, y), radius, radius)


def _read_ellipse(shape: Mapping[str, Any]) -> Outline:
    x, y, radius_x, radius_y = _numbers(shape, "cx", "cy", "rx", "ry")
    return ellipse((x, y), radius_x, radius_y, math.degrees(read_coordinate(shape.get("theta") or 0, "theta")))


_OUTLINES = {
    "rect": lambda shape: rectangle(*_numbers(shape, "x", "y", "width", "height")),
    "polygon": _read_polygon,
    "circle": _read_circle,
    "ellipse": _read_ellipse,
}
