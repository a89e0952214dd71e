"""Reads a JSON file in one of COCO's formats (https://cocodataset.org/#format-data) as a stream.

A COCO file lists annotations in any order, before or after the images. The needed fields of each annotation are kept as
a line of JSON, which takes less memory than Python objects. The line is parsed when the image is listed.
"""

import json
import posixpath
import urllib.parse
from typing import Any, Collection, Iterator, Mapping, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.annotations.json_stream import open_json, read_entries, skip_value
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.formats.coco.coco_categories import NUM_NUMBERS, CocoCategories, keypoints_feature, read_id
from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import Feature

_LINK_FIELDS = ("coco_url", "flickr_url", "url")
_SECTIONS = ("images", "annotations", "categories")
_MAX_DEPTH = 5  # entry, outlines, outline, point
_SHOWN_CHARACTERS = 4096  # the maximum length of a path


class CocoImage(NamedTuple):
    """An entry of `images`.

    Attributes:
        position: The position of the entry in `images`.
        file_name: The name of the image file, as in the entry.
        size: The (height, width) in pixels; None if a side is missing or 0.
    """

    position: str
    file_name: str
    size: tuple[int, int] | None

    def reject(self, rejection: InvalidInput) -> DeadLetter:
        """Returns the dead letter of a rejected image."""
        return DeadLetter.of(printable(self.file_name[:_SHOWN_CHARACTERS]), rejection)


class CocoFile:
    """The images, categories and annotations of a COCO file.

    Args:
        path: The path of the file.
        name: The printable name of the file in messages and dead letters.
        fields: The fields of annotations to keep.
        optional: The sections that may be missing.

    Attributes:
        dead_letters: The dead letters of invalid entries, and of annotations whose image is missing.
        unused_fields: The annotation fields that are not kept.
        images: The valid images by their ids.
        categories: The categories.
        segment_files: The names of the PNGs of panoptic annotations.
        name: The printable name of the file.
        link: The first image link in an entry, such as a `coco_url`; None if there are no links.

    Raises:
        UserError: The file is not in COCO's format.
    """

    def __init__(self, path: str, name: str, fields: Collection[str], optional: Collection[str] = ()) -> None:
        self.dead_letters: list[DeadLetter] = []
        self.unused_fields = UnusedFields()
        self.images: dict[int | str, CocoImage] = {}
        self.categories = CocoCategories(name)
        self.segment_files: list[str] = []
        self.link: str | None = None
        self.name = name
        self._fields = fields
        self._rejected: set[int | str] = set()  # ids of images
        self._annotations: dict[int | str, bytearray] = {}  # image id -> a line with [position, annotation] for each
        self._num_points = 0  # of the first annotation with keypoints
        self._read(path, optional)

    @property
    def keypoints(self) -> Feature | None:
        """The feature with the keypoints of objects. None if neither categories nor annotations mention keypoints."""
        return self.categories.keypoints or (keypoints_feature(self._num_points) if self._num_points else None)

    def annotations(self, image_id: int | str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the annotations of an image and their positions in the file."""
        return map(json.loads, self._annotations.get(image_id, b"").splitlines())

    def _read(self, path: str, optional: Collection[str]) -> None:
        add = dict(zip(_SECTIONS, (self._add_image, self._add_annotation, self.categories.add)))
        missing = set(_SECTIONS)
        with open_json(path, self.name) as events:
            if next(events)[0] != "start_map":
                raise UserError(f"{self.name}: not a JSON object. The file must be an object with the lists {', '.join(_SECTIONS)}.")
            for event, section in events:
                if event == "end_map":
                    break
                event, _ = next(events)
                if section not in add:
                    skip_value(events, event)
                    continue
                if event not in ("start_array", "start_map"):
                    raise UserError(f"{self.name}: {section!r} is neither a list of objects nor an object of objects.")
                if section not in missing:
                    raise UserError(f"{self.name}: {section!r} occurs twice. Join the two, or write two files.")
                missing.remove(section)
                for position, entry in read_entries(events, event, _MAX_DEPTH):
                    try:
                        add[section](position, entry if isinstance(entry, dict) else {})
                    except InvalidInput as error:
                        self._reject(section, position, error)
        for section in sorted(missing - {*optional}):
            raise UserError(
                f"{self.name}: has no {section!r}. The file must be an object with the lists {', '.join(_SECTIONS)}. If it lists "
                "only images, such as image_info_test2017.json, pass --label none."
            )
        for image_id in self._annotations.keys() - self.images.keys() - self._rejected:
            position, _ = next(self.annotations(image_id))
            message = f"'image_id' is {shown(image_id)}, which is not the id of any entry in 'images'"
            self._reject("annotations", position, InvalidInput("no_image", message))
        self.dead_letters.sort()

    def _reject(self, section: str, position: str, error: InvalidInput) -> None:
        self.dead_letters.append(DeadLetter.of(printable(f"{self.name}#/{section}/{position[:_SHOWN_CHARACTERS]}"), error))

    def _add_image(self, position: str, entry: Mapping[str, Any]) -> None:
        image_id = read_id(entry.get("id"))
        if image_id is None:
            raise InvalidInput("bad_image_entry", f"'id' is {shown(entry.get('id'))}; it must be an integer or a text")
        first = self.images.pop(image_id, None)
        if first or image_id in self._rejected:  # the annotations of a repeated id cannot be assigned to one image
            self._rejected.add(image_id)
            error = InvalidInput("duplicate", f"another image also has the id {shown(image_id)}")
            if first:
                self._reject("images", first.position, error)
            raise error
        self._rejected.add(image_id)
        file_name = entry.get("file_name") or _last_part(entry)
        if not isinstance(file_name, str) or not file_name:
            raise InvalidInput("bad_image_entry", f"'file_name' is {shown(file_name)}; it must be the name of an image")
        self.images[image_id] = CocoImage(position, file_name, _read_size(entry))
        self._rejected.remove(image_id)
        links = (entry.get(field) for field in _LINK_FIELDS if self.link is None)
        self.link = next((link for link in links if isinstance(link, str) and is_remote(link)), self.link)

    def _add_annotation(self, position: str, entry: Mapping[str, Any]) -> None:
        image_id = read_id(entry.get("image_id"))
        if image_id is None:
            raise InvalidInput("bad_annotation", f"'image_id' is {shown(entry.get('image_id'))}; it must be an integer or a text")
        # Annotation ids are never reported as unused, because nothing refers to them.
        self.unused_fields.add(entry.keys() - {"id", "image_id", *self._fields})
        kept = {field: entry[field] for field in self._fields if field in entry}
        line = json.dumps([position, kept], separators=(",", ":")) + "\n"
        self._annotations.setdefault(image_id, bytearray()).extend(line.encode())
        if not self._num_points and isinstance(points := kept.get("keypoints"), list):
            self._num_points = len(points) // NUM_NUMBERS
        if "segments_info" in kept and isinstance(file_name := kept.get("file_name"), str):
            self.segment_files.append(file_name)


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
            stated = f"{shown(entry.get('height'))} x {shown(entry.get('width'))}"
            raise InvalidInput("bad_image_entry", f"'height' and 'width' are {stated}; they must be numbers of pixels")
    return (height, width) if height and width else None
