"""Hashes the images of a TFRecord file."""

import functools
from typing import NamedTuple, Sequence

import numpy as np

from beam_pipelines.elements.label_conflicts import Label, as_label
from beam_pipelines.elements.label_feature import LabelFeature
from beam_pipelines.errors import InvalidInput, StorageError, UserError, printable
from beam_pipelines.images.image_headers import identify
from beam_pipelines.images.visual_groups import HASH_ROW, digest_content, hash_rows
from beam_pipelines.images.perceptual_hash import load_for_hash, grey_pixels
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.parallel import progress
from beam_pipelines.storage.files import open_file
from beam_pipelines.tfrecord.array_record_reader import RecordFileReader
from beam_pipelines.tfrecord.example_encoder import stored_image
from beam_pipelines.tfrecord.record_reader import NoRecordsError, Record
from tf_input.dataset_format import IMAGE, KEY, Feature
from tf_input.serialized_example import BadExampleError, SerializedExample

# Limits the decoded images in memory, and the interval between progress updates.
_HASHED_TOGETHER = 256


class HashedRecords(NamedTuple):
    """The hashes and labels of the images in a file, in record order.

    Attributes:
        keys: The keys of the images. In files from other tools, the key is the file name and the record number.
        labels: A mapping from class feature to the label of each image. None means unknown.
        rows: The hashes of the images, `HASH_ROW` [num_images].
    """

    keys: list[str]
    labels: dict[str, list[Label | None]]
    rows: np.ndarray


def hash_records(
    path: str, name: str, schema: Sequence[Feature] | None, label: LabelFeature | None, progress_directory: str = ""
) -> HashedRecords:
    """Reads a file and hashes its images.

    An image that cannot be decoded has no perceptual hash, and is a duplicate only of images with the same bytes.

    Args:
        path: The path or URL of the file.
        name: The prefix of the names of records without a key.
        schema: The schema of the dataset. None for files from other tools, in which the first feature with an image is
            used.
        label: The class feature in files from other tools. Labels are ignored if the feature or its name is unknown.
        progress_directory: The directory for progress counts, or an empty string to disable progress counts.

    Raises:
        UserError: The file is corrupt, is not a TFRecord file, or has no images.
        StorageError: The file could not be read.
    """
    features = {feature.name: feature for feature in schema or ()}
    image = features.get(IMAGE)
    keys: list[str] = []
    readers = {feature.name: functools.partial(_label, feature=feature) for feature in schema or () if feature.is_categorical}
    if label and label.name:
        readers[label.name] = functools.partial(_foreign_label, feature=label)
    labels: dict[str, list[Label | None]] = {name: [] for name in readers}
    contents: list[bytes] = []
    visual_hashes: list[np.ndarray | None] = []
    rows = [np.zeros(0, HASH_ROW)]
    image_name = "" if schema is None else stored_image(schema) or IMAGE
    try:
        with open_file(path) as file:
            for record in RecordFileReader().read(path, file):
                if not isinstance(record, Record):
                    raise UserError(f"{printable(path)}: {record.message}. Remove or repair the corrupt file.")
                example = SerializedExample(record.data)
                image_name = image_name or _find_image(example, path)
                values = example.values(image_name)
                if len(values) != 1 or not isinstance(values[0], bytes):
                    raise UserError(
                        f"{printable(path)}: record {len(keys)} has {len(values)} values of {image_name!r} instead of "
                        "one image."
                    )
                keys.append(_key(example, schema is not None) or f"{name}:{len(keys)}")
                for feature, read in readers.items():
                    labels[feature].append(read(example))
                contents.append(digest_content(values[0]))
                visual_hashes.append(_look_at(values[0], image))
                if len(visual_hashes) == _HASHED_TOGETHER:
                    rows.append(hash_rows(contents, visual_hashes))
                    contents, visual_hashes = [], []
                    progress.count(progress_directory, hashed=_HASHED_TOGETHER)
    except (BadExampleError, NoRecordsError) as error:
        raise UserError(f"{printable(path)}: {error}") from None
    except OSError as error:
        raise StorageError(f"{printable(path)} could not be read: {error.strerror or error}") from error
    progress.count(progress_directory, hashed=len(visual_hashes))
    all_rows = np.concatenate([*rows, hash_rows(contents, visual_hashes)])
    all_rows["content"][:, 1] = 0  # Catalogs store only the first 64 bits of the content hash.
    return HashedRecords(keys, labels, all_rows)


def _find_image(example: SerializedExample, path: str) -> str:
    for name, feature in sorted(example.features.items()):
        if feature.storage == "bytes" and any(identify(value) for value in example.values(name)):
            return name
    raise UserError(
        f"{printable(path)}: no feature of the first record is an image file. Its features are "
        f"{', '.join(sorted(example.features)[:10])}. Give TFRecords with image files."
    )


def _key(example: SerializedExample, is_ours: bool) -> str:
    values = example.values(KEY) if is_ours else []
    return values[0].decode(errors="replace") if values else ""


def _label(example: SerializedExample, feature: Feature) -> Label | None:
    names = [feature.label_names[label] for label in example.values(feature.name) if 0 <= label < len(feature.label_names)]
    if feature.shape:
        return as_label(names)
    return names[0] if names else None


def _foreign_label(example: SerializedExample, feature: LabelFeature) -> Label | None:
    """Returns the label of an example from another tool, or None if it is missing or a float."""
    values = example.values(feature.name)
    if not values or any(isinstance(value, float) for value in values):
        return None
    names = [value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value) for value in feature.classes(values)]
    return names[0] if len(values) == 1 and not feature.is_flags else as_label(names)


def _look_at(data: bytes, image: Feature | None) -> np.ndarray | None:
    try:
        return grey_pixels(data, RawImage(*image.shape)) if image is not None and image.is_image and image.shape else load_for_hash(data, "decode")
    except InvalidInput:  # The feature is a tensor, or the image is corrupt.
        return None
