"""Source `wider_face`: the boxes of faces from WIDER FACE's files, such as `wider_face_train_bbx_gt.txt`.

A file contains, for each image, a line with its path, a line with the number of boxes, and a line for each box: x, y,
width, height, and six attributes. An image without boxes has the number 0, followed by one line of zeros.
"""

import re
from typing import Iterator, NamedTuple, Sequence

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.listed_source import ListedSource
from beam_pipelines.sources.annotations.shapes import Shape, read_coordinate, rectangle
from beam_pipelines.sources.cells.cells import read_integer
from beam_pipelines.sources.files.paths import join
from beam_pipelines.sources.files.label_files import WIDER_FACE
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.rows.lines import read_lines

_ATTRIBUTES = ("blur", "expression", "illumination", "invalid", "occlusion", "pose")
_CLASS = "face"
_MAX_BOXES = 100_000  # in one image
_MAX_CHARACTERS = 4096  # in a line
_NAME = re.compile(r"wider_face_(\w+?)_bbx_gt")


class _Faces(NamedTuple):
    """An image and the lines that describe its boxes."""

    path: str
    lines: Sequence[str]


class WiderFace(ListedSource):
    """Lists the images in WIDER FACE's annotation files, with their faces."""

    kind = SourceKind(
        name="wider_face",
        summary="WIDER FACE",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "image_root"),
        synonyms=("widerface", "wider"),
    )
    file_format, extensions, folders = WIDER_FACE, (".txt",), ("wider_face_split",)
    flags = dict.fromkeys(_ATTRIBUTES, "integer")

    def _choose_files(self, root: Root, folder: str, names: Sequence[str]) -> dict[str, str]:
        """Returns a mapping from files with boxes to their splits. Other lists of images are left out."""
        splits = {name: match[1] for name in names if (match := _NAME.match(name.lower()))}
        return splits or {name: "" for name in names if self._has_format(root, join(folder, name))}

    def read(self, path: str, name: str) -> Iterator[tuple[Sequence[str], _Faces]]:
        lines = (line.strip()[:_MAX_CHARACTERS] if isinstance(line, str) else "" for _, line in read_lines(path, name, SourceConfig()))
        for image in lines:
            count = next(lines, "")
            if not count.isascii() or not count.isdecimal() or len(count) > 6 or int(count) > _MAX_BOXES:
                problem = f"{printable(count[:80])!r} follows the image {printable(image[:200])!r}; it must be the number of boxes"
                raise UserError(f"{printable(name)}: {problem}. Correct the file.")
            boxes = [next(lines, "") for _ in range(max(1, int(count)))]
            yield [image], _Faces(image, boxes if int(count) else ())

    def parse(self, entry: _Faces) -> Annotation:
        return self._make_annotation(entry.path, self._read_shapes(entry.lines, self._read_face, "box"), None)

    def _read_face(self, line: str) -> Shape:
        columns = line.split()
        if len(columns) != 4 + len(_ATTRIBUTES):
            raise InvalidInput("bad_annotation", f"has {len(columns)} columns; it must have {4 + len(_ATTRIBUTES)}")
        sides = [read_coordinate(text, "a box side of") for text in columns[:4]]
        return Shape(self._read_label(_CLASS), rectangle(*sides), dict(zip(_ATTRIBUTES, map(read_integer, columns[4:]))))
