"""Where the annotations and the images of a source `voc` lie, and which belong together by their names."""

import posixpath
from typing import Iterator, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.annotated.image_sets import read_image_sets
from beam_pipelines.sources.folders.file_listing import FileListing, FoundFile, join
from beam_pipelines.sources.folders.image_folder import nfc
from beam_pipelines.sources.folders.layouts import IMAGE_FOLDERS, find_folder, name_splits, no_split_folders
from beam_pipelines.sources.folders.roots import Root

_ANNOTATION_FOLDERS = ("annotations", "annotation", "xmls", "xml")


class VocFolders(NamedTuple):
    """Folders that go together; paths are relative to the root, "" is the root itself.

    Attributes:
        folder: The folder that has them, and perhaps lists of splits.
        annotations: The folder with the XML files.
        images: The folder with the images; it may be the same, or the one around it.
        split: The split that the folder is; None: it is none.
        has_lists: Whether lists of splits count.
    """

    folder: str
    annotations: str
    images: str
    split: str | None
    has_lists: bool


class Pair(NamedTuple):
    """An annotation and its image.

    Attributes:
        annotation: The path of the XML file.
        image: The path of the image.
        num_bytes: The size of the image in bytes; 0: not known.
        split: The split of the pair; None: that of its group.
    """

    annotation: str
    image: str
    num_bytes: int
    split: str | None


class Matched(NamedTuple):
    """The files of a group.

    Attributes:
        group: The folders in which these files lie.
        pairs: Annotations and the one image that has their name.
        annotations: (path, split) of those of which none or several have.
        images: (path, bytes, split) of those that are in no pair.
        dead_letters: Files that were refused.
        num_ignored: Files that are neither, or in no list.
    """

    group: VocFolders
    pairs: list[Pair]
    annotations: list[tuple[str, str | None]]
    images: list[FoundFile]
    dead_letters: list[DeadLetter]
    num_ignored: int


def find_groups(root: Root, files: FileListing, split_folders: bool | None) -> list[VocFolders]:
    """The groups below a root. Where no folder is named like one for annotations, these lie beside their images.

    Raises:
        UserError: Some folders are splits and others are not, one of them is a link, or there are none of those that a user speaks of.
    """
    has_lists = split_folders is not False
    folders, names = files.top_level()
    group = _find_group(files, "", None, has_lists)
    is_one = group or any(name.lower().endswith(".xml") for name in names)
    if split_folders and (is_one or not folders):
        raise no_split_folders(root.path, "is one folder of annotations and images")
    if is_one:
        return [group or VocFolders("", "", "", None, has_lists)]
    groups = {folder: _find_group(files, folder, None, has_lists) for folder in folders}
    holders = [folder for folder in folders if groups[folder]] or folders
    splits = name_splits(root.path, holders, split_folders)
    if not any(groups.values()) and not any(splits.values()):
        return [VocFolders("", "", "", None, has_lists)]
    return [
        (groups[folder] or VocFolders(files.take_folder(folder), folder, folder, None, has_lists))._replace(split=splits[folder])
        for folder in holders
    ]


def _find_group(files: FileListing, folder: str, split: str | None, has_lists: bool) -> VocFolders | None:
    folders, _ = files.top_level(folder)
    annotations = find_folder(folders, _ANNOTATION_FOLDERS)
    if annotations is None:
        return None
    images = find_folder(folders, IMAGE_FOLDERS)
    return VocFolders(folder, files.take_folder(join(folder, annotations)), files.take_folder(join(folder, images or "")), split, has_lists)


def match_files(root: Root, files: FileListing, group: VocFolders) -> Matched:
    """Walks through a group's folders, and keeps the names of its files in memory.

    Raises:
        UserError: A folder or a list cannot be read.
    """
    num_ignored = files.num_ignored
    sets = read_image_sets(root, files, group.folder, "Main") if group.has_lists and group.split is None else None
    matched = Matched(group, [], [], [], [*(sets.dead_letters if sets else ())], 0)
    annotations: dict[str, tuple[str, str | None]] = {}
    images: dict[str, list[tuple[str, int, str | None]]] = {}
    listed: set[str] = set()
    for found in _walk(files, group):
        if isinstance(found, DeadLetter):
            matched.dead_letters.append(found)
            continue
        kind = _kind(found.path, group)
        name = _inner_stem(found.path, group.annotations if kind == "annotation" else group.images)
        if kind is None or (sets and name not in sets.members):
            num_ignored -= 1
            continue
        split = sets.members[name].split if sets else group.split
        listed.add(name)
        if kind == "image":
            images.setdefault(name, []).append((*found, split))
        elif name in annotations:  # the case of its extension differs
            message = f"its image has another annotation, {printable(annotations[name][0])}; expected only one of them"
            matched.dead_letters.append(DeadLetter(found.path, "list", "ambiguous", message))
        else:
            annotations[name] = (found.path, split)
    _pair(matched, annotations, images)
    if sets:
        matched.dead_letters.extend(sets.missing(listed, "image or XML file"))
    return matched._replace(num_ignored=files.num_ignored - num_ignored)


def _walk(files: FileListing, group: VocFolders) -> Iterator[FoundFile | DeadLetter]:
    yield from files.walk(group.images)
    if not _is_below(group.annotations, group.images):
        yield from files.walk(group.annotations)


def _kind(path: str, group: VocFolders) -> str | None:
    extension = posixpath.splitext(path)[1].lower()
    is_annotation_folder = _is_below(path, group.annotations)
    if extension == ".xml" and is_annotation_folder:
        return "annotation"
    if extension in IMAGE_EXTENSIONS and (group.annotations == group.images or not is_annotation_folder):
        return "image"
    return None


def _pair(matched: Matched, annotations: dict, images: dict) -> None:
    for name, (path, split) in annotations.items():
        found = images.get(name, ())
        if len(found) == 1:
            matched.pairs.append(Pair(path, *found[0]))
            del images[name]
        else:
            matched.annotations.append((path, split))
    matched.images.extend(image for found in images.values() for image in found)


def _is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _inner_stem(path: str, folder: str) -> str:
    return stem(path[len(folder) + 1 :] if folder else path)


def stem(path: str) -> str:
    """A path without the extension of an image or an annotation, in NFC, so that it is the same for both."""
    base, extension = posixpath.splitext(path)
    return nfc(base if extension.lower() in IMAGE_EXTENSIONS or extension.lower() == ".xml" else path)
