"""Source `masks`: a folder of images and a folder of masks with the same names.

The pixel values of a mask are class ids. Mask files are not checked during listing, but only when they are read. A part
is a pair of folders. While an image folder is listed, the names of all masks in the corresponding mask folder are kept
in memory.
"""

import json
import posixpath
from typing import Iterator, Mapping, NamedTuple, Sequence

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.annotations.image_sets import ImageSets, read_image_sets
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile, join
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.label_files import recognise
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS, find_folder, name_splits, no_split_folders
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.sources.source import Source
from tf_input.dataset_format import MASK, Feature

_MASK_FOLDERS = ("segmentationclass", "masks", "mask", "labels", "label", "annotations")
_INNER_MASK_FOLDERS = ("trimaps",)
_SUFFIX = "_mask"

# Folder names in lower case that show the format.
_IMAGES = {"images", "jpegimages", "img", "imgs"}
_MASKS = {"masks", "mask", "segmentationclass", "labels"}
_OTHERS = {"annotations", "imagesets", "segmentationobject"}


class _Pair(NamedTuple):
    images: str  # folders, relative to the root
    masks: str | None
    split: str | None
    lists: str | None  # the folder that contains the lists of splits


class Masks(Source):
    """Lists the images below the root folder together with their masks."""

    kind = SourceKind(
        name="masks",
        summary="images and segmentation masks",
        options=("labels", "drawn_on"),
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

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises a folder of images beside a folder of masks, also in split folders."""
        for folder in (names, *names.below):
            lower = {name.lower() for name in folder.folders}
            others = lower - {*_IMAGES, *_MASKS}
            is_pair = lower & _IMAGES and lower & _MASKS and not others - (_OTHERS if folder is names else set())
            if is_pair and not folder.find("*.xml"):
                return Recognition(f"{min(lower & _IMAGES)}/, {min(lower & _MASKS)}/")
        return None

    def parts(self) -> list[str]:
        """Returns one JSON string for each pair of an image folder and a mask folder. Raises `UserError` if there are
        no pairs, a folder is a link, or the splits that options require are missing."""
        folders, _ = self._files.top_level()
        pairs = self._pairs_in("", folders)
        if self._split_folders and any(pair.split is None for pair in pairs):
            raise no_split_folders(self.root, "has images directly in its folder of images")
        if not pairs:
            below = {folder: self._pairs_in(folder, self._files.top_level(folder)[0]) for folder in folders}
            splits = name_splits(self.root, [folder for folder in folders if below[folder]], self._split_folders)
            pairs = [
                pair._replace(split=split or pair.split) for folder, split in splits.items() for pair in below[folder]
            ]
        if not pairs:
            raise UserError(
                f"--input={self.root}: contains no folders of images and masks. Call the folders images/ and masks/."
            )
        return [json.dumps(pair) for pair in pairs]

    def _pairs_in(self, parent: str, folders: list[str]) -> list[_Pair]:
        """Returns pairs of an image folder and a mask folder in `parent`, or in each split folder of `parent`."""
        images, masks = find_folder(folders, IMAGE_FOLDERS), find_folder(folders, _MASK_FOLDERS)
        if images is None or masks is None:
            return []
        take = self._files.take_folder
        images, masks = take(join(parent, images)), take(join(parent, masks))
        mask_folders, mask_names = self._files.top_level(masks)
        inner = find_folder(mask_folders, _INNER_MASK_FOLDERS)
        if inner:
            masks = take(join(masks, inner))
            mask_folders, mask_names = self._files.top_level(masks)
        self._check_masks(masks, mask_folders, mask_names)
        image_folders, image_names = self._files.top_level(images)
        splits = name_splits(self.root, image_folders, self._split_folders) if image_folders and not image_names else {}
        if not any(splits.values()):
            return [_Pair(images, masks, None, None if self._split_folders is False else parent)]
        return [
            _Pair(take(join(images, name)), take(join(masks, name)) if name in mask_folders else None, split, None)
            for name, split in splits.items()
        ]

    def _check_masks(self, folder: str, folders: list[str], names: list[str]) -> None:
        """Raises `UserError` if a mask folder or its first subfolder contains label files instead of mask images."""
        if folders and not names:
            folder = join(folder, folders[0])
            _, names = self._files.top_level(folder)
        if names and not any(posixpath.splitext(name)[1].lower() in IMAGE_EXTENSIONS for name in names):
            path = join(folder, names[0])
            if known := recognise(f"{self.root}/{path}"):
                raise UserError(
                    f"--input={self.root}: {printable(path)} looks like {known.name}, not like a mask. {known.advice}"
                )

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the images of an image folder together with the masks from the corresponding mask folder. Raises
        `UserError` if a folder or a list cannot be read."""
        pair = _Pair(*json.loads(part))
        sets = read_image_sets(self._root, self._files, pair.lists, "Segmentation") if pair.lists is not None else None
        num_ignored = self._files.num_ignored
        masks: dict[str, Sequence[str]] = {}
        for mask_file in self._walk(pair.masks, sets) if pair.masks else ():
            if isinstance(mask_file, ListedFile):
                name = _stem(mask_file.path, pair.masks)
                masks[name] = (*masks.get(name, ()), mask_file.path)
            else:
                yield mask_file
        yield from self._list_images(pair, sets, masks)
        self.num_ignored += self._files.num_ignored - num_ignored

    def _list_images(
        self, pair: _Pair, sets: ImageSets | None, masks: Mapping[str, Sequence[str]]
    ) -> Iterator[InputRecord | DeadLetter]:
        used: set[str] = set()
        listed: set[str] = set()
        for image_file in self._walk(pair.images, sets):
            if isinstance(image_file, DeadLetter):
                yield image_file
                continue
            name = _stem(image_file.path, pair.images)
            names = [mask for mask in (name, name + _SUFFIX) if mask in masks]
            used.update(names)
            if sets:
                listed.add(name)
            split = sets.members[name].split if sets else pair.split
            yield self._make_image(image_file, [path for mask in names for path in masks[mask]], split, pair)
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
                name = _stem(listed_file.path, folder)
                is_listed = sets is None or name in sets.members
                if not is_listed or posixpath.splitext(listed_file.path)[1].lower() not in IMAGE_EXTENSIONS:
                    self.num_ignored += 1
                    continue
            yield listed_file

    def _make_image(
        self, image_file: ListedFile, masks: Sequence[str], split: str | None, pair: _Pair
    ) -> InputRecord | DeadLetter:
        if not masks:
            message = (
                f"no mask in {printable(pair.masks)} has the same name"
                if pair.masks
                else "the folder of masks has no folder of the same name"
            )
            return DeadLetter(image_file.path, "list", "no_mask", message)
        if len(masks) > 1:
            names = ", ".join(map(printable, sorted(masks)[:3]))
            return DeadLetter(image_file.path, "list", "ambiguous", f"several masks have the same name: {names}")
        values = {MASK: FilePart(masks[0])} if self._has_masks else None
        return InputRecord(nfc(image_file.path), image_file.path, "", split, image_file.num_bytes, values=values)


def _stem(path: str, folder: str) -> str:
    """Returns the path of a file relative to `folder`, in NFC and without the file extension."""
    return nfc(posixpath.splitext(path[len(folder) + 1 :])[0])
