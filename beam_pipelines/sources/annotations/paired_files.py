"""Finds image and annotation folders, and matches annotation files with images of the same names."""

import posixpath
import re
from typing import ClassVar, Iterator, Mapping, NamedTuple, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.annotations.annotation_source import AnnotationSource
from beam_pipelines.sources.annotations.image_sets import FOLDER, find_image_sets, read_image_sets
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile
from beam_pipelines.sources.files.paths import find_usual, join, nfc
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS, name_splits, no_split_folders, split_of
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS

_YEAR = re.compile(r"_?[0-9]+$")  # `train2017` is the split `train`


class PairedFolders(NamedTuple):
    """An annotation folder and the corresponding image folder. All paths are relative to the root ("").

    Attributes:
        annotations: The annotation folder.
        images: The image folder. It can be the annotation folder or its parent.
        split: The split of all files in the group; None if the group is not a split.
        lists: The folder that contains `ImageSets`, which assign images to splits. None if there are no such lists.
        splits: A mapping from subfolders of `annotations` to splits, if the images of all splits are in one folder.
    """

    annotations: str
    images: str
    split: str | None = None
    lists: str | None = None
    splits: Mapping[str, str] = {}


class Pair(NamedTuple):
    """An annotation and its image.

    Attributes:
        annotation: The path of the annotation file. Empty if the image has no annotation file.
        image: The path of the image. Empty if the image may be embedded in the annotation.
        num_bytes: The size of the image in bytes; 0 if unknown.
        split: The split of the pair, from a split list or its group; None if it has no split.
    """

    annotation: str
    image: str
    num_bytes: int = 0
    split: str | None = None


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
    images: list[tuple[str, int, str | None]]
    dead_letters: list[DeadLetter]
    num_ignored: int


class PairedFiles(AnnotationSource):
    """Base class of formats with an annotation file for each image. Finds the folders, and matches files with the same
    name.

    Attributes:
        image_folders: The usual names of folders of images, in lower case.
        other_files: The names of files, in lower case, that have the extension of annotation files but contain no
            annotations.
        lists: The folder in `ImageSets` that contains split lists; empty if the lists are directly in `ImageSets`. None if
            the format has no split lists.
        may_lack_extension: Whether annotation files in an annotation folder may have no extension.
        is_optional: Whether images may have no annotation file, and images of the same name share an annotation file. If
            so, the dead letter of an invalid annotation names the image instead of the annotation file.
    """

    image_folders: ClassVar[tuple[str, ...]] = IMAGE_FOLDERS
    other_files: ClassVar[frozenset[str]] = frozenset()
    lists: ClassVar[str | None] = None
    may_lack_extension: ClassVar[bool] = False
    is_optional: ClassVar[bool] = False

    def _find_groups(self, files: FileListing) -> tuple[list[PairedFolders], list[str]]:
        """Returns the groups below a root, and the image folders without annotations.

        If no folder has a usual name of annotation folders, annotation files are expected beside the images.

        Raises:
            UserError: Only some folders are splits, a folder is a link, or required splits are missing.
        """
        folders, top_files = files.top_level()
        if group := self._find_group(files, "", folders):
            return self._split_group(files, group)
        is_one = any(self._is_annotation(name) for name in top_files)
        if self._options.split_folders and (is_one or not folders):
            raise no_split_folders(self.root, "is one folder of annotations and images")
        groups = {} if is_one else {folder: self._find_group(files, folder, files.top_level(folder)[0]) for folder in folders}
        holders = [folder for folder in groups if groups[folder]] or [*groups]
        splits = self._name_splits(holders)
        if not any(groups.values()) and not any(splits.values()):
            return [PairedFolders("", "", lists=self._find_lists("", folders))], []
        found = []
        for folder, split in splits.items():
            group = groups[folder] or PairedFolders(files.take_folder(folder), folder)
            found.append(group._replace(split=split, lists=None if split else group.lists))
        return found, [folder for folder in folders if folder not in splits]

    def _split_group(self, files: FileListing, group: PairedFolders) -> tuple[list[PairedFolders], list[str]]:
        """Divides a group into splits if all subfolders of its annotation folder have names of splits. There may be one
        folder level in between, as in `Annotations/CLS-LOC/train`. If there are split lists, the group is not divided.

        Returns:
            The groups, and the image folders without annotations.
        """
        annotations, images = group.annotations, group.images
        has_lists = group.lists is not None and find_image_sets(files, group.lists, self.lists) is not None
        folders, has_files = self._level(files, annotations)
        if len(folders) == 1 and not has_files and folders[0] in files.top_level(images)[0] and not is_split_folder(folders[0]):
            annotations, images = (files.take_folder(join(folder, folders[0])) for folder in (annotations, images))
            folders, has_files = self._level(files, annotations)
        split_folders = self._options.split_folders
        is_split = split_folders or (split_folders is None and all(map(is_split_folder, folders)))
        if has_files or has_lists or not folders or not is_split:
            if split_folders:
                raise no_split_folders(self.root, "is one folder of annotations and images")
            return [group], []
        image_folders = files.top_level(images)[0]
        splits = self._name_splits(folders)
        if not {*folders} <= {*image_folders}:
            return [group._replace(annotations=annotations, images=images, splits=splits)], []
        groups = []
        for name, split in splits.items():
            places = (files.take_folder(join(folder, name)) for folder in (annotations, images))
            groups.append(PairedFolders(*places, split))
        left_out = [] if _is_below(annotations, images) else [name for name in image_folders if name not in folders]
        return groups, [join(images, name) for name in left_out]

    def _level(self, files: FileListing, folder: str) -> tuple[list[str], bool]:
        folders, found = files.top_level(folder)
        return folders, any(self._is_annotation(name) for name in found)

    def _name_splits(self, folders: Sequence[str]) -> dict[str, str | None]:
        """Returns the split of each folder, like `name_splits`, but also detects splits in names with a year, such as
        `train2017`."""
        stems = {_YEAR.sub("", folder): folder for folder in folders}
        if self._options.split_folders or len(stems) < len(folders):
            stems = {folder: folder for folder in folders}
        return {stems[stem]: split for stem, split in name_splits(self.root, list(stems), self._options.split_folders).items()}

    def _find_group(self, files: FileListing, folder: str, folders: Sequence[str]) -> PairedFolders | None:
        """Returns the annotation folder and the image folder in a folder with the given subfolders, or None if there is no
        annotation folder."""
        annotations = find_usual(folders, self.folders)
        if annotations is None:
            return None
        places = (files.take_folder(join(folder, name)) for name in (annotations, find_usual(folders, self.image_folders) or ""))
        return PairedFolders(*places, lists=self._find_lists(folder, folders))

    def _find_lists(self, folder: str, folders: Sequence[str]) -> str | None:
        has_lists = self.lists is not None and self._options.split_folders is not False and FOLDER in folders
        return folder if has_lists else None

    def _find_images(self, files: FileListing, folder: str) -> PairedFolders:
        """Returns the group of a split folder that has images but no annotations."""
        images = files.take_folder(join(folder, find_usual(files.top_level(folder)[0], self.image_folders) or ""))
        return PairedFolders(images, images, split_of(_YEAR.sub("", posixpath.basename(folder))))

    def _match_files(self, files: FileListing, group: PairedFolders) -> Matched:
        """Lists the image and annotation folders of a group, and matches files by name. The file names are kept in memory.

        An image is rejected together with its annotation file, for example if this file is a link that is not followed.

        Raises:
            UserError: A folder or a split list cannot be read.
        """
        num_ignored = files.num_ignored
        has_test, sets = group.split is None, None
        if group.lists is not None:
            sets = read_image_sets(self._root, files, group.lists, self.lists, has_test)
        matched = Matched(group, [], [], [], [*(sets.dead_letters if sets else ())], 0)
        annotations: dict[str, tuple[ListedFile | DeadLetter, str | None]] = {}
        images: dict[str, list[tuple[str, int, str | None]]] = {}
        for listed_file in _walk(files, group):
            kind = self._kind(listed_file.path, group)
            name = self._stem(listed_file.path, group.annotations if kind == "annotation" else group.images)
            if isinstance(listed_file, DeadLetter) and kind != "annotation":
                matched.dead_letters.append(listed_file)
                continue
            if kind is None or (sets and name not in sets.members):
                num_ignored -= 1
                continue
            split = sets.members[name].split if sets else group.split
            if group.splits and kind == "annotation":
                split = group.splits.get(name.partition("/")[0])
            if kind == "image":
                images.setdefault(name, []).append((*listed_file, split))
            elif name in annotations:  # The names of two annotation files differ only in the case of the extension.
                message = f"its image already has an annotation, {printable(annotations[name][0].path)}"
                matched.dead_letters.append(DeadLetter(listed_file.path, "list", "ambiguous", message))
            else:
                annotations[name] = (listed_file, split)
        if sets:
            matched.dead_letters.extend(sets.missing({*images, *annotations}, "image or annotation file"))
        self._pair(matched, annotations, images)
        return matched._replace(num_ignored=files.num_ignored - num_ignored)

    def _pair(self, matched: Matched, annotations: Mapping[str, tuple], images: dict[str, list[tuple]]) -> None:
        """Divides annotations and images into pairs, dead letters and other files. Removes the images of pairs and of
        dead letters from `images`."""
        for name, (file, split) in annotations.items():
            candidates = images.get(name, [])
            if isinstance(file, DeadLetter):
                message = f"its annotation file {printable(file.path)} is {file.message}"
                rejected = [DeadLetter(path, "list", file.reason, message) for path, *_ in images.pop(name, ())]
                matched.dead_letters.extend(rejected or [file])
            elif len(candidates) == 1 or (candidates and self.is_optional):
                matched.pairs.extend(Pair(file.path, *image) for image in images.pop(name))
            else:
                matched.annotations.append((file.path, split))
        rest = [image for result in images.values() for image in result]
        if self.is_optional:
            matched.pairs.extend(Pair("", *image) for image in rest)
        else:
            matched.images.extend(rest)

    def _kind(self, path: str, group: PairedFolders) -> str | None:
        extension = posixpath.splitext(path)[1].lower()
        is_in_annotations = _is_below(path, group.annotations)
        may_lack_extension = self.may_lack_extension and not _is_below(group.images, group.annotations)
        if is_in_annotations and (self._is_annotation(posixpath.basename(path)) or (may_lack_extension and not extension)):
            return "annotation"
        if extension in IMAGE_EXTENSIONS and (group.annotations == group.images or not is_in_annotations):
            return "image"
        return None

    def _is_annotation(self, name: str) -> bool:
        """Returns whether a file has the extension of annotation files, and its name is not in `other_files`."""
        return name.lower().endswith(self.extensions) and name.lower() not in self.other_files

    def _stem(self, path: str, folder: str = "") -> str:
        """Returns a path relative to a folder, in Unicode form NFC and without the extension. An image and its
        annotation have the same stem."""
        path = path[len(folder) + 1 :] if folder else path
        base, extension = posixpath.splitext(path)
        return nfc(base if extension.lower() in (*IMAGE_EXTENSIONS, *self.extensions) else path)


def is_split_folder(folder: str) -> bool:
    """Returns whether a folder is named like a split, optionally with a year, such as `train2017`."""
    return _YEAR.sub("", posixpath.basename(folder).lower()) in SPLIT_FOLDERS


def _walk(files: FileListing, group: PairedFolders) -> Iterator[ListedFile | DeadLetter]:
    yield from files.walk(group.images)
    if not _is_below(group.annotations, group.images):
        yield from files.walk(group.annotations)


def _is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")
