"""Guesses the source kind of an input from the names of files and folders."""

import fnmatch
import functools
import itertools
import os
import re
from typing import Callable, NamedTuple

from beam_pipelines.config.source_kinds import DEFAULT_SOURCE, SOURCES
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.label_files import recognise
from beam_pipelines.sources.files.other_files import is_ignored
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at, is_remote

# Kind -> patterns of file names, in order of precedence.
_FILES = {
    "table": ("*.csv", "*.tsv", "*.jsonl", "*.ndjson", "*.parquet", "*.csv.gz", "*.tsv.gz", "*.jsonl.gz", "*.ndjson.gz"),
    "coco": ("*.json",),
    "webdataset": ("*.tar", "*.tar.gz", "*.tgz"),
    "tfrecord": (
        *("*.tfrecord", "*.tfrecords", "*.tfrecord.gz", "*.tfrecords.gz", "*.tfrec", "*.record"),
        *("*.array_record*", "*.arrayrecord*"),
        *("*.tfrecord-*-of-*", "*-of-[0-9][0-9][0-9][0-9][0-9]", "*-of-[0-9][0-9][0-9][0-9][0-9][0-9]"),
    ),
    "arrays": ("*.npz", "*.npy", "*-ubyte", "*-ubyte.gz", "data_batch_*.bin", "test_batch.bin"),
    "text": ("*.txt", "*.lst"),
}
# Kind -> patterns of names in a folder, in order of precedence. One match is enough.
_FOLDERS = {
    "tfrecord": ("dataset_info.json", "manifest.json", *_FILES["tfrecord"]),
    "table": ("metadata.csv", "metadata.jsonl", "_annotations.csv", "*.parquet"),
    "webdataset": _FILES["webdataset"],
    "coco": ("_annotations.coco.json",),
    "arrays": ("*.npz", "images.npy", "x.npy", "x_train.npy", "*-ubyte", "*-ubyte.gz", "data_batch_*.bin"),
}
_IMAGE_ENDS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".heic", ".heif")
_CIFAR_100 = {"train.bin", "test.bin", "fine_label_names.txt"}
_IMAGES = {"images", "jpegimages", "img", "imgs"}
_MASKS = {"masks", "mask", "segmentationclass", "labels"}
_ANNOTATIONS = {"annotations"}


def guess_source(path: str) -> str:
    """Guesses the source kind of an input, which is one of `source_kinds.SOURCES`.

    Raises:
        UserError: The input is a file of an unknown format, or has labels in an unsupported format.
    """
    if not _is_folder(path):
        return _guess_file(path)
    names = _list_names(path)
    for kind, patterns in _FOLDERS.items():
        if _any_match(names.files, patterns):
            return "webdataset" if kind == "table" and _describes_tars(names.files) else kind
    if _CIFAR_100 <= set(names.files):
        return "arrays"
    named = {name.lower() for name in names.folders}
    if named & _ANNOTATIONS and (kind := _guess_annotations(path, next(n for n in names.folders if n.lower() in _ANNOTATIONS))):
        return kind
    if named & _IMAGES and named & _MASKS and not named - _IMAGES - _MASKS - _ANNOTATIONS - {"imagesets", "segmentationobject"}:
        return "masks"
    if names.has_annotations:
        return _check_annotations(path, names)
    if named <= _IMAGES and names.are_tables:
        return "table"
    return _guess_split_folders(path, names.folders) or DEFAULT_SOURCE


def _describes_tars(names: list[str]) -> bool:
    """Returns whether there is a tar file of the same name for each Parquet file, as in the output of img2dataset."""
    tables = [name for name in names if _any_match([name], _FOLDERS["table"])]
    return all(name.endswith(".parquet") and f"{name.removesuffix('.parquet')}.tar" in names for name in tables)


def _guess_file(path: str) -> str:
    name = path.rpartition("/")[2]
    for kind, patterns in _FILES.items():
        if _any_match([name], patterns):
            return _check_format(path, kind) if kind in ("coco", "text") else kind
    if name.lower().endswith(_IMAGE_ENDS):
        raise UserError(
            f"--input={printable(path)}: is an image. Name the folder of its class folder, or a file that lists images."
        )
    _check_format(path, "")
    raise UserError(f"--input={printable(path)}: unknown format. Name it with --source: {', '.join(SOURCES)}.")


def _check_format(path: str, kind: str) -> str:
    """Returns `kind`, or raises `UserError` if the first bytes of a file contradict this kind.

    Raises:
        UserError: The file has another format.
    """
    known = recognise(path)
    if known and not (kind and known.is_read):
        raise UserError(f"--input={printable(path)}: looks like {known.name}. {known.advice}")
    return kind


def _guess_annotations(path: str, folder: str) -> str | None:
    names = _list_names(f"{path}/{folder}")
    if names.has_annotations:
        return _check_annotations(f"{path}/{folder}", names)
    has_json = _any_match(names.files, ("*.json",))
    return _check_annotations(f"{path}/{folder}", names, ".json", "coco") if has_json else None


def _check_annotations(folder: str, entry_names: "_Names", end: str = ".xml", kind: str = "voc") -> str:
    """Returns `kind`, or raises `UserError` if the folder's first annotation file has an unsupported format."""
    return _check_format(f"{folder}/{next(name for name in entry_names.files if name.lower().endswith(end))}", kind)


def _guess_split_folders(path: str, folders: list[str]) -> str | None:
    """Guesses the source kind from the contents of split folders, or returns None if the kind is unclear.

    If a folder does not have the name of a split, the search stops at the first image, because the folder must be a
    class folder.
    """
    num_tables = 0
    for folder in folders:
        names = _list_names(f"{path}/{folder}", until_image=folder.lower() not in SPLIT_FOLDERS)
        if names is None:
            continue
        num_tables += not names.folders and names.are_tables
        if num_tables == len(folders):
            return "table"
        for kind in ("table", "coco"):
            if _any_match(names.files, _FOLDERS[kind]):
                return kind
        if names.has_annotations:
            return "voc"
        named = {name.lower() for name in names.folders}
        if named & _IMAGES and named & _MASKS and len(named) == 2:
            return "masks"
    return None


def _is_folder(path: str) -> bool:
    return not files_at(path).exists(path) and any(files_at(path).top_level(path)) if is_remote(path) else os.path.isdir(path)


# Limits for one folder: entries to read, and names to keep. A folder with more entries has the images of a class.
_MAX_ENTRIES, _MAX_NAMES = 100_000, 1000


class _Names(NamedTuple):
    """The names of the files and folders in a folder, except hidden names.

    Attributes:
        folders: The names of the folders, sorted.
        files: The names of the files that are not images, sorted.
        has_images: Whether there are images.
    """

    folders: list[str]
    files: list[str]
    has_images: bool

    @property
    def are_tables(self) -> bool:
        """Whether the folder contains table files, but no images or arrays. Tables next to images may be notes."""
        return not self.has_images and not _any_match(self.files, ("*.npy",)) and _any_match(self.files, _FILES["table"])

    @property
    def has_annotations(self) -> bool:
        """Whether the folder contains XML files, as in Pascal VOC."""
        return any(name.lower().endswith(".xml") for name in self.files)


def _list_names(path: str, until_image: bool = False) -> _Names | None:
    """Returns the names in a folder. If `until_image` is true, the result is None for a folder that contains an
    image."""
    names = _visible_names(*files_at(path).top_level(path)) if is_remote(path) else _scan(path, until_image)
    return None if until_image and names.has_images else names


def _scan(path: str, until_image: bool) -> _Names:
    names, has_images = ([], []), False
    with os.scandir(path) as entries:
        for entry in itertools.islice(entries, _MAX_ENTRIES):
            # Skip is_dir() for image names, because a folder may have a million of them.
            if not entry.name.endswith(_IMAGE_ENDS) or entry.name[0] == ".":
                names[entry.is_dir()].append(entry.name)
                continue
            has_images = True
            if until_image:
                break
    return _visible_names(names[True], names[False], has_images)


def _visible_names(folders: list[str], files: list[str], has_images: bool = False) -> _Names:
    shown = [sorted(name for name in names if not is_ignored(name, is_folder=True)) for names in (folders, files)]
    others = [name for name in shown[1] if not name.lower().endswith(_IMAGE_ENDS)]
    return _Names(shown[0][:_MAX_NAMES], others[:_MAX_NAMES], has_images or len(others) < len(shown[1]))


def _any_match(names: list[str], patterns: tuple[str, ...]) -> bool:
    return bool(names) and any(map(_matcher(patterns), map(str.lower, names)))


@functools.cache
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Combines several patterns into one function that matches names quickly."""
    return re.compile("|".join(fnmatch.translate(pattern.lower()) for pattern in patterns)).match
