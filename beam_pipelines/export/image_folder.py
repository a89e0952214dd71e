"""Implements the export format `image_folder`: one folder per class with image files such as `train/ant/1.jpg`.

The file name is derived from the example's key (see `safe_names.safe_name`). Each example must have one image and one
class. All other features are dropped.
"""

import hashlib
from typing import Iterable, Iterator

from beam_pipelines.errors import UserError, printable
from beam_pipelines.export.examples import ExportedExample, names_of, with_extension
from beam_pipelines.export.safe_names import safe_name
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from tf_input.dataset_format import IMAGE, Feature, Manifest


def class_feature(manifest: Manifest) -> Feature:
    """Returns the class feature whose classes become folders.

    Raises:
        UserError: Examples have no encoded image, no class or several classes.
    """
    image = manifest.features.get(IMAGE)
    if image is None or not image.is_image_file:
        problem = "no image" if image is None else f"images without a format ({image.kind})"
        raise UserError(
            f"--to=image_folder needs encoded images, and the examples have {problem}. Choose another format."
        )
    labels = [manifest.features[name] for name in manifest.targets if name in manifest.features]
    if len(labels) != 1 or not labels[0].is_categorical or labels[0].shape:
        problem = f"targets {printable(', '.join(manifest.targets))}" if manifest.targets else "no class"
        if len(labels) == 1 and labels[0].is_categorical:
            problem = "several classes"
        raise UserError(
            f"--to=image_folder needs one class per example, and the examples have {problem}. Choose another format."
        )
    return labels[0]


def files(manifest: Manifest, split: str, examples: Iterable[ExportedExample]) -> Iterator[tuple[str, bytes]]:
    """Yields the relative path and the bytes of the image file for each example."""
    image, label = manifest.features[IMAGE], class_feature(manifest)
    for example in examples:
        data, name = example.value(image), names_of(example.value(label), label)
        yield f"{split}/{safe_name(name)}/{with_extension(safe_name(_without_folders(example.key, split, name)), data)}", data


def _without_folders(key: str, split: str, label: str) -> str:
    """Removes a split folder and a class folder from the start of a key."""
    folder, slash, rest = key.partition("/")
    within = rest if slash and split in (folder, SPLIT_FOLDERS.get(folder.lower())) else key
    return within.removeprefix(f"{label}/") if within.startswith(f"{label}/") else key


def name_hash(name: str) -> bytes:
    """Returns an 8-byte hash of a file name, for detecting duplicate file names."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()
