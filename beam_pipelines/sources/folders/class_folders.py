"""Decides which of the folders above an image names its class, if class folders are nested.

| class folders | class |
| --- | --- |
| `cat/1.jpg` | `cat` |
| `animals/cat/1.jpg`, `plants/rose/1.jpg` | the whole path (`--class_folder_depth=all`) |
| `cat/session1/1.jpg`, `dog/session1/1.jpg`: inner names repeat, or are numbers | the first folder (`--class_folder_depth=1`), as in Keras and torchvision |
| `train/train/cat/1.jpg`, `test/test/cat/1.jpg`: a folder in each split folder | the folder in it (`--class_folder_depth=2`) |
| `yes/`, `no/`, `copy/yes/`, `copy/no/` | UserError: copies |
| `seg_train/`, `seg_test/`; `pets/train/`, `pets/test/`; `cat/train/`, `cat/test/` | UserError: splits |
| `images/`, `masks/`; `images/` alone | UserError: roles, not classes |
"""

import itertools
import posixpath
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Collection, Iterator, Mapping, NamedTuple, Sequence

from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.folders.file_listing import FileListing, join
from beam_pipelines.sources.splits import SPLIT_FOLDERS

ALL, LAST = "all", "last"

# Folders that are looked into, and of these at a time: on a disk each has to be read, in a store it takes a request.
_MAX_FOLDERS, _MAX_REMOTE_FOLDERS, _NUM_THREADS = 20_000, 512, 16
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Names of folders that divide the images of a class: session1, 2024-05-01, 007.
_NO_LABEL = re.compile(
    "(?:session|seq|sequence|clip|video|vid|part|batch|run|day|date|set|scan|subject|subj|patient|person|user|cam|camera|frames?|img|images?|"
    r"folder|dir|take|rec|shot|series|study|visit|group|fold|chunk|id|s|p)?[ _.-]?\d[\d _.:T-]*",
    re.IGNORECASE,
)
_IMAGE_WORDS = {"image", "images", "img", "imgs", "jpegimages", "input", "inputs"}
_MASK_WORDS = set("mask masks gt groundtruth label labels annotation annotations segmentation segmentations trimaps target targets".split())
_ROLES = {*_IMAGE_WORDS, "mask", "masks", "label", "labels", "annotation", "annotations"}


class Reading(NamedTuple):
    """A way to read class folders.

    Attributes:
        depth: The value of `--class_folder_depth`.
        why: The reason, for a message.
    """

    depth: str
    why: str


def label_of(folders: Sequence[str], depth: str | None) -> str | None:
    """Returns the class of an image in nested folders; None if there are too few of them.

    Args:
        folders: The names of the folders above an image, below the input or the split folder.
        depth: The value of `--class_folder_depth`; None: the whole path.
    """
    if not folders or depth in (None, ALL):
        return "/".join(folders) or None
    if depth == LAST:
        return folders[-1]
    return folders[int(depth) - 1] if len(folders) >= int(depth) else None


def find_class_folders(listing: FileListing, splits: Collection[str]) -> dict[str, set[str]]:
    """Finds the folders with files, relative to their split folder, by split folder; "" if there are no split folders.

    A bounded number of folders is looked into, and of a folder in a store the first page. `read_class_folders` is called again
    once all is listed.
    """
    limit = _MAX_REMOTE_FOLDERS if listing.is_remote else _MAX_FOLDERS
    found: dict[str, set[str]] = {split: set() for split in splits or [""]}
    level = [(split, "") for split in found]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        while level and limit > 0:
            looked = level[:limit]
            limit -= len(looked)
            level = []
            for (split, folder), names in zip(looked, pool.map(lambda one: listing.level(join(*one), is_short=True), looked)):
                if names.has_files and folder:
                    found[split].add(folder)
                level += [(split, join(folder, name)) for name in names.folders]
    return found


def read_class_folders(root: str, found: Mapping[str, Collection[str]], split_folders: bool | None = None) -> Reading | None:
    """Chooses how class folders are read; None if they are not nested.

    Args:
        root: The root of the source, for messages.
        found: Split folder, or "" -> the folders with images, relative to it.
        split_folders: The value of `--split_folders`; with `no`, folders named like splits are classes.

    Raises:
        UserError: The folders are splits, copies or roles rather than classes, or may be.
    """
    has_splits = "" not in found
    paths = sorted({path for some in found.values() for path in some})
    is_nested = any("/" in path for path in paths)
    if split_folders is False:
        return Reading(ALL, "--split_folders=no takes folders named like splits as classes") if is_nested else None
    children = _children(paths)
    _refuse_splits(root, paths, children, has_splits)
    if has_splits and (reading := _unwrap(found)):
        return reading
    _refuse_roles(root, paths, children)
    if not is_nested:
        return None
    _refuse_copies(root, children)
    depth = len(posixpath.commonpath(paths).split("/")) if posixpath.commonpath(paths) not in ("", *paths) else 0
    inner = defaultdict(set)
    for folders in (path.split("/")[depth:] for path in paths):
        for name in folders[1:]:
            inner[name].add(folders[0])
    if not inner:
        return Reading(ALL, "class folders are nested, and their inner names differ")
    repeated = sorted(name for name, outer in inner.items() if len(outer) > 1)
    if repeated:
        return Reading(str(depth + 1), f"folder {printable(repeated[0])!r} is in several class folders")
    if all(map(_NO_LABEL.fullmatch, inner)):
        return Reading(str(depth + 1), f"folders such as {printable(min(inner))!r} are not named like classes")
    return Reading(ALL, "class folders are nested, and their inner names differ")


def _children(paths: Sequence[str]) -> dict[str, set[str]]:
    """Folder -> the names of the folders in it."""
    children = defaultdict(set)
    for path in paths:
        folders = path.split("/")
        for above, name in zip(itertools.accumulate(folders, join, initial=""), folders):
            children[above].add(name)
    return children


def _refuse_splits(root: str, paths: Sequence[str], children: Mapping[str, set[str]], has_splits: bool) -> None:
    for folder in sorted(children):
        named = {name: split for name in sorted(children[folder]) for split in _splits_in(name)}
        if len(set(named.values())) < 2 or (has_splits and not folder):
            continue
        shown = " and ".join(repr(printable(join(folder, name))) for name in list(named)[:2])
        what = f"--input={printable(root)}: folders {shown} are named like splits. "
        if not folder and any(name in paths for name in named):
            raise UserError(
                f"{what}They hold images without class folders: name the file with the labels as --input, with --image_root={printable(root)}; "
                "or use --label=none without labels, or --class_folder_depth=1 if they are classes."
            )
        if not folder:
            raise UserError(f"{what}Say which they are: --split_folders=yes for splits, or --split_folders=no for classes.")
        if all(path.startswith(f"{folder}/") for path in paths):
            inside = f"{printable(root)}/{printable(folder)}"
            raise UserError(f"{what}Use --input={inside} to take them as splits, or --class_folder_depth=all to take each folder as a class.")
        raise UserError(
            f"{what}Use --class_folder_depth=1 to leave these names aside, or move the images to SPLIT/CLASS/IMAGE to take them as splits."
        )


def _splits_in(name: str) -> Iterator[str]:
    """The split that a folder is named after, if it is exactly one: `train` for `seg_train`, `TrainSet` and `train`."""
    splits = {SPLIT_FOLDERS[word] for word in map(str.lower, _WORDS.findall(name)) if word in SPLIT_FOLDERS}
    if len(splits) == 1:
        yield from splits


def _unwrap(found: Mapping[str, Collection[str]]) -> Reading | None:
    """The reading in which each split folder has a folder of another name around its class folders: `train/train/cat`."""
    tops = {split: {path.split("/")[0] for path in paths} for split, paths in found.items() if paths}
    is_nested = all("/" in path for paths in found.values() for path in paths)
    if is_nested and len(tops) > 1 and all(len(names) == 1 for names in tops.values()) and len(set.union(*tops.values())) > 1:
        split, names = min(tops.items())
        return Reading("2", f"split folder {printable(split)!r} has all its class folders in {printable(min(names))!r}")
    return None


def _refuse_roles(root: str, paths: Sequence[str], children: Mapping[str, set[str]]) -> None:
    words = {name: {word.lower() for word in _WORDS.findall(name)} for name in sorted(children[""])}
    images = [name for name in words if words[name] & _IMAGE_WORDS]
    masks = [name for name in words if words[name] & _MASK_WORDS and name not in images]
    if images and masks:
        raise UserError(
            f"--input={printable(root)}: folders {printable(images[0])!r} and {printable(masks[0])!r} look like images and their masks, and not "
            "like classes. Use --source=masks for folders called images and masks, --source=voc or --source=coco for annotations, or "
            "--class_folder_depth=1 if they are classes."
        )
    if len(paths) == 1 and paths[0].lower() in _ROLES:
        raise UserError(
            f"--input={printable(root)}: the one class folder {printable(paths[0])!r} is not named like a class. Use --label=none for images "
            "without labels, or --class_folder_depth=1 if it is a class."
        )


def _refuse_copies(root: str, children: Mapping[str, set[str]]) -> None:
    for folder in sorted(children):
        above = folder
        while above:
            above = posixpath.dirname(above)
            common = sorted(children[folder] & children[above])
            if len(common) > 1:
                raise UserError(
                    f"--input={printable(root)}: folders {printable(common[0])!r} and {printable(common[1])!r} are in {printable(above or root)!r} "
                    f"and again in {printable(folder)!r}. Use --ignore='{printable(folder)}' if it holds copies, --class_folder_depth=last to "
                    "join folders of one name, or --class_folder_depth=all to keep them apart."
                )
