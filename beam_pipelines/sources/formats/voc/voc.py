"""Source `voc`: boxes from Pascal VOC's XML files, with one XML file per image."""

import itertools
import os
from typing import Iterator, Sequence

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import UserError
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.paired_files import PairedFolders, PairedNames, split_group
from beam_pipelines.sources.annotations.paired_source import PairedSource
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS
from beam_pipelines.sources.formats.voc.voc_annotation import parse_annotation
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import OBJECTS

_MAX_DEPTH = 3  # levels of folders to open to find an annotation, such as Annotations/CLS-LOC/train/n01440764


class Voc(PairedSource):
    """Lists the images below the root folder together with their boxes."""

    kind = SourceKind(
        name="voc",
        summary="Pascal VOC",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "image_root"),
        synonyms=("pascal", "pascal_voc", "xml"),
    )
    flags = {"is_difficult": "integer", "is_truncated": "integer"}
    names = PairedNames(
        ".xml",
        ("annotations", "annotation", "annots", "annos", "anno", "ann", "bbox", "xmls", "xml"),
        (*IMAGE_FOLDERS, "data"),
        lists="Main",
        may_lack_extension=True,
    )
    file_kind = "XML file"
    image_name_field = "<filename>"

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises XML files in a folder with a usual name such as `Annotations`, or beside images."""
        annotations = names.folder(*cls.names.annotation_folders)
        for folder in (*_folders_in(annotations, cls.names.annotation_folders), names, *names.below):
            if name := folder.find("*.xml") or _without_extension(folder, folder in (names, *names.below)):
                reject_other_format(f"{folder.path}/{name}")
                return Recognition(name, Certainty.EXTENSION if folder in (names, *names.below) else Certainty.LAYOUT)
        return None

    def _root_path(self) -> str:
        """Returns the input or, with `--image_root`, the folder that contains the input and the images."""
        source = self._config.source
        return self._config.input if source.image_root is None else _common_folder(self._config.input, source.image_root)

    def _find_groups(self, files: FileListing) -> tuple[list[PairedFolders], list[str]]:
        if self._config.source.image_root is None:
            return super()._find_groups(files)
        below = [_real(path)[len(self.root.rstrip("/")) + 1 :] for path in (self._config.input, self._config.source.image_root)]
        annotations, images = (files.take_folder(folder) if folder else "" for folder in below)
        return split_group(self._root, files, self.names, PairedFolders(annotations, annotations, images, None, False), self._config.split_folders)

    def parse(self, data: bytes) -> Annotation:
        """Parses an XML file. Raises `InvalidInput` if the file is invalid."""
        annotation = parse_annotation(data, self._label_names)
        if not self._has_objects:
            return Annotation(annotation.file_name)
        return Annotation(annotation.file_name, {OBJECTS: annotation.objects}, others=annotation.others)


def _real(path: str) -> str:
    return path.rstrip("/") if is_remote(path) else os.path.realpath(path)


def _common_folder(*paths: str) -> str:
    """Returns the folder that contains all paths. Raises `UserError` if there is none."""
    parts = [_real(path).split("/") for path in paths]
    common = [some[0] for some in itertools.takewhile(lambda some: len({*some}) == 1, zip(*parts))]
    if len({is_remote(path) for path in paths}) > 1 or (is_remote(paths[0]) and len(common) < 3):
        raise UserError(f"--image_root={paths[1]}: is in another store than --input={paths[0]}. Copy both to one bucket or disk.")
    return "/".join(common) or "/"


def _folders_in(folder: InputNames | None, usual: Sequence[str]) -> Iterator[InputNames]:
    """Yields a folder and, level by level, its subfolder with a usual name or else its first subfolder."""
    for _ in range(_MAX_DEPTH + 1):
        if folder is None:
            return
        yield folder
        folder = folder.folder(*usual, *(name.lower() for name in folder.folders[:1]))


def _without_extension(folder: InputNames, is_image_folder: bool) -> str:
    """Returns the first file of an annotation folder if it has no extension and starts like an annotation, or ""."""
    name = "" if is_image_folder else next(iter(folder.files), "")
    return name if name and "." not in name and folder.head(name).lstrip()[:11].lower() == b"<annotation" else ""
