"""Source `coco`: boxes, keypoints, captions and masks from JSON files in COCO's formats.

With `--masks`, the outlines of the objects are drawn as a mask. 0 is the background, and the class with label `i` has
the value `i + 1`. Small regions are drawn over large regions.

In a panoptic file, the segments of an image become objects. With `--masks`, the colors of the segments in the PNG are
converted to class values, and pixels without a segment become 0.

The captions of `captions_NAME.json` become the feature `captions`, a list for each image. The keypoints of
`person_keypoints_NAME.json` become `objects/keypoints`, with the names of the points and the skeleton.

Each COCO file is read once, as a stream. To limit the memory, each machine reads only one large file at a time. An image
takes about 300 bytes of memory, or 500 bytes if its size comes from an object store. Half of COCO's `train2017` (59,000
images, 430,000 annotations) takes 70 MB. See `coco_annotations` and `coco_keypoints` for outlines and keypoints.
"""

import contextlib
import itertools
import json
import os
import posixpath
from typing import Any, Iterator, NamedTuple

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.annotations import Objects, Regions, Segments
from beam_pipelines.sources.annotations.object_features import object_features
from beam_pipelines.sources.files.label_files import format_of_content, reject_other_format
from beam_pipelines.sources.formats.coco.coco_annotations import ImageObjects
from beam_pipelines.sources.formats.coco.coco_file import CocoFile, CocoImage
from beam_pipelines.sources.formats.coco.coco_keypoints import NAME
from beam_pipelines.sources.formats.coco.coco_places import (
    ANNOTATION_FOLDERS,
    CAPTIONS,
    NUM_PROBED,
    ROBOFLOW,
    ImagePlace,
    find_files,
    find_images,
    folder_around,
    image_folders,
    kind_of_name,
    portable,
)
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.cells.class_cells import known
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.file_listing import FileListing, join, matches
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.layouts import name_splits, no_split_folders
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.sizes import find_sizes
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import MASK, OBJECTS, Feature

_CAPTIONS = Feature("captions", "text", (None,))
_LABEL = f"{OBJECTS}/label"


class _Part(NamedTuple):
    path: str  # path of the JSON file, including the root
    split: str | None


class Coco(Source):
    """Lists the images of one or several COCO files with their objects or captions."""

    kind = SourceKind(
        name="coco",
        summary="COCO",
        label_fields=(OBJECTS, CAPTIONS),
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "image_root"),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        source = config.source
        super().__init__(config)
        kinds = [column.names[0] for column in source.labels or ()]
        is_captions = kinds == [CAPTIONS] or (source.labels is None and kind_of_name(posixpath.basename(config.input)) == CAPTIONS)
        if kinds and kinds not in ([OBJECTS], [CAPTIONS]):
            raise UserError(f"--label={printable(','.join(kinds))}: --source=coco has no such labels. Give {OBJECTS}, {CAPTIONS} or none.")
        self._kind = CAPTIONS if is_captions else OBJECTS if kinds or source.labels is None else ""
        if source.has_masks and self._kind != OBJECTS:
            raise UserError("--masks: needs objects. Omit it, or the option --label.")
        self._is_file = config.input.lower().endswith(".json")
        if source.image_root and not self._is_file:
            raise UserError(
                f"--image_root={source.image_root}: --input={config.input} is a folder. Name one JSON file as "
                "--input, or omit --image_root."
            )
        has_objects = self._kind == OBJECTS
        self.features = object_features({"is_crowd": "integer"}, source.has_masks) if has_objects else (_CAPTIONS,) if is_captions else ()
        self.targets = (OBJECTS, *([MASK] if source.has_masks else [])) if has_objects else (CAPTIONS,) if is_captions else ()
        root_path = source.image_root or (folder_around(_absolute(config.input)) if self._is_file else config.input)
        self._root = Root(root_path, config.follow_links)
        self.root = self._root.path
        self._config = config
        self._with_sizes = with_sizes
        self._category_names: tuple[str, ...] = ()
        self.unused_fields = UnusedFields()

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises a COCO file, a folder called `annotations` with COCO files, and Roboflow's folders of images."""
        if not names.is_folder:
            if names.find("*.json"):
                reject_other_format(names.path)
                return Recognition(names.name)
            return None
        if any(folder.find(ROBOFLOW) for folder in (names, *names.below)):
            return Recognition(ROBOFLOW, Certainty.MARKER)
        for folder in filter(None, (names.folder(*ANNOTATION_FOLDERS), names, *names.below)):
            for name in folder.files:
                if name.lower().endswith(".json") and "COCO" in format_of_content(name, folder.head(name)):
                    return Recognition(name)
        annotations = names.folder(*ANNOTATION_FOLDERS)
        if annotations and (name := annotations.find("*.json")):
            reject_other_format(f"{annotations.path}/{name}")
            return Recognition(f"{annotations.name}/{name}")
        return None

    def label_names(self) -> dict[str, tuple[str, ...]]:
        """Returns the category names of the COCO file that was listed last, in the order of the category ids.

        Supercategories are classes only if annotations use them.
        """
        return {_LABEL: self._config.source.names_of(_LABEL) or self._category_names} if self._kind == OBJECTS else {}

    def parts(self) -> list[str]:
        """Returns a JSON string with the path and the split of each COCO file. Raises `UserError` if there are no files,
        or only some file names contain a split."""
        if self._is_file and self._config.split_folders:
            raise no_split_folders(self._config.input, "is one JSON file")
        if self._is_file:
            return [json.dumps(_Part(_absolute(self._config.input), None))]
        names = find_files(self._root, FileListing(self._root, self._config.ignore), CAPTIONS if self._kind == CAPTIONS else "instances")
        splits = name_splits(self.root, sorted(set(names.values())), self._config.split_folders)
        return [json.dumps(_Part(f"{self.root}/{path}", splits[name])) for path, name in names.items()]

    def memory_bytes(self, part: str) -> int:
        path = _Part(*json.loads(part)).path
        try:
            num_bytes = files_at(path).size(path)
        except OSError as error:
            raise listing_error(error, path, f"{printable(path)} cannot be read: {error.strerror or error}") from error
        return num_bytes if self._config.source.has_masks else num_bytes // 2

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        path, split = _Part(*json.loads(part))
        below = f"{self._root.path}/"
        relative = path[len(below) :] if path.startswith(below) else posixpath.basename(path)
        source = self._config.source
        file = CocoFile(path, relative, source.has_masks, self._kind)
        self._category_names = file.category_names()
        if self._kind == OBJECTS:
            self.found_features = frozenset(filter(None, [file.keypoints.feature()]))
            self.group_names = frozenset() if source.names_of(_LABEL) else file.group_names()
        if self._kind:  # annotation ids are never reported as unused, because nothing refers to them
            self.unused_fields.add(file.unused_fields.names - {"id"})
        yield from file.dead_letters
        place = self._find_place(relative, file)
        segments = self._find_segments(path, relative, file) if file.segment_files else ""
        sizes = find_sizes(self.root, self._paths(file, place)) if self._with_sizes else {}
        for image_or_dead_letter in file.inputs():
            if isinstance(image_or_dead_letter, DeadLetter):
                yield image_or_dead_letter
                continue
            image, objects = image_or_dead_letter
            listed = self._list_image(image, objects, place, segments, split)
            if listed is None:
                self.num_ignored += 1
            elif isinstance(listed, DeadLetter):
                yield listed
            else:  # a missing image keeps the size 0 and fails later, when it is read
                yield listed._replace(num_bytes=sizes.get(listed.path, 0))

    def _find_place(self, path: str, file: CocoFile) -> ImagePlace:
        """Returns the first possible image folder that contains one of the first five images in the file. Raises
        `UserError` if there is no such folder and the entries have links to images, which are not downloaded."""
        folders = [""] if self._config.source.image_root else image_folders(path)
        first = [image.file_name for image in itertools.islice(file.images(), NUM_PROBED)]
        if place := find_images(self._root, folders, first):
            if place.prefix:
                fact = f"file names in {printable(path)} begin with {printable(place.prefix)!r}, which was left out, because the images are in {printable(place.folder) or 'the root'}"
                self.noted[fact] = sum(portable(image.file_name).startswith(place.prefix) for image in file.images())
            return place
        if file.link and first and not self._config.source.image_root:
            raise UserError(
                f"{printable(path)}: none of its first {len(first)} images, such as {printable(first[0])!r}, is "
                f"beside it or in {', '.join(filter(None, folders))}. Links such as {printable(file.link[:200])} "
                "are not followed: download the images, and pass their folder with --image_root."
            )
        return ImagePlace("" if self._config.source.image_root else folder_around(path))

    def _find_segments(self, path: str, relative: str, file: CocoFile) -> str:
        """Returns the folder with the PNGs of a panoptic file, relative to the root. Raises `UserError` if they are in
        none of the usual folders."""
        stem, own = posixpath.basename(path).removesuffix(".json"), posixpath.dirname(path)
        below = f"{self.root}/"
        folders = [f"{folder}/{name}" for folder in (own, posixpath.dirname(own)) for name in (stem, f"annotations/{stem}")]
        inside = [folder.removeprefix(below) for folder in folders if folder.startswith(below)]
        place = find_images(self._root, inside, file.segment_files)
        if place is None or place.prefix:
            raise UserError(
                f"{printable(relative)}: the masks of its images, such as {printable(file.segment_files[0])!r}, are not in {printable(stem)}/ "
                f"beside the file, below {printable(self.root)}. Unpack them to this folder."
            )
        return place.folder

    def _list_image(
        self, image: CocoImage, objects: ImageObjects | tuple[str, ...], place: ImagePlace, segments: str, split: str | None
    ) -> InputRecord | DeadLetter | None:
        """Returns the input for an image, a dead letter if the image is rejected, or None if it is ignored."""
        try:
            path = self._path(image, place)
            if matches(path, self._config.ignore):
                return None
            values = {CAPTIONS: objects} if self._kind == CAPTIONS else self._values(image, objects, segments) if self._kind else None
        except InvalidInput as error:
            return image.reject(InvalidInput(error.reason, f"entry {image.position} of 'images' {error}"))
        return InputRecord(nfc(path), path, "", split, values=values)

    def _values(self, image: CocoImage, objects: ImageObjects, segments: str) -> dict[str, Any]:
        labels = tuple([known(label, self._config.source.names_of(_LABEL)) for label in objects.labels])
        points = {NAME: objects.keypoints} if objects.keypoints else {}
        values = {OBJECTS: Objects(objects.boxes, labels, {"is_crowd": objects.is_crowd}, image.size, points=points)}
        if objects.segment_file:
            ids = tuple(outline[0] for outline in objects.outlines)
            values[MASK] = Segments(read_path(join(segments, objects.segment_file), self._root), ids, labels)
        elif self._config.source.has_masks:
            if image.size is None:
                raise InvalidInput("bad_mask", "has no height and width, which --masks needs")
            order = sorted(range(len(labels)), key=lambda index: (-objects.areas[index], index))
            regions = tuple(objects.outlines[index] for index in order)
            values[MASK] = Regions(tuple(labels[index] for index in order), regions, image.size)
        return values

    def _path(self, image: CocoImage, place: ImagePlace) -> str:
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
        if is_link:
            return read_path(image.file_name, self._root)
        name = portable(image.file_name)
        if not name.startswith(place.prefix):
            raise InvalidInput("outside", f"has the file name {printable(name[:200])!r}, but others begin with {printable(place.prefix)!r}")
        name = name.removeprefix(place.prefix)
        return read_path(name if name.startswith("/") else join(place.folder, name), self._root)

    def _paths(self, file: CocoFile, place: ImagePlace) -> Iterator[str]:
        """Yields the image paths of a file. Skips images with invalid paths."""
        for image in file.images():
            with contextlib.suppress(InvalidInput):
                yield self._path(image, place)


def _absolute(path: str) -> str:
    """Returns the absolute path of a file. Resolves links in the path of its folder, but not a link in place of the
    file."""
    if is_remote(path):
        return path
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)
