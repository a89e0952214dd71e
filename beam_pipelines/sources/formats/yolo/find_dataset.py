"""Finds the root folder of a YOLO dataset, the file that describes the dataset, and the class names."""

import os
import posixpath
from typing import Iterator, NamedTuple, Sequence

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import FileListing, join
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.formats.yolo.dataset_file import DARKNET_END, YAML_ENDS, DatasetFile, read_dataset_file, read_names_file
from beam_pipelines.sources.formats.yolo.image_groups import ImageGroup, find_path, find_stated_groups
from beam_pipelines.sources.files.label_files import read_head
from beam_pipelines.storage.files import files_at, is_remote

DATASET_ENDS = (*YAML_ENDS, DARKNET_END)
_USUAL = ("data.yaml", "dataset.yaml", "obj.data")
NAMES_FILES = ("classes.txt", "obj.names", "_darknet.labels")


class Dataset(NamedTuple):
    """The location and description of a dataset, before its images are listed.

    Attributes:
        root: The root of the source.
        file: The content of the dataset file. Its fields are empty if there is no dataset file.
        folder: The folder, relative to the root, in which the paths of the dataset file start.
        groups: The image folders and list files that the dataset file names; None if it names none.
        messages: Messages for the user about detected or skipped paths.
    """

    root: Root
    file: DatasetFile
    folder: str
    groups: list[ImageGroup] | None
    messages: list[str]


def find_dataset(config: PrepareConfig) -> Dataset:
    """Reads the dataset file, and finds the image folders and list files that it names.

    If the input is a folder, all files must be below this folder. If the input is a dataset file, the `path` in the
    file may be a folder elsewhere, as in the dataset files that Ultralytics provides.

    Raises:
        UserError: The dataset file is invalid, or refers to images that do not exist.
    """
    path, image_root = _absolute(config.input), config.source.image_root
    is_file = path.lower().endswith(DATASET_ENDS)
    if image_root and not is_file:
        raise UserError(
            f"--image_root={image_root}: --input={config.input} is a folder. Pass its data.yaml as --input, or omit --image_root."
        )
    folder = posixpath.dirname(path) if is_file else path
    root = Root(image_root or folder, config.follow_links)
    name = posixpath.basename(path) if is_file else _find_file(root, FileListing(root, config.ignore))
    if not name:
        return Dataset(root, DatasetFile(""), "", None, [])
    file = read_dataset_file(f"{folder}/{name}")
    if not file.splits:
        return Dataset(root, file, "", None, [])
    places = [(root, "")] if image_root else [*_stated_place(root, file, is_file), (root, "")]
    first = next(paths[0] for paths in file.splits.values())
    fitting = (place for place in places if find_path(place[0], first, place[1], may_shorten=file.is_darknet) is not None)
    used, base = next(fitting, places[-1])
    messages = []
    if used is not root:
        messages.append(f"the images are below its path {printable(used.path)}")
    elif not image_root and not base and _states_other_folder(root, file):
        messages.append(f"its path {printable(file.path)!r} does not contain the images, so its own folder is used")
    groups, others = find_stated_groups(used, FileListing(used, config.ignore), file, base)
    return Dataset(used, file, base, groups, [*messages, *others])


def _states_other_folder(root: Root, file: DatasetFile) -> bool:
    """Returns whether the `path` in a dataset file differs from the folder that contains the file."""
    if is_remote(root.path) or is_remote(file.path):
        return posixpath.normpath(file.path or ".") != "."
    return os.path.realpath(os.path.join(root.path, file.path)) != root.path


def _stated_place(root: Root, file: DatasetFile, is_file: bool) -> Iterator[tuple[Root, str]]:
    """Yields the `path` in a dataset file as a root and a folder relative to this root, unless `path` is not allowed.

    Args:
        root: The folder of the dataset file.
        file: The content of the dataset file.
        is_file: Whether `--input` is the dataset file. Only then, `path` may lead outside the folder of the file.
    """
    if not _states_other_folder(root, file):
        return
    try:
        yield root, root.relative(file.path)
    except OutsideError:
        if is_file and not is_remote(root.path) and not is_remote(file.path):
            yield Root(os.path.join(root.path, file.path), root.follows_links), ""


def _find_file(root: Root, files: FileListing) -> str:
    """Returns the name of the only dataset file in the root, or "". Raises `UserError` if there are several."""
    for name in _USUAL:
        if path := _find_file_at(root, name):
            return path
    names = [name for name in files.top_level()[1] if name.lower().endswith(DATASET_ENDS)]
    names = [name for name in names if is_dataset_head(name, read_head(f"{root.path}/{name}"))]
    if len(names) > 1:
        shown = ", ".join(map(printable, names[:3]))
        raise UserError(f"--input={root.path}: contains several dataset files: {shown}. Pass one of them as --input.")
    return _inside(root, names[0]) if names else ""


def is_dataset_head(name: str, head: bytes) -> bool:
    """Returns whether a file is a dataset file of Ultralytics or Darknet, given its first bytes."""
    lines = head.decode("utf-8", "replace").lstrip("\ufeff").splitlines()
    separator = "=" if name.lower().endswith(DARKNET_END) else ":"
    keys = {line.partition(separator)[0].strip() for line in lines if separator in line and not line.startswith((" ", "-"))}
    return bool(keys & {"names", "nc", "classes"} and keys & {"train", "val", "valid"})


def find_names_file(dataset: Dataset, groups: Sequence[ImageGroup]) -> str:
    """Returns the path of the file with the class names, relative to the root, or "" if there is none.

    Raises:
        UserError: The dataset file names a file that does not exist, or folders have different class names.
    """
    root = dataset.root
    if dataset.file.names:
        return ""
    if stated := dataset.file.names_file:
        place = find_path(root, stated, dataset.folder, may_shorten=True)
        if place is None:
            raise UserError(f"{printable(dataset.file.name)}: names is {printable(stated)!r}, which does not exist below {printable(root.path)}.")
        return place
    folders = [""]
    for group in groups:
        parts = group.labels.split("/")
        folders += ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    paths = (join(folder, name) for folder in dict.fromkeys(folders) for name in NAMES_FILES)
    found = [path for path in (_find_file_at(root, path) for path in paths) if path]
    names = [read_names_file(f"{root.path}/{path}") for path in found]
    for path, others in zip(found, names):
        if others != names[0]:
            raise UserError(
                f"--input={root.path}: {printable(found[0])} and {printable(path)} have different class names. Remove one of them, or "
                "write a data.yaml with all names."
            )
    return found[0] if found else ""


def _find_file_at(root: Root, path: str) -> str:
    """Returns the path of a file relative to the root, or "" if the file does not exist. Raises `UserError` if the path
    is not a file, or is a link that is not followed."""
    if files_at(root.path).exists(f"{root.path}/{path}"):
        return _inside(root, path)
    if not is_remote(root.path) and os.path.lexists(f"{root.path}/{path}"):
        raise UserError(f"--input={root.path}: {printable(path)!r} is not a file, or a broken link. Replace or remove it.")
    return ""


def _inside(root: Root, path: str) -> str:
    """Returns a path relative to the root. Raises `UserError` if the path is a link that is not followed."""
    try:
        return root.relative(path)
    except OutsideError as error:
        raise UserError(f"--input={root.path}: {error}.") from None


def _absolute(path: str) -> str:
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)
