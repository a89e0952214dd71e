"""Reads the file that describes a YOLO dataset: `data.yaml` of Ultralytics and Roboflow, or `obj.data` of Darknet."""

import posixpath
import re
from typing import Any, NamedTuple

from beam_pipelines.errors import CONTROL, UserError, printable, reject_repeated_names
from beam_pipelines.sources.files.paths import nfc
from beam_pipelines.sources.files.settings_files import check_class_names, read_small_text
from tf_input.dataset_format import OBJECTS, Feature

DARKNET_END = ".data"
DATASET_ENDS = (".yaml", ".yml", DARKNET_END)
# The split for each key.
_YAML_SPLITS = {"train": "train", "val": "validation", "test": "test"}
_DARKNET_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_INTEGER = re.compile(r"[0-9]{1,9}")
KEYPOINTS = f"{OBJECTS}/keypoints"
_MAX_KEYPOINTS = 10_000
_MAX_NAME_CHARACTERS = 256


class DatasetFile(NamedTuple):
    """The content of the file that describes a dataset.

    Attributes:
        name: The name of the file, for messages.
        names: The class names in the order of the class ids; empty if they are unknown.
        splits: A mapping from each split to its image folders and list files, as written in the file.
        path: The folder that the paths in `splits` are relative to, as written in the file. Empty if missing.
        names_file: The path of the file with the class names, as written in the file. Empty if missing.
        num_classes: The number of classes; None if missing.
        keypoints: The feature with the keypoints of objects; None if objects have no keypoints.
        is_darknet: Whether the file is Darknet's `obj.data`.
    """

    name: str
    names: tuple[str, ...] = ()
    splits: dict[str, tuple[str, ...]] = {}
    path: str = ""
    names_file: str = ""
    num_classes: int | None = None
    keypoints: Feature | None = None
    is_darknet: bool = False


def read_dataset_file(path: str) -> DatasetFile:
    """Reads `data.yaml` or `obj.data`.

    Raises:
        UserError: The file cannot be read or is invalid.
    """
    text = read_small_text(path)
    name = posixpath.basename(path)
    try:
        file = _read_darknet(name, text) if name.lower().endswith(DARKNET_END) else _read_yaml(name, text)
    except ValueError as error:
        raise UserError(f"{printable(path)}: {printable(str(error))}.") from None
    reject_repeated_names(f"{printable(path)}: names", file.names)
    return file


def _read_yaml(name: str, text: str) -> DatasetFile:
    from beam_pipelines.sources.formats.yolo.plain_yaml import parse_yaml  # PyYAML is not installed beside the reader alone

    content = parse_yaml(text)
    if not isinstance(content, dict):
        raise ValueError("must contain a mapping, such as `names:` and `train:`")
    names = _read_names(content.get("names"))
    num_classes = _read_count(content, "nc")
    if names and num_classes is not None and num_classes != len(names):
        raise ValueError(f"nc is {num_classes}, but names has {len(names)} classes. Correct one of them")
    path = content.get("path") or ""
    if not isinstance(path, str):
        raise ValueError("path must be one folder")
    splits = {split: _read_paths(key, content[key]) for key, split in _YAML_SPLITS.items() if content.get(key)}
    return DatasetFile(name, names, splits, path, "", num_classes, _read_keypoints(content))


def _read_names(names: Any) -> tuple[str, ...]:
    """Reads a list of class names, or a mapping from the class ids to names."""
    if names is None:
        return ()
    if isinstance(names, dict):
        names = {_read_integer(key, "a class id in names"): name for key, name in names.items()}
        missing = [number for number in range(len(names)) if number not in names]
        if missing:
            raise ValueError(f"names has no class {missing[0]}, but has class {max(names)}. Give each id from 0 a name")
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list):
        raise ValueError("names must be a list of class names, or a mapping from class ids to names")
    return check_class_names(names)


def _read_integer(value: Any, name: str) -> int:
    if not isinstance(value, str) or not _INTEGER.fullmatch(value):
        raise ValueError(f"{name} is {str(value)[:80]!r}; it must be an integer")
    return int(value)


def _read_count(content: dict[str, Any], key: str) -> int | None:
    value = content.get(key)
    return None if value is None else _read_integer(value, key)


def _read_paths(key: str, value: Any) -> tuple[str, ...]:
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise ValueError(f"{key} must be a folder, a list file, or a list of these")
    return tuple(paths)


def _read_keypoints(content: dict[str, Any]) -> Feature | None:
    """Returns the feature with the keypoints. Its description lists the keypoint pairs that a horizontal flip swaps."""
    shape = content.get("kpt_shape")
    if shape is None:
        return None
    are_texts = isinstance(shape, list) and len(shape) == 2 and all(isinstance(side, str) and _INTEGER.fullmatch(side) for side in shape)
    if not are_texts or not 0 < int(shape[0]) <= _MAX_KEYPOINTS or shape[1] not in ("2", "3"):
        raise ValueError(f"kpt_shape is {str(shape)[:80]}; it must be [number of keypoints, 2 or 3]")
    num_points, num_columns = map(int, shape)
    names = content.get("kpt_names") or []
    distinct = [*map(list, dict.fromkeys(map(_read_point_names, names.values() if isinstance(names, dict) else names)))]
    if any(len(some) != num_points for some in distinct):
        raise ValueError(f"kpt_names does not have {num_points} names for each class, as kpt_shape states")
    return Feature(
        KEYPOINTS, "keypoints", (None, num_points, num_columns), description=_describe_flips(content.get("flip_idx"), num_points),
        point_names=tuple(distinct[0]) if len(distinct) == 1 else (),
    )  # fmt: skip


def _read_point_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("kpt_names must be a list of names for each class")
    return tuple(CONTROL.sub("?", nfc(name))[:_MAX_NAME_CHARACTERS] for name in names)


def _describe_flips(order: Any, num_points: int) -> str:
    if order is None:
        return ""
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(map(str, range(num_points))):
        raise ValueError(f"flip_idx must have each index from 0 to {num_points - 1} once")
    others = [*map(int, order)]
    if any(others[other] != index for index, other in enumerate(others)):
        raise ValueError("flip_idx must exchange pairs of points")
    pairs = [(index, other) for index, other in enumerate(others) if index < other]
    return f"Horizontal flips exchange the points {', '.join(map(str, pairs))}." if pairs else ""


def _read_darknet(name: str, text: str) -> DatasetFile:
    """Reads lines of the form `key = value`."""
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and line.strip()[0] not in "#;")
    content = {key.strip(): value.strip() for key, _, value in pairs}
    splits = {split: (content[key],) for key, split in _DARKNET_SPLITS.items() if content.get(key)}
    if not splits:
        raise ValueError("has no line `train = LIST.txt`")
    return DatasetFile(name, (), splits, "", content.get("names", ""), _read_count(content, "classes"), is_darknet=True)
