"""Source `labelme`: boxes and, optionally, masks from LabelMe's JSON files, with one JSON file per image.

A JSON file belongs to the image of the same name, or to the image at `imagePath`. If neither exists, the image in the
field `imageData` of the JSON file is used.
"""

import base64
import binascii
import functools
import math
import re
from typing import Any, Mapping

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.paired_source import PairedSource
from beam_pipelines.sources.annotations.shapes import Outline, Shape, bitmap, ellipse, polygon, read_image_size, read_points, rectangle
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.cells.json_text import read_json
from beam_pipelines.sources.files.label_files import LABELME

_MAX_TEXT_BYTES = 4 << 20  # of a JSON file without `imageData`
_IMAGE_DATA = re.compile(rb'"imageData"\s*:\s*"([A-Za-z0-9+/=]*)"')
_POINTS = ("point", "points")
_LINES = ("line", "linestrip")
_UNUSED = ("group_id", "description", "flags")
_FLAGS = "flags"


class LabelMe(PairedSource):
    """Lists images with the objects in their LabelMe JSON files."""

    kind = SourceKind(
        name="labelme",
        summary="LabelMe",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "has_corners"),
        synonyms=("anylabeling", "x-anylabeling"),
        has_image_classes=True,
    )
    file_format, file_kind = LABELME, "JSON file"
    extensions, folders = (".json",), ("annotations", "annotation", "json", "jsons", "labels", "labelme")
    max_bytes = 64 << 20
    image_name_field = "imagePath"
    may_be_elsewhere, may_embed = True, True
    class_fields = (_FLAGS,)
    has_points = True

    def parse(self, data: bytes) -> Annotation:
        """Parses a JSON file. Raises `InvalidInput` if the file is invalid."""
        embedded = _IMAGE_DATA.search(data)
        content = _read_content(data[: embedded.start(1)] + data[embedded.end(1) :] if embedded else data)
        image_size = read_image_size(content.get("imageHeight"), content.get("imageWidth"))
        shapes = self._read_shapes(content["shapes"], lambda entry: self._read_shape(entry, image_size))
        flags, file_name = content.get(_FLAGS), content.get("imagePath")
        classes = [name for name, is_set in flags.items() if is_set is True] if isinstance(flags, dict) else []
        file_name = file_name if isinstance(file_name, str) else ""
        image = functools.partial(_decode, embedded[1], "imageData") if embedded and embedded[1] else None
        return self._make_annotation(file_name, shapes, image_size, {_FLAGS: classes})._replace(image=image)

    def _read_shape(self, entry: Any, image_size: tuple[int, int] | None) -> Shape | None:
        if not isinstance(entry, dict):
            raise InvalidInput("bad_annotation", f"is {shown(entry)}; it must be an object")
        kind = entry.get("shape_type") or "polygon"
        if kind in _POINTS:
            return self._read_points(lambda: (entry.get("label"), read_points(entry.get("points"), 1)))
        if kind in _LINES:
            self.unused_fields.add([f"shapes of type {kind}"])
            return None
        self.unused_fields.add(name for name in _UNUSED if entry.get(name) not in (None, "", {}, []))
        return Shape(self._read_label(entry.get("label")), _read_outline(kind, entry, image_size))


def _read_content(data: bytes) -> Mapping[str, Any]:
    if len(data) > _MAX_TEXT_BYTES:
        raise InvalidInput("bad_json", f"{len(data)} bytes besides the image; at most {_MAX_TEXT_BYTES} are allowed")
    try:
        content = read_json(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("bad_json", f"not valid JSON: {printable(str(error)[:200])}") from None
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise InvalidInput("bad_annotation", "has no list 'shapes'; it must be a JSON file of LabelMe")
    return content


def _read_outline(kind: Any, entry: Mapping[str, Any], image_size: tuple[int, int] | None) -> Outline:
    if kind == "mask":
        return _read_bitmap(entry, image_size)
    if kind == "circle":
        center, edge, *_ = read_points(entry.get("points"), 2)
        radius = math.dist(center, edge)
        return ellipse(center, radius, radius)
    if kind == "rectangle":
        xs, ys = zip(*read_points(entry.get("points"), 2))
        return rectangle(min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
    if kind in ("polygon", "rotation", "oriented_rectangle"):
        return polygon(read_points(entry.get("points"), 3))
    raise InvalidInput("bad_annotation", f"has the shape_type {shown(kind)}, which is unknown")


def _read_bitmap(entry: Mapping[str, Any], image_size: tuple[int, int] | None) -> Outline:
    """Returns the outline of a mask. The mask is a base64 PNG that fills the box between the two points."""
    (left, top), _ = read_points(entry.get("points"), 2)[:2]
    text = entry.get("mask")
    if image_size is None or not isinstance(text, str) or left % 1 or top % 1:
        raise InvalidInput("bad_mask", "is a mask without a PNG, whole coordinates or an image size")
    pixels = read_mask(_decode(text.encode(errors="replace"), "mask"))
    return bitmap(pixels > 0, int(top), int(left), image_size)


def _decode(text: bytes, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidInput("bad_image", f"{field} is not valid base64: {error}") from None
