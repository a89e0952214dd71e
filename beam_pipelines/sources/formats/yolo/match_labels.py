"""Matches the images in a folder with label files of the same names."""

import posixpath
from typing import NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.formats.yolo.find_dataset import NAMES_FILES
from beam_pipelines.sources.formats.yolo.image_groups import LABEL_END, LISTS, ImageGroup, is_below

_NOT_LABELS = {*NAMES_FILES, *LISTS, "predefined_classes.txt"}


class LabeledImage(NamedTuple):
    """An image and its label file. The paths are relative to the root.

    Attributes:
        path: The path of the image.
        label: The path of the label file, which may not exist. Empty if there is no label file.
        num_bytes: The size of the image in bytes; 0 if unknown.
    """

    path: str
    label: str
    num_bytes: int = 0


class Matched(NamedTuple):
    """The files of a group of images.

    Attributes:
        images: The images, each with its label file.
        dead_letters: Rejected files, and label files without an image.
        num_labels: The number of label files.
        num_ignored: The number of files that are neither images nor label files.
    """

    images: list[LabeledImage]
    dead_letters: list[DeadLetter]
    num_labels: int
    num_ignored: int


def match_labels(files: FileListing, group: ImageGroup) -> Matched:
    """Lists the image folder and the label folder, and matches files by name. The file names are kept in memory.

    Several images, such as `1.jpg` and `1.png`, may have the same label file. A label file in the label folder takes
    precedence over a label file beside the image.

    Raises:
        UserError: A folder cannot be read.
    """
    images: list[ListedFile] = []
    labels: dict[str, str | DeadLetter] = {}  # name without the extension -> path of the label file
    dead_letters: list[DeadLetter] = []
    num_ignored = 0
    for folder in dict.fromkeys((group.images, group.labels)):
        for file in files.walk(folder):
            name, extension = posixpath.splitext(file.path)
            is_in_labels = is_below(file.path, group.labels)
            if extension.lower() == LABEL_END and is_in_labels and posixpath.basename(file.path).lower() not in _NOT_LABELS:
                labels[_inner(name, group.labels)] = file if isinstance(file, DeadLetter) else file.path
            elif isinstance(file, DeadLetter):
                dead_letters.append(file)
            elif extension.lower() in IMAGE_EXTENSIONS and folder == group.images:
                images.append(file)
            else:
                num_ignored += 1
    used, matched = set(), []
    for image in images:
        name = _inner(posixpath.splitext(image.path)[0], group.images)
        label = labels.get(name, "")
        used.add(name)
        if isinstance(label, DeadLetter):
            message = f"its label file {printable(label.path)} is {label.message}"
            dead_letters.append(DeadLetter(image.path, "list", label.reason, message))
        else:
            matched.append(LabeledImage(image.path, label, image.num_bytes))
    for name in labels.keys() - used:
        label = labels[name]
        message = f"no image in {printable(group.images) or 'the folder'} has the same name"
        dead_letters.append(label if isinstance(label, DeadLetter) else DeadLetter(label, "list", "missing", message))
    return Matched(matched, sorted(dead_letters), len(labels), num_ignored)


def _inner(name: str, folder: str) -> str:
    return nfc(name[len(folder) + 1 :] if folder else name)
