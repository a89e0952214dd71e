"""Finds folders of images and folders of masks by their names, such as `train_images` and `train_masks`."""

import posixpath
import re
from typing import Collection, NamedTuple, Sequence

from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.paths import is_image_name, join, nfc
from beam_pipelines.sources.files.label_files import recognise
from beam_pipelines.sources.files.layouts import name_splits, no_split_folders
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.input_names import InputNames

# Words in the names of folders of images and of masks, most specific first.
_IMAGE_WORDS = ("jpegimages", "images", "image", "imgs", "img", "leftimg8bit", "input", "inputs")
_MASK_WORDS = (
    *("segmentationclass", "gtfine", "masks", "mask", "labels", "label", "annotations", "annotation", "annots", "annot"),
    *("groundtruth", "gt"),
)
_CITYSCAPES = "leftimg8bit"
_INNER_MASK_FOLDERS = ("trimaps",)
_SUFFIXES = ("_mask", "_masks", "_segmentation", "_seg", "_gt", "_label", "_labels", "_L")
_IMAGE_SUFFIX = re.compile("_leftImg8bit$|_sat$")  # Cityscapes and DeepGlobe: the names of masks lack it
# Names in lower case of folders that VOC has beside its images and masks. Other formats also have `annotations`.
_OTHERS = {"annotations", "imagesets", "segmentationobject"}


class Pair(NamedTuple):
    """A folder of images with the folder of their masks.

    Attributes:
        images: The folder of images, relative to the root.
        masks: The folder of masks. Equal to `images` if masks are beside their images, and None if there are no masks.
        split: The split of the images.
        lists: The folder that may contain `ImageSets`, the lists of the images in each split; None if it is not read.
    """

    images: str
    masks: str | None
    split: str | None
    lists: str | None


def stem_in(folder: str, path: str) -> str:
    """Returns the path of a file relative to `folder`, in NFC and without the file extension."""
    return nfc(posixpath.splitext(path[len(folder) + 1 if folder else 0 :])[0])


def mask_suffixes(pair: Pair, suffix: str) -> tuple[str, ...]:
    """Returns the possible suffixes of the names of masks, given the value of `--mask_suffix`. "" means that a mask may
    have the name of its image."""
    if suffix:
        return (suffix,)
    if _CITYSCAPES in pair.images.lower().split("/"):
        return ("_gtFine_labelIds",)
    return _SUFFIXES if pair.images == pair.masks else ("", *_SUFFIXES)


def shared_stem(image: str) -> str:
    """Removes a suffix that mask names lack, such as `_sat`, from the name of an image without extension."""
    return _IMAGE_SUFFIX.sub("", image)


def recognise_pair(folder: InputNames, is_top: bool) -> str:
    """Returns the names of an image folder and a mask folder in `folder`, or the name of a mask beside its image.
    Returns "" if there are no masks."""
    if mask := _mask_beside(folder.images, _SUFFIXES):
        return mask
    found = _pair_names(folder.folders)
    pairs = [pair for pair in found if pair[1].lower() not in _OTHERS or _has_inner_masks(folder, pair[1])]
    used = {name.lower() for pair in pairs for name in pair[:2]}
    others = {name.lower() for name in folder.folders} - used - (_OTHERS if is_top else set())
    if not pairs or others - ({*SPLIT_FOLDERS} if pairs[0][2] else set()) or folder.find("*.xml"):
        return ""
    return f"{pairs[0][0]}/, {pairs[0][1]}/" if _may_be_masks(folder.folder(pairs[0][1].lower())) else ""


def find_pairs(files: FileListing, root: str, split_folders: bool | None, suffix: str) -> list[Pair]:
    """Returns the folders of images and masks below the root. The arguments `split_folders` and `suffix` are the values
    of `--split_folders` and `--mask_suffix`. Raises `UserError` if there are no pairs, a folder is a link, or the
    splits that options require are missing."""
    finder = _PairFinder(files, root, split_folders, (suffix,) if suffix else _SUFFIXES)
    pairs = finder.find("")
    if split_folders and any(pair.split is None for pair in pairs):
        raise no_split_folders(root, "has images directly in its folder of images")
    if not pairs:
        below = {folder: finder.find(folder) for folder in files.top_level()[0]}
        if any(below.values()):
            alone = [name for name, found in below.items() if not found and finder.has_images_of_split(name)]
            below |= {name: [Pair(name, None, None, None)] for name in alone}
        splits = name_splits(root, [folder for folder in below if below[folder]], split_folders)
        pairs = [pair._replace(split=split or pair.split) for folder, split in splits.items() for pair in below[folder]]
    if not pairs:
        raise UserError(
            f"--input={root}: contains no folders of images and masks. Call the folders images/ and masks/. If masks "
            "are beside their images, give the end of their names with --mask_suffix, such as --mask_suffix _mask."
        )
    return pairs


class _PairFinder(NamedTuple):
    files: FileListing
    root: str
    split_folders: bool | None
    suffixes: tuple[str, ...]

    def find(self, parent: str) -> list[Pair]:
        """Returns the pairs of folders in `parent`, or `parent` itself if it has images and masks."""
        folders, names = self.files.top_level(parent)
        pairs = _pair_names(folders)
        if not pairs:
            if not _mask_beside(names, self.suffixes):
                return []
            parent = self.files.take_folder(parent) if parent else parent
            return [Pair(parent, parent, None, None)]
        if not pairs[0][2]:
            return self._plain_pair(parent, *pairs[0][:2])
        splits = name_splits(self.root, [rest for _, _, rest in pairs], self.split_folders)
        found = [Pair(self._take(parent, images), self._take(parent, masks), splits[rest], None) for images, masks, rest in pairs]
        for pair in found:
            self._check_masks(pair.masks)
        if any(splits.values()):
            used = {name for pair in pairs for name in pair[:2]}
            alone = {name.lower(): name for name in folders if name not in used}
            alone |= {rest: alone[name] for rest, name in _rests(alone, _IMAGE_WORDS).items()}
            named = [name for name in sorted(alone) if name in SPLIT_FOLDERS]
            found += [Pair(self._take(parent, alone[name]), None, SPLIT_FOLDERS[name], None) for name in named]
        return found

    def has_images_of_split(self, folder: str) -> bool:
        """Returns whether a folder is named like a split and contains images."""
        return self.split_folders is not False and folder.lower() in SPLIT_FOLDERS and any(map(is_image_name, self.files.top_level(folder)[1]))

    def _take(self, parent: str, name: str) -> str:
        return self.files.take_folder(join(parent, name))

    def _plain_pair(self, parent: str, images: str, masks: str) -> list[Pair]:
        """Returns the pair of an image folder and a mask folder, or the pairs of their split folders."""
        images, masks = self._take(parent, images), self._take(parent, masks)
        mask_folders, _ = self.files.top_level(masks)
        if inner := next((name for name in mask_folders if name.lower() in _INNER_MASK_FOLDERS), None):
            masks = self._take(masks, inner)
            mask_folders, _ = self.files.top_level(masks)
        self._check_masks(masks)
        image_folders, image_names = self.files.top_level(images)
        splits = name_splits(self.root, image_folders, self.split_folders) if image_folders and not image_names else {}
        if not any(splits.values()):
            return [Pair(images, masks, None, None if self.split_folders is False else parent)]
        return [
            Pair(self._take(images, name), self._take(masks, name) if name in mask_folders else None, split, None)
            for name, split in splits.items()
        ]

    def _check_masks(self, folder: str) -> None:
        """Raises `UserError` if a mask folder or its first subfolder contains label files instead of mask images."""
        folders, names = self.files.top_level(folder)
        if folders and not names:
            folder = join(folder, folders[0])
            _, names = self.files.top_level(folder)
        if names and not any(map(is_image_name, names)):
            path = join(folder, names[0])
            if known := recognise(f"{self.root}/{path}"):
                raise UserError(f"--input={self.root}: {printable(path)} looks like {known.name}, not like a mask. {known.advice}")


def _mask_beside(names: Collection[str], suffixes: Sequence[str]) -> str:
    """Returns the name of the first mask that is beside its image, or ""."""
    stems = {posixpath.splitext(nfc(name))[0]: name for name in names if is_image_name(name)}
    images = set(map(shared_stem, stems))
    masks = (stems[stem] for stem in sorted(stems) for suffix in suffixes if stem.endswith(suffix) and stem.removesuffix(suffix) in images)
    return next(masks, "")


def _pair_names(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Returns pairs of an image folder and a mask folder, each with the part that both names share: `train` for
    `train_images` and `train_masks`, and "" for `images` and `masks`. If there are pairs that share "", only these
    pairs are returned."""
    by_name = {name.lower(): name for name in reversed(names)}
    images, masks = _rests(by_name, _IMAGE_WORDS), _rests(by_name, _MASK_WORDS)
    pairs = []
    for rest, mask in sorted(masks.items()):
        image = images.get(rest, rest if rest in by_name else None)
        if image is not None and image != mask:
            pairs.append((by_name[image], by_name[mask], rest and by_name.get(rest, rest)))
    return [pair for pair in pairs if not pair[2]] or pairs


def _rests(names: Collection[str], words: Sequence[str]) -> dict[str, str]:
    """Removes a word in `words` from each name, and returns a mapping from the remaining part to the name. Earlier
    words take precedence. A remaining part such as `isic2018_task1_training` is shortened to the name of its split,
    `training`, if no other part contains this name."""
    found: dict[str, tuple[int, str]] = {}
    pattern = re.compile(rf"(?:(?P<before>.+?)[ ._-]?)??(?P<last>{'|'.join(words)})|(?P<first>{'|'.join(words)})[ ._-](?P<after>.+)")
    for name in sorted(names):
        if match := pattern.fullmatch(name):
            rest = match["before"] or match["after"] or ""
            rank = words.index(match["last"] or match["first"]), name
            found[rest] = min(found.get(rest, rank), rank)
    splits = {rest: [word for word in re.split("[ ._-]", rest) if word in SPLIT_FOLDERS] for rest in found}
    num = [word for some in splits.values() for word in some]
    return {splits[rest][0] if len(splits[rest]) == 1 == num.count(splits[rest][0]) else rest: name for rest, (_, name) in found.items()}


def _has_inner_masks(parent: InputNames, folder: str) -> bool:
    masks = parent.folder(folder.lower())
    return any(inner.has_images for name in (*_INNER_MASK_FOLDERS, *SPLIT_FOLDERS) if (inner := masks.folder(name)))


def _may_be_masks(folder: InputNames) -> bool:
    """Returns whether a folder, or its first subfolder, contains images or a subfolder with a usual name for masks."""
    if folder.has_images or any(map(folder.folder, _INNER_MASK_FOLDERS)):
        return True
    return not folder.files and bool(folder.folders) and _may_be_masks(folder.folder(folder.folders[0].lower()))
