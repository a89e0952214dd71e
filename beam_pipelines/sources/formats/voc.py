"""Source `voc`: boxes from Pascal VOC's XML files, with one XML file per image.

The format: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html. As in TensorFlow Datasets, 1 is not
subtracted from coordinates, and fractions are kept. DTDs, entities and external content are rejected.
"""

import os
from typing import Iterator, Sequence
from xml.etree.ElementTree import Element, ParseError

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.config.values import common_parent
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.paired_files import PairedFolders
from beam_pipelines.sources.annotations.paired_source import PairedSource
from beam_pipelines.sources.annotations.shapes import Outline, Shape, read_coordinate, read_flag, read_image_size
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.storage.files import is_remote

_MAX_DEPTH = 3  # levels of folders to open to find an annotation, such as Annotations/CLS-LOC/train/n01440764
_FLAGS = {"is_difficult": "difficult", "is_truncated": "truncated"}
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_OTHER_SHAPES = ("robndbox", "polygon", "segmentation", "ellipse", "circle")  # fields for other shapes than boxes
_KEPT = ("name", "bndbox", *_FLAGS.values())


class Voc(PairedSource):
    """Lists the images below the root folder together with their boxes."""

    kind = SourceKind(
        name="voc",
        summary="Pascal VOC",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "image_root"),
        synonyms=("pascal", "pascal_voc", "xml"),
    )
    extensions, file_kind = (".xml",), "XML file"
    folders = ("annotations", "annotation", "annots", "annos", "anno", "ann", "bbox", "xmls", "xml")
    image_folders = (*IMAGE_FOLDERS, "data")
    lists = "Main"
    may_lack_extension = True
    image_name_field = "<filename>"
    flags = dict.fromkeys(_FLAGS, "integer")

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Detects XML files in a folder with a usual name such as `Annotations`, or beside images."""
        annotations = names.folder(*cls.folders)
        for folder in (*_folders_in(annotations, cls.folders), names, *names.below):
            if name := folder.find("*.xml") or _without_extension(folder, folder in (names, *names.below)):
                reject_other_format(f"{folder.path}/{name}", folder.head(name))
                return Recognition(name, Certainty.EXTENSION if folder in (names, *names.below) else Certainty.LAYOUT)
        return None

    def _find_root(self) -> Root:
        """Returns the input or, with `--image_root`, the folder that contains the input and the images."""
        path, self._below = self._options.input, ()
        if (image_root := self._options.source.image_root) is not None:
            path, self._below = common_parent([_real(path), _real(image_root)])
        return Root(path, self._options.follow_links)

    def _find_groups(self, files: FileListing) -> tuple[list[PairedFolders], list[str]]:
        if self._options.source.image_root is None:
            return super()._find_groups(files)
        group = PairedFolders(*(files.take_folder(folder) if folder else "" for folder in self._below))
        return self._split_group(files, group)

    def parse(self, data: bytes) -> Annotation:
        """Parses an XML file. Raises `InvalidInput` if the file is not an annotation, an object is incomplete, or a
        field that is read occurs twice."""
        root = _parse_xml(data)
        if str(root.tag).lower() != "annotation":
            raise InvalidInput("bad_xml", f"its root is <{printable(str(root.tag)[:80])}>; it must be <annotation>")
        shapes = self._read_shapes(root.findall("object"), self._read_object, "object")
        size = _only(root, "size")
        image_size = None if size is None else read_image_size(_text(size, "height"), _text(size, "width"))
        return self._make_annotation(_text(root, "filename"), shapes, image_size)

    def _read_object(self, element: Element) -> Shape:
        box = _only(element, "bndbox")
        if box is None:
            other = next((tag for tag in _OTHER_SHAPES if element.find(tag) is not None), "")
            instead = f", but a <{other}>, which is not read. Convert it to a <bndbox>" if other else ""
            raise InvalidInput("bad_xml", f"has no <bndbox>{instead}")
        self.unused_fields.add(field.tag for field in element if field.tag not in _KEPT)
        sides = tuple(read_coordinate(_text(box, side), f"<{side}>") for side in _SIDES)
        flags = {name: read_flag(_text(element, tag), f"<{tag}>") for name, tag in _FLAGS.items()}
        return Shape(self._read_label(_text(element, "name")), Outline(sides, 0.0, []), flags)


def _parse_xml(data: bytes) -> Element:
    from defusedxml import ElementTree  # not installed beside the reader alone
    from defusedxml.common import DefusedXmlException

    try:
        return ElementTree.fromstring(data, forbid_dtd=True, forbid_entities=True, forbid_external=True)
    except DefusedXmlException as error:
        raise InvalidInput("bad_xml", f"it has a DTD or an entity ({type(error).__name__}), which are not allowed") from None
    except (ParseError, ValueError, LookupError) as error:  # the last two: invalid encodings
        raise InvalidInput("bad_xml", f"not valid XML: {printable(str(error)[:200])}") from None


def _only(parent: Element, tag: str) -> Element | None:
    """Returns the child element with a given tag, or None if there is no such element. Raises `InvalidInput` if several
    child elements have this tag, because an editor may have merged two objects."""
    elements = parent.findall(tag)
    if len(elements) > 1:
        raise InvalidInput("bad_xml", f"has {len(elements)} fields <{tag}>; it must have one")
    return elements[0] if elements else None


def _text(parent: Element, tag: str) -> str:
    """Returns the stripped text of the child element with a given tag, or "" if there is no such element."""
    child = _only(parent, tag)
    return "" if child is None else (child.text or "").strip()


def _real(path: str) -> str:
    return path.rstrip("/") if is_remote(path) else os.path.realpath(path)


def _folders_in(folder: InputNames | None, usual: Sequence[str]) -> Iterator[InputNames]:
    """Yields a folder and one subfolder of each deeper level: one with a usual name, or else the first subfolder."""
    for _ in range(_MAX_DEPTH + 1):
        if folder is None:
            return
        yield folder
        folder = folder.folder(*usual, *(name.lower() for name in folder.folders[:1]))


def _without_extension(folder: InputNames, is_image_folder: bool) -> str:
    """Returns the first file of an annotation folder if it has no extension and starts with `<annotation`, or ""."""
    name = "" if is_image_folder else next(iter(folder.files), "")
    return name if name and "." not in name and folder.head(name).lstrip()[:11].lower() == b"<annotation" else ""
