"""Finds image and annotation folders, and matches annotation files with images of the same names."""

import posixpath
from typing import Iterator, Mapping, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.annotations.image_sets import FOLDER, read_image_sets
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile, join
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS, find_folder, name_splits, no_split_folders, split_of
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS


class PairedNames(NamedTuple):
    """The usual file and folder names of a format with an annotation file for each image.

    Attributes:
        extension: The extension of annotation files, in lower case.
        annotation_folders: The usual names of folders of annotation files, in lower case.
        image_folders: The usual names of folders of images, in lower case.
        lists: The name of the folder in `ImageSets` that contains split lists; None if the format has no split lists.
        may_lack_extension: Whether annotation files in an annotation folder may have no extension.
    """

    extension: str
    annotation_folders: tuple[str, ...]
    image_folders: tuple[str, ...] = IMAGE_FOLDERS
    lists: str | None = None
    may_lack_extension: bool = False


class PairedFolders(NamedTuple):
    """An annotation folder and the corresponding image folder. All paths are relative to the root ("").

    Attributes:
        folder: The parent folder, which may also contain split lists (`ImageSets`).
        annotations: The annotation folder.
        images: The image folder. It can be the annotation folder or its parent.
        split: The split of all files in the group; None if the group is not a split.
        has_lists: Whether split lists may assign images to splits.
        splits: A mapping from subfolders of `annotations` to splits, if the images of all splits are in one folder.
    """

    folder: str
    annotations: str
    images: str
    split: str | None
    has_lists: bool
    splits: Mapping[str, str] = {}


class Pair(NamedTuple):
    """An annotation and its image.

    Attributes:
        annotation: The path of the annotation file.
        image: The path of the image.
        num_bytes: The size of the image in bytes; 0 if unknown.
        split: The split of the pair, from a split list or its group; None if it has no split.
    """

    annotation: str
    image: str
    num_bytes: int
    split: str | None


class Matched(NamedTuple):
    """The files of a group.

    Attributes:
        group: The folders that contain the files.
        pairs: Pairs of an annotation and the only image of the same name.
        annotations: The (path, split) of each annotation that has no image, or several images, of the same name.
        images: The (path, size in bytes, split) of each image that is not in a pair.
        dead_letters: Rejected files.
        num_ignored: The number of other files, and of images and annotations that no split list contains.
    """

    group: PairedFolders
    pairs: list[Pair]
    annotations: list[tuple[str, str | None]]
    images: list[ListedFile]
    dead_letters: list[DeadLetter]
    num_ignored: int


def find_groups(
    root: Root, files: FileListing, names: PairedNames, split_folders: bool | None
) -> tuple[list[PairedFolders], list[str]]:
    """Returns the groups below a root, and the folders without annotations that are not part of a group.

    If no folder has a usual name of annotation folders, annotation files are expected beside the images.

    Raises:
        UserError: Only some folders are splits, a folder is a link, or required splits are missing.
    """
    has_lists = names.lists is not None and split_folders is not False
    folders, top_files = files.top_level()
    group = _find_group(files, names, "", has_lists)
    is_one = group or any(name.lower().endswith(names.extension) for name in top_files)
    if split_folders and ((is_one and not group) or not folders):
        raise no_split_folders(root.path, "is one folder of annotations and images")
    if group:
        return split_group(root, files, names, group, split_folders)
    if is_one:
        return [PairedFolders("", "", "", None, has_lists)], []
    groups = {folder: _find_group(files, names, folder, has_lists) for folder in folders}
    holders = [folder for folder in folders if groups[folder]] or folders
    splits = name_splits(root.path, holders, split_folders)
    if not any(groups.values()) and not any(splits.values()):
        return [PairedFolders("", "", "", None, has_lists)], []
    return [
        (groups[folder] or PairedFolders(files.take_folder(folder), folder, folder, None, has_lists))._replace(split=splits[folder])
        for folder in holders
    ], [folder for folder in folders if folder not in holders]


def split_group(
    root: Root, files: FileListing, names: PairedNames, group: PairedFolders, split_folders: bool | None
) -> tuple[list[PairedFolders], list[str]]:
    """Divides a group into splits if all subfolders of its annotation folder have names of splits. There may be a
    folder in between, as in `Annotations/CLS-LOC/train`. If there are split lists, the group is not divided.

    Returns:
        The groups, and the image folders without annotations.
    """
    annotations, images = group.annotations, group.images
    folders, has_files = _level(files, annotations)
    if len(folders) == 1 and not has_files and folders[0] in files.top_level(images)[0] and folders[0].lower() not in SPLIT_FOLDERS:
        annotations, images = (files.take_folder(join(folder, folders[0])) for folder in (annotations, images))
        folders, has_files = _level(files, annotations)
    has_lists = group.has_lists and FOLDER in files.top_level(group.folder)[0] and names.lists in files.top_level(join(group.folder, FOLDER))[0]
    is_split = split_folders or (split_folders is None and all(folder.lower() in SPLIT_FOLDERS for folder in folders))
    if has_files or has_lists or not folders or not is_split:
        if split_folders:
            raise no_split_folders(root.path, "is one folder of annotations and images")
        return [group], []
    image_folders = files.top_level(images)[0]
    splits = name_splits(root.path, folders, split_folders)
    if not {*folders} <= {*image_folders}:
        return [group._replace(annotations=annotations, images=images, splits=splits, has_lists=False)], []
    groups = [
        PairedFolders(group.folder, files.take_folder(join(annotations, name)), files.take_folder(join(images, name)), split, False)
        for name, split in splits.items()
    ]
    return groups, [join(images, name) for name in image_folders if name not in folders and images != group.folder]


def _level(files: FileListing, folder: str) -> tuple[list[str], bool]:
    folders, names = files.top_level(folder)
    return folders, bool(names)


def _find_group(files: FileListing, names: PairedNames, folder: str, has_lists: bool) -> PairedFolders | None:
    folders, _ = files.top_level(folder)
    annotations = find_folder(folders, names.annotation_folders)
    if annotations is None:
        return None
    images = find_folder(folders, names.image_folders)
    return PairedFolders(folder, files.take_folder(join(folder, annotations)), files.take_folder(join(folder, images or "")), None, has_lists)


def find_images(files: FileListing, names: PairedNames, folder: str) -> PairedFolders:
    """Returns the group of a split folder that has images but no annotations."""
    images = files.take_folder(join(folder, find_folder(files.top_level(folder)[0], names.image_folders) or ""))
    return PairedFolders(folder, images, images, split_of(folder), False)


def match_files(root: Root, files: FileListing, names: PairedNames, group: PairedFolders) -> Matched:
    """Lists the image and annotation folders of a group, and matches files by name. The file names are kept in memory.
    Raises `UserError` if a folder or a split list cannot be read."""
    num_ignored = files.num_ignored
    sets = read_image_sets(root, files, group.folder, names.lists) if group.has_lists and group.split is None else None
    matched = Matched(group, [], [], [], [*(sets.dead_letters if sets else ())], 0)
    annotations: dict[str, tuple[str, str | None]] = {}
    images: dict[str, list[tuple[str, int, str | None]]] = {}
    listed: set[str] = set()
    for listed_file in _walk(files, group):
        if isinstance(listed_file, DeadLetter):
            matched.dead_letters.append(listed_file)
            continue
        kind = _kind(listed_file.path, group, names)
        name = _inner_stem(listed_file.path, group.annotations if kind == "annotation" else group.images, names.extension)
        if kind is None or (sets and name not in sets.members):
            num_ignored -= 1
            continue
        split = sets.members[name].split if sets else group.split
        if group.splits and kind == "annotation":
            split = group.splits.get(name.partition("/")[0])
        listed.add(name)
        if kind == "image":
            images.setdefault(name, []).append((*listed_file, split))
        elif name in annotations:  # The names of two annotation files differ only in the case of the extension.
            message = f"its image already has an annotation, {printable(annotations[name][0])}"
            matched.dead_letters.append(DeadLetter(listed_file.path, "list", "ambiguous", message))
        else:
            annotations[name] = (listed_file.path, split)
    _pair(matched, annotations, images)
    if sets:
        matched.dead_letters.extend(sets.missing(listed, "image or annotation file"))
    return matched._replace(num_ignored=files.num_ignored - num_ignored)


def _walk(files: FileListing, group: PairedFolders) -> Iterator[ListedFile | DeadLetter]:
    yield from files.walk(group.images)
    if not _is_below(group.annotations, group.images):
        yield from files.walk(group.annotations)


def _kind(path: str, group: PairedFolders, names: PairedNames) -> str | None:
    extension = posixpath.splitext(path)[1].lower()
    is_annotation_folder = _is_below(path, group.annotations)
    may_lack_extension = names.may_lack_extension and not _is_below(group.images, group.annotations)
    if is_annotation_folder and (extension == names.extension or (may_lack_extension and not extension)):
        return "annotation"
    if extension in IMAGE_EXTENSIONS and (group.annotations == group.images or not is_annotation_folder):
        return "image"
    return None


def _pair(matched: Matched, annotations: dict, images: dict) -> None:
    for name, (path, split) in annotations.items():
        candidates = images.get(name, ())
        if len(candidates) == 1:
            matched.pairs.append(Pair(path, *candidates[0]))
            del images[name]
        else:
            matched.annotations.append((path, split))
    matched.images.extend(image for result in images.values() for image in result)


def _is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _inner_stem(path: str, folder: str, extension: str) -> str:
    return stem(path[len(folder) + 1 :] if folder else path, extension)


def stem(path: str, annotation_extension: str) -> str:
    """Returns a path without its extension, in Unicode form NFC, which is equal for an image and its annotation."""
    base, extension = posixpath.splitext(path)
    return nfc(base if extension.lower() in IMAGE_EXTENSIONS or extension.lower() == annotation_extension else path)
