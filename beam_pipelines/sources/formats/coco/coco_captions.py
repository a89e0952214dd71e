"""Groups the annotations in a COCO file, such as captions, by image."""

import array
from typing import Any, Container, Iterator, Mapping

from beam_pipelines.errors import InvalidInput
from beam_pipelines.sources.formats.coco.coco_ids import read_id, shown


class AnnotatedImages:
    """The ids of the images that have annotations, in the order of their first annotation."""

    def __init__(self) -> None:
        self._images: dict[int | str, int] = {}  # id -> index
        self._first_positions = array.array("q")  # position of the first annotation, by image index
        self._bad: dict[int, InvalidInput] = {}  # by image index

    def index_of(self, position: int, entry: Mapping[str, Any]) -> int:
        """Returns the index of the image of an annotation. Raises `InvalidInput` if the entry has no valid image id."""
        image_id = read_id(entry.get("image_id"))
        if image_id is None:
            raise InvalidInput(
                "bad_annotation", f"'image_id' is {shown(entry.get('image_id'))}; it must be an integer or a text"
            )
        index = self._images.setdefault(image_id, len(self._images))
        if index == len(self._first_positions):
            self._first_positions.append(position)
        return index

    def reject(self, index: int, position: int, error: InvalidInput) -> None:
        """Stores the error of an invalid annotation, because of which its image is rejected."""
        self._bad.setdefault(index, InvalidInput(error.reason, f"annotation {position}: {error}"))

    def find(self, image_id: int | str) -> int | None:
        """Returns the index of an image, or None if it has no annotations. Raises `InvalidInput` if an annotation of the
        image is invalid."""
        index = self._images.get(image_id)
        if index in self._bad:
            raise self._bad[index]
        return index

    def of_unknown_images(self, image_ids: Container[int | str]) -> Iterator[tuple[int, InvalidInput]]:
        """Yields the position of the first annotation and an error for each image id that is not in `image_ids`."""
        for image_id, index in self._images.items():
            if image_id not in image_ids:
                message = f"'image_id' is {shown(image_id)}, which is not the id of any entry in 'images'"
                yield self._first_positions[index], InvalidInput("no_image", message)


class Captions(AnnotatedImages):
    """Stores the captions of one file. Each caption takes its length and about 100 bytes."""

    fields = ("image_id", "caption")

    def __init__(self) -> None:
        super().__init__()
        self._captions: dict[int, list[str]] = {}

    def add(self, position: int, entry: Mapping[str, Any]) -> None:
        """Adds an entry of `annotations`, or rejects its image if the caption is invalid. Raises `InvalidInput` if the
        entry has no valid image id."""
        index, caption = self.index_of(position, entry), entry.get("caption")
        if isinstance(caption, str) and caption.strip():
            self._captions.setdefault(index, []).append(caption)
        else:
            self.reject(index, position, InvalidInput("bad_annotation", f"'caption' is {shown(caption)}; it must be a text"))

    def group(self) -> None:
        """Does nothing: captions are grouped when they are added."""

    def are_relative(self) -> bool:
        """Returns False, because captions have no boxes."""
        return False

    def category_ids(self) -> frozenset[int | str]:
        """Returns an empty set, because captions have no categories."""
        return frozenset()

    def of(self, image_id: int | str, category_names: Mapping[int | str, str]) -> tuple[str, ...]:
        """Returns the captions of one image, in the order of the file. Raises `InvalidInput` if a caption is invalid."""
        index = self.find(image_id)
        return () if index is None else tuple(self._captions[index])
