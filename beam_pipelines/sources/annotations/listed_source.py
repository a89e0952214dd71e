"""Defines the base class of source formats in which one annotation file describes many images.

An annotation file is read as a stream. The names of all images below its folder are in memory at that time.
"""

import abc
import json
import os
import posixpath
from typing import ClassVar, Iterator, NamedTuple, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.annotations.annotation_source import Annotation, AnnotationSource
from beam_pipelines.sources.annotations.image_names import ImageNames
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile, join, matches
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.label_files import format_of_content, read_head
from beam_pipelines.sources.files.layouts import find_folder, name_splits, no_split_folders
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import listing_error

ANNOTATION_FOLDERS = ("annotations", "annotation", "labels")


class AnnotatedImage(NamedTuple):
    """An image that an annotation file describes.

    Attributes:
        names: The possible names of the image file, the most likely name first.
        annotation: The annotation, or the error if the annotation is invalid.
        split: The split that the annotation file assigns to the image; None if it assigns no split.
    """

    names: Sequence[str]
    annotation: Annotation | InvalidInput
    split: str | None = None


class _Part(NamedTuple):
    path: str  # path of the annotation file, including its root
    folder: str  # folder of the images, relative to the root
    split: str | None
    is_first: bool  # Only the first part of a folder reports the dead letters of the folder.


class ListedSource(AnnotationSource):
    """Lists the images that annotation files describe.

    Attributes:
        extensions: The extensions of annotation files, in lower case.
        file_format: The name of the format, one of the constants in `label_files`.
    """

    extensions: ClassVar[tuple[str, ...]]
    file_format: ClassVar[str]

    @abc.abstractmethod
    def read(self, path: str, name: str) -> Iterator[AnnotatedImage]:
        """Yields the images of an annotation file.

        Args:
            path: The path of the file.
            name: The name of the file in messages.

        Raises:
            UserError: The whole file is invalid.
        """

    def parts(self) -> list[str]:
        """Returns one JSON string for each annotation file. Raises `UserError` if there are no annotation files."""
        if self._is_file(self._config.input):
            if self._config.split_folders:
                raise no_split_folders(self._config.input, "is one annotation file")
            return [json.dumps(_Part(_absolute(self._config.input), "", None, True))]
        return [json.dumps(part) for part in self._find_parts()]

    def _find_parts(self) -> Iterator[_Part]:
        input_root = Root(self._config.input, self._config.follow_links)
        files, root = FileListing(input_root, self._config.ignore), input_root.path
        found = {"": self._find_files(files, root, "")}
        if not found[""]:
            found = {folder: self._find_files(files, root, folder) for folder in files.top_level()[0]}
        elif self._config.split_folders:
            raise no_split_folders(root, "has its annotation files in one folder")
        holders = [folder for folder, paths in found.items() if paths]
        if not holders:
            raise UserError(
                f"--input={printable(root)}: contains no {self.file_format}. Put the file beside the folder of images, or pass its path as --input."
            )
        splits = {"": None} if holders == [""] else name_splits(root, holders, self._config.split_folders)
        for folder in holders:
            images = "" if self._config.source.image_root else folder
            for path in found[folder]:
                yield _Part(f"{root}/{path}", images, splits[folder], path == found[folder][0])

    def _find_files(self, files: FileListing, root: str, folder: str) -> list[str]:
        """Returns the annotation files in a folder. If there are none, searches a subfolder for annotations."""
        folders, _ = files.top_level(folder)
        inner = find_folder(folders, ANNOTATION_FOLDERS)
        for place in (folder, *([files.take_folder(join(folder, inner))] if inner else [])):
            names = files.take_files(place, lambda name: name.lower().endswith(self.extensions))
            paths = [join(place, name) for name in names]
            if fitting := [path for path in paths if self._is_annotation_file(f"{root}/{path}")]:
                return fitting
        return []

    def _is_annotation_file(self, path: str) -> bool:
        return format_of_content(path, read_head(path)) == self.file_format

    def _image_root(self, path: str) -> str:
        if not self._is_file(path):
            return path
        folder = posixpath.dirname(_absolute(path))
        return posixpath.dirname(folder) if posixpath.basename(folder).lower() in ANNOTATION_FOLDERS else folder

    def _is_file(self, path: str) -> bool:
        return path.lower().endswith(self.extensions)

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        path, folder, split, is_first = _Part(*json.loads(part))
        files, images = FileListing(self._root, self._config.ignore, self._with_sizes), ImageNames()
        for listed_file in files.walk(folder):
            if isinstance(listed_file, DeadLetter):
                yield from [listed_file] if is_first else []
            elif posixpath.splitext(listed_file.path)[1].lower() in IMAGE_EXTENSIONS:
                images.add(listed_file)
        self.num_ignored += files.num_ignored if is_first else 0
        name = posixpath.basename(path)
        for image in self.read(path, name):
            if matches(image.names[-1], self._config.ignore):
                self.num_ignored += 1
                continue
            try:
                if isinstance(image.annotation, InvalidInput):
                    raise image.annotation
                yield self._make_image(images.find(image.names), image, split)
            except InvalidInput as error:
                yield DeadLetter.of(printable(f"{join(posixpath.dirname(folder), name)}:{image.names[-1][:4096]}"), error)

    def _make_image(self, file: ListedFile, image: AnnotatedImage, split: str | None) -> InputRecord:
        annotation = image.annotation
        self.unused_fields.add(annotation.others)
        split = image.split if self._config.split_folders is not False and image.split else split
        return InputRecord(nfc(file.path), file.path, annotation.label, split, file.num_bytes, values=annotation.values)

    def memory_bytes(self, part: str) -> int:
        """Returns the estimated size of the image names that are in memory while a part is listed, in bytes."""
        path = _Part(*json.loads(part)).path
        try:
            return files_at(path).size(path) // 4
        except OSError as error:
            raise listing_error(error, path, f"{printable(path)} cannot be read: {error.strerror or error}") from error


def _absolute(path: str) -> str:
    """Returns the absolute path of a file, in which links of the parent folders are resolved."""
    if is_remote(path):
        return path
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)
