"""Reads the annotations of one image in a COCO file."""

import json
import math
from typing import Any, Mapping

from beam_pipelines.errors import InvalidInput
from beam_pipelines.columns.keypoints import KEYPOINTS_FORM, Points, to_points
from beam_pipelines.sources.annotations.shapes import Outline
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.formats.coco.coco_categories import NUM_NUMBERS, read_id
from tf_input.dataset_format import Feature


def read_category(entry: Mapping[str, Any]) -> int | str:
    """Returns the category id of an object. Raises `InvalidInput` if the id is invalid."""
    category_id = read_id(entry.get("category_id"))
    if category_id is None:
        raise InvalidInput("bad_label", f"'category_id' is {shown(entry.get('category_id'))}; it must be an integer or a text")
    return category_id


def read_crowd(entry: Mapping[str, Any]) -> int:
    """Returns 1 if an object is a crowd, and otherwise 0. Raises `InvalidInput` if the flag is invalid."""
    is_crowd = _value(entry, "iscrowd", 0)
    if is_crowd not in (0, 1):
        raise InvalidInput("bad_annotation", f"'iscrowd' is {shown(is_crowd)}; it must be 0 or 1")
    return int(is_crowd)


def read_outline(entry: Mapping[str, Any], has_region: bool) -> Outline:
    """Returns the box of an object and, if requested, its area and its region.

    Raises:
        InvalidInput: The box, the area or the region is invalid.
    """
    box = entry.get("bbox")
    if "bbox" not in entry:
        raise InvalidInput("bad_annotation", "has no 'bbox'")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise InvalidInput("bad_annotation", f"'bbox' is {shown(box)}; it must be [x, y, width, height]")
    x, y, width, height = map(float, box)
    sides = (y, x, y + height, x + width)
    if not all(map(math.isfinite, sides)):
        raise InvalidInput("bad_annotation", f"'bbox' is {shown(box)}; its numbers must be finite")
    if not has_region:
        return Outline(sides, 0.0, None)
    region, area = entry.get("segmentation"), _value(entry, "area", width * height)
    if isinstance(region, str) and region.lstrip()[:1] in ("[", "{"):
        region = _read_text(region)
    if not isinstance(region, (list, dict)) or not region:
        raise InvalidInput("bad_mask", f"'segmentation' is {shown(region)}; it must be polygons or run lengths")
    if isinstance(region, list) and len(region) > 1 and all(map(_is_number, region)):  # a polygon without its enclosing list
        region = [region]
    if not _is_number(area):
        raise InvalidInput("bad_annotation", f"'area' is {shown(area)}; it must be a number")
    return Outline(sides, float(area), region)


def read_segments(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the objects of a panoptic annotation, which describes all segments of an image. The region of each object
    is a list that contains only the segment id. Raises `InvalidInput` if the annotation is invalid."""
    file_name, segments = entry.get("file_name"), entry["segments_info"]
    if not isinstance(file_name, str) or not file_name or not isinstance(segments, list):
        found = f"'file_name' is {shown(file_name)} and 'segments_info' is {shown(segments)}"
        raise InvalidInput("bad_mask", f"{found}; they must be the name of a PNG and a list")
    objects = []
    for segment in segments:
        number = read_id(segment.get("id")) if isinstance(segment, dict) else None
        if not isinstance(number, int) or not 0 < number < 1 << 24:
            raise InvalidInput("bad_mask", f"a segment is {shown(segment)}; it must have an 'id' from 1 to {(1 << 24) - 1}")
        objects.append({**segment, "segmentation": [number]})
    return objects


def read_keypoints(entry: Mapping[str, Any], feature: Feature | None) -> Points:
    """Returns the keypoints of an object. An object without keypoints has points with visibility 0.

    Raises:
        InvalidInput: The number of points differs from that of the categories or the first annotation, or a point is
            invalid.
    """
    numbers = entry.get("keypoints") or []
    if not isinstance(numbers, list) or len(numbers) % NUM_NUMBERS or not all(map(_is_number, numbers)):
        raise InvalidInput("bad_keypoints", "'keypoints' must be a list of x, y and visibility of each point")
    if feature is None:
        return ()
    shape = feature.shape[1:]
    return to_points(KEYPOINTS_FORM.read(list(map(float, numbers)) or [0.0] * math.prod(shape), shape))


def read_caption(entry: Mapping[str, Any]) -> str:
    """Returns the text of a caption. Raises `InvalidInput` if the caption is empty or not a string."""
    caption = entry.get("caption")
    if not isinstance(caption, str) or not caption.strip():
        raise InvalidInput("bad_annotation", f"'caption' is {shown(caption)}; it must be a text")
    return caption


def _read_text(text: str) -> Any:
    """Reads an outline from a string that contains JSON. Returns None if the string is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _value(entry: Mapping[str, Any], field: str, default: Any) -> Any:
    """Returns the value of an optional field. A null counts as missing."""
    value = entry.get(field)
    return default if value is None else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
