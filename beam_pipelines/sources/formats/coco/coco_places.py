"""Finds the COCO files in a folder, and the possible image folders of a COCO file."""

import posixpath
import re
from typing import NamedTuple

from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import FileListing, join
from beam_pipelines.sources.files.label_files import format_of_content, read_head
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS

ROBOFLOW = "_annotations.coco.json"
ANNOTATION_FOLDERS = ("annotations", "annotation", "annos", "anno", "labels", "coco")
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


def find_files(root: Root, files: FileListing, kind: str) -> dict[str, str]:
    """Returns a mapping from the path of each COCO file below the root to its possible split name.

    Args:
        root: The root of the source.
        files: The listing of the source's files.
        kind: The kind of files to prefer, such as `instances`.

    Raises:
        UserError: There are no COCO files, or several whose names contain neither the kind nor a split.
    """
    folders, _ = files.top_level()
    for folder in ("", *(name for name in folders if name.lower() in ANNOTATION_FOLDERS)):
        if found := _files_in(root, files, folder, kind):
            return found
    found = {path: folder for folder in folders for path in _files_in(root, files, folder, kind)}
    if len({*found.values()}) < len(found):
        raise _ambiguous(root, list(found))
    if not found:
        raise UserError(
            f"--input={root.path}: contains no annotations. They must be in annotations/{kind}_*.json, in {ROBOFLOW} or another "
            "JSON file in the folders of images, or in one JSON file for each split. Name any other file with --input=FILE.json."
        )
    return found


def _files_in(root: Root, files: FileListing, folder: str, kind: str) -> dict[str, str]:
    names = files.take_files(folder, lambda name: name.lower().endswith(".json"))
    kinds = (INSTANCES, KEYPOINTS) if kind == INSTANCES else (kind,)
    known = next((some for kind in kinds if (some := [name for name in names if parse_name(name).kind == kind])), [])
    known = known or [name for name in names if name == ROBOFLOW and kind == INSTANCES]
    if not known:  # no file has a usual name, so only the content shows the format
        others = ((name, read_head(f"{root.path}/{join(folder, name)}")) for name in names if not parse_name(name).kind)
        known = [name for name, head in others if "COCO" in format_of_content(name, head)]
        if len(known) > 1 and not any(parse_name(name).split.lower() in SPLIT_FOLDERS for name in known):
            raise _ambiguous(root, known)
    return {join(files.take_folder(folder) if folder else "", name): parse_name(name).split for name in known}


def _ambiguous(root: Root, paths: list[str]) -> UserError:
    shown = ", ".join(map(printable, paths[:3]))
    return UserError(f"--input={root.path}: {shown} may be of the same images. Name one with --input=FILE.json.")


def image_folders(path: str) -> list[str]:
    """Returns the possible image folders of a COCO file, given its path relative to the root."""
    own, name = posixpath.split(path)
    around = folder_around(path)
    _, stem, split = parse_name(name)
    stems = dict.fromkeys((stem, stem.rpartition("_")[2], split))
    candidates = [join(around, folder) for stem in stems for folder in (stem, f"images/{stem}", f"{stem}_images", f"{stem}/images")]
    return list(dict.fromkeys((*candidates, join(around, "images"), around, own)))


def folder_around(path: str) -> str:
    """Returns the folder of a file or, if this folder is named like `annotations`, the parent of the folder."""
    own = posixpath.dirname(path)
    return posixpath.dirname(own) if posixpath.basename(own).lower() in ANNOTATION_FOLDERS else own
