"""Defines the base class of source formats in which one annotation file describes many images.

An annotation file is read as a stream. The names of all images below its folder are in memory at that time.
"""

import abc
import dataclasses
import itertools
import json
import posixpath
import shlex
from typing import Any, ClassVar, Iterator, NamedTuple, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.columns.forms import form_of
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.annotations.annotation_source import Annotation, AnnotationSource, absolute, file_bytes
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile
from beam_pipelines.sources.files.paths import find_usual, is_image_name, join, matches, nfc
from beam_pipelines.sources.files.label_files import format_of_content, read_head
from beam_pipelines.sources.files.layouts import name_splits, no_split_folders
from beam_pipelines.sources.files.roots import Root

_MAX_SHOWN, _NUM_PROBED = 3, 200


class Part(NamedTuple):
    """A listing task."""

    path: str  # path of the annotation file, including its root
    folder: str  # folder of the images, relative to the root
    split: str | None
    is_first: bool  # Only the first part of a folder reports the dead letters of the folder.


class FilesSource(AnnotationSource):
    """Base class of source formats in which one annotation file describes many images."""

    folders: ClassVar[tuple[str, ...]] = ("annotations", "annotation", "labels")

    def parts(self) -> list[str]:
        """Returns one JSON string for each annotation file. Raises `UserError` if there are no annotation files, or
        only some of the file or folder names are splits."""
        if self._is_file:
            if self._options.split_folders:
                raise no_split_folders(self._options.input, "is one annotation file")
            return [json.dumps(Part(absolute(self._options.input), "", None, True))]
        root = Root(self._options.input, self._options.follow_links)
        return [json.dumps(part) for part in self._find_parts(root, FileListing(root, self._options.ignore))]

    def _find_parts(self, root: Root, files: FileListing) -> Iterator[Part]:
        found = {("", path): name for path, name in self._find_files(root, files, "").items()}
        if not found:
            found = {(folder, path): folder for folder in files.top_level()[0] for path in self._find_files(root, files, folder)}
        if not found:
            advice = f"Put the file beside the folder of images or in {self.folders[0]}/, or pass its path as --input."
            raise UserError(f"--input={printable(root.path)}: contains no {self.file_format}. {advice}")
        names = sorted({*found.values()})
        if names == [""] and self._options.split_folders:
            raise no_split_folders(root.path, "has its annotation files in one folder")
        splits = name_splits(root.path, names, self._options.split_folders) if names != [""] else {"": None}
        listed: set[str] = set()
        for (folder, path), name in found.items():
            images = "" if self._options.source.image_root else folder
            yield Part(f"{root.path}/{path}", images, splits[name], folder not in listed)
            listed.add(folder)

    def _find_files(self, root: Root, files: FileListing, folder: str) -> dict[str, str]:
        """Returns a mapping from the paths of the annotation files in a folder to names that may be splits. If there are
        no such files, searches a subfolder for annotations."""
        inner = find_usual(files.top_level(folder)[0], self.folders)
        for place in (folder, *([files.take_folder(join(folder, inner))] if inner else [])):
            names = files.take_files(place, lambda name: name.lower().endswith(self.extensions))
            if found := self._choose_files(root, place, names):
                return {join(place, name): split for name, split in found.items()}
        return {}

    def _choose_files(self, root: Root, folder: str, names: Sequence[str]) -> dict[str, str]:
        """Returns a mapping from the names of the annotation files in a folder to the parts of these names that may be
        splits, or to empty strings."""
        return dict.fromkeys([name for name in names if self._has_format(root, join(folder, name))], "")

    def _has_format(self, root: Root, path: str) -> bool:
        return format_of_content(path, read_head(f"{root.path}/{path}")) == self.file_format

    def _find_root(self) -> Root:
        self._is_file = self._options.input.lower().endswith(self.extensions)
        if not self._is_file or self._options.source.image_root:
            return super()._find_root()
        return Root(self._folder_around(absolute(self._options.input)), self._options.follow_links)

    def _folder_around(self, path: str) -> str:
        """Returns the folder of a file or, if this folder is named like `annotations`, the parent of the folder."""
        folder = posixpath.dirname(path)
        return posixpath.dirname(folder) if posixpath.basename(folder).lower() in self.folders else folder

    def memory_bytes(self, part: str) -> int:
        """Returns an estimate of the memory, in bytes, that the image names of a part take while the part is listed."""
        return file_bytes(Part(*json.loads(part)).path) // 4


class ListedSource(FilesSource):
    """Lists the images that annotation files describe. The images are found by their names."""

    @abc.abstractmethod
    def read(self, path: str, name: str) -> Iterator[tuple[Sequence[str], Any]]:
        """Reads an annotation file as a stream.

        Args:
            path: The path of the file.
            name: The name of the file in messages.

        Yields:
            The possible names of an image, the most likely name first, and the entry with the annotation of the image.

        Raises:
            UserError: The whole file is invalid.
        """

    @abc.abstractmethod
    def parse(self, entry: Any) -> Annotation:
        """Parses the annotation of an image. Raises `InvalidInput` if the annotation is invalid."""

    def _first_entries(self) -> Sequence[Any]:
        """Returns the first entries of the first annotation file."""
        path = Part(*json.loads(self.parts()[0])).path
        entries = [entry for _, entry in itertools.islice(self.read(path, posixpath.basename(path)), _NUM_PROBED)]
        self.noted.clear()  # The entries are read again when they are listed.
        return entries

    def _detected(self, noun: str, column: Column) -> Sequence[Column]:
        """Returns the label column that was detected, and reports it with the option that selects it."""
        field = column.names[0]
        option = shlex.quote(field) + f":{column.kind}" * (not form_of(column).is_one_class)
        self.detected = f"label: the {noun} {printable(field)!r} (--label {printable(option)})"
        self.resolved = dataclasses.replace(self._options.source, labels=(column,))
        return (column,)

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        path, folder, split, is_first = Part(*json.loads(part))
        files, images = FileListing(self._root, self._options.ignore), _ImageNames()
        for listed_file in files.walk(folder):
            if isinstance(listed_file, DeadLetter):
                yield from [listed_file] if is_first else []
            elif is_image_name(listed_file.path):
                images.add(listed_file)
        self.num_ignored += files.num_ignored if is_first else 0
        file_name = posixpath.basename(path)
        for names, entry in self.read(path, file_name):
            if matches(names[-1], self._options.ignore):
                self.num_ignored += 1
                continue
            try:
                annotation = self.parse(entry)
                image = images.find(names)
            except InvalidInput as error:
                yield DeadLetter.of(printable(f"{join(posixpath.dirname(folder), file_name)}:{names[-1][:4096]}"), error)
                continue
            stated = annotation.split if self._options.split_folders is not False else None
            values = annotation.values
            yield InputRecord(nfc(image.path), image.path, annotation.label, stated or split, image.num_bytes, values=values)


class _ImageNames:
    """An index of the images below a folder, by file name. Each image takes about 300 bytes of memory."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[ListedFile]] = {}

    def add(self, image: ListedFile) -> None:
        self._by_name.setdefault(nfc(posixpath.basename(image.path)), []).append(image)

    def find(self, names: Sequence[str]) -> ListedFile:
        """Returns the only image whose path ends with one of the names. The first name that matches an image is used.

        Raises:
            InvalidInput: No image or several images match, or a name contains `..`.
        """
        for name in names:
            path = nfc(name.replace("\\", "/")).removeprefix("./").lstrip("/")
            if ".." in path.split("/"):
                raise InvalidInput("outside", f"{printable(name[:200])!r} is not a path below the folder of images")
            images = self._by_name.get(posixpath.basename(path), [])
            fitting = [image for image in images if f"/{nfc(image.path)}".endswith(f"/{path}")]
            exact = [image for image in fitting if nfc(image.path) == path] or fitting
            if len(exact) > 1:
                shown = ", ".join(printable(image.path) for image in sorted(exact)[:_MAX_SHOWN])
                raise InvalidInput("ambiguous", f"several images are called {printable(name[:200])!r}: {shown}")
            if exact:
                return exact[0]
        raise InvalidInput("missing", f"no image is called {printable(names[-1][:200])!r}")
