"""Source `coco`: boxes, and optionally masks, from JSON files in the format of COCO's instances.

With `--masks`, the outlines become a mask. 0 is the background, and the class with label `i` has the value `i + 1`.
Small regions are drawn over large regions.

Each COCO file is read once, as a stream. The annotations of a file are stored in columns (see `coco_annotations`). To
limit the memory, each machine reads only one large file at a time. Each image takes about 300 bytes of memory, or 500
bytes if an object store is asked for the size of the image. Half of COCO's `train2017` (59,000 images, 430,000
annotations) takes 70 MB of memory. If outlines are requested, they take as much memory as their JSON text. An annotation
with keypoints takes 24 bytes for each point.

The keypoints of `person_keypoints_NAME.json` become `objects/keypoints`, with the names of the points and the skeleton.
"""

import contextlib
import itertools
import json
import os
import posixpath
import re
import unicodedata
from typing import Any, Iterator, NamedTuple

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.annotations import Objects, Regions
from beam_pipelines.sources.annotations.object_features import object_features
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.formats.coco.coco_annotations import ImageObjects
from beam_pipelines.sources.formats.coco.coco_file import CocoFile, CocoImage
from beam_pipelines.sources.formats.coco.coco_keypoints import NAME
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.cells.class_cells import known
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.file_listing import FileListing, join, matches
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.layouts import name_splits, no_split_folders
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.sizes import find_sizes
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import MASK, OBJECTS

_ROBOFLOW = "_annotations.coco.json"
_INSTANCES = re.compile(r"(?:instances|person_keypoints)_(?P<name>(?P<split>.+?)_?[0-9]*)\.json")
_ANNOTATIONS = "annotations"
_NUM_PROBED = 5
_LABEL = f"{OBJECTS}/label"


class _Part(NamedTuple):
    path: str  # path of the JSON file, including the root
    split: str | None


class Coco(Source):
    """Lists the images of one or several COCO files with their objects."""

    kind = SourceKind(
        name="coco",
        summary="COCO",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "image_root"),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        source = config.source
        super().__init__(config)
        if source.has_masks and source.labels is not None:
            raise UserError("--masks and --label=none exclude each other. Omit one of them.")
        self._is_file = config.input.lower().endswith(".json")
        if source.image_root and not self._is_file:
            raise UserError(
                f"--image_root={source.image_root}: --input={config.input} is a folder. Name one JSON file as "
                "--input, or omit --image_root."
            )
        has_objects = source.labels is None
        self.features = object_features({"is_crowd": "integer"}, source.has_masks) if has_objects else ()
        self.targets = (OBJECTS, *([MASK] if source.has_masks else [])) if has_objects else ()
        root_path = source.image_root or (_folder_of(config.input) if self._is_file else config.input)
        self._root = Root(root_path, config.follow_links)
        self.root = self._root.path
        self._config = config
        self._with_sizes = with_sizes
        self._category_names: tuple[str, ...] = ()
        self.unused_fields = UnusedFields()

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises JSON files, Roboflow's files in folders of images, and JSON files in a folder of annotations."""
        if not names.is_folder:
            if names.find("*.json"):
                reject_other_format(names.path)
                return Recognition(names.name)
            return None
        if any(folder.find(_ROBOFLOW) for folder in (names, *names.below)):
            return Recognition(_ROBOFLOW, Certainty.MARKER)
        annotations = names.folder(_ANNOTATIONS)
        if annotations and (name := annotations.find("*.json")):
            reject_other_format(f"{annotations.path}/{name}")
            return Recognition(f"{_ANNOTATIONS}/{name}")
        return None

    def label_names(self) -> dict[str, tuple[str, ...]]:
        """Returns the category names of the COCO file that was listed last, in the order of the category ids.

        Category names in `group_names` are classes only if annotations use these categories.
        """
        return {_LABEL: self._config.source.names_of(_LABEL) or self._category_names} if self.features else {}

    def parts(self) -> list[str]:
        """Returns one JSON string for each COCO file, which contains the path and the split of the file. Raises
        `UserError` if there are no files, or only some of them are splits."""
        if self._is_file and self._config.split_folders:
            raise no_split_folders(self._config.input, "is one JSON file")
        if self._is_file:
            return [json.dumps(_Part(_absolute(self._config.input), None))]
        names = self._find_files()
        splits = name_splits(self.root, sorted(set(names.values())), self._config.split_folders)
        return [json.dumps(_Part(f"{self.root}/{path}", splits[name])) for path, name in names.items()]

    def memory_bytes(self, part: str) -> int:
        path = _Part(*json.loads(part)).path
        try:
            num_bytes = files_at(path).size(path)
        except OSError as error:
            raise listing_error(error, path, f"{printable(path)} cannot be read: {error.strerror or error}") from error
        return num_bytes if self._config.source.has_masks else num_bytes // 2

    def _find_files(self) -> dict[str, str]:
        """Returns a mapping from the path of each JSON file below the root to its possible split name."""
        files = FileListing(self._root, self._config.ignore)
        folders, _ = files.top_level()
        for folder in ("", *(folder for folder in folders if folder == _ANNOTATIONS)):
            names = files.take_files(folder, lambda name: name == _ROBOFLOW or _INSTANCES.fullmatch(name))
            if any(name.startswith("instances_") for name in names):  # COCO's keypoints are of the same images
                names = [name for name in names if not name.startswith("person_keypoints_")]
            annotation_files = {join(files.take_folder(folder), name): _name_of(name)[1] for name in names}
            if annotation_files:
                return annotation_files
        annotation_files = {
            join(files.take_folder(folder), _ROBOFLOW): folder
            for folder in folders
            if files.take_files(folder, _ROBOFLOW.__eq__)
        }
        if not annotation_files:
            raise UserError(
                f"--input={self.root}: contains no annotations. They must be in annotations/instances_*.json, "
                f"annotations/person_keypoints_*.json, or in {_ROBOFLOW} in folders of images. Name any other file with --input=FILE.json."
            )
        return annotation_files

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        path, split = _Part(*json.loads(part))
        below = f"{self._root.path}/"
        relative = path[len(below) :] if path.startswith(below) else posixpath.basename(path)
        file = CocoFile(path, relative, self._config.source.has_masks)
        self._category_names = file.category_names()
        if self.features:
            self.found_features = frozenset(filter(None, [file.keypoints.feature()]))
            self.group_names = frozenset() if self._config.source.names_of(_LABEL) else file.group_names()
            self.unused_fields.add(file.unused_fields.names - {"id"})  # every annotation has an id, and nothing refers to it
        yield from file.dead_letters
        folder = "" if self._config.source.image_root else self._image_folder(relative, file)
        sizes = find_sizes(self.root, self._paths(file, folder)) if self._with_sizes else {}
        for image_or_dead_letter in file.inputs():
            if isinstance(image_or_dead_letter, DeadLetter):
                yield image_or_dead_letter
                continue
            image, objects = image_or_dead_letter
            listed = self._list_image(image, objects, folder, split)
            if listed is None:
                self.num_ignored += 1
            elif isinstance(listed, DeadLetter):
                yield listed
            else:  # a missing image keeps the size 0 and fails later, when it is read
                yield listed._replace(num_bytes=sizes.get(listed.path, 0))

    def _image_folder(self, path: str, file: CocoFile) -> str:
        """Returns the first of several possible folders that contains at least one of the first five images in the
        file. Raises `UserError` if no candidate contains an image, and the entries have links, which are not
        downloaded."""
        own_path, (own, name) = path, posixpath.split(path)
        around = posixpath.dirname(own) if posixpath.basename(own) == _ANNOTATIONS else own
        stem = _name_of(name)[0]
        stems = dict.fromkeys((stem, stem.rpartition("_")[2]))
        candidates = [join(around, folder) for stem in stems for folder in (stem, f"images/{stem}")]
        candidates += [join(around, "images"), around, own]
        first = [image.file_name for image in itertools.islice(file.images(), _NUM_PROBED)]
        for folder in candidates:
            for file_name in first:
                try:
                    path = read_path(join(folder, file_name), self._root)
                except InvalidInput:
                    continue
                forms = {path, *(unicodedata.normalize(form, path) for form in ("NFC", "NFD"))}
                if any(files_at(self.root).exists(f"{self.root}/{item}") for item in sorted(forms)):
                    return folder
        if file.link and first:
            raise UserError(
                f"{printable(own_path)}: none of its first {len(first)} images, such as {printable(first[0])!r}, is "
                f"beside it or in {', '.join(filter(None, candidates))}. Links such as {printable(file.link[:200])} "
                "are not followed: download the images, and pass their folder with --image_root."
            )
        return around

    def _list_image(
        self, image: CocoImage, objects: ImageObjects, folder: str, split: str | None
    ) -> InputRecord | DeadLetter | None:
        """Returns a reference to an image, a dead letter if the image is rejected, or None if the image is ignored."""
        try:
            path = self._path(image, folder)
            if matches(path, self._config.ignore):
                return None
            values = self._values(image, objects) if self.features else None
        except InvalidInput as error:
            return image.reject(InvalidInput(error.reason, f"entry {image.position} of 'images' {error}"))
        return InputRecord(nfc(path), path, "", split, values=values)

    def _values(self, image: CocoImage, objects: ImageObjects) -> dict[str, Any]:
        labels = tuple([known(label, self._config.source.names_of(_LABEL)) for label in objects.labels])
        points = {NAME: objects.keypoints} if objects.keypoints else {}
        values = {OBJECTS: Objects(objects.boxes, labels, {"is_crowd": objects.is_crowd}, image.size, points=points)}
        if self._config.source.has_masks:
            if image.size is None:
                raise InvalidInput("bad_mask", "has no height and width, which --masks needs")
            order = sorted(range(len(labels)), key=lambda index: (-objects.areas[index], index))
            regions = tuple(objects.outlines[index] for index in order)
            values[MASK] = Regions(tuple(labels[index] for index in order), regions, image.size)
        return values

    def _path(self, image: CocoImage, folder: str) -> str:
        """Returns the path of an image, relative to the root.

        Raises InvalidInput if the image is a link or is outside the root.
        """
        is_link = is_remote(image.file_name)
        if is_link and not image.file_name.startswith(f"{self.root}/"):
            is_web = image.file_name.lower().startswith(("http://", "https://", "ftp://"))
            advice = (
                "Download the images, and replace the links with their file names"
                if is_web
                else "Pass the images' folder as --image_root"
            )
            problem = f"has the link {printable(image.file_name[:200])}, which is not below {printable(self.root)}"
            raise InvalidInput("outside", f"{problem}. {advice}")
        is_complete = is_link or image.file_name.startswith("/")
        return read_path(image.file_name if is_complete else join(folder, image.file_name), self._root)

    def _paths(self, file: CocoFile, folder: str) -> Iterator[str]:
        """Yields the image paths of a file. Skips images with invalid paths."""
        for image in file.images():
            with contextlib.suppress(InvalidInput):
                yield self._path(image, folder)


def _name_of(file: str) -> tuple[str, str]:
    """Parses a file name into the dataset's name and its possible split name, such as `train2017` and `train`."""
    match = _INSTANCES.fullmatch(file)
    if not match:
        return file.removesuffix(".json"), file.removesuffix(".json")
    split = match["split"].rstrip("_")
    return match["name"], split if split.lower() in SPLIT_FOLDERS else match["name"]


def _absolute(path: str) -> str:
    """Returns the absolute path of a file. Links in the path of the parent folder are resolved. If the file itself is a
    link, it is not resolved."""
    if is_remote(path):
        return path
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _folder_of(path: str) -> str:
    """Returns the folder that contains a file or, if this folder is named `annotations`, the parent of the folder."""
    folder = posixpath.dirname(_absolute(path))
    return posixpath.dirname(folder) if posixpath.basename(folder) == _ANNOTATIONS else folder
