"""Reads the parts of the name of a COCO file and lists its possible image folders."""

import posixpath
import re
from typing import NamedTuple

from beam_pipelines.sources.files.paths import join
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS

INSTANCES, KEYPOINTS, CAPTIONS = "instances", "person_keypoints", "captions"
_KINDS = (INSTANCES, KEYPOINTS, CAPTIONS, "panoptic", "image_info", "stuff")  # of COCO's own files
_NAME = re.compile(rf"(?P<kind>{'|'.join(_KINDS)})_(?P<name>(?P<split>.+?)_?[0-9]*)\.json")


class CocoName(NamedTuple):
    """The parts of the name of a COCO file.

    Attributes:
        kind: The kind of a file that is named like one of COCO's own files, such as `instances`. Otherwise empty.
        name: The name of the dataset, such as `train2017`.
        split: The possible split, such as `train`.
    """

    kind: str
    name: str
    split: str


def parse_name(file: str) -> CocoName:
    """Returns the parts of the name of a COCO file."""
    match = _NAME.fullmatch(file)
    name = match["name"] if match else file.removesuffix(".json")
    split = match["split"].rstrip("_") if match else name
    words = [word for word in re.split(r"[^a-z]+", name.lower()) if word in SPLIT_FOLDERS]
    split = split if split.lower() in SPLIT_FOLDERS else words[0] if len(words) == 1 else name
    return CocoName(match["kind"] if match else "", name, split)


def image_folders(path: str, around: str) -> list[str]:
    """Returns the folders that may contain the images of a COCO file. The file is at `path`, in or below the folder
    `around`. All paths are relative to the root."""
    own, name = posixpath.split(path)
    _, stem, split = parse_name(name)
    stems = dict.fromkeys((stem, stem.rpartition("_")[2], split))
    usual = [folder for stem in stems for folder in (stem, f"images/{stem}", f"{stem}_images", f"{stem}/images")]
    bases = dict.fromkeys((around, own))  # A folder called `coco` may contain the file, or the file and its images.
    return [*dict.fromkeys(join(base, folder) for base in bases for folder in (*usual, "images", ""))]
