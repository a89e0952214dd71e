"""Reads the categories of a COCO file, which name the classes and the keypoints of objects."""

import re
from typing import Any, Mapping

from beam_pipelines.errors import CONTROL, InvalidInput, UserError, printable
from beam_pipelines.columns.keypoints import KEYPOINTS_FORM
from beam_pipelines.sources.annotations.annotation_source import KEYPOINTS
from beam_pipelines.sources.cells.cells import shown
from beam_pipelines.sources.cells.class_cells import class_name
from beam_pipelines.sources.files.paths import nfc
from tf_input.dataset_format import OBJECTS, Feature

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
NUM_NUMBERS = 3  # of a keypoint: x, y and visibility
_MAX_NAME_CHARACTERS = 256


def read_id(value: Any) -> int | str | None:
    """Converts the id of an image or a category to an integer or a string. Returns None if the id is invalid.

    The integer 7 may also be written as 7.0 or "7".
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return int(value) if _INTEGER.fullmatch(value) else value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def keypoints_feature(num_points: int, **details: Any) -> Feature:
    """Returns the feature of the keypoints of objects."""
    return Feature(f"{OBJECTS}/{KEYPOINTS}", KEYPOINTS_FORM.kind, (None, num_points, NUM_NUMBERS), **details)


class CocoCategories:
    """The categories of a COCO file.

    Args:
        file_name: The printable name of the file, for messages.

    Attributes:
        keypoints: The feature with the keypoints of objects; None if the categories name no keypoints.
    """

    def __init__(self, file_name: str) -> None:
        self.keypoints: Feature | None = None
        self._file_name = file_name
        self._names: dict[int | str, str] = {}
        self._parents: dict[int | str, str] = {}  # the name of the supercategory of each category
        self._parent_names: set[str] = set()
        self._used: dict[str, int | str] = {}  # the category id of each name that an annotation uses

    def add(self, position: str, entry: Mapping[str, Any]) -> None:
        """Adds an entry of `categories`. Raises `UserError` if the entry is invalid or conflicts with another
        category."""
        category_id, name, parent = read_id(entry.get("id")), entry.get("name"), entry.get("supercategory")
        try:
            if category_id is None or not isinstance(name, str):
                raise InvalidInput("bad_label", f"has the id {shown(entry.get('id'))} and the name {shown(name)}")
            name = class_name(name)
        except InvalidInput as error:
            raise UserError(f"{self._file_name}: category {position} {error}. Give it a valid id and a name.") from None
        if category_id in self._names:
            raise UserError(f"{self._file_name}: two categories have the id {shown(category_id)}. Give each category its own id.")
        self._names[category_id] = name
        if isinstance(parent, str):
            self._parents[category_id] = nfc(parent.strip())
            self._parent_names.add(self._parents[category_id])
        if entry.get("keypoints"):
            self._add_keypoints(entry["keypoints"], entry.get("skeleton") or [], name)

    def _add_keypoints(self, names: Any, pairs: Any, category: str) -> None:
        if not isinstance(names, list) or not all(isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARACTERS for name in names):
            raise UserError(f"{self._file_name}: 'keypoints' of the category {printable(category)!r} must be a list of names.")
        are_pairs = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        if not are_pairs or not all(type(index) is int and 1 <= index <= len(names) for pair in pairs for index in pair):
            problem = f"must be pairs of points, which are numbered from 1 to {len(names)}"
            raise UserError(f"{self._file_name}: 'skeleton' of the category {printable(category)!r} {problem}.")
        point_names = tuple(CONTROL.sub("?", nfc(name)) for name in names)
        feature = keypoints_feature(
            len(names), point_names=point_names, skeleton=tuple((first - 1, second - 1) for first, second in pairs)
        )
        if self.keypoints not in (None, feature):
            raise UserError(
                f"{self._file_name}: the category {printable(category)!r} and another category have different keypoints. "
                "Write one file for each."
            )
        self.keypoints = feature

    def name_of(self, category_id: int | str) -> str:
        """Returns the name of the category of an object.

        Raises:
            InvalidInput: There is no such category.
            UserError: Objects have two categories with the same name.
        """
        if category_id not in self._names:
            raise InvalidInput("bad_label", f"category {shown(category_id)} is not in 'categories'")
        name = self._names[category_id]
        if (other := self._used.setdefault(name, category_id)) != category_id:
            ids = " and ".join(sorted(map(shown, (other, category_id))))
            raise UserError(
                f"{self._file_name}: the categories {ids} have the same name, {name!r}, and both have annotations. "
                "Give each category its own name, or give all annotations the same category_id."
            )
        return name

    def names(self) -> tuple[str, ...]:
        """Returns the distinct names, in the order of the category ids. If a supercategory and a class have the same
        name, the id of the class determines the position of the name."""
        ids = sorted(self._names, key=lambda category_id: (isinstance(category_id, str), category_id))
        groups = self.group_names()
        return tuple(dict.fromkeys(self._names[item] for item in ids if not self._is_group(item) or self._names[item] in groups))

    def group_names(self) -> frozenset[str]:
        """Returns the names of supercategories that are not classes. A category that is its own supercategory, such as
        `person` in COCO's files, is a class."""
        classes = {name for category_id, name in self._names.items() if not self._is_group(category_id)}
        return frozenset(set(self._names.values()) - classes)

    def _is_group(self, category_id: int | str) -> bool:
        name = self._names[category_id]
        return name in self._parent_names and self._parents.get(category_id) != name
