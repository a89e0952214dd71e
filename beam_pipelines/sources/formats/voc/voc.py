"""Source `voc`: boxes from Pascal VOC's XML files, with one XML file per image.

Names are compared without extensions. An image folder and its annotation folder must have the same subfolders. Workers
list up to 500 images at a time, because an XML file has to be opened for each image. From an object store, 32 XML files
are read at a time. For each pair of folders, a separate task lists the files without a counterpart.
"""

import itertools
import json
import posixpath
from typing import Iterator, Mapping, Sequence

from beam_pipelines.config.prepare_config import OBJECT_LABEL, PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.formats.voc.voc_annotation import VocAnnotation, parse_annotation
from beam_pipelines.sources.formats.voc.voc_folders import Matched, Pair, VocFolders, find_groups, match_files, stem
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.sizes import find_sizes
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import describe_fact, size_on_disk
from tf_input.dataset_format import OBJECTS, Feature

PART_FILES = 500
MAX_XML_BYTES = 4 << 20  # fits some ten thousand objects


class Voc(Source):
    """Lists the images below the root folder together with their boxes."""

    kind = SourceKind(
        name="voc",
        summary="Pascal VOC",
        options=("labels", "label_names", "bad_boxes", "drawn_on"),
        synonyms=("pascal", "pascal_voc", "xml"),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config)
        self._has_boxes = config.source.labels is None
        self.features = _FEATURES if self._has_boxes else ()
        self.targets = (OBJECTS,) if self._has_boxes else ()
        self.num_ignored = 0
        self._root = Root(config.input, config.follow_links)
        self.root = self._root.path
        self._files = files_at(self.root)
        self._config = config
        self._with_sizes = with_sizes
        self.unused_fields = UnusedFields()

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises a folder of annotations with XML files, or XML files beside images, also in split folders."""
        annotations = names.folder("annotations")
        for folder in filter(None, (annotations, names, *names.below)):
            if name := folder.find("*.xml"):
                reject_other_format(f"{folder.path}/{name}")
                return Recognition(name, Certainty.LAYOUT if folder is annotations else Certainty.EXTENSION)
        return None

    def parts(self) -> list[str]:
        """Returns the listing tasks as JSON strings, which contain pairs of an annotation and an image, or folder
        names. Raises `UserError` if there are no annotations."""
        files = FileListing(self._root, self._config.ignore, self._with_sizes)
        groups = find_groups(self._root, files, self._config.split_folders)
        parts: list[str] = []
        num_annotations = 0
        for group in groups:
            matched = match_files(self._root, files, group)
            num_annotations += len(matched.pairs) + len(matched.annotations)
            rows = iter(matched.pairs)
            parts += [json.dumps(batch) for batch in iter(lambda: list(itertools.islice(rows, PART_FILES)), [])]
            has_files = bool(matched.annotations or matched.images or matched.dead_letters)
            if has_files or matched.num_ignored:
                parts.append(json.dumps({"group": group, "has_files": has_files, "num_ignored": matched.num_ignored}))
        if not num_annotations:
            raise UserError(
                f"--input={self.root}: contains no XML file. Put the annotations beside the images, or in Annotations/."
            )
        return parts

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        content = json.loads(part)
        if isinstance(content, list):
            yield from self._list_pairs([Pair(*row) for row in content])
            return
        self.num_ignored += content["num_ignored"]
        if content["has_files"]:
            files = FileListing(self._root, self._config.ignore, self._with_sizes)
            matched = match_files(self._root, files, VocFolders(*content["group"]))
            yield from matched.dead_letters
            yield from self._list_rest(matched)

    def _list_pairs(self, pairs: Sequence[Pair]) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs for given pairs of an annotation file and an image file of the same name.

        If the `<filename>` of an annotation names an existing image other than the paired image, the annotation becomes
        a dead letter.
        """
        read: list[tuple[Pair, VocAnnotation, str | None] | DeadLetter] = []
        for pair, data in zip(pairs, self._read_all([pair.annotation for pair in pairs])):
            try:
                annotation = self._parse(data)
                read.append((pair, annotation, self._stated_other(annotation, pair)))
            except InvalidInput as error:
                read.append(DeadLetter.of(pair.annotation, error))
        found_sizes = find_sizes(self.root, [item[2] for item in read if not isinstance(item, DeadLetter) and item[2]])
        for read_pair in read:
            if isinstance(read_pair, DeadLetter):
                yield read_pair
                continue
            pair, annotation, other = read_pair
            if other in found_sizes:
                both = f"<filename> is {printable(other)!r}, but {printable(pair.image)!r} has the annotation's name"
                message = f"{both}. Correct <filename>, or rename the image"
                yield DeadLetter(pair.annotation, "list", "ambiguous", message)
            else:
                yield self._make_image(annotation, pair)

    def _list_rest(self, matched: Matched) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs for annotation files and images that have no counterpart of the same name."""
        group = matched.group
        images = {path: (num_bytes, split) for path, num_bytes, split in matched.images}
        by_stem: dict[str, list[str]] = {}
        for path in images:
            by_stem.setdefault(stem(path), []).append(path)
        annotated = set()
        for (path, split), data in zip(matched.annotations, self._read_all([path for path, _ in matched.annotations])):
            try:
                annotation = self._parse(data)
                image = self._find_image(annotation, path, group, by_stem)
                num_bytes, listed_split = images[image]
                annotated.add(image)
                yield self._make_image(annotation, Pair(path, image, num_bytes, split or listed_split))
            except InvalidInput as error:
                yield DeadLetter.of(path, error)
        for path in images:
            if path not in annotated:
                message = "no XML file has the same name, or contains it as <filename>"
                yield DeadLetter(path, "list", "no_annotation", message)

    def _find_image(
        self, annotation: VocAnnotation, path: str, group: VocFolders, by_stem: Mapping[str, Sequence[str]]
    ) -> str:
        """Finds the image that belongs to an annotation, by `<filename>` or by the name of the annotation file, and
        returns its path."""
        inner = path[len(group.annotations) :].lstrip("/")
        folders = [posixpath.join(group.images, posixpath.dirname(inner)), group.images]
        stated = [name for folder in folders if (name := self._stated(annotation, folder))]
        own = [posixpath.join(folder, posixpath.basename(inner)) for folder in folders]
        for name in stated:
            if name in by_stem.get(stem(name), ()):
                return name
        for candidates in filter(None, (by_stem.get(stem(name)) for name in (*stated, *own))):
            if len(candidates) == 1:
                return candidates[0]
            names = ", ".join(map(printable, candidates[:3]))
            raise InvalidInput("ambiguous", f"several images have the same name: {names}; <filename> names none of them")
        name = printable(annotation.file_name[:200])
        raise InvalidInput("missing", f"no image has the same name, or is called {name!r} as in <filename>")

    def _stated_other(self, annotation: VocAnnotation, pair: Pair) -> str | None:
        """Returns the image path in an annotation, or None if this path refers to the image that is paired with the
        annotation."""
        stated = self._stated(annotation, posixpath.dirname(pair.image))
        if not stated or posixpath.basename(stem(stated)) == posixpath.basename(stem(pair.image)):
            return None
        return stated

    def _stated(self, annotation: VocAnnotation, folder: str) -> str | None:
        """Returns the path to which `<filename>` refers, relative to `folder`, or None if `<filename>` is empty."""
        if not annotation.file_name:
            return None
        try:
            return nfc(self._root.relative(posixpath.join(folder, annotation.file_name.replace("\\", "/").lstrip("/"))))
        except OutsideError as error:
            raise InvalidInput("outside", f"its <filename> is invalid: {error}") from None

    def _make_image(self, annotation: VocAnnotation, pair: Pair) -> InputRecord:
        num_bytes = pair.num_bytes
        if self._with_sizes and not num_bytes and not is_remote(self.root):  # the listing of a store has the size
            num_bytes = size_on_disk(f"{self.root}/{pair.image}") or 0
        if self._has_boxes:
            self.unused_fields.add(annotation.others)
        values = {OBJECTS: annotation.objects} if self._has_boxes else None
        return InputRecord(nfc(pair.image), pair.image, "", pair.split, num_bytes, values=values)

    def _read_all(self, paths: Sequence[str]) -> Iterator[bytes | InvalidInput]:
        """Reads XML files and yields their contents in order. Files in an object store are requested in parallel."""
        if is_remote(self.root):
            return read_ahead(
                self._read, ((path, 0) for path in paths), lambda data: len(data) if isinstance(data, bytes) else 0
            )
        return map(self._read, paths)

    def _read(self, path: str) -> bytes | InvalidInput:
        try:
            return self._files.read_range(f"{self.root}/{path}", 0, MAX_XML_BYTES + 1)
        except OSError as error:
            return InvalidInput("unreadable", f"cannot be read: {describe_fact(error, f'{self.root}/{path}')}")

    def _parse(self, data: bytes | InvalidInput) -> VocAnnotation:
        if isinstance(data, InvalidInput):
            raise data
        if len(data) > MAX_XML_BYTES:
            raise InvalidInput("bad_xml", f"more than {MAX_XML_BYTES} bytes, too large for the annotation of one image")
        return parse_annotation(data, self._config.source.names_of(OBJECT_LABEL))


_FEATURES = (
    Feature(f"{OBJECTS}/bbox", "bbox", (None, 4)),
    Feature(f"{OBJECTS}/is_difficult", "integer", (None,)),
    Feature(f"{OBJECTS}/is_truncated", "integer", (None,)),
    Feature(f"{OBJECTS}/label", "class_label", (None,)),
)
