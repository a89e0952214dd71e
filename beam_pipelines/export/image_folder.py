"""Format `image_folder`: `train/ant/1.jpg`, a folder for each split and in it one for each class, as everything reads it.

The name of a file is its key without the folders of its split and its class, where it has these; see `safe_names.safe_name`. It holds
images and one class: an example without either is refused, and other features are left out.
"""

import hashlib
from typing import Iterable, Iterator

from beam_pipelines.errors import UserError, printable
from beam_pipelines.export.examples import ExportedExample, names_of, with_extension
from beam_pipelines.export.safe_names import safe_name
from beam_pipelines.sources.splits import SPLIT_FOLDERS
from tf_input.dataset_format import IMAGE, Feature, Manifest


def class_feature(manifest: Manifest) -> Feature:
    """The feature that is the one class of an example.

    Raises:
        UserError: Examples have no class, or several, or no encoded image.
    """
    image = manifest.features.get(IMAGE)
    if image is None or image.kind != "image":
        found = "no image" if image is None else f"images without a format ({image.kind})"
        raise UserError(f"--to=image_folder: examples have {found}; expected encoded images, or another format")
    labels = [manifest.features[name] for name in manifest.targets if name in manifest.features]
    if len(labels) != 1 or labels[0].kind != "class_label" or labels[0].shape:
        found = f"targets {printable(', '.join(manifest.targets))}" if manifest.targets else "no class"
        if len(labels) == 1 and labels[0].kind == "class_label":
            found = "several classes"
        raise UserError(f"--to=image_folder: examples have {found}; expected one class each, or another format")
    return labels[0]


def files(manifest: Manifest, split: str, examples: Iterable[ExportedExample]) -> Iterator[tuple[str, bytes]]:
    """(path within the export, bytes) of each example's image."""
    image, label = manifest.features[IMAGE], class_feature(manifest)
    for example in examples:
        data, name = example.value(image), names_of(example.value(label), label)
        yield f"{split}/{safe_name(name)}/{with_extension(safe_name(_without_folders(example.key, split, name)), data)}", data


def _without_folders(key: str, split: str, label: str) -> str:
    """A key without the folders of its split and its class, where it has these."""
    folder, slash, rest = key.partition("/")
    within = rest if slash and split in (folder, SPLIT_FOLDERS.get(folder.lower())) else key
    return within.removeprefix(f"{label}/") if within.startswith(f"{label}/") else key


def name_hash(name: str) -> bytes:
    """8 bytes that stand for a name when it is looked for twice."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()
