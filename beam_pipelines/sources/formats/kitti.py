"""Source `kitti`: boxes from KITTI's label files, with one text file per image.

Each line has 15 columns: the class, truncation, occlusion, observation angle, the sides of the box in pixels, and the
dimensions, location and rotation of the object in space. A 16th column can contain a score.
"""

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.image_sets import FOLDER
from beam_pipelines.sources.annotations.paired_files import PairedFolders
from beam_pipelines.sources.annotations.paired_source import PairedSource, decode_lines
from beam_pipelines.sources.annotations.shapes import Shape, read_coordinate, rectangle
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.label_files import KITTI
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS

_NO_OBJECT = "DontCare"
_UNUSED = ("alpha", "dimensions", "location", "rotation_y")
_MAX_OCCLUDED = 3


class Kitti(PairedSource):
    """Lists images with the objects in their KITTI label files. Regions of the type DontCare are not objects."""

    kind = SourceKind(
        name="kitti",
        summary="KITTI",
        options=("labels", "label_names", "bad_boxes", "drawn_on"),
    )
    file_format, file_kind = KITTI, "label file"
    extensions, folders = (".txt",), ("label_2", "labels", "label")
    image_folders = ("image_2", *IMAGE_FOLDERS)
    lists = ""
    flags = {"occluded": "integer", "truncated": "float"}

    def _find_groups(self, files: FileListing) -> tuple[list[PairedFolders], list[str]]:
        """Returns the groups of folders. `ImageSets` beside the folder `training` assigns its images to splits."""
        groups, left_out = super()._find_groups(files)
        if self._find_lists("", files.top_level()[0]) is not None:
            return [group._replace(lists="") for group in groups], [folder for folder in left_out if folder != FOLDER]
        return groups, left_out

    def parse(self, data: bytes) -> Annotation:
        """Parses a label file. Raises `InvalidInput` if the file is invalid."""
        lines = [line.split() for line in decode_lines(data) if line.strip()]
        objects = [line for line in lines if line[0] != _NO_OBJECT]
        if len(objects) < len(lines):
            self._note(f"regions of the type {_NO_OBJECT} are not objects, and are left out.", len(lines) - len(objects))
        shapes = self._read_shapes(objects, self._read_shape, "object")
        has_scores = any(len(line) > 15 for line in lines)
        self.unused_fields.add((*_UNUSED, *(["score"] if has_scores else [])) if shapes else ())
        return self._make_annotation("", shapes, None)

    def _read_shape(self, columns: list[str]) -> Shape:
        if len(columns) not in (15, 16):
            raise InvalidInput("bad_annotation", f"has {len(columns)} columns; it must have 15, or 16 with a score")
        truncated, occluded = (read_coordinate(text, name) for text, name in zip(columns[1:3], ("truncation", "occlusion")))
        if not (0 <= truncated <= 1 or truncated == -1):
            raise InvalidInput("bad_annotation", f"has truncation {shown(columns[1])}; it must be 0 to 1, or -1")
        if occluded not in range(-1, _MAX_OCCLUDED + 1):
            raise InvalidInput("bad_annotation", f"has occlusion {shown(columns[2])}; it must be -1, 0, 1, 2 or 3")
        left, top, right, bottom = (read_coordinate(text, "a box side of") for text in columns[4:8])
        outline = rectangle(left, top, right - left, bottom - top)
        return Shape(self._read_label(columns[0]), outline, {"occluded": int(occluded), "truncated": truncated})
