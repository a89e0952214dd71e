"""Finds the root folder of a YOLO dataset, the file that describes the dataset, and the class names."""

import os
import posixpath
from typing import Iterable, Iterator, Mapping, NamedTuple

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.annotations.annotation_source import absolute
from beam_pipelines.sources.annotations.image_places import is_folder, portable
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.paths import join
from beam_pipelines.sources.files.label_files import read_head
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.settings_files import read_class_list
from beam_pipelines.sources.formats.yolo.dataset_file import DARKNET_END, DATASET_ENDS, DatasetFile, read_dataset_file
from beam_pipelines.storage.files import files_at, is_remote

_USUAL = ("data.yaml", "dataset.yaml", "obj.data")
NAMES_FILES = ("classes.txt", "obj.names", "_darknet.labels")


class Dataset(NamedTuple):
    """The location and description of a dataset, before its images are listed.

    Attributes:
        root: The root of the source.
        file: The content of the dataset file. Its fields are empty if there is no dataset file.
        folder: The folder, relative to the root, that the paths in the dataset file start from.
        images: A mapping from the path of each image folder and list file that the dataset file names to its split.
        messages: Messages for the user about detected or skipped paths.
    """

    root: Root
    file: DatasetFile
    folder: str = ""
    images: Mapping[str, str] = {}
    messages: tuple[str, ...] = ()


def find_dataset(options: PrepareOptions) -> Dataset:
    """Reads the dataset file and finds the image folders and list files that it names.

    If the input is a folder, all files must be below this folder. If the input is a dataset file, the `path` in the
    file may be a folder elsewhere, as in the dataset files that Ultralytics provides.

    Raises:
        UserError: The dataset file is invalid, or refers to images that do not exist.
    """
    path, image_root = absolute(options.input.rstrip("/")), options.source.image_root
    is_file = path.lower().endswith(DATASET_ENDS)
    if image_root and not is_file:
        raise UserError(
            f"--image_root={image_root}: --input={options.input} is a folder. Pass its data.yaml as --input, or omit --image_root."
        )
    folder = posixpath.dirname(path) if is_file else path
    root = Root(image_root or folder, options.follow_links)
    name = posixpath.basename(path) if is_file else _find_file(root, FileListing(root, options.ignore))
    if not name:
        return Dataset(root, DatasetFile(""))
    file = read_dataset_file(f"{folder}/{name}")
    if not file.splits:
        return Dataset(root, file)
    places = [(root, "")] if image_root else [*_stated_place(root, file, is_file), (root, "")]
    first = next(paths[0] for paths in file.splits.values())
    fitting = (place for place in places if find_path(place[0], first, place[1], may_shorten=file.is_darknet) is not None)
    used, base = next(fitting, places[-1])
    message = ""
    if used is not root:
        message = f"the images are below its path {printable(used.path)}"
    elif not image_root and not base and _states_other_folder(root, file):
        message = f"its path {printable(file.path)!r} does not contain the images, so its own folder is used"
    searched = " or ".join(printable(join(place.path, inner)) for place, inner in places)
    return _find_images(Dataset(used, file, base, messages=tuple(filter(None, [message]))), searched, f"{folder}/{name}")


def _states_other_folder(root: Root, file: DatasetFile) -> bool:
    """Returns whether the `path` in a dataset file differs from the folder that contains the file."""
    if is_remote(root.path) or is_remote(file.path):
        return posixpath.normpath(file.path or ".") != "."
    return os.path.realpath(os.path.join(root.path, file.path)) != root.path


def _stated_place(root: Root, file: DatasetFile, is_file: bool) -> Iterator[tuple[Root, str]]:
    """Yields the folder from the key `path` of a dataset file, as a root and a folder relative to this root.
    Yields nothing if `path` is the folder of the dataset file or is not allowed.

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


def _find_images(dataset: Dataset, searched: str, file_path: str) -> Dataset:
    """Adds the image folders and list files that the dataset file names, and messages about paths that are skipped.

    Args:
        dataset: The dataset.
        searched: The folders that were searched, for the message about images that do not exist.
        file_path: The path of the dataset file.

    Raises:
        UserError: A path does not exist, or leads outside the root.
    """
    file, splits, messages = dataset.file, {}, list(dataset.messages)
    for split, path in ((split, path) for split, paths in file.splits.items() for path in paths):
        place = find_path(dataset.root, path, dataset.folder, may_shorten=file.is_darknet)
        if place is None and split != "test":
            raise UserError(
                f"{printable(file.name)}: the {split} images are in {printable(path)!r}, which does not exist in {searched}. Correct "
                f"the path, or pass --input={printable(file_path)} --image_root=FOLDER with the folder that contains {printable(path)!r}."
            )
        if place is None:  # Roboflow writes this path even if there are no test images.
            messages.append(f"the test images {printable(path)!r} do not exist")
        elif place in splits:
            messages.append(f"the {split} images {printable(path)!r} are also the {splits[place]} images, and only read as these")
        else:
            splits[place] = split
    return dataset._replace(images=splits, messages=tuple(messages))


def find_path(root: Root, path: str, folder: str, may_shorten: bool = False) -> str | None:
    """Resolves a path in a dataset file to the path of a file or folder relative to the root. Returns None if the path
    does not exist.

    Args:
        root: The root of the source.
        path: The path as written in the file.
        folder: The folder that the path is relative to.
        may_shorten: Whether to also try the path without its leading folders, because Darknet's paths begin with the
            folder in which Darknet runs. Absolute paths and paths that begin with `..` are always shortened, because they
            are often from another machine, or relative to a subfolder.
    """
    path = portable(path)
    parts = (path.rstrip("/") or path).split("/")
    is_absolute = parts[0] == "" or parts[0][1:] == ":"
    for num in range(len(parts) if may_shorten or is_absolute or parts[0] == ".." else 1):
        rest = "/".join(parts[num:])
        candidate = posixpath.normpath(rest if is_absolute and not num else join(folder, rest))
        if candidate == ".":
            return ""
        try:
            candidate = root.relative(candidate)
        except OutsideError:
            continue
        if files_at(root.path).exists(f"{root.path}/{candidate}") or is_folder(f"{root.path}/{candidate}"):
            return candidate
    return None


def _find_file(root: Root, files: FileListing) -> str:
    """Returns the name of the only dataset file in the root, or "". Raises `UserError` if there are several."""
    if usual := next((name for name in _USUAL if _exists(root, name)), ""):
        return usual
    names = [name for name in files.top_level()[1] if name.lower().endswith(DATASET_ENDS)]
    names = [name for name in names if is_dataset_head(name, read_head(f"{root.path}/{name}")) and _exists(root, name)]
    if len(names) > 1:
        shown = ", ".join(map(printable, names[:3]))
        raise UserError(f"--input={root.path}: contains several dataset files: {shown}. Pass one of them as --input.")
    return next(iter(names), "")


def is_dataset_head(name: str, head: bytes) -> bool:
    """Returns whether a file is a dataset file of Ultralytics or Darknet, given its first bytes."""
    lines = head.decode("utf-8", "replace").lstrip("\ufeff").splitlines()
    separator = "=" if name.lower().endswith(DARKNET_END) else ":"
    keys = {line.partition(separator)[0].strip() for line in lines if separator in line and not line.startswith((" ", "-"))}
    return bool(keys & {"names", "nc", "classes"} and keys & {"train", "val", "valid"})


def find_names_file(dataset: Dataset, label_folders: Iterable[str]) -> str:
    """Returns the path of the file with the class names, relative to the root, or "" if there is none.

    Args:
        dataset: The dataset.
        label_folders: The folders with label files. The folders above them are also searched.

    Raises:
        UserError: The dataset file names a file that does not exist, or folders have different class names.
    """
    root = dataset.root
    if dataset.file.names:
        return ""
    if stated := dataset.file.names_file:
        place = find_path(root, stated, dataset.folder, may_shorten=True)
        if place is None:
            problem = f"names is {printable(stated)!r}, which does not exist below {printable(root.path)}"
            raise UserError(f"{printable(dataset.file.name)}: {problem}.")
        return place
    folders = [""]
    for labels in label_folders:
        parts = labels.split("/")
        folders += ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    paths = (join(folder, name) for folder in dict.fromkeys(folders) for name in NAMES_FILES)
    names = {path: read_class_list(f"{root.path}/{path}") for path in paths if _exists(root, path)}
    first = next(iter(names), "")
    for path, others in names.items():
        if others != names[first]:
            raise UserError(
                f"--input={root.path}: {printable(first)} and {printable(path)} have different class names. Remove one of them, or "
                "write a data.yaml with all names."
            )
    return first


def _exists(root: Root, path: str) -> bool:
    """Returns whether a file exists. Raises `UserError` if its path is a link that is not followed, or not a file."""
    try:
        full = f"{root.path}/{root.relative(path)}"
    except OutsideError as error:
        raise UserError(f"--input={root.path}: {error}.") from None
    exists = files_at(root.path).exists(full)
    if not exists and not is_remote(full) and os.path.lexists(full):
        raise UserError(f"--input={root.path}: {printable(path)!r} is not a file, or a broken link. Replace or remove it.")
    return exists
