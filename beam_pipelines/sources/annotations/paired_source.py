"""Defines the base class of source formats with an annotation file for each image.

Names are compared without extensions. An image folder and its annotation folder must have the same subfolders. Each
listing task has up to 500 images, because the annotation file of each image has to be opened. From an object store, 32
annotation files are read concurrently. For each pair of folders, a separate task lists the files without a counterpart.
"""

import abc
import itertools
import json
import posixpath
from typing import ClassVar, Iterator, Mapping, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.sources.annotations.annotation_source import Annotation, AnnotationSource
from beam_pipelines.sources.annotations.paired_files import Matched, Pair, PairedFolders, PairedNames
from beam_pipelines.sources.annotations.paired_files import find_groups, find_images, match_files, stem
from beam_pipelines.sources.files.embedded_images import Embedded, spool_images
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.roots import OutsideError
from beam_pipelines.sources.files.sizes import find_sizes
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.input_errors import describe_fact, size_on_disk
from tf_input.dataset_format import IMAGE

PART_FILES = 500


class PairedSource(AnnotationSource):
    """Lists the images below the root folder together with their annotation files.

    Attributes:
        names: The usual names of files and folders.
        file_kind: The name of the kind of annotation file in messages, such as `XML file`.
        max_bytes: The maximum size of an annotation file, in bytes.
        image_name_field: The field of an annotation with the name of the image file. Empty if there is no such field.
        may_embed: Whether an annotation file may contain the image itself.
    """

    names: ClassVar[PairedNames]
    file_kind: ClassVar[str]
    max_bytes: ClassVar[int] = 4 << 20  # enough for tens of thousands of objects
    image_name_field: ClassVar[str] = ""
    may_embed: ClassVar[bool] = False

    @abc.abstractmethod
    def parse(self, data: bytes) -> Annotation:
        """Parses an annotation file.

        Raises:
            InvalidInput: The file is invalid.
        """

    def decode_image(self, image: bytes) -> bytes:
        """Converts `Annotation.image` to the bytes of an image file. Raises `InvalidInput` if it is invalid."""
        return image

    def parts(self) -> list[str]:
        """Returns listing tasks as JSON strings. A task contains pairs of annotation and image files, or folder names.

        Raises:
            UserError: There are no annotations.
        """
        files = self._list_files()
        groups, left_out = self._find_groups(files)
        if not self.features:  # Only images are read, so annotations may be missing.
            groups += [find_images(files, self.names, folder) for folder in left_out if folder.lower() in SPLIT_FOLDERS]
            left_out = [folder for folder in left_out if folder.lower() not in SPLIT_FOLDERS]
        parts: list[str] = []
        num_annotations = 0
        for group in groups:
            matched = match_files(self._root, files, self.names, group)
            num_annotations += len(matched.pairs) + len(matched.annotations)
            # Annotations without a paired image may name another image, so that they need a list of the other images. If
            # there are no other images, the annotations can be divided among several tasks.
            if self.may_embed and not matched.images and not matched.dead_letters:
                matched.pairs.extend(Pair(path, "", 0, split) for path, split in matched.annotations)
                matched.annotations.clear()
            rows = iter(matched.pairs)
            parts += [json.dumps(batch) for batch in iter(lambda: list(itertools.islice(rows, PART_FILES)), [])]
            has_files = bool(matched.annotations or matched.images or matched.dead_letters)
            if has_files or matched.num_ignored:
                parts.append(json.dumps({"group": group, "has_files": has_files, "num_ignored": matched.num_ignored}))
        if not num_annotations:
            folder = self.names.annotation_folders[0]
            raise UserError(
                f"--input={self.root}: contains no {self.file_kind}. Put the annotations beside the images, or in {folder}/."
            )
        parts += [json.dumps({"left_out": folder}) for folder in left_out]
        return parts

    def _find_groups(self, files: FileListing) -> tuple[list[PairedFolders], list[str]]:
        """Returns the groups of annotation and image folders, and the image folders without annotations."""
        return find_groups(self._root, files, self.names, self._config.split_folders)

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs of one listing task from `parts`."""
        return spool_images(self._list_part(part), self._spool_directory)

    def _list_part(self, part: str) -> Iterator[InputRecord | DeadLetter | Embedded]:
        content = json.loads(part)
        if isinstance(content, list):
            yield from self._list_pairs([Pair(*row) for row in content])
            return
        files = self._list_files()
        if "left_out" in content:
            self.num_ignored += sum(1 for _ in files.walk(content["left_out"])) + files.num_ignored
            return
        self.num_ignored += content["num_ignored"]
        if content["has_files"]:
            matched = match_files(self._root, files, self.names, PairedFolders(*content["group"]))
            yield from matched.dead_letters
            yield from self._list_rest(matched)

    def _list_files(self) -> FileListing:
        return FileListing(self._root, self._config.ignore, self._with_sizes)

    def _list_pairs(self, pairs: Sequence[Pair]) -> Iterator[InputRecord | DeadLetter | Embedded]:
        """Yields the inputs for pairs of an annotation file and an image file of the same name. An annotation becomes a
        dead letter if it names another image that exists."""
        if not self.features:
            yield from (self._make_image(Annotation(""), pair) for pair in pairs if pair.image)
            pairs = [pair for pair in pairs if not pair.image]
        read: list[tuple[Pair, Annotation, Sequence[str]] | DeadLetter] = []
        for pair, data in zip(pairs, self._read_all([pair.annotation for pair in pairs])):
            try:
                annotation = self._parse(data)
                if not pair.image:
                    yield self._make_embedded(annotation, pair)
                    continue
                read.append((pair, annotation._replace(image=b""), self._stated_others(annotation, pair)))
            except InvalidInput as error:
                read.append(DeadLetter.of(pair.annotation, error))
        others = (item[2] for item in read if not isinstance(item, DeadLetter))
        existing = find_sizes(self.root, itertools.chain.from_iterable(others))
        for read_pair in read:
            if isinstance(read_pair, DeadLetter):
                yield read_pair
                continue
            pair, annotation, others = read_pair
            field = self.image_name_field
            if other := next(filter(existing.__contains__, others), None):
                both = f"{field} is {printable(other)!r}, but {printable(pair.image)!r} has the annotation's name"
                message = f"{both}. Correct {field}, or rename the image"
                yield DeadLetter(pair.annotation, "list", "ambiguous", message)
                continue
            if others:
                self._note_outdated_name()
            yield self._make_image(annotation, pair)

    def _list_rest(self, matched: Matched) -> Iterator[InputRecord | DeadLetter | Embedded]:
        """Yields the inputs for annotation files and images that have no counterpart of the same name."""
        group = matched.group
        images = {path: (num_bytes, split) for path, num_bytes, split in matched.images}
        by_stem: dict[str, list[str]] = {}
        for path in images:
            by_stem.setdefault(self._stem(path), []).append(path)
        annotated = set()
        for (path, split), data in zip(matched.annotations, self._read_all([path for path, _ in matched.annotations])):
            try:
                annotation = self._parse(data)
                image = self._find_image(annotation, path, group, by_stem)
                if not image:
                    yield self._make_embedded(annotation, Pair(path, "", 0, split))
                    continue
                num_bytes, listed_split = images[image]
                annotated.add(image)
                yield self._make_image(annotation, Pair(path, image, num_bytes, split or listed_split))
            except InvalidInput as error:
                yield DeadLetter.of(path, error)
        for path, (num_bytes, split) in images.items():
            if path in annotated:
                continue
            if not self.features:
                yield self._make_image(Annotation(""), Pair("", path, num_bytes, split))
            else:
                contains = f", or contains it as {self.image_name_field}" if self.image_name_field else ""
                yield DeadLetter(path, "list", "no_annotation", f"no {self.file_kind} has the same name{contains}")

    def _find_image(
        self, annotation: Annotation, path: str, group: PairedFolders, by_stem: Mapping[str, Sequence[str]]
    ) -> str:
        """Returns the path of the image of an annotation, given by a name in the annotation or by the name of the
        annotation file. The path is empty if only the image that is embedded in the annotation exists."""
        inner = path[len(group.annotations) :].lstrip("/")
        folders = [posixpath.join(group.images, posixpath.dirname(inner)), group.images]
        stated = [name for folder in self._stated_folders(path, folders) if (name := self._stated(annotation, folder))]
        own = [posixpath.join(folder, posixpath.basename(inner)) for folder in folders]
        for name in stated:
            if name in by_stem.get(self._stem(name), ()):
                return name
        for candidates in filter(None, (by_stem.get(self._stem(name)) for name in (*stated, *own))):
            if len(candidates) == 1:
                return candidates[0]
            names = ", ".join(map(printable, candidates[:3]))
            field = f"; {self.image_name_field} names none of them" if self.image_name_field else ""
            raise InvalidInput("ambiguous", f"several images have the same name: {names}{field}")
        if annotation.image:
            return ""
        raise self._missing(annotation)

    def _missing(self, annotation: Annotation) -> InvalidInput:
        name, field = printable(annotation.file_name[:200]), self.image_name_field
        called = f", or is called {name!r} as in {field}" if field else ""
        return InvalidInput("missing", f"no image has the same name{called}")

    def _stated_folders(self, path: str, folders: Sequence[str]) -> Sequence[str]:
        """Returns the folders that the image name in an annotation may be relative to.

        Args:
            path: The path of the annotation file.
            folders: The folders in which the image is expected.
        """
        return folders

    def _stated_others(self, annotation: Annotation, pair: Pair) -> Sequence[str]:
        """Returns the possible paths of the image that an annotation names, or no paths if the annotation names the
        image with which it is paired."""
        folders = self._stated_folders(pair.annotation, [posixpath.dirname(pair.image)])
        stated = [name for folder in folders if (name := self._stated(annotation, folder))]
        own = posixpath.basename(self._stem(pair.image))
        return [] if any(posixpath.basename(self._stem(name)) == own for name in stated) else stated

    def _stated(self, annotation: Annotation, folder: str) -> str | None:
        """Returns the image path in an annotation, relative to the root. None if the annotation names no image."""
        if not annotation.file_name:
            return None
        try:
            return nfc(self._root.relative(posixpath.join(folder, annotation.file_name.replace("\\", "/").lstrip("/"))))
        except OutsideError as error:
            raise InvalidInput("outside", f"its {self.image_name_field} is invalid: {error}") from None

    def _note_outdated_name(self) -> None:
        self._note(f"of the {self.file_kind}s name an image that does not exist. The image with the name of the file is used.")

    def _stem(self, path: str) -> str:
        return stem(path, self.names.extension)

    def _make_image(self, annotation: Annotation, pair: Pair) -> InputRecord:
        num_bytes = pair.num_bytes
        if self._with_sizes and not num_bytes and not is_remote(self.root):  # Object stores list sizes.
            num_bytes = size_on_disk(f"{self.root}/{pair.image}") or 0
        self.unused_fields.add(annotation.others)
        return InputRecord(nfc(pair.image), pair.image, annotation.label, pair.split, num_bytes, values=annotation.values)

    def _make_embedded(self, annotation: Annotation, pair: Pair) -> Embedded:
        """Returns the input for an annotation with an embedded image. Its key is the path of the annotation file.
        Raises `InvalidInput` if the annotation contains no image."""
        if not annotation.image:
            raise self._missing(annotation)
        self.unused_fields.add(annotation.others)
        key, path, data = nfc(pair.annotation), pair.annotation, self.decode_image(annotation.image)
        record = InputRecord(key, path, annotation.label, pair.split, len(data), offset=0, values=annotation.values)
        return Embedded(record, {IMAGE: data})

    def _read_all(self, paths: Sequence[str]) -> Iterator[bytes | InvalidInput]:
        """Yields the contents of annotation files in order. Files in an object store are read concurrently."""
        if is_remote(self.root):
            return read_ahead(
                self._read, ((path, 0) for path in paths), lambda data: len(data) if isinstance(data, bytes) else 0
            )
        return map(self._read, paths)

    def _read(self, path: str) -> bytes | InvalidInput:
        try:
            return self._files.read_range(f"{self.root}/{path}", 0, self.max_bytes + 1)
        except OSError as error:
            return InvalidInput("unreadable", f"cannot be read: {describe_fact(error, f'{self.root}/{path}')}")

    def _parse(self, data: bytes | InvalidInput) -> Annotation:
        if isinstance(data, InvalidInput):
            raise data
        if len(data) > self.max_bytes:
            message = f"more than {self.max_bytes} bytes, too large for the annotation of one image"
            raise InvalidInput(f"bad_{self.names.extension[1:]}", message)
        return self.parse(data)
