"""Source `visdrone`: boxes from VisDrone's label files, with one text file per image.

Each line has eight columns, which are separated by commas: x, y, width, height, a score, the class, truncation and
occlusion. Regions of class 0 are not annotated, so they are not objects.
"""

import re
from typing import Sequence

from beam_pipelines.config.source_config import OBJECT_LABEL
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.paired_source import PairedSource, decode_lines
from beam_pipelines.sources.annotations.shapes import Shape, read_coordinate, rectangle
from beam_pipelines.sources.cells.cells import read_integer, shown
from beam_pipelines.sources.files.label_files import VISDRONE
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS

_CLASSES = ("pedestrian", "people", "bicycle", "car", "van", "truck", "tricycle", "awning-tricycle", "bus", "motor", "others")
_NUM_COLUMNS = 8
_NO_OBJECT = "0"
_SPLIT = re.compile(r"visdrone.*-(train|val|test)(?:-dev)?", re.IGNORECASE)


class VisDrone(PairedSource):
    """Lists images with the objects in their VisDrone label files."""

    kind = SourceKind(
        name="visdrone",
        summary="VisDrone",
        options=("labels", "label_names", "bad_boxes", "drawn_on"),
    )
    file_format, file_kind = VISDRONE, "label file"
    extensions, folders = (".txt",), ("annotations", "labels")
    flags = {"occlusion": "integer", "truncation": "integer"}

    def _name_splits(self, folders: Sequence[str]) -> dict[str, str | None]:
        """Returns the split of each folder, such as `VisDrone2019-DET-train`."""
        matches = [_SPLIT.fullmatch(folder) for folder in folders]
        if self._options.split_folders is not None or not all(matches):
            return super()._name_splits(folders)
        return {folder: SPLIT_FOLDERS[match[1].lower()] for folder, match in zip(folders, matches) if match}

    def label_names(self) -> dict[str, tuple[str, ...]]:
        """Returns the class names, in the order of the numbers of the classes, which start at 1."""
        return {OBJECT_LABEL: tuple(self._label_names) or _CLASSES} if self._has_objects else {}

    def parse(self, data: bytes) -> Annotation:
        """Parses a label file. Raises `InvalidInput` if the file is invalid."""
        rows = [line.strip().rstrip(",").split(",") for line in decode_lines(data) if line.strip()]
        objects = [row for row in rows if row[5:6] != [_NO_OBJECT]]
        if len(objects) < len(rows):
            self._note("regions of class 0 are not annotated, and are left out.", len(rows) - len(objects))
        self.unused_fields.add(["score"] if objects else [])
        return self._make_annotation("", self._read_shapes(objects, self._read_shape, "object"), None)

    def _read_shape(self, row: Sequence[str]) -> Shape:
        if len(row) != _NUM_COLUMNS:
            raise InvalidInput("bad_annotation", f"has {len(row)} columns; it must have {_NUM_COLUMNS}")
        left, top, width, height = (read_coordinate(text, "a box side of") for text in row[:4])
        number, truncation, occlusion = map(read_integer, row[5:])
        if not 1 <= number <= len(_CLASSES):
            raise InvalidInput("bad_label", f"has the class {shown(row[5])}; it must be 0 to {len(_CLASSES)}")
        flags = {"occlusion": occlusion, "truncation": truncation}
        return Shape(self._read_label(_CLASSES[number - 1]), rectangle(left, top, width, height), flags)
