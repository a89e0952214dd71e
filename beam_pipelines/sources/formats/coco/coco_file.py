"""Reads a JSON file in one of COCO's formats (https://cocodataset.org/#format-data) as a stream."""

import posixpath
import unicodedata
import urllib.parse
from typing import Any, Iterator, Mapping, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.formats.coco.coco_annotations import Annotations, ImageObjects
from beam_pipelines.sources.formats.coco.coco_captions import Captions
from beam_pipelines.sources.formats.coco.coco_ids import read_id, shown
from beam_pipelines.sources.formats.coco.coco_keypoints import CATEGORY_FIELDS, CocoKeypoints
from beam_pipelines.sources.annotations.json_sections import read_sections
from beam_pipelines.sources.cells.class_cells import class_name
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.storage.files import is_remote, open_file
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import OBJECTS

_LINK_FIELDS = ("coco_url", "flickr_url", "url")
_IMAGE_FIELDS = ("id", "file_name", "width", "height", *_LINK_FIELDS)
_CATEGORY_FIELDS = ("id", "name", "supercategory", *CATEGORY_FIELDS)
CAPTIONS = "captions"
_NUM_CHECKED = 100  # how many annotations without a box are read before the file is rejected
_ADVICE = "If it lists only images, such as image_info_test2017.json, pass --label none."
_SHOWN_CHARACTERS = 4096  # the maximum length of a path


class CocoImage(NamedTuple):
    """An entry of `images`.

    Attributes:
        position: The index of the entry in `images`.
        file_name: The name of the image file, as in the entry.
        size: The (height, width) in pixels; None if a side is missing or 0.
    """

    position: int
    file_name: str
    size: tuple[int, int] | None

    def reject(self, rejection: InvalidInput) -> DeadLetter:
        """Returns the dead letter of a rejected image."""
        return DeadLetter.of(printable(self.file_name[:_SHOWN_CHARACTERS]), rejection)


class CocoFile:
    """The images, categories and annotations of a COCO file.

    Args:
        path: The path of the file.
        name: The name of the file in messages and dead letters.
        has_outlines: Whether to keep the outlines of the objects.
        kind: The kind of annotations to read: `objects`, `captions`, or "" for none.

    Attributes:
        dead_letters: The dead letters of invalid entries, and of annotations whose image is missing.
        unused_fields: The annotation fields that are not kept.
        keypoints: The keypoints of the annotations.
        segment_files: The names of the PNGs of panoptic annotations.
        link: The first image link in an entry, such as a `coco_url`; None if there are no links.

    Raises:
        UserError: The file is not in COCO's format.
    """

    def __init__(self, path: str, name: str, has_outlines: bool, kind: str = OBJECTS) -> None:
        self.dead_letters: list[DeadLetter] = []
        self.unused_fields = UnusedFields()
        self.segment_files: list[str] = []
        self.link: str | None = None
        self._name = printable(name)
        self._images: dict[int | str, CocoImage | None] = {}  # None: the image was rejected
        self._categories: dict[int | str, str] = {}
        self._supercategories: dict[int | str, str] = {}
        self._parents: set[str] = set()  # the names of all supercategories
        self.keypoints = CocoKeypoints(self._name)
        self._annotations = Captions() if kind == CAPTIONS else Annotations(has_outlines, self.keypoints)
        self._read(path, kind)
        self._check_category_names()
        if self._annotations.are_relative():
            raise UserError(
                f"{self._name}: all coordinates of boxes are between 0 and 1, but COCO uses pixels. Multiply them by the width and height "
                "of their image."
            )
        if kind == OBJECTS:
            self._check_objects(has_outlines)

    def _check_objects(self, has_outlines: bool) -> None:
        """Raises `UserError` if the annotations are not objects with the requested values."""
        self._check_boxes(1)
        if "segments_info" in self.unused_fields.names:
            raise UserError(f"{self._name} is a panoptic file ('segments_info'). Pass --masks to read its masks.")
        if "caption" in self.unused_fields.names and not self._annotations.category_ids():
            raise UserError(f"{self._name} has captions instead of objects. Pass --label captions.")
        if has_outlines and self._annotations.lack_outlines():
            raise UserError(f"{self._name}: no annotation has an outline ('segmentation'). Omit --masks.")
        self.segment_files = self._annotations.segment_files()

    def category_names(self) -> tuple[str, ...]:
        """Returns the distinct category names, in the order of the category ids.

        If a supercategory and a class have the same name, the name has the position of the class.
        """
        ids = sorted(self._categories, key=lambda category_id: (isinstance(category_id, str), category_id))
        groups = self.group_names()
        return tuple(
            dict.fromkeys(
                self._categories[item] for item in ids if not self._is_group(item) or self._categories[item] in groups
            )
        )

    def group_names(self) -> frozenset[str]:
        """Returns the names of categories that are supercategories but not classes.

        A category that is its own supercategory, such as `person` in COCO's files, is a class.
        """
        classes = {name for category_id, name in self._categories.items() if not self._is_group(category_id)}
        return frozenset(set(self._categories.values()) - classes)

    def _is_group(self, category_id: int | str) -> bool:
        name = self._categories[category_id]
        return name in self._parents and self._supercategories.get(category_id) != name

    def _check_category_names(self) -> None:
        """Raises `UserError` if annotations use two categories that have the same name."""
        used: dict[str, int | str] = {}
        for category_id in self._categories.keys() & self._annotations.category_ids():
            other = used.setdefault(self._categories[category_id], category_id)
            if other != category_id:
                ids = " and ".join(sorted(map(shown, (other, category_id))))
                raise UserError(
                    f"{self._name}: the categories {ids} have the same name, {self._categories[category_id]!r}, and both have annotations. "
                    "Give each category its own name, or give all annotations the same category_id."
                )

    def images(self) -> Iterator[CocoImage]:
        """Yields the valid images, in the order of the file."""
        return (image for image in self._images.values() if image)

    def inputs(self) -> Iterator[tuple[CocoImage, ImageObjects | tuple[str, ...]] | DeadLetter]:
        """Yields each valid image with its objects or captions, or a dead letter if an annotation of the image is invalid."""
        for image_id, image in self._images.items():
            if image is None:
                continue
            try:
                yield image, self._annotations.of(image_id, self._categories)
            except InvalidInput as error:
                yield image.reject(error)

    def _read(self, path: str, kind: str) -> None:
        add = {"images": self._add_image, "categories": self._add_category, "annotations": self._add_object if kind == OBJECTS else self._annotations.add}
        fields = {"images": _IMAGE_FIELDS, "categories": _CATEGORY_FIELDS, "annotations": self._annotations.fields}
        try:
            file = open_file(path)
        except OSError as error:
            raise listing_error(error, path, f"{self._name} cannot be read: {error.strerror or error}") from error
        with file:
            optional = {OBJECTS: {}, CAPTIONS: {"categories"}}.get(kind, {"annotations", "categories"})
            others = {"annotations": self.unused_fields}
            for section, position, entry in read_sections(self._name, file, fields, others, optional, _ADVICE):
                try:
                    add[section](position, entry or {})
                except InvalidInput as error:
                    self._reject(section, position, error)
        self._annotations.group()
        for position, error in self._annotations.of_unknown_images(self._images):
            self._reject("annotations", position, error)

    def _reject(self, section: str, position: int, error: InvalidInput) -> None:
        self.dead_letters.append(DeadLetter.of(f"{self._name}#/{section}/{position}", error))

    def _add_image(self, position: int, entry: Mapping[str, Any]) -> None:
        image_id, file_name = read_id(entry.get("id")), entry.get("file_name") or _last_part(entry)
        if image_id is None:
            raise InvalidInput("bad_image_entry", f"'id' is {shown(entry.get('id'))}; it must be an integer or a text")
        first = self._images.get(image_id)
        is_known = image_id in self._images
        self._images[image_id] = None
        if is_known:  # the annotations of a repeated id cannot be assigned to one image
            error = InvalidInput("duplicate", f"another image also has the id {shown(image_id)}")
            if first:
                self._reject("images", first.position, error)
            raise error
        if not isinstance(file_name, str) or not file_name:
            raise InvalidInput("bad_image_entry", f"'file_name' is {shown(file_name)}; it must be the name of an image")
        self._images[image_id] = CocoImage(position, file_name, _read_size(entry))
        links = (entry.get(field) for field in _LINK_FIELDS if self.link is None)
        self.link = next((link for link in links if isinstance(link, str) and is_remote(link)), self.link)

    def _add_object(self, position: int, entry: Mapping[str, Any]) -> None:
        self._annotations.add(position, entry)
        if position % _NUM_CHECKED == _NUM_CHECKED - 1:
            self._check_boxes(_NUM_CHECKED)

    def _check_boxes(self, minimum: int) -> None:
        """Raises `UserError` if at least `minimum` annotations are classes of entire images, and none is an object."""
        if self._annotations.are_classes(minimum) and "segmentation" not in self.unused_fields.names:
            raise UserError(
                f"{self._name}: its annotations have a 'category_id' but no 'bbox', so they are classes of entire images. Convert "
                "the file to a table with the columns file_name and label, as docs/how_to/tables.md shows in 'Classes from a COCO file'."
            )

    def _add_category(self, position: int, entry: Mapping[str, Any]) -> None:
        category_id, name, supercategory = read_id(entry.get("id")), entry.get("name"), entry.get("supercategory")
        if category_id is None or not isinstance(name, str):
            problem = f"the id {shown(entry.get('id'))} and the name {shown(name)}"
            raise UserError(f"{self._name}: category {position} has {problem}. Give it a valid id and a name.")
        try:
            name = class_name(name)
        except InvalidInput as error:
            raise UserError(f"{self._name}: the name of category {position} {error}.") from None
        if category_id in self._categories:
            raise UserError(
                f"{self._name}: two categories have the id {shown(category_id)}. Give each category its own id."
            )
        self._categories[category_id] = name
        self.keypoints.add_category(entry)
        if isinstance(supercategory, str):
            parent = unicodedata.normalize("NFC", supercategory.strip())
            self._supercategories[category_id] = parent
            self._parents.add(parent)


def _last_part(entry: Mapping[str, Any]) -> str | None:
    """Returns the file name at the end of the first link of an image, or None."""
    links = (entry.get(field) for field in _LINK_FIELDS)
    link = next((link for link in links if isinstance(link, str) and link), None)
    try:
        return link and urllib.parse.unquote(posixpath.basename(urllib.parse.urlsplit(link).path))
    except ValueError:  # an invalid host
        return None


def _read_size(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = (entry.get(side) or 0 for side in ("height", "width"))
    for side in (height, width):
        if not isinstance(side, int) or isinstance(side, bool) or side < 0:
            shown_sides = f"{shown(entry.get('height'))} x {shown(entry.get('width'))}"
            raise InvalidInput("bad_image_entry", f"'height' and 'width' are {shown_sides}; they must be numbers of pixels")
    return (height, width) if height and width else None
