"""Decides which folder in the path of an image is its class, if class folders are nested."""

import itertools
import posixpath
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Collection, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.paths import join
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at

ALL, LAST = "all", "last"

# Limits for the search. Each folder takes a read on a disk, and a request to an object store.
_MAX_FOLDERS, _MAX_REMOTE_FOLDERS, _NUM_THREADS = 20_000, 512, 16
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Names of folders that subdivide the images of a class: session1, 2024-05-01, 007.
_NO_LABEL = re.compile(
    "(?:session|seq|sequence|clip|video|vid|part|batch|run|day|date|set|scan|subject|subj|patient|person|user|"
    "cam|camera|frames?|img|images?|"
    r"folder|dir|take|rec|shot|series|study|visit|group|fold|chunk|id|s|p)?[ _.-]?\d[\d _.:T-]*",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d{1,3}")  # either a class, or a folder that subdivides a class
_IMAGE_WORDS = {"image", "images", "img", "imgs", "jpegimages", "input", "inputs"}
_MASK_WORDS = {
    *("mask", "masks", "gt", "groundtruth", "label", "labels", "annotation", "annotations"),
    *("segmentation", "segmentations", "trimaps", "target", "targets"),
}
_MASK_END = re.compile("[ _-](?:masks?|gt|seg|segmentation|label)$", re.IGNORECASE)
_MAX_LETTERS = 3  # maximum number of letters, besides the class name, in the name of a folder that subdivides a class
_MAX_ROLES = 8  # maximum number of folders that may be images and masks; more folders are read as classes
# Two of at most 4 class folders are images and their masks if 3 pairs of files have equal names, and the masks have at
# most 32 distinct values.
_MAX_PAIRED, _MIN_PAIRS, _MAX_VALUES = 4, 3, 32
_ROLES = {*_IMAGE_WORDS, "mask", "masks", "label", "labels", "annotation", "annotations"}


class Reading(NamedTuple):
    """An interpretation of nested folders.

    Attributes:
        depth: The value of `--class_folder_depth`.
        why: The reason, for a message.
    """

    depth: str
    why: str


def label_of(folders: Sequence[str], depth: str | None) -> str | None:
    """Returns the class of an image in nested folders, or None if the image has too few parent folders.

    Args:
        folders: The names of the image's parent folders below the input folder or the split folder.
        depth: The value of `--class_folder_depth`. If it is None, the class is the whole path.
    """
    if not folders or depth in (None, ALL):
        return "/".join(folders) or None
    if depth == LAST:
        return folders[-1]
    return folders[int(depth) - 1] if len(folders) >= int(depth) else None


def find_class_folders(listing: FileListing, splits: Collection[str]) -> dict[str, set[str]]:
    """Returns a mapping from split folders to the subfolders that contain files. Without split folders, the only key is
    "".

    To limit the time, only a part of a large tree is read. After the complete listing, the folders are checked again.
    """
    limit = _MAX_REMOTE_FOLDERS if listing.is_remote else _MAX_FOLDERS
    folders_by_split: dict[str, set[str]] = {split: set() for split in splits or [""]}
    level = [(split, "") for split in folders_by_split]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        while level and limit > 0:
            looked = level[:limit]
            limit -= len(looked)
            level = []
            levels = pool.map(lambda item: listing.level(join(*item), is_short=True), looked)
            for (split, folder), names in zip(looked, levels):
                if names.has_files and folder:
                    folders_by_split[split].add(folder)
                level += [(split, join(folder, name)) for name in names.folders]
    return folders_by_split


def read_class_folders(
    root: str, folders_by_split: Mapping[str, Collection[str]], split_folders: bool | None = None
) -> Reading | None:
    """Determines which level of nested folders corresponds to classes, or returns None if class folders are not nested.

    Args:
        root: The root of the source, for messages.
        folders_by_split: The return value of `find_class_folders`.
        split_folders: The value of `--split_folders`. With `no`, folders that are named like splits are classes.

    Raises:
        UserError: Folders seem to be splits, copies of other folders, or images and masks, instead of classes.
    """
    paths = sorted({path for some in folders_by_split.values() for path in some})
    is_nested = any("/" in path for path in paths)
    if split_folders is False:
        return Reading(ALL, "--split_folders=no reads folders named like splits as classes") if is_nested else None
    if "" not in folders_by_split and (reading := _unwrap(folders_by_split)):
        return reading
    if problem := next(_problems(printable(root), folders_by_split, paths), None):
        raise UserError(f"--input={printable(root)}: {problem}")
    return _choose(root, paths) if is_nested else None


def _problems(root: str, folders_by_split: Mapping[str, Collection[str]], paths: Sequence[str]) -> Iterator[str]:
    """Yields messages about folders that do not seem to be classes."""
    for split, some in sorted(folders_by_split.items()):
        children = _children(some)
        yield from _split_problems(root, split, some, children)
        yield from _copy_problems(root, split, children)
    yield from _role_problems(paths)
    tops = {split: {path.split("/")[0] for path in paths} for split, paths in folders_by_split.items() if paths}
    without = sorted(split for split, names in tops.items() if len(names) == 1 and names <= _IMAGE_WORDS)
    if without and len(without) < len(tops):
        yield (
            f"{printable(join(without[0], min(tops[without[0]])))!r} contains the images of a split without class folders. Move each "
            f"image to a path of the form SPLIT/CLASS/IMAGE, or leave the split out with --ignore='{printable(without[0])}'."
        )


def _choose(root: str, paths: Sequence[str]) -> Reading:
    above = posixpath.commonpath(paths)
    depth = len(above.split("/")) if above and above not in paths else 0
    inner = defaultdict(set)  # name of a folder -> the top folders that contain it
    for folders in (path.split("/")[depth:] for path in paths):
        for name in folders[1:]:
            inner[name].add(folders[0])
    classes = sorted({path.split("/")[depth] for path in paths})
    shown = ", ".join(repr(printable(name)) for name in classes[:3]) + (", …" if len(classes) > 3 else "")
    if repeated := sorted(name for name, outer in inner.items() if len(outer) > 1):
        seconds = {path.split("/")[depth + 1] for path in paths if path.count("/") > depth}
        may_be_classes = any(_DIGITS.fullmatch(name) or not _NO_LABEL.fullmatch(name) for name in seconds)
        if may_be_classes and len(seconds) > 1 and all(map(_NO_LABEL.fullmatch, classes)):
            raise UserError(
                f"--input={printable(root)}: class folders are nested, such as {printable(min(seconds))!r} in {printable(classes[0])!r}. "
                f"Use --class_folder_depth={depth + 1} if the outer folders are the classes, or --class_folder_depth={depth + 2} if the "
                "inner folders are."
            )
        return Reading(str(depth + 1), f"{printable(repeated[0])!r} is in several of the class folders {shown}")
    if inner and all(_divides(name, outer) for name, (outer,) in inner.items()):
        return Reading(str(depth + 1), f"folders such as {printable(min(inner))!r} divide the images of the classes {shown}")
    return Reading(ALL, "class folders are nested, and the whole path is the class")


def _divides(name: str, outer: str) -> bool:
    """Returns whether the folder `name`, such as `session1`, only subdivides the images of the class folder `outer`."""
    rest = name.casefold().replace(outer.casefold(), "")
    has_outer, has_number = len(rest) < len(name), any(map(str.isdecimal, rest))
    is_short = sum(map(str.isalpha, rest)) <= _MAX_LETTERS
    return (has_outer and has_number and is_short) or bool(_NO_LABEL.fullmatch(name))


def _children(paths: Collection[str]) -> dict[str, set[str]]:
    """Returns a mapping from each folder to the names of its subfolders."""
    children = defaultdict(set)
    for path in paths:
        folders = path.split("/")
        for above, name in zip(itertools.accumulate(folders, join, initial=""), folders):
            children[above].add(name)
    return children


def _split_problems(root: str, split: str, paths: Collection[str], children: Mapping[str, set[str]]) -> Iterator[str]:
    for folder in sorted(children):
        named = {name: meant for name in sorted(children[folder]) for meant in _splits_in(name)}
        exact = {SPLIT_FOLDERS[name.lower()] for name in named if name.lower() in SPLIT_FOLDERS}
        is_top, inside = not folder and not split, printable(join(split, folder))
        are_most = len(set(named.values())) > 1 and 2 * len(named) >= len(children[folder])
        if not (are_most or len(exact) > 1 or (exact - {"train"} and not is_top)):
            continue
        shown = " and ".join(repr(printable(join(join(split, folder), name))) for name in list(named)[:2])
        if is_top and any(name in paths for name in named):
            advice = (
                "They contain images without class folders. If a file contains the labels, pass it as "
                f"--input, with --image_root={root}. If there are no labels, pass --label=none. If the "
                "folders are classes, pass --class_folder_depth=1."
            )
        elif is_top:
            advice = "Pass --split_folders=yes if they are splits, or --split_folders=no if they are classes."
        elif not split and all(path.startswith(f"{folder}/") for path in paths):
            advice = f"Pass --input={root}/{inside} if they are splits, or --class_folder_depth=all if each folder is a class."
        else:
            advice = (
                f"If {inside!r} contains copies, exclude it with --ignore='{inside}'. If the folders are splits, move the images to "
                "SPLIT/CLASS/IMAGE. Otherwise, pass --class_folder_depth=1 to ignore the inner names."
            )
        yield f"folders are named like splits: {shown}. {advice}"


def _splits_in(name: str) -> Iterator[str]:
    """Yields the split that the name of a folder indicates, if any, such as `train` for `seg_train` or `TrainSet`."""
    splits = {SPLIT_FOLDERS[word] for word in words_of(name) if word in SPLIT_FOLDERS}
    if len(splits) == 1:
        yield from splits


def _unwrap(folders_by_split: Mapping[str, Collection[str]]) -> Reading | None:
    """Detects an additional folder level between split folders and class folders, as in `train/train/cat`."""
    tops = {split: {path.split("/")[0] for path in paths} for split, paths in folders_by_split.items() if paths}
    is_nested = any(paths and all("/" in path for path in paths) for paths in folders_by_split.values())
    are_single = len(tops) > 1 and all(len(names) == 1 for names in tops.values())
    if is_nested and are_single and len(set.union(*tops.values())) > 1:
        split, names = min(tops.items())
        return Reading("2", f"split folder {printable(split)!r} has all its class folders in {printable(min(names))!r}")
    return None


def _role_problems(paths: Sequence[str]) -> Iterator[str]:
    words = {name: words_of(name) for name in sorted({path.split("/")[0] for path in paths})}
    images = [name for name in words if words[name] & _IMAGE_WORDS]
    masks = [name for name in words if words[name] & _MASK_WORDS and name not in images]
    yield from (_are_masks(other, name) for name in masks for other in words if name != other and _is_pair(words[other], words[name]))
    if images and masks and len(words) <= _MAX_ROLES:
        yield _are_masks(images[0], masks[0])
    if len(paths) == 1 and paths[0].lower() in _ROLES:
        yield (
            f"the only class folder {printable(paths[0])!r} is not named like a class. Pass --label=none if the images have no labels, "
            "--label_pattern=REGEX if the names of the files contain the classes, or --class_folder_depth=1 if it is a class."
        )


def words_of(name: str) -> set[str]:
    """Splits the name of a folder into words in lower case."""
    return {word.lower() for word in _WORDS.findall(name)}


def names_labels(folder: str) -> bool:
    """Returns whether the name of a folder is typical for masks, labels or annotations."""
    return bool(words_of(folder.rpartition("/")[2]) & _MASK_WORDS)


def _is_pair(image: set[str], mask: set[str]) -> bool:
    """Returns whether two folder names differ only in words for images and masks, such as `cells` and `cells_mask`."""
    return mask - _MASK_WORDS == image - _IMAGE_WORDS != set() and not image & _MASK_WORDS


def _are_masks(images: str, masks: str) -> str:
    return (
        f"folders {printable(images)!r} and {printable(masks)!r} look like images and their "
        "masks, not like classes. Use --source=masks for folders called images and masks, or --source=voc or "
        "--source=coco for annotations. If they are classes, pass --class_folder_depth=1."
    )


def reject_mask_folders(listing: FileListing, root: str, folders: Sequence[str]) -> None:
    """Raises `UserError` if a class folder seems to contain masks for the images in another class folder. Checks
    nothing if there are more than four class folders."""
    if not 2 <= len(folders) <= _MAX_PAIRED:
        return
    names = {folder: {_stem(name): name for name in listing.top_level(folder, is_short=True)[1]} for folder in folders}
    for images, masks in itertools.permutations(folders, 2):
        common = sorted(names[images].keys() & names[masks].keys())
        if len(common) < _MIN_PAIRS or len(common) < 0.9 * min(len(names[images]), len(names[masks])):
            continue
        first = common[:_MIN_PAIRS]
        pairs = [[f"{root}/{folder}/{names[folder][stem]}" for folder in (images, masks)] for stem in first]
        if all(_has_few_values(mask) and not _has_few_values(image) for image, mask in pairs):
            raise UserError(f"--input={printable(root)}: {_are_masks(images, masks)}")


def _stem(name: str) -> str:
    return _MASK_END.sub("", name.rpartition(".")[0])


def _has_few_values(path: str) -> bool:
    """Returns whether an image has so few distinct pixel values that it may be a mask."""
    try:
        return len(np.unique(read_mask(files_at(path).read(path)))) <= _MAX_VALUES
    except (InvalidInput, OSError):
        return False


def _copy_problems(root: str, split: str, children: Mapping[str, set[str]]) -> Iterator[str]:
    for folder in sorted(children):
        above = folder
        while above:
            above = posixpath.dirname(above)
            common = sorted(children[folder] & children[above])
            if len(common) > 1:
                inside, outside = printable(join(split, folder)), printable(join(split, above)) or root
                yield (
                    f"pass --ignore='{inside}' if {inside!r} contains copies: the folders {printable(common[0])!r} and "
                    f"{printable(common[1])!r} are in {outside!r} and again in {inside!r}. Otherwise, pass --class_folder_depth=last to "
                    "merge folders with the same name, or --class_folder_depth=all to read them as different classes."
                )
