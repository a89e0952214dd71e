"""Source `masks`: images and masks with the same names, in two folders or in the same folder.

The pixel values of a mask are class ids, unless a file with the classes of colors or values is given or found beside the
masks. Only the first mask is checked when the source is opened. A part is a pair of folders. While it is listed, the
names of all its masks are in memory.
"""

import dataclasses
import functools
import json
import posixpath
from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

from beam_pipelines.config.prepare_config import PrepareConfig, SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.images.mask_classes import MaskClasses
from beam_pipelines.sources.annotations.image_sets import ImageSets, read_image_sets
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile, join
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.label_files import recognise
from beam_pipelines.sources.files.layouts import name_splits, no_split_folders
from beam_pipelines.sources.files.mask_classes import USUAL_NAMES, read_mask_classes
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.formats.masks.mask_folders import CITYSCAPES, images_without_masks, pair_folders
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, read_in_any_form
from tf_input.dataset_format import MASK, Feature

_INNER_MASK_FOLDERS = ("trimaps",)
SUFFIXES = ("_mask", "_masks", "_segmentation", "_seg", "_gt", "_label", "_labels", "_L")
_ROBOFLOW, _ROBOFLOW_HEADER = "_classes.csv", b"pixel value"
_NUM_SHOWN = 5

# Names in lower case of folders that VOC has beside its images and masks. Other formats also have `annotations`.
_OTHERS = {"annotations", "imagesets", "segmentationobject"}


class _Pair(NamedTuple):
    images: str  # folder, relative to the root
    masks: str | None  # folder; equal to `images` if the masks are beside the images; None if there are no masks
    split: str | None
    lists: str | None  # folder that contains `ImageSets`, the lists of the images in each split


class Masks(Source):
    """Lists the images below the root folder together with their masks."""

    kind = SourceKind(
        name="masks",
        summary="images and segmentation masks",
        options=("labels", "label_names", "drawn_on", "mask_suffix", "mask_colors", "mask_values"),
        synonyms=("segmentation", "mask"),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config)
        self._has_masks = config.source.labels is None
        self.features = (Feature(MASK, "mask"),) if self._has_masks else ()
        self.targets = (MASK,) if self._has_masks else ()
        self._root = Root(config.input, config.follow_links)
        self.root = self._root.path
        self._files = FileListing(self._root, config.ignore, with_sizes)
        self._split_folders = config.split_folders
        self._suffix = config.source.mask_suffix
        self._source = config.source

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises folders of images beside folders of masks, and Roboflow's list of classes."""
        for folder in (names, *names.below):
            if (name := folder.find(_ROBOFLOW)) and _ROBOFLOW_HEADER in folder.head(name)[:100].lower():
                return Recognition(name, Certainty.MARKER)
            pairs = [pair for pair in pair_folders(folder.folders) if pair.masks.lower() not in _OTHERS or _has_inner_masks(folder, pair.masks)]
            used = {name.lower() for pair in pairs for name in (pair.images, pair.masks)}
            others = {name.lower() for name in folder.folders} - used - (_OTHERS if folder is names else set())
            is_complete = not others - {*SPLIT_FOLDERS} if pairs and pairs[0].rest else not others
            if pairs and is_complete and not folder.find("*.xml") and _may_be_masks(folder.folder(pairs[0].masks.lower())):
                return Recognition(f"{pairs[0].images}/, {pairs[0].masks}/")
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
        """The path of the file with the classes of colors or values, and its classes, which are empty if there is no such
        file. None if `--mask_colors` is given.

        Raises:
            UserError: Several such files differ, or the classes do not fit the first mask.
        """
        if self._source.mask_colors is not None or not self._has_masks:
            return None
        pairs = self._pairs
        folders = dict.fromkeys(folder for pair in pairs for masks in [pair.masks or ""] for folder in ("", posixpath.dirname(masks), masks))
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

    def _mask_files(self, pair: _Pair) -> Iterator[ListedFile]:
        """Yields the masks of a pair, in ascending order within each folder."""
        for file in self._walk(pair.masks, None):
            if isinstance(file, ListedFile) and _stem(file.path, pair.masks).endswith(self._suffixes(pair)):
                yield file

    def parts(self) -> list[str]:
        """Returns a JSON string for each pair of an image folder and a mask folder. Raises `UserError` if there are no
        pairs, a folder is a link, or the splits that options require are missing."""
        return [json.dumps(pair) for pair in self._pairs]

    @functools.cached_property
    def _pairs(self) -> list[_Pair]:
        pairs = self._pairs_in("")
        if self._split_folders and any(pair.split is None for pair in pairs):
            raise no_split_folders(self.root, "has images directly in its folder of images")
        if not pairs:
            folders, _ = self._files.top_level()
            below = {folder: self._pairs_in(folder) for folder in folders}
            splits = name_splits(self.root, [folder for folder in folders if below[folder]], self._split_folders)
            pairs = [
                pair._replace(split=split or pair.split) for folder, split in splits.items() for pair in below[folder]
            ]
        if not pairs:
            raise UserError(
                f"--input={self.root}: contains no folders of images and masks. Call the folders images/ and masks/. If masks "
                "are beside their images, give the end of their names with --mask_suffix, such as --mask_suffix _mask."
            )
        return pairs

    def _pairs_in(self, parent: str) -> list[_Pair]:
        """Returns the pairs of an image and a mask folder in `parent`, or `parent` itself if it has images and masks."""
        folders, names = self._files.top_level(parent)
        pairs = pair_folders(folders)
        if not pairs:
            stems = {posixpath.splitext(nfc(name))[0] for name in names if _is_image(name)}
            suffixes = (self._suffix,) if self._suffix else SUFFIXES
            has_both = any(stem.removesuffix(suffix) in stems for suffix in suffixes for stem in stems if stem.endswith(suffix))
            parent = self._files.take_folder(parent) if has_both and parent else parent
            return [_Pair(parent, parent, None, None)] if has_both else []
        if not pairs[0].rest:
            return self._plain_pair(parent, *pairs[0][:2])
        splits = name_splits(self.root, [pair.rest for pair in pairs], self._split_folders)
        found = [_Pair(self._take(parent, images), self._take(parent, masks), splits[rest], None) for images, masks, rest in pairs]
        for pair in found:
            self._check_masks(pair.masks)
        if any(splits.values()):
            alone = images_without_masks(folders, pairs)
            found += [_Pair(self._take(parent, alone[name]), None, SPLIT_FOLDERS[name], None) for name in sorted(alone) if name in SPLIT_FOLDERS]
        return found

    def _take(self, parent: str, name: str) -> str:
        return self._files.take_folder(join(parent, name))

    def _plain_pair(self, parent: str, images: str, masks: str) -> list[_Pair]:
        """Returns the pair of an image folder and a mask folder, or the pairs of their split folders."""
        images, masks = self._take(parent, images), self._take(parent, masks)
        mask_folders, _ = self._files.top_level(masks)
        if inner := next((name for name in mask_folders if name.lower() in _INNER_MASK_FOLDERS), None):
            masks = self._take(masks, inner)
            mask_folders, _ = self._files.top_level(masks)
        self._check_masks(masks)
        image_folders, image_names = self._files.top_level(images)
        splits = name_splits(self.root, image_folders, self._split_folders) if image_folders and not image_names else {}
        if not any(splits.values()):
            return [_Pair(images, masks, None, None if self._split_folders is False else parent)]
        return [
            _Pair(self._take(images, name), self._take(masks, name) if name in mask_folders else None, split, None)
            for name, split in splits.items()
        ]

    def _check_masks(self, folder: str) -> None:
        """Raises `UserError` if a mask folder or its first subfolder contains label files instead of mask images."""
        folders, names = self._files.top_level(folder)
        if folders and not names:
            folder = join(folder, folders[0])
            _, names = self._files.top_level(folder)
        if names and not any(map(_is_image, names)):
            path = join(folder, names[0])
            if known := recognise(f"{self.root}/{path}"):
                raise UserError(
                    f"--input={self.root}: {printable(path)} looks like {known.name}, not like a mask. {known.advice}"
                )

    def _suffixes(self, pair: _Pair) -> tuple[str, ...]:
        """Returns the possible suffixes of mask names. "" means that a mask may have the name of its image."""
        if self._suffix:
            return (self._suffix,)
        if CITYSCAPES in pair.images.lower().split("/"):
            return ("_gtFine_labelIds",)
        return SUFFIXES if pair.images == pair.masks else ("", *SUFFIXES)

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the images of a pair of folders with their masks. Raises `UserError` if a folder or a file in
        `ImageSets` cannot be read."""
        pair = _Pair(*json.loads(part))
        sets = read_image_sets(self._root, self._files, pair.lists, "Segmentation") if pair.lists is not None else None
        num_ignored = self._files.num_ignored
        masks: dict[str, Sequence[str]] = {}
        images: list[ListedFile] = []
        for file in self._walk(pair.masks, sets) if pair.masks is not None else ():
            if isinstance(file, DeadLetter):
                yield file
            elif (name := _stem(file.path, pair.masks)).endswith(self._suffixes(pair)):
                masks[name] = (*masks.get(name, ()), file.path)
            elif pair.images == pair.masks:
                images.append(file)
            else:
                self.num_ignored += 1
        yield from self._list_images(pair, images if pair.images == pair.masks else self._walk(pair.images, sets), sets, masks)
        self.num_ignored += self._files.num_ignored - num_ignored

    def _list_images(
        self, pair: _Pair, images: Iterable[ListedFile | DeadLetter], sets: ImageSets | None, masks: Mapping[str, Sequence[str]]
    ) -> Iterator[InputRecord | DeadLetter]:
        used: set[str] = set()
        listed: set[str] = set()
        suffixes = self._suffixes(pair)
        for image_file in images:
            if isinstance(image_file, DeadLetter):
                yield image_file
                continue
            name = _stem(image_file.path, pair.images)
            names = [mask for suffix in suffixes if (mask := _without_camera(name) + suffix) in masks]
            used.update(names)
            if sets:
                listed.add(name)
            split = sets.members[name].split if sets else pair.split
            yield self._make_image(image_file, [path for mask in names for path in masks[mask]], split, pair, masks)
        for name, paths in masks.items():
            if name not in used:
                message = f"no image in {printable(pair.images)} has the same name"
                yield from (DeadLetter(path, "list", "missing", message) for path in paths)
        if sets:
            yield from sets.dead_letters
            yield from sets.missing(listed, "image")

    def _walk(self, folder: str, sets: ImageSets | None) -> Iterator[ListedFile | DeadLetter]:
        """Yields the image files below a folder. If `ImageSets` lists exist, only images in these lists are yielded."""
        for listed_file in self._files.walk(folder):
            if isinstance(listed_file, ListedFile):
                is_listed = sets is None or _stem(listed_file.path, folder) in sets.members
                if not is_listed or not _is_image(listed_file.path):
                    self.num_ignored += 1
                    continue
            yield listed_file

    def _make_image(
        self, image_file: ListedFile, paths: Sequence[str], split: str | None, pair: _Pair, masks: Mapping[str, Sequence[str]]
    ) -> InputRecord | DeadLetter:
        if not paths:
            return DeadLetter(image_file.path, "list", "no_mask", self._describe_missing(_stem(image_file.path, pair.images), pair, masks))
        if len(paths) > 1:
            names = ", ".join(map(printable, sorted(paths)[:3]))
            return DeadLetter(image_file.path, "list", "ambiguous", f"several masks have the same name: {names}. Choose one with --mask_suffix")
        values = {MASK: FilePart(paths[0])} if self._has_masks else None
        return InputRecord(nfc(image_file.path), image_file.path, "", split, image_file.num_bytes, values=values)

    def _describe_missing(self, name: str, pair: _Pair, masks: Mapping[str, Sequence[str]]) -> str:
        """Returns the message about an image without a mask. Advises a `--mask_suffix` if a mask starts with its name."""
        if pair.masks is None:
            return f"no folder has the masks of this split. Leave the images out with --ignore={pair.images!r}"
        message = f"no mask in {printable(pair.masks) or 'the folder'} has the same name"
        if self._advised is None:  # searched only once, because there may be many masks
            self._advised = next((mask.removeprefix(name) for mask in sorted(masks) if mask.startswith(name) and not mask[len(name)].isalnum()), "")
        return f"{message}. If the end of its name is {self._advised!r}, pass --mask_suffix={self._advised}" if self._advised else message

    _advised: str | None = None


def _has_inner_masks(parent: InputNames, folder: str) -> bool:
    masks = parent.folder(folder.lower())
    return any(inner.has_images for name in _INNER_MASK_FOLDERS if (inner := masks.folder(name)))


def _may_be_masks(folder: InputNames) -> bool:
    """Returns whether a folder, or its first subfolder, contains images or a subfolder with a usual name for masks."""
    if folder.has_images or any(map(folder.folder, _INNER_MASK_FOLDERS)):
        return True
    return not folder.files and bool(folder.folders) and _may_be_masks(folder.folder(folder.folders[0].lower()))


def _is_image(name: str) -> bool:
    return posixpath.splitext(name)[1].lower() in IMAGE_EXTENSIONS


def _without_camera(name: str) -> str:
    """Removes the suffix that Cityscapes adds to the names of images but not of masks."""
    return name.removesuffix("_leftImg8bit")


def _stem(path: str, folder: str) -> str:
    """Returns the path of a file relative to `folder`, in NFC and without the file extension."""
    return nfc(posixpath.splitext(path[len(folder) + 1 if folder else 0 :])[0])
