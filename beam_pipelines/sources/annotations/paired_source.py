"""Defines the base class of source formats with an annotation file for each image.

Names are compared without extensions. An image folder and its annotation folder must have the same subfolders. Each
listing task has up to 500 images, because the annotation file of each image has to be opened. From an object store, 32
annotation files are read concurrently. For each pair of folders, a separate task lists the files without a counterpart.
"""

import abc
import contextlib
import itertools
import json
import posixpath
from typing import Any, ClassVar, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.paired_files import Matched, Pair, PairedFiles, PairedFolders, is_split_folder
from beam_pipelines.sources.files.embedded_images import Embedded, spool_images
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.paths import matches, nfc
from beam_pipelines.sources.files.roots import OutsideError
from beam_pipelines.sources.files.sizes import find_sizes
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.input_errors import describe_fact
from tf_input.dataset_format import IMAGE

PART_FILES = 500


class PairedSource(PairedFiles):
    """Lists the images below the root folder together with their annotation files.

    Attributes:
        file_kind: The name of the kind of annotation file in messages, such as `XML file`.
        max_bytes: The maximum size of an annotation file, in bytes.
        image_name_field: The field of an annotation with the name of the image file. Empty if there is no such field.
        may_be_elsewhere: Whether to ignore names of images outside the root, which are usually from another computer.
        may_embed: Whether an annotation file may contain the image itself.
    """

    file_kind: ClassVar[str]
    max_bytes: ClassVar[int] = 4 << 20  # enough for tens of thousands of objects
    image_name_field: ClassVar[str] = ""
    may_be_elsewhere: ClassVar[bool] = False
    may_embed: ClassVar[bool] = False

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Detects a folder in the same way as the base class. Raises `UserError` if the input is a single annotation
        file."""
        recognition = super().recognise(names)
        if recognition and not names.is_folder:
            advice = f"Pass its folder, with --source={cls.kind.name}."
            raise UserError(f"--input={printable(names.path)}: looks like {cls.file_format} of one image. {advice}")
        return recognition

    @abc.abstractmethod
    def parse(self, data: bytes) -> Annotation:
        """Parses an annotation file. Raises `InvalidInput` if the file is invalid."""

    def parts(self) -> list[str]:
        """Returns listing tasks as JSON strings. Raises `UserError` if there are no annotations."""
        return list(map(json.dumps, self._tasks()))

    def _tasks(self) -> list[dict[str, Any]]:
        """Returns listing tasks. A task contains either pairs of files, or folders with files that have no
        counterpart."""
        files = FileListing(self._root, self._options.ignore)
        groups, left_out = self._find_groups(files)
        if not self.features or self.is_optional:  # Annotations may be missing.
            groups += [self._find_images(files, folder) for folder in left_out if is_split_folder(folder)]
            left_out = [folder for folder in left_out if not is_split_folder(folder)]
        tasks: list[dict[str, Any]] = []
        num_annotations = 0
        for group in groups:
            matched = self._match_files(files, group)
            num_annotations += sum(bool(pair.annotation) for pair in matched.pairs) + len(matched.annotations)
            # Annotations without a paired image may name another image, so that they need a list of the other images. If
            # there are no other images, the annotations can be divided among several tasks.
            if self.may_embed and not matched.images and not matched.dead_letters:
                matched.pairs.extend(Pair(path, "", 0, split) for path, split in matched.annotations)
                matched.annotations.clear()
            tasks += ({"pairs": batch} for batch in batches(matched.pairs))
            has_files = bool(matched.annotations or matched.images or matched.dead_letters)
            if has_files or matched.num_ignored:
                tasks.append({"group": group, "has_files": has_files, "num_ignored": matched.num_ignored})
        more = list(self._more_pairs())
        pairs = [pair for pair in more if isinstance(pair, Pair) and not matches(pair.image, self._options.ignore)]
        rejected = [letter for letter in more if isinstance(letter, DeadLetter)]
        tasks += ({"pairs": batch} for batch in batches(pairs))
        tasks += ({"rejected": batch} for batch in batches(rejected))
        if num_ignored := len(more) - len(pairs) - len(rejected):
            tasks.append({"num_ignored": num_ignored})
        if not num_annotations and not more and self.features:
            raise UserError(
                f"--input={self.root}: contains no {self.file_kind}. Put the annotations beside the images, or in {self.folders[0]}/. "
                "To read only the images, pass --label=none. For class folders, use --source=image_folder."
            )
        return [*tasks, *({"left_out": folder} for folder in left_out)]

    def _more_pairs(self) -> Iterable[Pair | DeadLetter]:
        """Yields the pairs in list files, if the format has such files, and dead letters for invalid lines."""
        return ()

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs of one listing task from `parts`."""
        return spool_images(self._list_task(json.loads(part)), self._spool_directory)

    def _list_task(self, task: Mapping[str, Any]) -> Iterator[InputRecord | DeadLetter | Embedded]:
        yield from (DeadLetter(*row) for row in task.get("rejected", ()))
        yield from self._list_pairs([Pair(*row) for row in task.get("pairs", ())])
        files = FileListing(self._root, self._options.ignore)
        if "left_out" in task:
            self.num_ignored += sum(1 for _ in files.walk(task["left_out"])) + files.num_ignored
        self.num_ignored += task.get("num_ignored", 0)
        if task.get("has_files"):
            matched = self._match_files(files, PairedFolders(*task["group"]))
            yield from matched.dead_letters
            yield from self._list_rest(matched)

    def _list_pairs(self, pairs: Sequence[Pair]) -> Iterator[InputRecord | DeadLetter | Embedded]:
        """Yields the inputs for pairs of an annotation file and an image file of the same name. An annotation becomes a
        dead letter if it refers to another image that exists."""
        if not self.features:
            yield from (self._make_image(Annotation(), pair) for pair in pairs if pair.image)
            pairs = [pair for pair in pairs if not pair.image]
        read: list[tuple[Pair, Annotation, Sequence[str]]] = []
        for pair, data in zip(pairs, self._read_all([pair.annotation for pair in pairs])):
            try:
                annotation = self._parse(data)
                if not pair.image:
                    yield self._make_embedded(annotation, pair)
                    continue
                read.append((pair, annotation._replace(image=None), self._stated_others(annotation, pair)))
            except InvalidInput as error:
                yield self._reject(pair, error)
        existing = find_sizes(self.root, itertools.chain.from_iterable(others for _, _, others in read))
        for pair, annotation, others in read:
            if other := next(filter(existing.__contains__, others), None):
                field = self.image_name_field
                both = f"{field} is {printable(other)!r}, but {printable(pair.image)!r} has the annotation's name"
                yield DeadLetter(pair.annotation, "list", "ambiguous", f"{both}. Correct {field}, or rename the image")
                continue
            if others:
                self._note_outdated_name()
            yield self._make_image(annotation, pair)

    def _reject(self, pair: Pair, error: InvalidInput) -> DeadLetter:
        if not self.is_optional:
            return DeadLetter.of(pair.annotation, error)
        return DeadLetter.of(pair.image, InvalidInput(error.reason, f"{printable(pair.annotation)}: {error}"))

    def _list_rest(self, matched: Matched) -> Iterator[InputRecord | DeadLetter | Embedded]:
        """Yields the inputs for annotation files and images that have no counterpart of the same name."""
        images = {path: (num_bytes, split) for path, num_bytes, split in matched.images}
        by_stem: dict[str, list[str]] = {}
        for path in images:
            by_stem.setdefault(self._stem(path), []).append(path)
        annotated = set()
        for (path, split), data in zip(matched.annotations, self._read_all([path for path, _ in matched.annotations])):
            try:
                annotation = self._parse(data)
                image = self._find_image(annotation, path, matched.group, by_stem)
                if not image:
                    yield self._make_embedded(annotation, Pair(path, "", 0, split))
                    continue
                num_bytes, listed_split = images[image]
                annotated.add(image)
                yield self._make_image(annotation, Pair(path, image, num_bytes, split or listed_split))
            except InvalidInput as error:
                yield DeadLetter.of(path, error)
        for path in [path for path in images if path not in annotated]:
            if not self.features:
                yield self._make_image(Annotation(), Pair("", path, *images[path]))
            else:
                contains = f", or contains it as {self.image_name_field}" if self.image_name_field else ""
                yield DeadLetter(path, "list", "no_annotation", f"no {self.file_kind} has the same name{contains}")

    def _find_image(self, annotation: Annotation, path: str, group: PairedFolders, by_stem: Mapping[str, Sequence[str]]) -> str:
        """Returns the path of the image that an annotation describes. The image is found by a name in the annotation,
        or else by the name of the annotation file. The path is empty if the image is embedded in the annotation."""
        inner = path[len(group.annotations) :].lstrip("/")
        folders = [posixpath.join(group.images, posixpath.dirname(inner)), group.images]
        stated = self._stated_paths(annotation, path, folders)
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

    def _stated_paths(self, annotation: Annotation, path: str, folders: Sequence[str]) -> Sequence[str]:
        """Returns the possible paths of the image that an annotation names, relative to the root.

        Args:
            annotation: The annotation.
            path: The path of the annotation file. The image may be relative to its folder.
            folders: The folders in which the image is expected.

        Raises:
            InvalidInput: All paths are outside the root.
        """
        name = annotation.file_name.replace("\\", "/").lstrip("/")
        paths = []
        for folder in (posixpath.dirname(path), *folders) if name else ():
            with contextlib.suppress(OutsideError):
                paths.append(nfc(self._root.relative(posixpath.join(folder, name))))
        if name and not paths and not self.may_be_elsewhere:
            raise InvalidInput("outside", f"its {self.image_name_field} is {printable(name[:200])!r}, which is not a path below {self.root}")
        return paths

    def _stated_others(self, annotation: Annotation, pair: Pair) -> Sequence[str]:
        """Returns the possible paths of the image that an annotation names, or no paths if the annotation names the
        image with which it is paired."""
        stated = self._stated_paths(annotation, pair.annotation, [posixpath.dirname(pair.image)])
        own = posixpath.basename(self._stem(pair.image))
        if annotation.file_name and not stated:
            self._note_outdated_name()
        return [] if any(posixpath.basename(self._stem(name)) == own for name in stated) else stated

    def _note_outdated_name(self) -> None:
        self._note(f"of the {self.file_kind}s name an image that does not exist. The image with the name of the file is used.")

    def _make_image(self, annotation: Annotation, pair: Pair) -> InputRecord:
        return InputRecord(nfc(pair.image), pair.image, annotation.label, pair.split, pair.num_bytes, values=annotation.values)

    def _make_embedded(self, annotation: Annotation, pair: Pair) -> Embedded:
        """Returns the input for an annotation with an embedded image. Its key is the path of the annotation file.
        Raises `InvalidInput` if the annotation contains no image."""
        if not annotation.image:
            raise self._missing(annotation)
        key, path, data = nfc(pair.annotation), pair.annotation, annotation.image()
        record = InputRecord(key, path, annotation.label, pair.split, len(data), offset=0, values=annotation.values)
        return Embedded(record, {IMAGE: data})

    def _read_all(self, paths: Sequence[str]) -> Iterator[bytes | None | InvalidInput]:
        """Yields the contents of annotation files in order. Files in an object store are read concurrently."""
        if is_remote(self.root):
            return read_ahead(self._read, ((path, 0) for path in paths), lambda data: len(data) if isinstance(data, bytes) else 0)
        return map(self._read, paths)

    def _read(self, path: str) -> bytes | None | InvalidInput:
        """Returns the content of an annotation file, or None if an optional file does not exist."""
        try:
            return self._files.read_range(f"{self.root}/{path}", 0, self.max_bytes + 1)
        except OSError as error:
            if self.is_optional and isinstance(error, (FileNotFoundError, NotADirectoryError)):
                return None
            return InvalidInput("unreadable", f"cannot be read: {describe_fact(error, f'{self.root}/{path}')}")

    def _parse(self, data: bytes | InvalidInput) -> Annotation:
        if isinstance(data, InvalidInput):
            raise data
        if len(data) > self.max_bytes:
            message = f"more than {self.max_bytes} bytes, too large for the annotation of one image"
            raise InvalidInput("bad_annotation", message)
        return self.parse(data)


def decode_lines(data: bytes) -> list[str]:
    """Returns the lines of a label file. Raises `InvalidInput` if the file is not UTF-8."""
    try:
        return data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInput("not_utf8", f"not valid UTF-8 at byte {error.start}") from None


def batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Divides items into lists of `PART_FILES` items, one for each listing task."""
    remaining = iter(items)
    return iter(lambda: list(itertools.islice(remaining, PART_FILES)), [])
