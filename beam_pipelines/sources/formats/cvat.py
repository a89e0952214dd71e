"""Source `cvat`: boxes, masks and classes from XML files in the format "CVAT for images 1.1".

See https://docs.cvat.ai/docs/manual/advanced/xml_format/. The XML file is read as a stream, one image at a time.
"""

import re
import shlex
from typing import Any, Iterator, Sequence
from xml.etree.ElementTree import Element, ParseError

import numpy as np

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.image_headers import check_size
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.listed_source import ListedSource
from beam_pipelines.sources.annotations.shapes import Outline, Point, Shape, bitmap, ellipse, polygon, rectangle, rotated
from beam_pipelines.sources.annotations.shapes import read_coordinate, read_flag, read_image_size, read_points
from beam_pipelines.sources.files.label_files import CVAT
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import read_errors
from tf_input.dataset_format import OBJECTS

_MAX_DEPTH = 16
_MAX_ELEMENTS = 1_000_000  # per image
_TAGS = "tags"
_VIDEO = "contains <track>, so it is a file of CVAT for video, which is not supported. In CVAT, export the task as CVAT for images 1.1."
_RUNS = re.compile(r"\s*\d{1,10}(?:\s*,\s*\d{1,10})*\s*")


class Cvat(ListedSource):
    """Lists the images that CVAT's XML files name, with their objects."""

    kind = SourceKind(
        name="cvat",
        summary="CVAT for images",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "has_corners", "image_root"),
        has_image_classes=True,
    )
    file_format, extensions = CVAT, (".xml",)
    flags = {"is_occluded": "integer"}
    class_fields = (_TAGS,)
    has_points = has_attributes = True

    def _set_targets(self, labels: Sequence[Column] | None) -> None:
        super()._set_targets(labels)
        if self._attributes.columns:
            shapes = (shape for image in self._first_entries() for shape in image if shape.tag in _OUTLINES)
            self._attributes.check_names({name for shape in shapes for name in _attributes(shape)})

    def read(self, path: str, name: str) -> Iterator[tuple[Sequence[str], Element]]:
        from defusedxml.common import DefusedXmlException  # not installed beside the reader alone

        try:
            with read_errors(path, name), open_file(path) as file:
                for element in _image_elements(file, printable(name)):
                    image, subset = element.get("name", ""), element.get("subset", "")
                    yield [f"{subset}/{image}", image] if subset else [image], element
        except DefusedXmlException as error:
            raise UserError(f"{printable(name)}: has a DTD or an entity ({type(error).__name__}). Remove it.") from None
        except (ParseError, ValueError, LookupError) as error:  # An invalid encoding raises ValueError or LookupError.
            raise UserError(f"{printable(name)}: not valid XML: {printable(str(error)[:200])}. Export it again.") from None

    def parse(self, entry: Element) -> Annotation:
        name, subset = entry.get("name"), entry.get("subset", "").lower()
        if not name:
            raise InvalidInput("bad_annotation", f"image {entry.get('id')} has no name")
        image_size = read_image_size(entry.get("height"), entry.get("width"))
        shapes = self._read_shapes(_shape_elements(entry), lambda child: self._read_shape(child, image_size))
        if subset not in (*SPLIT_FOLDERS, "default", ""):
            self.unused_fields.add(["subset"])
        tags = [tag.get("label") for tag in entry.findall("tag")]
        self.unused_fields.add(f"attribute {name} of tags" for tag in entry.findall("tag") for name in _attributes(tag))
        return self._make_annotation(name, shapes, image_size, {_TAGS: tags})._replace(split=SPLIT_FOLDERS.get(subset))

    def _read_shape(self, element: Element, image_size: tuple[int, int] | None) -> Shape | None:
        if element.tag == "points":
            visibility = 1.0 if element.get("occluded") == "1" else 2.0
            return self._read_points(lambda: (element.get("label"), _read_points(element, 1)), visibility)
        if element.tag not in _OUTLINES:
            self.unused_fields.add([f"shapes of type {element.tag}"])
            return None
        attributes = _attributes(element)
        used = {column.names[0] for column in self._attributes.columns}
        unused = [name for name in attributes if name not in used]
        option = f"--label {OBJECTS} --label"
        self.unused_fields.add(f"attribute {name} (stored with {option} {shlex.quote(name)})" for name in unused)
        flags = {"is_occluded": read_flag(element.get("occluded"), "occluded"), **self._attributes.read(attributes)}
        return Shape(self._read_label(element.get("label")), _OUTLINES[element.tag](element, image_size), flags)


def _attributes(element: Element) -> dict[str, str]:
    return {child.get("name", ""): child.text or "" for child in element if child.tag == "attribute"}


def _shape_elements(image: Element) -> Iterator[Element]:
    """Yields the shapes of an image. A skeleton is replaced by its points, without the points that are outside the image."""
    for child in image:
        if child.tag == "skeleton":
            yield from (point for point in child.findall("points") if point.get("outside") != "1")
        elif child.tag != "tag":
            yield child


def _image_elements(file: Any, name: str) -> Iterator[Element]:
    """Yields the `<image>` elements of a file, each of which is freed before the next one is read. Raises `UserError`
    if the file has another format or is nested too deeply."""
    from defusedxml import ElementTree  # not installed beside the reader alone

    root, depth, num_elements = None, 0, 0
    for event, element in ElementTree.iterparse(file, ("start", "end"), forbid_dtd=True):
        if event == "start":
            depth, num_elements = depth + 1, num_elements + 1
            root = element if root is None else root
            if root.tag != "annotations":
                raise UserError(f"{name}: its root is <{printable(root.tag[:80])}>; it must be <annotations>.")
            if depth == 2 and element.tag == "track":
                raise UserError(f"{name}: {_VIDEO}")
            if depth > _MAX_DEPTH or num_elements > _MAX_ELEMENTS:
                raise UserError(f"{name}: an element has too many elements, or is nested too deeply. Export it again.")
            continue
        depth -= 1
        if depth == 1:
            if element.tag == "image":
                yield element
            root.clear()
            num_elements = 0


def _numbers(element: Element, *names: str) -> list[float]:
    return [read_coordinate(element.get(name), name) for name in names]


def _rotation(element: Element) -> float:
    return read_coordinate(element.get("rotation") or 0, "rotation")


def _read_box(element: Element, _: Any) -> Outline:
    left, top, right, bottom = _numbers(element, "xtl", "ytl", "xbr", "ybr")
    center = (left + right) / 2, (top + bottom) / 2
    return rotated(rectangle(left, top, right - left, bottom - top), _rotation(element), center)


def _read_points(element: Element, minimum: int) -> list[Point]:
    text = element.get("points") or ""
    return read_points([point.split(",") for point in text.split(";")] if text else [], minimum)


def _read_ellipse(element: Element, _: Any) -> Outline:
    x, y, radius_x, radius_y = _numbers(element, "cx", "cy", "rx", "ry")
    return ellipse((x, y), radius_x, radius_y, _rotation(element))


def _read_mask(element: Element, image_size: tuple[int, int] | None) -> Outline:
    """Returns the outline of a mask. The run lengths cover a box row by row, and start with the background."""
    sides = _numbers(element, "left", "top", "width", "height")
    text = element.get("rle") or ""
    if image_size is None or any(side % 1 for side in sides) or not _RUNS.fullmatch(text):
        raise InvalidInput("bad_mask", "is a mask without run lengths, whole sides or an image size")
    left, top, width, height = map(int, sides)
    check_size("mask", height, width)
    counts = np.array(text.split(","), np.int64)
    if counts.sum() != height * width:
        raise InvalidInput("bad_mask", f"has run lengths of {counts.sum()} pixels instead of {width} x {height}")
    pixels = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(height, width)
    return bitmap(pixels, top, left, image_size)


_OUTLINES = {
    "box": _read_box,
    "polygon": lambda element, _: polygon(_read_points(element, 3)),
    "ellipse": _read_ellipse,
    "mask": _read_mask,
}
