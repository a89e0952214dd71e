"""Recognises YOLO datasets by a dataset file or by the content of a label file."""

from typing import Iterator

from beam_pipelines.sources.files.label_files import YOLO_LABELS, recognise
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS
from beam_pipelines.sources.formats.yolo.find_dataset import DATASET_ENDS, is_dataset_head
from beam_pipelines.sources.formats.yolo.image_groups import LABEL_FOLDERS
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.storage.files import is_remote

_PATTERNS = tuple(f"*{end}" for end in DATASET_ENDS)
_NUM_PROBED = 20  # number of label files to read, because label files of images without objects are empty


def recognise_yolo(names: InputNames) -> Recognition | None:
    """Returns the recognition of a YOLO dataset with its reason, or None if the input does not look like one."""
    if not names.is_folder:
        is_dataset = names.find(*_PATTERNS) and is_dataset_head(names.name, names.head())
        return Recognition(names.name, Certainty.MARKER) if is_dataset else None
    for name in names.files:
        is_dataset = name.lower().endswith(DATASET_ENDS) and is_dataset_head(name, names.head(name))
        if is_dataset and not _has_class_folders(names):
            return Recognition(name, Certainty.MARKER)
    for folder in (names, *names.below):
        for labels in _label_folders(folder):
            if name := _find_labels(labels):
                return Recognition(f"{labels.name}/{name}", Certainty.MARKER)
    return None


def _has_class_folders(names: InputNames) -> bool:
    """Returns whether a split folder contains only class folders, as in Ultralytics' classification datasets."""
    split = names.folder("train", "val", "valid", "test")
    return bool(split and split.folders and not split.has_images and not split.folder(*IMAGE_FOLDERS, *LABEL_FOLDERS))


def _label_folders(folder: InputNames) -> Iterator[InputNames]:
    """Yields the folders that may contain label files: `labels`, the first folder in `labels`, and folders with images."""
    labels = folder.folder(*LABEL_FOLDERS)
    if labels and (folder.folder(*IMAGE_FOLDERS) or folder.has_images):
        yield labels
        if labels.folders:
            yield labels.folder(labels.folders[0].lower())
    if folder.has_images:
        yield folder
    elif folder.folders and not is_remote(folder.path):  # In an object store, listing a large folder takes minutes.
        yield folder.folder(folder.folders[0].lower())


def _find_labels(folder: InputNames) -> str:
    """Returns the name of the first YOLO label file in a folder that is not empty, or "" if there is none."""
    for name in [name for name in folder.files if name.lower().endswith(".txt")][:_NUM_PROBED]:
        known = recognise(f"{folder.path}/{name}")
        if known and known.name == YOLO_LABELS:
            return name
    return ""
