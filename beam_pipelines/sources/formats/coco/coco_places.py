"""Finds the COCO files in a folder, and the images of a COCO file."""

import posixpath
import re
import unicodedata
from typing import Iterable, NamedTuple, Sequence

from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.files.file_listing import FileListing, join
from beam_pipelines.sources.files.label_files import format_of_content, read_head
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at

ROBOFLOW = "_annotations.coco.json"
CAPTIONS, PANOPTIC = "captions", "panoptic"
ANNOTATION_FOLDERS = ("annotations", "annotation", "annos", "anno", "labels", "coco")
_KINDS = ("instances", "person_keypoints", CAPTIONS, PANOPTIC, "image_info", "stuff")  # of COCO's own files
_NAME = re.compile(rf"(?P<kind>{'|'.join(_KINDS)})_(?P<name>(?P<split>.+?)_?[0-9]*)\.json")
NUM_PROBED, _MAX_DEPTH = 5, 12  # how many file names to look for, and how many of their first folders to remove at most


class ImagePlace(NamedTuple):
    """Where the images of a COCO file are.

    Attributes:
        folder: The folder to which file names are relative; relative to the root.
        prefix: The start of file names to remove, such as the path of a folder on another machine.
    """

    folder: str
    prefix: str = ""


def kind_of_name(file: str) -> str:
    """Returns the kind of a file that is named like one of COCO's files, such as `instances`, or ""."""
    match = _NAME.fullmatch(file)
    return match["kind"] if match else ""


def name_of(file: str) -> tuple[str, str]:
    """Returns the dataset name in a file name, such as `train2017`, and the possible split, such as `train`."""
    match = _NAME.fullmatch(file)
    name = match["name"] if match else file.removesuffix(".json")
    split = match["split"].rstrip("_") if match else name
    words = [word for word in re.split(r"[^a-z]+", name.lower()) if word in SPLIT_FOLDERS]
    return name, split if split.lower() in SPLIT_FOLDERS else words[0] if len(words) == 1 else name


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
    usual = [name for name in folders if name.lower() in ANNOTATION_FOLDERS]
    for folder in ("", *usual):
        if found := _files_in(root, files, folder, kind):
            return found
    found = {path: folder for folder in folders for path in _files_in(root, files, folder, kind)}
    if len({*found.values()}) < len(found):
        raise UserError(f"--input={root.path}: {' and '.join(map(printable, [*found][:2]))} may be of the same images. Name one with --input=FILE.json.")
    if not found:
        raise UserError(
            f"--input={root.path}: contains no annotations. They must be in annotations/{kind}_*.json, in {ROBOFLOW} or another "
            "JSON file in the folders of images, or in one JSON file for each split. Name any other file with --input=FILE.json."
        )
    return found


def _files_in(root: Root, files: FileListing, folder: str, kind: str) -> dict[str, str]:
    names = files.take_files(folder, lambda name: name.lower().endswith(".json"))
    kinds = ("instances", "person_keypoints") if kind == "instances" else (kind,)
    known = next((some for kind in kinds if (some := [name for name in names if kind_of_name(name) == kind])), [])
    known = known or [name for name in names if name == ROBOFLOW and kind == "instances"]
    if not known:  # no file has a usual name, so only the content shows the format
        known = [name for name in names if not kind_of_name(name) and "COCO" in format_of_content(name, read_head(f"{root.path}/{join(folder, name)}"))]
        if len(known) > 1 and not any(name_of(name)[1].lower() in SPLIT_FOLDERS for name in known):
            shown = ", ".join(map(printable, known[:3]))
            raise UserError(f"--input={root.path}: {shown} may be of the same images. Name one with --input=FILE.json.")
    return {join(files.take_folder(folder) if folder else "", name): name_of(name)[1] for name in known}


def image_folders(path: str) -> list[str]:
    """Returns the possible image folders of a COCO file, given its path relative to the root."""
    own, name = posixpath.split(path)
    around = folder_around(path)
    stem, split = name_of(name)
    stems = dict.fromkeys((stem, stem.rpartition("_")[2], split))
    candidates = [join(around, folder) for stem in stems for folder in (stem, f"images/{stem}", f"{stem}_images", f"{stem}/images")]
    return list(dict.fromkeys((*candidates, join(around, "images"), around, own)))


def folder_around(path: str) -> str:
    """Returns the folder of a file or, if this folder is named like `annotations`, the parent of the folder."""
    own = posixpath.dirname(path)
    return posixpath.dirname(own) if posixpath.basename(own).lower() in ANNOTATION_FOLDERS else own


def find_images(root: Root, folders: Iterable[str], file_names: Sequence[str]) -> ImagePlace | None:
    """Returns the first place where one of the first images exists, or None. Looks for complete names first, and then for
    names without their first folders."""
    folders, first = list(folders), [portable(name) for name in file_names[:NUM_PROBED]]
    depth = min(max((name.count("/") for name in first), default=0), _MAX_DEPTH)
    for num in range(depth + 1):
        for folder in folders:
            for parts in (name.split("/") for name in first):
                if parts[num:] and _exists(root, join(folder, "/".join(parts[num:])) if num or parts[0] else "/".join(parts)):
                    return ImagePlace(folder, "/".join(parts[:num]) + "/" if num else "")
    return None


def portable(name: str) -> str:
    """Replaces the backslashes in a Windows path by slashes."""
    return name.replace("\\", "/") if re.match(r"[A-Za-z]:[\\/]|\\\\", name) or "/" not in name else name


def _exists(root: Root, path: str) -> bool:
    try:
        path = read_path(path, root)
    except InvalidInput:
        return False
    forms = {path, *(unicodedata.normalize(form, path) for form in ("NFC", "NFD"))}
    return any(files_at(root.path).exists(f"{root.path}/{item}") for item in sorted(forms))
