"""Source `cvat`: boxes, masks and classes from XML files in the format "CVAT for images 1.1".

See https://docs.cvat.ai/docs/manual/advanced/xml_format/. The XML file is read as a stream, one image at a time.
"""

import functools
import re
from typing import Any, Iterator
from xml.etree.ElementTree import Element, ParseError

import numpy as np

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.image_headers import check_size
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.listed_source import ANNOTATION_FOLDERS, AnnotatedImage, ListedSource
from beam_pipelines.sources.annotations.recognition import recognise_content
from beam_pipelines.sources.annotations.shapes import (
    Outline,
    Shape,
    bitmap,
    ellipse,
    polygon,
    read_coordinate,
    read_image_size,
    read_label,
    read_points,
    read_shapes,
    rectangle,
    rotated,
)
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.files.label_files import CVAT
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import listing_error

_MAX_DEPTH = 16
_MAX_ELEMENTS = 1_000_000  # per image
_TAGS = "tags"
_FLAGS = {"": 0, "0": 0, "false": 0, "1": 1, "true": 1}
_VIDEO = (
    "contains <track>, so it is a file of CVAT for video, which is not supported. "
    "In CVAT, export the task as CVAT for images 1.1."
)
_RUNS = re.compile(r"\s*\d{1,10}(?:\s*,\s*\d{1,10})*\s*")


class Cvat(ListedSource):
    """Lists the images that CVAT's XML files name, with their objects."""

    kind = SourceKind(
        name="cvat",
        summary="CVAT for images",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "image_root"),
        has_image_classes=True,
    )
    extensions = (".xml",)
    file_format = CVAT
    flags = {"is_occluded": "integer"}
    class_fields = (_TAGS,)

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises an XML file of CVAT, or a folder that contains one."""
        return recognise_content(names, CVAT, "*.xml", ANNOTATION_FOLDERS)

    def read(self, path: str, name: str) -> Iterator[AnnotatedImage]:
        from defusedxml.common import DefusedXmlException  # not installed beside the reader alone

        try:
            with open_file(path) as file:
                for element in _image_elements(file, printable(name)):
                    yield self._read_image(element)
        except DefusedXmlException as error:
            raise UserError(f"{printable(name)}: has a DTD or an entity ({type(error).__name__}). Remove it.") from None
        except (ParseError, ValueError, LookupError) as error:  # An invalid encoding raises ValueError or LookupError.
            raise UserError(f"{printable(name)}: not valid XML: {printable(str(error)[:200])}. Export it again.") from None
        except OSError as error:
            raise listing_error(error, path, f"{printable(name)} cannot be read: {error.strerror or error}") from error

    def _read_image(self, element: Element) -> AnnotatedImage:
        name, subset = element.get("name", ""), element.get("subset", "")
        split = SPLIT_FOLDERS.get(subset.lower())
        names = [f"{subset}/{name}", name] if subset else [name]
        try:
            if not name:
                raise InvalidInput("bad_annotation", f"image {element.get('id')} has no name")
            return AnnotatedImage(names, self._parse(element), split)
        except InvalidInput as error:
            return AnnotatedImage(names, error, split)

    def _parse(self, element: Element) -> Annotation:
        image_size = read_image_size(element.get("height"), element.get("width"))
        others: set[str] = set()
        elements = [child for child in element if child.tag != "tag"]
        read = functools.partial(self._read_shape, image_size=image_size, others=others)
        shapes = read_shapes(elements, read) if self._has_objects else ()
        tags = [tag.get("label") for tag in element.findall("tag")]
        if element.get("subset") and element.get("subset").lower() not in (*SPLIT_FOLDERS, "default"):
            others.add("subset")
        others.update(self._unused_classes({_TAGS: tags}))
        return self._make_annotation(element.get("name"), shapes, image_size, {_TAGS: tags}, sorted(others))

    def _read_shape(self, element: Element, image_size: tuple[int, int] | None, others: set[str]) -> Shape | None:
        read = _OUTLINES.get(element.tag)
        if read is None:
            others.add(f"shapes of type {element.tag}")
            return None
        label = read_label(element.get("label"), self._label_names)
        others.update(f"attribute {child.get('name')}" for child in element if child.tag == "attribute")
        try:
            occluded = _FLAGS.get(element.get("occluded", "").lower())
            if occluded is None:
                raise InvalidInput("bad_annotation", f"has occluded {shown(element.get('occluded'))}; it must be 0 or 1")
            return Shape(label, read(element, image_size), {"is_occluded": occluded})
        except InvalidInput as error:
            raise InvalidInput(error.reason, f"({printable(label)}) {error}") from None


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


def _number(element: Element, name: str) -> float:
    return read_coordinate(element.get(name), name)


def _read_box(element: Element, _: Any) -> Outline:
    left, top, right, bottom = (_number(element, side) for side in ("xtl", "ytl", "xbr", "ybr"))
    outline = rectangle(left, top, right - left, bottom - top)
    return rotated(outline, read_coordinate(element.get("rotation") or 0, "rotation"), ((left + right) / 2, (top + bottom) / 2))


def _read_polygon(element: Element, _: Any) -> Outline:
    text = element.get("points") or ""
    return polygon(read_points([point.split(",") for point in text.split(";")] if text else [], 3))


def _read_ellipse(element: Element, _: Any) -> Outline:
    x, y, radius_x, radius_y = (_number(element, name) for name in ("cx", "cy", "rx", "ry"))
    return ellipse((x, y), radius_x, radius_y, read_coordinate(element.get("rotation") or 0, "rotation"))


def _read_mask(element: Element, image_size: tuple[int, int] | None) -> Outline:
    """Returns the outline of a mask. The run lengths cover a box row by row, and start with the background."""
    left, top, width, height = (_number(element, name) for name in ("left", "top", "width", "height"))
    text = element.get("rle") or ""
    if image_size is None or any(side % 1 for side in (left, top, width, height)) or not _RUNS.fullmatch(text):
        raise InvalidInput("bad_mask", "is a mask without run lengths, whole sides or an image size")
    check_size("mask", int(height), int(width))
    counts = np.array(text.split(","), np.int64)
    if counts.sum() != int(height) * int(width):
        raise InvalidInput("bad_mask", f"has run lengths of {counts.sum()} pixels instead of {width:g} x {height:g}")
    pixels = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(int(height), int(width))
    return bitmap(pixels, int(top), int(left), image_size)


_OUTLINES = {"box": _read_box, "polygon": _read_polygon, "ellipse": _read_ellipse, "mask": _read_mask}
