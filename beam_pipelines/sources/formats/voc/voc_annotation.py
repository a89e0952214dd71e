"""Parses one Pascal VOC XML file, and rejects DTDs, entities and external content.

The format: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html. As in TensorFlow Datasets, 1 is not
subtracted from coordinates, and fractions are kept.
"""

import math
import re
from typing import Any, Collection, NamedTuple
from xml.etree.ElementTree import ParseError

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.cells.class_cells import class_name, known

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_MAX_NUMBER_CHARACTERS = 64
_FLAGS = {"": 0, "0": 0, "false": 0, "unspecified": 0, "1": 1, "true": 1}
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_OTHER_SHAPES = ("robndbox", "polygon", "segmentation", "ellipse", "circle")  # fields for other shapes than boxes
_KEPT = ("name", "bndbox", "difficult", "truncated")


class VocAnnotation(NamedTuple):
    """The content of one XML file.

    Attributes:
        file_name: The name of the image file, as in the XML file; may be empty.
        objects: The objects of the image, in the order of the file.
        others: The names of fields of objects that are not kept.
    """

    file_name: str
    objects: Objects
    others: frozenset[str] = frozenset()


def parse_annotation(data: bytes, label_names: Collection[str] = ()) -> VocAnnotation:
    """Parses the XML of an annotation into the name of an image and the objects in this image.

    Args:
        data: The whole XML file.
        label_names: The class names that are allowed; empty allows all names.

    Raises:
        InvalidInput: The file is not an annotation, an object is incomplete, or a field that is read occurs twice.
    """
    root = _parse(data)
    if str(root.tag).lower() != "annotation":
        raise InvalidInput("bad_xml", f"its root is <{printable(str(root.tag)[:80])}>; it must be <annotation>")
    read_objects = [
        _read_object(element, f"object {number}", label_names)
        for number, element in enumerate(root.findall("object"), 1)
    ]
    boxes, labels, difficult, truncated = zip(*read_objects) if read_objects else ((), (), (), ())
    flags = {"is_difficult": difficult, "is_truncated": truncated}
    objects = Objects(boxes, labels, flags, _read_size(_only(root, "size", "the annotation")))
    others = frozenset(field.tag for element in root.findall("object") for field in element if field.tag not in _KEPT)
    return VocAnnotation(_text(root, "filename", "the annotation"), objects, others)


def _parse(data: bytes) -> Any:
    from defusedxml import ElementTree  # not installed beside the reader alone
    from defusedxml.common import DefusedXmlException

    try:
        return ElementTree.fromstring(data, forbid_dtd=True, forbid_entities=True, forbid_external=True)
    except DefusedXmlException as error:
        raise InvalidInput(
            "bad_xml", f"it has a DTD or an entity ({type(error).__name__}), which are not allowed"
        ) from None
    except (ParseError, ValueError, LookupError) as error:  # the last two: invalid encodings
        raise InvalidInput("bad_xml", f"not valid XML: {printable(str(error)[:200])}") from None


def _only(parent: Any, tag: str, name: str) -> Any:
    """Returns the child element with a given tag, or None if there is no such element.

    Raises `InvalidInput` if several child elements have this tag, because an editor may have merged two objects.
    """
    elements = parent.findall(tag)
    if len(elements) > 1:
        raise InvalidInput("bad_xml", f"{name} has {len(elements)} fields <{tag}>; it must have one")
    return elements[0] if elements else None


def _text(parent: Any, tag: str, name: str) -> str:
    """Returns the stripped text of the child element with a given tag, or "" if there is no such element."""
    child = _only(parent, tag, name)
    return "" if child is None else (child.text or "").strip()


def _read_object(element: Any, name: str, label_names: Collection[str]) -> tuple[tuple[float, ...], str, int, int]:
    box = _only(element, "bndbox", name)
    if box is None:
        other = next((tag for tag in _OTHER_SHAPES if element.find(tag) is not None), "")
        instead = f", but a <{other}>, which is not read. Convert it to a <bndbox>" if other else ""
        raise InvalidInput("bad_xml", f"{name} has no <bndbox>{instead}")
    sides = tuple(_read_number(box, side, name) for side in _SIDES)
    text = _text(element, "name", name)
    try:
        label = known(class_name(text), label_names)
    except InvalidInput as error:
        raise InvalidInput("bad_label", f"<name> of {name} {error}") from None
    return sides, label, _read_flag(element, "difficult", name), _read_flag(element, "truncated", name)


def _read_number(parent: Any, tag: str, name: str) -> float:
    text = _text(parent, tag, name)
    value = float(text) if len(text) <= _MAX_NUMBER_CHARACTERS and _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise InvalidInput("bad_xml", f"<{tag}> of {name} is {printable(text[:80])!r}; it must be a finite number")
    return value


def _read_flag(element: Any, tag: str, name: str) -> int:
    text = _text(element, tag, name)
    flag = _FLAGS.get(text.lower())
    if flag is None:
        raise InvalidInput("bad_xml", f"<{tag}> of {name} is {printable(text[:80])!r}; it must be 0 or 1")
    return flag


def _read_size(element: Any) -> tuple[int, int] | None:
    """Returns the (height, width) in pixels, or None if the element is missing or a side is empty or 0."""
    if element is None:
        return None
    height, width = (
        _read_number(element, tag, "<size>") if _text(element, tag, "<size>") else 0.0 for tag in ("height", "width")
    )
    if height < 0 or width < 0 or height % 1 or width % 1:
        raise InvalidInput("bad_xml", f"<size> is {width:g} x {height:g}; it must be numbers of pixels")
    return (int(height), int(width)) if height and width else None
