"""Source `masks`: images and masks with the same names, in two folders or in the same folder.

The pixel values of a mask are class ids, unless a file with the classes of colors or values is given or found beside
the masks. Only the first mask is checked when the source is opened. A part is a pair of folders. The names of all masks
of a part are in memory while the part is listed.
"""

import dataclasses
import functools
import json
import posixpath
from typing import Iterator, Mapping, Sequence

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.mask_classes import MaskClasses
from beam_pipelines.sources.annotations.image_sets import ImageSets, read_image_sets
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile
from beam_pipelines.sources.files.paths import is_image_name, join, nfc
from beam_pipelines.sources.files.mask_classes import USUAL_NAMES, read_mask_classes
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.formats.masks.mask_folders import (
    Pair,
    find_pairs,
    mask_suffixes,
    recognise_pair,
    shared_stem,
    stem_in,
)
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, read_in_any_form
from tf_input.dataset_format import MASK, Feature

_ROBOFLOW, _ROBOFLOW_HEADER = "_classes.csv", b"pixel value"
_NUM_SHOWN = 5


class Masks(Source):
    """Lists the images below the root folder together with their masks."""

    kind = SourceKind(
        name="masks",
        summary="images and segmentation masks",
        options=("labels", "label_names", "drawn_on", "mask_suffix", "mask_colors", "mask_values"),
        synonyms=("segmentation", "mask"),
    )

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory)
        self._has_masks = options.source.labels is None
        self.features = (Feature(MASK, "mask"),) if self._has_masks else ()
        self.targets = (MASK,) if self._has_masks else ()
        self._root = Root(options.input, options.follow_links)
        self.root = self._root.path
        self._files = FileListing(self._root, options.ignore)
        self._split_folders = options.split_folders
        self._source = options.source

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Detects folders of images beside folders of masks, masks beside images, and Roboflow's list of classes."""
        for folder in (names, *names.below):
            if (name := folder.find(_ROBOFLOW)) and _ROBOFLOW_HEADER in folder.head(name)[:100].lower():
                return Recognition(name, Certainty.MARKER)
            if pair := recognise_pair(folder, is_top=folder is names):
                return Recognition(pair, Certainty.LAYOUT if pair.endswith("/") else Certainty.MARKER)
        return None

    @property
    def resolved(self) -> SourceConfig | None:
        return None if self._found_classes is None else dataclasses.replace(self._source, mask_colors=self._found_classes[1])

    @property
    def detected(self) -> str:
        path, classes = self._found_classes or ("", {})
        names = tuple(dict.fromkeys(classes.values()))
        shown = ", ".join(map(printable, names[:_NUM_SHOWN])) + (", …" if len(names) > _NUM_SHOWN else "")
        return f"--mask_colors={printable(path)}, because it is beside the masks: {len(names):,} classes: {shown}" if classes else ""

    @functools.cached_property
    def _found_classes(self) -> tuple[str, dict[str, str]] | None:
        """The path of a file beside the masks that specifies the class of each color or pixel value, and a mapping from
        the colors or values to the classes. Both are empty if there is no such file. None if `--mask_colors` is given.

        Raises:
            UserError: Several such files differ, or the classes do not fit the first mask.
        """
        if self._source.mask_colors is not None or not self._has_masks:
            return None
        pairs = self._pairs
        masks = [pair.masks or "" for pair in pairs]
        folders = dict.fromkeys(folder for name in masks for folder in ("", posixpath.dirname(name), name))
        found = {
            join(folder, name): read_mask_classes(f"{self.root}/{join(folder, name)}")
            for folder in folders
            for name in self._files.take_files(folder, lambda name: name.lower() in USUAL_NAMES)
        }
        path, classes = next(iter(found.items()), ("", {}))
        if other := next((other for other in found if list(found[other].items()) != list(classes.items())), None):
            raise UserError(f"--input={self.root}: {printable(path)} and {printable(other)} differ. Pass one of them as --mask_colors.")
        first = next((file.path for pair in pairs if pair.masks is not None for file in self._mask_files(pair)), None)
        if first is not None:
            self._check_first(first, path, classes)
        return path, classes

    def _check_first(self, first: str, path: str, classes: Mapping[str, str]) -> None:
        """Raises `UserError` if the first mask has colors without a class."""
        try:
            read_mask(read_in_any_form(files_at(self.root).read, self.root, first), MaskClasses(tuple(dict.fromkeys(classes.values())), classes))
        except OSError:
            return  # the mask becomes a dead letter when it is read
        except InvalidInput as error:
            if not classes and "--mask_colors" in str(error):
                raise UserError(f"--input={self.root}: {printable(first)}: {error}.") from None
            if classes:
                raise UserError(
                    f"--input={self.root}: {printable(path)} does not describe the masks: {printable(first)}: {error}. Correct the file, or pass "
                    "another file as --mask_colors. If the values of the masks are class numbers, pass --mask_colors none."
                ) from None

    def _mask_files(self, pair: Pair) -> Iterator[ListedFile]:
        """Yields the masks of a pair, in ascending order within each folder."""
        suffixes = mask_suffixes(pair, self._source.mask_suffix)
        for file in self._walk(pair.masks, None):
            if isinstance(file, ListedFile) and stem_in(pair.masks, file.path).endswith(suffixes):
                yield file

    @functools.cached_property
    def _pairs(self) -> list[Pair]:
        return find_pairs(self._files, self.root, self._split_folders, self._source.mask_suffix)

    def parts(self) -> list[str]:
        """Returns a JSON string for each pair of an image folder and a mask folder."""
        return [json.dumps(pair) for pair in self._pairs]

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the images of a pair of folders with their masks. Raises `UserError` if a folder or a file in
        `ImageSets` cannot be read."""
        pair = Pair(*json.loads(part))
        sets = read_image_sets(self._root, self._files, pair.lists, "Segmentation") if pair.lists is not None else None
        num_ignored, suffixes = self._files.num_ignored, mask_suffixes(pair, self._source.mask_suffix)
        masks: dict[str, list[str]] = {}
        images: list[ListedFile] = []
        for file in self._walk(pair.masks, sets) if pair.masks is not None else ():
            if isinstance(file, DeadLetter):
                yield file
            elif (name := stem_in(pair.masks, file.path)).endswith(suffixes):
                masks.setdefault(name, []).append(file.path)
            elif pair.images == pair.masks:
                images.append(file)
            else:
                self.num_ignored += 1
        used: set[str] = set()
        listed: set[str] = set()
        for file in images if pair.images == pair.masks else self._walk(pair.images, sets):
            if isinstance(file, DeadLetter):
                yield file
                continue
            name = stem_in(pair.images, file.path)
            names = [mask for suffix in suffixes if (mask := shared_stem(name) + suffix) in masks]
            used.update(names)
            listed.add(name)
            split = sets.members[name].split if sets else pair.split
            yield self._make_image(file, [path for mask in names for path in masks[mask]], split, pair, masks)
        message = f"no image in {printable(pair.images)} has the same name"
        yield from (DeadLetter(path, "list", "missing", message) for name, paths in masks.items() if name not in used for path in paths)
        if sets:
            yield from sets.dead_letters
            yield from sets.missing(listed, "image")
        self.num_ignored += self._files.num_ignored - num_ignored

    def _walk(self, folder: str, sets: ImageSets | None) -> Iterator[ListedFile | DeadLetter]:
        """Yields the image files below a folder. If `ImageSets` lists exist, only images in these lists are yielded."""
        for file in self._files.walk(folder):
            if isinstance(file, DeadLetter) or (is_image_name(file.path) and (sets is None or stem_in(folder, file.path) in sets.members)):
                yield file
            else:
                self.num_ignored += 1

    def _make_image(
        self, image_file: ListedFile, paths: Sequence[str], split: str | None, pair: Pair, masks: Mapping[str, Sequence[str]]
    ) -> InputRecord | DeadLetter:
        if not paths:
            message = self._describe_missing(stem_in(pair.images, image_file.path), pair, masks)
            return DeadLetter(image_file.path, "list", "no_mask", message)
        if len(paths) > 1:
            names = ", ".join(map(printable, sorted(paths)[:3]))
            message = f"several masks have the same name: {names}. Choose one with --mask_suffix"
            return DeadLetter(image_file.path, "list", "ambiguous", message)
        values = {MASK: FilePart(paths[0])} if self._has_masks else None
        return InputRecord(nfc(image_file.path), image_file.path, "", split, image_file.num_bytes, values=values)

    def _describe_missing(self, name: str, pair: Pair, masks: Mapping[str, Sequence[str]]) -> str:
        """Returns the message about an image without a mask. If the name of a mask starts with the name of the image,
        the message suggests a `--mask_suffix`."""
        if pair.masks is None:
            return f"no folder has the masks of this split. Leave the images out with --ignore={pair.images!r}"
        message = f"no mask in {printable(pair.masks) or 'the folder'} has the same name"
        if self._advised is None:  # searched only once, because there may be many masks
            ends = (mask.removeprefix(name) for mask in sorted(masks) if mask.startswith(name))
            self._advised = next((end for end in ends if end and not end[0].isalnum()), "")
        return f"{message}. If the end of its name is {self._advised!r}, pass --mask_suffix={self._advised}" if self._advised else message

    _advised: str | None = None
