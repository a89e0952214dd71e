"""Finds the image folders and the list files of a YOLO dataset, and the label file of each image."""

import posixpath
import re
from typing import Iterator, NamedTuple, Sequence

from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.files.file_listing import FileListing, join
from beam_pipelines.sources.files.label_files import recognise
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS, find_folder, name_splits, no_split_folders
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.formats.yolo.dataset_file import DatasetFile
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import kind_of

LABEL_FOLDERS = ("labels", "label")
LABEL_END = ".txt"  # the extension of label files and list files
# The split for each list file in the root.
LISTS = {"train.txt": "train", "val.txt": "validation", "valid.txt": "validation", "test.txt": "test"}
_YEAR = re.compile(r"_?[0-9]+$")  # `train2017` is the split `train`


class ImageGroup(NamedTuple):
    """An image folder, or a list file with the paths of images. All paths are relative to the root ("").

    Attributes:
        images: The path of the image folder or the list file.
        labels: The folder with the label files, which may be the image folder. Empty for a list file.
        split: The split of the images; None if the group is not a split.
        is_list: Whether `images` is a list file.
        folder: For a list file, the folder that most paths in the file are relative to.
    """

    images: str
    labels: str
    split: str | None
    is_list: bool = False
    folder: str = ""


def label_path(image: str) -> str:
    """Returns the path of the label file of an image. As in Ultralytics, the last folder `images` in the path is
    replaced by `labels`. Without such a folder, the label file is beside the image."""
    return posixpath.splitext(_labels_of(f"/{image}"))[0][1:] + LABEL_END


def _labels_of(path: str) -> str:
    before, images, after = path.rpartition("/images/")
    return f"{before}/labels/{after}" if images else path


def find_stated_groups(
    root: Root, files: FileListing, file: DatasetFile, folder: str
) -> tuple[list[ImageGroup], list[str]]:
    """Returns the groups that a dataset file names, and messages about paths that are skipped.

    Args:
        root: The root of the source.
        files: The listing of the source's files.
        file: The content of the dataset file.
        folder: The folder, relative to the root, in which the paths of the dataset file start.

    Raises:
        UserError: A path does not exist, or leads outside the root.
    """
    groups: list[ImageGroup] = []
    messages = []
    for split, path in ((split, path) for split, paths in file.splits.items() for path in paths):
        place = find_path(root, path, folder, may_shorten=file.is_darknet)
        if place is None and split != "test":
            raise UserError(
                f"{printable(file.name)}: the {split} images are in {printable(path)!r}, which does not exist below "
                f"{printable(join(root.path, folder))}. Correct the path, or pass --image_root=FOLDER with --input={printable(file.name)}."
            )
        if place is None:  # Roboflow writes this path even if there are no test images.
            messages.append(f"the test images {printable(path)!r} do not exist")
            continue
        group = _make_group(root, files, place, split, folder)
        if same := next((other for other in groups if other.images == group.images), None):
            messages.append(f"the {split} images {printable(path)!r} are also the {same.split} images, and only read as these")
        else:
            groups.append(group)
    return groups, messages


def find_path(root: Root, path: str, folder: str, may_shorten: bool = False) -> str | None:
    """Resolves a path in a dataset file to a path relative to the root. Returns None if nothing exists there. See
    `candidates` for the arguments."""
    may_shorten = may_shorten or path.startswith(("../", "..\\"))  # Roboflow's paths are relative to a subfolder.
    for candidate in candidates(path, folder, may_shorten):
        try:
            relative = root.relative(candidate)
        except OutsideError:
            if posixpath.normpath(candidate or ".") != ".":
                continue
            relative = ""
        if files_at(root.path).exists(f"{root.path}/{relative}") or _is_folder(join(root.path, relative)):
            return relative
    return None


def candidates(path: str, folder: str, may_shorten: bool = False) -> Iterator[str]:
    """Yields the possible meanings of a path in a dataset file or list file, as paths relative to the root.

    Args:
        path: The path as written in the file.
        folder: The folder that the path is relative to.
        may_shorten: Whether to also try the path without its leading folders, because Darknet's paths begin with the
            folder in which Darknet runs. Absolute paths are always shortened, because they are often from another
            machine.
    """
    path = path.replace("\\", "/")
    path = path.rstrip("/") or path
    is_absolute = path.startswith("/") or path[1:3] == ":/"
    yield path if is_absolute else join(folder, path)
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    if is_absolute or may_shorten:
        yield from (join(folder, "/".join(parts[start:])) for start in range(len(parts)))


def _is_folder(path: str) -> bool:
    return any(files_at(path).top_level(path, True)) if is_remote(path) else kind_of(path) == "folder"


def _make_group(root: Root, files: FileListing, path: str, split: str | None, folder: str) -> ImageGroup:
    if path.lower().endswith(LABEL_END):
        return ImageGroup(path, "", split, True, folder)
    files.take_folder(path)
    labels = _labels_of(f"/{path}/").strip("/")
    if labels == path:
        return ImageGroup(*(_find_pair(files, path) or (path, path)), split)
    has_labels = _is_folder(join(root.path, labels))
    return ImageGroup(path, files.take_folder(labels) if has_labels else path, split)


def _find_pair(files: FileListing, folder: str) -> tuple[str, str] | None:
    """Returns the image folder and the label folder in a folder, or None if one of the two is missing."""
    folders, _ = files.top_level(folder)
    images, labels = find_folder(folders, IMAGE_FOLDERS), find_folder(folders, LABEL_FOLDERS)
    if images is None or labels is None:
        return None
    return files.take_folder(join(folder, images)), files.take_folder(join(folder, labels))


def find_groups(root: Root, files: FileListing, split_folders: bool | None) -> list[ImageGroup]:
    """Finds the groups of a dataset without a dataset file, by the names of its folders and list files.

    Raises:
        UserError: Only some folders are splits, a folder is a link, or required splits are missing.
    """
    folders, names = files.top_level()
    if pair := _find_pair(files, ""):
        return _split_pair(root, files, *pair, split_folders)
    lists = [name for name in LISTS if name in names and _is_list(f"{root.path}/{name}")]
    if lists:
        return [ImageGroup(name, "", LISTS[name], is_list=True) for name in lists]
    pairs = {folder: pair for folder in folders if (pair := _find_pair(files, folder))}
    is_flat = any(posixpath.splitext(name)[1].lower() in IMAGE_EXTENSIONS for name in names)
    splits = {} if is_flat else _name_splits(root, list(pairs) or folders, split_folders)
    if pairs and not is_flat:
        return [ImageGroup(*pair, splits[folder]) for folder, pair in pairs.items()]
    if any(splits.values()):
        return [ImageGroup(files.take_folder(folder), folder, split) for folder, split in splits.items()]
    if split_folders:
        raise no_split_folders(root.path, "is one folder of images and labels")
    return [ImageGroup("", "", None)]


def _split_pair(
    root: Root, files: FileListing, images: str, labels: str, split_folders: bool | None
) -> list[ImageGroup]:
    """Returns the groups in an image folder: one for each split folder, or one for the whole folder."""
    level = files.level(images)
    splits = _name_splits(root, level.folders, split_folders) if level.folders and not level.has_files else {}
    if not any(splits.values()):
        if split_folders:
            raise no_split_folders(root.path, f"has images directly in {printable(images)}")
        return [ImageGroup(images, labels, None)]
    with_labels = files.top_level(labels)[0]
    return [
        ImageGroup(join(images, name), files.take_folder(join(labels, name)) if name in with_labels else join(images, name), split)
        for name, split in splits.items()
    ]


def _name_splits(root: Root, folders: Sequence[str], split_folders: bool | None) -> dict[str, str | None]:
    """Returns the split of each folder like `name_splits`, but also recognizes names with a year, such as `train2017`."""
    stems = {_YEAR.sub("", folder): folder for folder in folders}
    if split_folders or len(stems) < len(folders):
        return name_splits(root.path, folders, split_folders)
    return {stems[stem]: split for stem, split in name_splits(root.path, list(stems), split_folders).items()}


def _is_list(path: str) -> bool:
    known = recognise(path)
    return known is not None and known.name == "a list of images"


def is_below(path: str, folder: str) -> bool:
    """Returns whether a path is in a folder or one of its subfolders."""
    return not folder or path.startswith(f"{folder}/")
