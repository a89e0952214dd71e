"""Format `image_folder`: image files such as `train/ant/1.jpg`, in a folder for each split and class.

The file name is the key without the folders of its split and class (see `safe_names.safe_name`). The format stores one
image and one class per example. Examples without an image or a class are rejected, and all other features are dropped.
"""

import hashlib
from typing import Iterable, Iterator

from beam_pipelines.errors import UserError, printable
from beam_pipelines.export.examples import ExportedExample, names_of, with_extension
from beam_pipelines.export.safe_names import safe_name
from beam_pipelines.sources.splits import SPLIT_FOLDERS
from tf_input.dataset_format import IMAGE, Feature, Manifest


def class_feature(manifest: Manifest) -> Feature:
    """Returns the feature with the class of an example.

    Raises:
        UserError: Examples have no class, several classes, or no encoded image.
    """
    image = manifest.features.get(IMAGE)
    if image is None or image.kind != "image":
        problem = "no image" if image is None else f"images without a format ({image.kind})"
        raise UserError(
            f"--to=image_folder needs encoded images, and the examples have {problem}. Choose another format."
        )
    labels = [manifest.features[name] for name in manifest.targets if name in manifest.features]
    if len(labels) != 1 or labels[0].kind != "class_label" or labels[0].shape:
        problem = f"targets {printable(', '.join(manifest.targets))}" if manifest.targets else "no class"
        if len(labels) == 1 and labels[0].kind == "class_label":
            problem = "several classes"
        raise UserError(
            f"--to=image_folder needs one class per example, and the examples have {problem}. Choose another format."
        )
    return labels[0]


def files(manifest: Manifest, split: str, examples: Iterable[ExportedExample]) -> Iterator[tuple[str, bytes]]:
    """Yields the (path within the export, bytes) of each example's image."""
    image, label = manifest.features[IMAGE], class_feature(manifest)
    for example in examples:
        data, name = example.value(image), names_of(example.value(label), label)
        yield f"{split}/{safe_name(name)}/{with_extension(safe_name(_without_folders(example.key, split, name)), data)}", data


def _without_folders(key: str, split: str, label: str) -> str:
    """Removes the folders of the split and the class from the start of a key, if present."""
    folder, slash, rest = key.partition("/")
    within = rest if slash and split in (folder, SPLIT_FOLDERS.get(folder.lower())) else key
    return within.removeprefix(f"{label}/") if within.startswith(f"{label}/") else key


def name_hash(name: str) -> bytes:
    """Returns an 8-byte hash of a file name, by which duplicate file names are found."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()
