"""Which kind of source an input is, by the names of what lies there. Only where that is safe."""

import fnmatch
import functools
import os
import re
from typing import Callable

from beam_pipelines.config.source_kinds import DEFAULT_SOURCE
from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.files import files_at, is_remote

# What the name of a file tells, in this order.
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
# What the names in a folder tell, in this order: any of them, for a file or a folder.
_FOLDERS = {
    "tfrecord": ("dataset_info.json", "manifest.json", *_FILES["tfrecord"]),
    "table": ("metadata.csv", "metadata.jsonl", "*.parquet"),
    "webdataset": _FILES["webdataset"],
    "coco": ("_annotations.coco.json",),
    "arrays": ("*.npz", "images.npy", "x.npy", "x_train.npy", "*-ubyte", "*-ubyte.gz", "data_batch_*.bin"),
}
_IMAGE_ENDS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".npy")
_IMAGE_FILES = tuple(f"*{end}" for end in _IMAGE_ENDS)
_CIFAR_100 = {"train.bin", "test.bin", "fine_label_names.txt"}
_IMAGES = {"images", "jpegimages", "img", "imgs"}
_MASKS = {"masks", "mask", "segmentationclass", "labels"}
_ANNOTATIONS = {"annotations"}


def guess_source(path: str) -> str:
    """The kind of source that an input is: one of `source_kinds.SOURCES`.

    Raises:
        UserError: It is a file, and none whose kind its name tells.
    """
    if not _is_folder(path):
        return _guess_file(path)
    folders, files = _look_into(path)
    for kind, patterns in _FOLDERS.items():
        if _any_match(files, patterns):
            return kind
    if _CIFAR_100 <= set(files):
        return "arrays"
    named = {name.lower() for name in folders}
    if named & _ANNOTATIONS and (kind := _guess_annotations(path, next(n for n in folders if n.lower() in _ANNOTATIONS))):
        return kind
    if named & _IMAGES and named & _MASKS and not named - _IMAGES - _MASKS - _ANNOTATIONS - {"imagesets", "segmentationobject"}:
        return "masks"
    if any(name.lower().endswith(".xml") for name in files):
        return "voc"
    if named <= _IMAGES and _are_tables(files):
        return "table"
    return _guess_split_folders(path, folders) or DEFAULT_SOURCE


def _guess_file(path: str) -> str:
    name = path.rpartition("/")[2]
    for kind, patterns in _FILES.items():
        if _any_match([name], patterns):
            return kind
    raise UserError(f"--input={printable(path)}: its name does not tell what it is; expected --source to say it")


def _guess_annotations(path: str, folder: str) -> str | None:
    _, files = _look_into(f"{path}/{folder}")
    if any(name.lower().endswith(".xml") for name in files):
        return "voc"
    return "coco" if _any_match(files, ("*.json",)) else None


def _are_tables(files: list[str]) -> bool:
    """Whether files are such as `part-0.csv`, and none is an image. (Notes beside class folders are no data set.)"""
    return not _any_match(files, _IMAGE_FILES) and _any_match(files, _FILES["table"])


def _guess_split_folders(path: str, folders: list[str]) -> str | None:
    """Split folders may hold what tells more than class folders."""
    num_tables = 0
    for folder in folders:
        below, files = _look_into(f"{path}/{folder}")
        num_tables += not below and _are_tables(files)
        if num_tables == len(folders):
            return "table"
        others = [name for name in files if not name.lower().endswith(_IMAGE_ENDS)]
        for kind in ("table", "coco"):
            if _any_match(others, _FOLDERS[kind]):
                return kind
        if any(name.lower().endswith(".xml") for name in others):
            return "voc"
        named = {name.lower() for name in below}
        if named & _IMAGES and named & _MASKS and len(named) == 2:
            return "masks"
    return None


def _is_folder(path: str) -> bool:
    return not files_at(path).exists(path) and any(files_at(path).top_level(path)) if is_remote(path) else os.path.isdir(path)


# Folders with more entries than this are class folders of images, or tell by their first names what they are.
_MAX_NAMES = 1000


def _look_into(path: str) -> tuple[list[str], list[str]]:
    """Names of the folders and of the files in a folder, without those that are hidden."""
    if is_remote(path):
        folders, files = files_at(path).top_level(path)
    else:
        folders, files = [], []
        with os.scandir(path) as entries:
            for entry, _ in zip(entries, range(100 * _MAX_NAMES)):
                (folders if entry.is_dir() else files).append(entry.name)
    shown = [sorted(name for name in names if not name.startswith(".")) for names in (folders, files)]
    return shown[0][:_MAX_NAMES], shown[1][:_MAX_NAMES]


def _any_match(names: list[str], patterns: tuple[str, ...]) -> bool:
    return bool(names) and any(map(_matcher(patterns), map(str.lower, names)))


@functools.cache
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """One for all of them: there are thousands of names."""
    return re.compile("|".join(fnmatch.translate(pattern.lower()) for pattern in patterns)).match
