"""Stores the annotations of a COCO file in columns and groups them by image.

A COCO file lists annotations in any order, before or after the images. In columns, an annotation takes about 60 bytes,
which is less than as a Python object. If outlines are requested, they take as much memory as their JSON text.
"""

import array
import json
import math
from typing import Any, Mapping, NamedTuple

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.features.feature_kind import Points
from beam_pipelines.sources.formats.coco.coco_captions import AnnotatedImages
from beam_pipelines.sources.formats.coco.coco_ids import read_id, shown
from beam_pipelines.sources.formats.coco.coco_keypoints import FIELDS, CocoKeypoints

_GEOMETRY = frozenset(("bbox", "segmentation"))
_NUMBERS = 5  # of an annotation: the four numbers of a box, and an area
PANOPTIC_FIELDS = ("segments_info", "file_name")
_MAX_RELATIVE = 1.000001  # 1 and the rounding error of x + width


class ImageObjects(NamedTuple):
    """The annotations of one image, in the order in which the file lists them.

    Attributes:
        boxes: The (ymin, xmin, ymax, xmax) of each object, in pixels.
        labels: The category name of each object.
        is_crowd: Whether each object is a crowd, 0 or 1.
        areas: The area of each object, in pixels.
        outlines: The outline of each object: a list of polygons, or a run-length encoding. Empty if not requested.
        keypoints: The keypoints of each object. Empty if the file has no keypoints.
        segment_file: The name of the PNG whose colors are segment ids. The outline of an object is then a list with its
            segment id. Empty if outlines are polygons or run lengths.
    """

    boxes: tuple[tuple[float, float, float, float], ...] = ()
    labels: tuple[str, ...] = ()
    is_crowd: tuple[int, ...] = ()
    areas: tuple[float, ...] = ()
    outlines: tuple[Any, ...] = ()
    keypoints: tuple[Points, ...] = ()
    segment_file: str = ""


class Annotations(AnnotatedImages):
    """Stores the annotations of one file.

    Args:
        has_outlines: Whether to keep the outlines.
        keypoints: The store of the keypoints.

    Attributes:
        num_classes: The number of annotations with a category but without a box or an outline.
    """

    def __init__(self, has_outlines: bool, keypoints: CocoKeypoints) -> None:
        super().__init__()
        self.fields = (
            "image_id",
            "category_id",
            "bbox",
            "iscrowd",
            *FIELDS,
            *(("segmentation", "area", *PANOPTIC_FIELDS) if has_outlines else ()),
        )
        self._has_outlines = has_outlines
        self._keypoints = keypoints
        self._categories: dict[int | str, int] = {}  # id -> index in order of first use
        self._segment_files: dict[int, str] = {}  # by image index
        self._has_empty_outlines = False
        self.num_classes = 0
        # One element for each object:
        self._image = array.array("q")
        self._category = array.array("q")
        self._numbers = array.array("d")
        self._is_crowd = array.array("b")
        self._outlines = bytearray()
        self._outline_ends = array.array("q")

    def add(self, position: int, entry: Mapping[str, Any]) -> None:
        """Adds an entry of `annotations`, or rejects its image if the entry is invalid. Raises `InvalidInput` if the
        entry has no valid image id."""
        index = self.index_of(position, entry)
        try:
            if "segments_info" in entry:
                self._add_segments(index, entry)
            else:
                self.num_classes += "category_id" in entry and not _GEOMETRY & entry.keys()
                self._add_object(index, entry)
        except InvalidInput as error:
            self.reject(index, position, error)

    def _add_segments(self, index: int, entry: Mapping[str, Any]) -> None:
        """Adds the objects of a panoptic annotation, which describes all segments of an image."""
        file_name, segments = entry.get("file_name"), entry["segments_info"]
        if not isinstance(file_name, str) or not file_name or not isinstance(segments, list):
            raise InvalidInput("bad_mask", f"'file_name' is {shown(file_name)} and 'segments_info' is {shown(segments)}; they must be the name of a PNG and a list")
        if index in self._segment_files:
            raise InvalidInput("duplicate", "its image has another annotation with 'segments_info'")
        self._segment_files[index] = file_name
        for segment in segments:
            number = read_id(segment.get("id")) if isinstance(segment, dict) else None
            if not isinstance(number, int) or not 0 < number < 1 << 24:
                raise InvalidInput("bad_mask", f"a segment is {shown(segment)}; it must have an 'id' from 1 to {(1 << 24) - 1}")
            self._add_object(index, {**segment, "segmentation": [number]})

    def _add_object(self, index: int, entry: Mapping[str, Any]) -> None:
        category_id, numbers, is_crowd, outline = self._check(entry)
        self._keypoints.add(entry)
        self._image.append(index)
        self._category.append(self._categories.setdefault(category_id, len(self._categories)))
        self._numbers.extend(numbers)
        self._is_crowd.append(is_crowd)
        self._outlines += outline
        self._outline_ends.append(len(self._outlines))

    def _check(self, entry: Mapping[str, Any]) -> tuple[int | str, tuple[float, ...], int, bytes]:
        box, is_crowd, category_id = entry.get("bbox"), _value(entry, "iscrowd", 0), read_id(entry.get("category_id"))
        if category_id is None:
            raise InvalidInput(
                "bad_label", f"'category_id' is {shown(entry.get('category_id'))}; it must be an integer or a text"
            )
        if "bbox" not in entry:
            raise InvalidInput("bad_annotation", "has no 'bbox'")
        if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
            raise InvalidInput("bad_annotation", f"'bbox' is {shown(box)}; it must be [x, y, width, height]")
        if is_crowd not in (0, 1):
            raise InvalidInput("bad_annotation", f"'iscrowd' is {shown(is_crowd)}; it must be 0 or 1")
        x, y, width, height = map(float, box)
        sides = (y, x, y + height, x + width)
        if not all(map(math.isfinite, sides)):
            raise InvalidInput("bad_annotation", f"'bbox' is {shown(box)}; its numbers must be finite")
        if not self._has_outlines:
            return category_id, (*sides, 0.0), int(is_crowd), b""
        outline, area = entry.get("segmentation"), _value(entry, "area", width * height)
        if isinstance(outline, str) and outline.lstrip()[:1] in ("[", "{"):
            outline = _read_text(outline)
        if not isinstance(outline, (list, dict)) or not outline:
            self._has_empty_outlines |= not outline
            raise InvalidInput("bad_mask", f"'segmentation' is {shown(outline)}; it must be polygons or run lengths")
        if isinstance(outline, list) and len(outline) > 1 and all(map(is_number, outline)):  # a single polygon without its enclosing list
            outline = [outline]
        if not is_number(area):
            raise InvalidInput("bad_annotation", f"'area' is {shown(area)}; it must be a number")
        return category_id, (*sides, float(area)), int(is_crowd), json.dumps(outline, separators=(",", ":")).encode()

    def group(self) -> None:
        """Groups the annotations by image. Call this method after the last `add`."""
        images = np.frombuffer(self._image, np.int64)
        self._order = np.argsort(images, kind="stable")
        self._starts = np.searchsorted(images[self._order], np.arange(len(self._images) + 1))
        self._category_ids = list(self._categories)

    def are_classes(self, minimum: int) -> bool:
        """Returns whether there are at least `minimum` annotations of entire images, and no objects."""
        return self.num_classes >= minimum and not self._image

    def lack_outlines(self) -> bool:
        """Returns whether outlines are requested and there are objects, but no object has an outline."""
        return self._has_empty_outlines and not self._outlines

    def segment_files(self) -> list[str]:
        """Returns the names of the PNGs of panoptic annotations, in the order of the file."""
        return list(self._segment_files.values())

    def are_relative(self) -> bool:
        """Returns whether all box coordinates are between 0 and 1. Returns False if there are no boxes."""
        sides = np.frombuffer(self._numbers, np.float64).reshape(-1, _NUMBERS)[:, :4]
        return bool(sides.size and sides.min() >= 0 and sides.max() <= _MAX_RELATIVE)

    def category_ids(self) -> frozenset[int | str]:
        """Returns the category ids that annotations use."""
        return frozenset(self._categories)

    def of(self, image_id: int | str, category_names: Mapping[int | str, str]) -> ImageObjects:
        """Returns the objects of one image. Raises `InvalidInput` if an annotation of the image is invalid."""
        index = self.find(image_id)
        if index is None:
            return ImageObjects()
        rows = self._order[self._starts[index] : self._starts[index + 1]].tolist()
        numbers = [self._numbers[row * _NUMBERS : (row + 1) * _NUMBERS] for row in rows]
        return ImageObjects(
            tuple(tuple(row[:4]) for row in numbers),
            tuple(self._label(row, category_names) for row in rows),
            tuple(self._is_crowd[row] for row in rows),
            tuple(row[4] for row in numbers),
            tuple(map(self._outline, rows)) if self._has_outlines else (),
            tuple(map(self._keypoints.of, rows)) if self._keypoints.feature() else (),
            self._segment_files.get(index, ""),
        )

    def _label(self, row: int, category_names: Mapping[int | str, str]) -> str:
        category_id = self._category_ids[self._category[row]]
        if category_id not in category_names:
            raise InvalidInput("bad_label", f"category {shown(category_id)} is not in 'categories'")
        return category_names[category_id]

    def _outline(self, row: int) -> Any:
        start = self._outline_ends[row - 1] if row else 0
        return json.loads(self._outlines[start : self._outline_ends[row]])



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


def is_number(value: Any) -> bool:
    """Returns whether a JSON value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
