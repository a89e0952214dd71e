"""Source `coco`: boxes, keypoints, captions and masks from JSON files in COCO's formats.

With `--masks`, the outlines of the objects are drawn as a mask. 0 is the background, and the class with label `i` has
the value `i + 1`. Small regions are drawn over large regions.

In a panoptic file, the segments of an image become objects. With `--masks`, the colors of the segments in the PNG are
converted to class values, and pixels without a segment become 0.

The captions of `captions_NAME.json` become the feature `captions`, a list for each image. The keypoints of
`person_keypoints_NAME.json` become `objects/keypoints`, with the names of the points and the skeleton.

Each COCO file is read once, as a stream. To limit memory use, each machine reads only one large file at a time. An
image takes about 300 bytes of memory, and an annotation about 100 bytes. With `--masks`, the JSON of its outline is also kept in memory.
"""

import itertools
import json
import posixpath
from typing import Any, Iterator, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_config import OBJECT_LABEL
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.annotations import Segments
from beam_pipelines.sources.annotations.annotation_source import file_bytes
from beam_pipelines.sources.annotations.image_places import ImagePlace, find_place, portable
from beam_pipelines.sources.annotations.listed_source import FilesSource, Part
from beam_pipelines.sources.annotations.shapes import Shape
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.cells.class_cells import known
from beam_pipelines.sources.files.paths import join, matches, nfc
from beam_pipelines.sources.files.label_files import COCO, format_of_content, reject_other_format
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.formats.coco import coco_annotations
from beam_pipelines.sources.formats.coco.coco_file import CocoFile, CocoImage
from beam_pipelines.sources.formats.coco.coco_names import CAPTIONS, INSTANCES, KEYPOINTS, image_folders, parse_name
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from tf_input.dataset_format import MASK, OBJECTS, Feature

_CAPTIONS = Feature("captions", "text", (None,))
_ROBOFLOW = "_annotations.coco.json"
_NUM_SHOWN = 5
_MAX_RELATIVE = 1.000001  # 1 and the rounding error of x + width


class Coco(FilesSource):
    """Lists the images of one or more COCO files with their objects or captions."""

    kind = SourceKind(
        name="coco",
        summary="COCO",
        label_fields=(OBJECTS, CAPTIONS),
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "image_root"),
    )
    file_format, extensions = COCO, (".json",)
    folders = ("annotations", "annotation", "annos", "anno", "labels", "coco")
    flags = {"is_crowd": "integer"}

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Detects a COCO file, a folder called `annotations` with COCO files, and Roboflow's folders of images."""
        if not names.is_folder:
            if names.find("*.json"):
                reject_other_format(names.path)
                return Recognition(names.name)
            return None
        if any(folder.find(_ROBOFLOW) for folder in (names, *names.below)):
            return Recognition(_ROBOFLOW, Certainty.MARKER)
        for folder in filter(None, (names.folder(*cls.folders), names, *names.below)):
            for name in folder.files:
                if name.lower().endswith(".json") and format_of_content(name, folder.head(name)) == cls.file_format:
                    return Recognition(name)
        annotations = names.folder(*cls.folders)
        if annotations and (name := annotations.find("*.json")):
            reject_other_format(f"{annotations.path}/{name}")
            return Recognition(f"{annotations.name}/{name}")
        return None

    def _find_root(self) -> Root:
        root, image_root = super()._find_root(), self._options.source.image_root
        if image_root and not self._is_file:
            advice = "Name one JSON file as --input, or omit --image_root."
            raise UserError(f"--image_root={image_root}: --input={self._options.input} is a folder. {advice}")
        return root

    def _set_targets(self, labels: Sequence[Column] | None) -> None:
        names = [column.names[0] for column in labels or ()]
        is_named = labels is None and parse_name(posixpath.basename(self._options.input)).kind == CAPTIONS
        self._has_captions = names == [CAPTIONS] or is_named
        if names not in ([], [OBJECTS], [CAPTIONS]):
            raise UserError(f"--label={printable(','.join(names))}: --source=coco has no such labels. Give {OBJECTS}, {CAPTIONS} or none.")
        super()._set_targets(() if self._has_captions else labels)
        if self._has_captions:
            self.features, self.targets = (_CAPTIONS,), (CAPTIONS,)
        if self._options.source.has_masks and not self._has_objects:
            raise UserError("--masks: needs objects. Omit it, or the option --label.")
        self._category_names: tuple[str, ...] = ()

    def label_names(self) -> dict[str, tuple[str, ...]]:
        """Returns the category names of the COCO file that was listed last, in the order of the category ids.

        Supercategories are classes only if annotations use them.
        """
        return {OBJECT_LABEL: self._label_names or self._category_names} if self._has_objects else {}

    def _choose_files(self, root: Root, folder: str, names: Sequence[str]) -> dict[str, str]:
        kinds = (CAPTIONS,) if self._has_captions else (INSTANCES, KEYPOINTS)
        known = next((some for kind in kinds if (some := [name for name in names if parse_name(name).kind == kind])), [])
        known = known or [name for name in names if name == _ROBOFLOW and not self._has_captions]
        if not known:  # no file has a usual name, so only the content shows the format
            known = [name for name in names if not parse_name(name).kind and self._has_format(root, join(folder, name))]
            if len(known) > 1 and not any(parse_name(name).split.lower() in SPLIT_FOLDERS for name in known):
                shown = ", ".join(map(printable, known[:3]))
                raise UserError(f"--input={root.path}: {shown} may be of the same images. Name one with --input=FILE.json.")
        return {name: parse_name(name).split for name in known}

    def memory_bytes(self, part: str) -> int:
        return file_bytes(Part(*json.loads(part)).path) // (1 if self._options.source.has_masks else 2)

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        path, _, split, _ = json.loads(part)
        below = f"{self.root}/"
        relative = path.removeprefix(below) if path.startswith(below) else posixpath.basename(path)
        self._file = file = CocoFile(path, printable(relative), *self._fields())
        if self._has_objects:
            self._category_names = file.categories.names()
            self._keypoints = file.keypoints
            self.found_features = frozenset(filter(None, [self._keypoints]))
            self.group_names = frozenset() if self._label_names else file.categories.group_names()
        if self.features:
            self.unused_fields.add(file.unused_fields.names)
        yield from file.dead_letters
        self._num_objects, self._num_classes, self._num_empty_outlines, self._are_relative = 0, 0, 0, True
        place = self._find_place(relative)
        segments = self._find_segments(path) if file.segment_files else ""
        for image_id, image in file.images.items():
            try:
                image_path = self._path(image, place)
                if matches(image_path, self._options.ignore):
                    self.num_ignored += 1
                    continue
                values = self._values(image_id, image, segments)
            except InvalidInput as error:
                yield image.reject(error)
                continue
            yield InputRecord(nfc(image_path), image_path, "", split, values=values)
        if self._has_objects:
            self._check_objects(file)

    def _fields(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the fields of annotations to keep, and the sections that may be missing."""
        if not self._has_objects:
            return (("caption",), ("categories",)) if self._has_captions else ((), ("annotations", "categories"))
        outline = ("segmentation", "area", "segments_info", "file_name") if self._options.source.has_masks else ()
        return ("category_id", "bbox", "iscrowd", "keypoints", "num_keypoints", *outline), ()

    def _check_objects(self, file: CocoFile) -> None:
        """Raises `UserError` if the file has no objects with the requested values, or only relative coordinates."""
        problem = ""
        unused = file.unused_fields.names
        if "segments_info" in unused:
            problem = "is a panoptic file ('segments_info'). Pass --masks to read its masks."
        elif self._num_objects:
            if self._are_relative:
                advice = "Multiply them by the width and height of their image."
                problem = f"all coordinates of boxes are between 0 and 1, but COCO uses pixels. {advice}"
        elif "caption" in unused:
            problem = "has captions instead of objects. Pass --label captions."
        elif self._num_classes and "segmentation" not in unused:
            problem = (
                "its annotations have a 'category_id' but no 'bbox', so they are classes of entire images. Convert the file to a "
                "table with the columns file_name and label, as docs/how_to/tables.md shows in 'Classes from a COCO file'."
            )
        elif self._num_empty_outlines and self._options.source.has_masks:
            problem = "no annotation has an outline ('segmentation'). Omit --masks."
        if problem:
            raise UserError(f"{file.name}: {problem}")

    def _find_place(self, path: str) -> ImagePlace:
        """Finds the folder of the images: the first possible folder that contains one of the first images in the file.
        Raises `UserError` if there is no such folder and the entries have links to images, which are not downloaded."""
        has_root = self._options.source.image_root is not None
        folders = [""] if has_root else image_folders(path, self._folder_around(path))
        first = [image.file_name for image in itertools.islice(self._file.images.values(), _NUM_SHOWN)]
        if place := find_place(self._root, folders, first):
            if place.prefix:
                begin = f"file names in {printable(path)} begin with {printable(place.prefix)!r}, which was left out"
                num = sum(portable(image.file_name).startswith(place.prefix) for image in self._file.images.values())
                self._note(f"{begin}, because the images are in {printable(place.folder) or 'the root'}", num)
            return place
        if self._file.link and first and not has_root:
            raise UserError(
                f"{printable(path)}: none of its first {len(first)} images, such as {printable(first[0])!r}, is "
                f"beside it or in {', '.join(filter(None, folders))}. Links such as {printable(self._file.link[:200])} "
                "are not followed: download the images, and pass their folder with --image_root."
            )
        return ImagePlace("" if has_root else self._folder_around(path))

    def _find_segments(self, path: str) -> str:
        """Returns the folder with the PNGs of a panoptic file, relative to the root. Raises `UserError` if the PNGs are
        in none of the usual folders."""
        stem, own = posixpath.basename(path).removesuffix(".json"), posixpath.dirname(path)
        below = f"{self.root}/"
        folders = [f"{folder}/{name}" for folder in (own, posixpath.dirname(own)) for name in (stem, f"annotations/{stem}")]
        inside = [folder.removeprefix(below) for folder in folders if folder.startswith(below)]
        place = find_place(self._root, inside, self._file.segment_files, may_shorten=False)
        if place is None:
            raise UserError(
                f"{self._file.name}: the masks of its images, such as {printable(self._file.segment_files[0])!r}, are not in "
                f"{printable(stem)}/ beside the file, below {printable(self.root)}. Unpack them to this folder."
            )
        return place.folder

    def _values(self, image_id: int | str, image: CocoImage, segments: str) -> dict[str, Any] | None:
        """Returns the values of an image. Raises `InvalidInput` if an annotation of the image is invalid."""
        texts: list[str] = []
        shapes: list[Shape] = []
        segment_file = ""
        for position, entry in self._file.annotations(image_id) if self.features else ():
            try:
                if self._has_captions:
                    texts.append(coco_annotations.read_caption(entry))
                elif "segments_info" not in entry:
                    shapes.append(self._read_object(entry))
                elif segment_file:
                    raise InvalidInput("duplicate", "its image has another annotation with 'segments_info'")
                else:
                    shapes += map(self._read_object, coco_annotations.read_segments(entry))
                    segment_file = entry["file_name"]
            except InvalidInput as error:
                raise InvalidInput(error.reason, f"annotation {printable(position[:80])}: {error}") from None
        if self._has_captions:
            return {CAPTIONS: tuple(texts)}
        if self._options.source.has_masks and not segment_file and image.size is None:
            raise InvalidInput("bad_mask", "has no height and width, which --masks needs")
        values = self._make_annotation("", shapes, image.size).values
        if segment_file:
            ids = tuple(shape.outline.region[0] for shape in shapes)
            labels = tuple(shape.label for shape in shapes)
            values = {**values, MASK: Segments(read_path(join(segments, segment_file), self._root), ids, labels)}
        return values

    def _read_object(self, entry: dict[str, Any]) -> Shape:
        category_id, is_crowd = coco_annotations.read_category(entry), coco_annotations.read_crowd(entry)
        self._num_classes += "bbox" not in entry and "segmentation" not in entry
        self._num_empty_outlines += not entry.get("segmentation")
        outline = coco_annotations.read_outline(entry, self._options.source.has_masks)
        points = coco_annotations.read_keypoints(entry, self._keypoints)
        label = known(self._file.categories.name_of(category_id), self._label_names)
        self._num_objects += 1
        self._are_relative = self._are_relative and min(outline.box) >= 0 and max(outline.box) <= _MAX_RELATIVE
        return Shape(label, outline, {"is_crowd": is_crowd}, points)

    def _path(self, image: CocoImage, place: ImagePlace) -> str:
        """Returns the path of an image, relative to the root. Raises `InvalidInput` if the path is outside the root."""
        try:
            return read_path(place.path(image.file_name), self._root)
        except InvalidInput as error:
            raise InvalidInput(error.reason, f"entry {printable(image.position[:80])} of 'images' {error}") from None
