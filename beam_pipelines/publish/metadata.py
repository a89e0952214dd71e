"""Computes the contents of the metadata files from the manifest and the statistics."""

import dataclasses
import time
from typing import Any, Iterable, Mapping, Sequence

from beam_pipelines.config.stage_spec import StageSpec
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.quality import ShuffleQualities
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics
from beam_pipelines.features.feature_kind import TFDS, StoredImages
from beam_pipelines.features.kinds import kind_of, kinds_of
from beam_pipelines.publish.accounting import find_warnings
from beam_pipelines.publish.card import dataset_card
from beam_pipelines.publish.croissant import describe_dataset
from tf_input import dataset_format
from tf_input.dataset_format import (
    IMAGE,
    LABEL,
    OBJECTS,
    Feature,
    Manifest,
    ShardInfo,
    input_names,
    label_file_name,
    stored_features,
    to_checked_json,
    to_json,
)

_OBJECTS = f"{OBJECTS}/"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@dataclasses.dataclass(frozen=True)
class PublishSpec(StageSpec):
    """The options that the publishing worker needs. See `PrepareOptions`."""

    name: str
    seed: int
    about: Mapping[str, str]
    max_bad_fraction: float
    has_report: bool


def make_manifest(
    spec: PublishSpec, listing: Listing, shards: Mapping[str, Sequence[ShardInfo]], num_dead_letters: int
) -> Manifest:
    """Creates the manifest of a dataset from its written shards."""
    return Manifest(
        name=spec.name,
        seed=spec.seed,
        schema=listing.schema,
        targets=listing.targets,
        splits={split: tuple(shards[split]) for split in listing.splits},
        num_inputs=listing.num_inputs,
        num_dead_letters=num_dead_letters,
        num_dropped=listing.num_dropped,
        about=spec.about,
        is_verbatim=not listing.schema,
        columns=listing.columns,
    )


def metadata_files(
    manifest: Manifest, statistics: Mapping[str, Any], run_info: Mapping[str, Any]
) -> dict[str, str]:
    """Maps the names of all metadata files, except the manifest and the dead letters, to their contents.

    Args:
        manifest: The manifest of the dataset.
        statistics: The contents of `statistics.json`, from `statistics`.
        run_info: The contents of `run.json`, except the end time.
    """
    return {
        **derived_files(manifest, statistics),
        dataset_format.CARD: dataset_card(manifest, statistics),
        dataset_format.STATISTICS: to_json(statistics),
        dataset_format.RUN: to_checked_json({**run_info, "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")}),
    }


def derived_files(manifest: Manifest, statistics: Mapping[str, Any]) -> dict[str, str]:
    """Maps the names of metadata files for other programs to their contents. Verbatim records have no such files."""
    if manifest.is_verbatim:
        return {}
    masks, channels = statistics.get("mask"), dataset_format.default_channels(statistics)
    return {
        dataset_format.DATASET_INFO: to_json(dataset_info(manifest)),
        dataset_format.FEATURES: to_json(features(manifest, masks["bits"] if masks else 8, channels)),
        **label_files(manifest),
        dataset_format.SCHEMA: schema_pbtxt(manifest),
        dataset_format.CROISSANT: to_json(describe_dataset(manifest)),
    }


def dataset_info(manifest: Manifest) -> dict[str, Any]:
    """Returns the contents of `dataset_info.json` for TensorFlow Datasets."""
    return {
        "name": manifest.name,
        "version": "1.0.0",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": split,
                "shardLengths": [str(shard.num_examples) for shard in shards],
                "numBytes": str(sum(shard.num_bytes for shard in shards)),
                "filepathTemplate": _TEMPLATE,
            }
            for split, shards in manifest.splits.items()
        ],
        **_supervised_keys(manifest),
    }


def _supervised_keys(manifest: Manifest) -> dict[str, Any]:
    """Returns the names of the input and target features in the format of TensorFlow Datasets.

    Several inputs or targets form a dictionary. If there are no inputs or targets, the result is empty.
    """
    inputs = input_names(manifest.features, manifest.targets)
    if not manifest.targets or not inputs:
        return {}
    return {"supervisedKeys": {"tuple": {"items": [_one_or_all(inputs), _one_or_all(manifest.targets)]}}}


def _one_or_all(names: Sequence[str]) -> dict[str, Any]:
    keys = {name: {"featureKey": name} for name in names}
    return keys[names[0]] if len(keys) == 1 else {"dict": {"dict": keys}}


def features(manifest: Manifest, mask_bits: int = 8, channels: int = 3) -> dict[str, Any]:
    """Returns the contents of `features.json` for TensorFlow Datasets.

    Args:
        manifest: The manifest of the dataset.
        mask_bits: The number of bits per mask pixel, 8 or 16.
        channels: The number of channels of encoded images.
    """
    images = StoredImages(channels, mask_bits)
    plain = {feature.name: _tfds_feature(feature, images) for feature in manifest.schema if not feature.is_of_objects}
    of_objects = {
        feature.name.removeprefix(_OBJECTS): _tfds_feature(dataclasses.replace(feature, shape=feature.shape[1:]), images)
        for feature in manifest.schema
        if feature.is_of_objects
    }
    if of_objects:
        plain[OBJECTS] = _tfds_sequence(_tfds_dict(of_objects))
    return _tfds_dict(dict(sorted(plain.items())))


def label_files(manifest: Manifest) -> dict[str, str]:
    """Maps the names of the files that list class names to their contents: one name per line."""
    return {
        label_file_name(feature.name): "".join(f"{name}\n" for name in feature.label_names)
        for feature in manifest.schema
        if feature.is_categorical or (feature.is_mask and feature.label_names)
    }


def _tfds_dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{TFDS}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


def _tfds_sequence(feature: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{TFDS}.sequence_feature.Sequence", "sequence": {"feature": feature, "length": "-1"}}


def _tfds_feature(feature: Feature, images: StoredImages) -> dict[str, Any]:
    if feature.shape == (None,) and kind_of(feature).has_tfds_lists:
        return _tfds_sequence(_tfds_feature(dataclasses.replace(feature, shape=()), images))
    described = {"description": feature.description} if feature.description else {}
    return kind_of(feature).describe_tfds(feature, images) | described


def schema_pbtxt(manifest: Manifest) -> str:
    """Returns the schema in the text format of TensorFlow Metadata, for TFDV, TFT and TFX."""
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema()
    for feature in stored_features(manifest.schema):
        column = schema.feature.add(name=feature.name)
        if feature.description:
            column.annotation.comment.append(feature.description)
        if feature.is_ragged:
            column.value_count.min = 0
        else:
            column.presence.min_fraction = 1.0
            column.presence.min_count = 1
            column.shape.SetInParent()
            for side in feature.stored_shape:
                column.shape.dim.add(size=side)
        column.type = {"bytes": schema_pb2.BYTES, "int64": schema_pb2.INT, "float": schema_pb2.FLOAT}[feature.storage]
        if feature.is_file:
            column.image_domain.SetInParent()
        if feature.is_categorical:
            column.int_domain.min = 0
            column.int_domain.max = len(feature.label_names) - 1
            column.int_domain.is_categorical = True
    return text_format.MessageToString(schema)


def statistics(
    images: ImageStatistics, listing: Listing, qualities: Mapping[str, ShuffleQualities]
) -> dict[str, Any]:
    """Returns the contents of `statistics.json`.

    Pixel statistics refer to values from 0 to 255, except for images that are stored as tensors. Pixel and tensor
    statistics are computed from a sample of each split. Without images, there are no pixel statistics.
    """
    recorded = recorded_statistics(images, listing.schema, listing.splits, qualities)
    facts = {name: recorded[name] for name in ("images", "other_images") if name in recorded}
    facts["num_ignored_files"] = listing.num_ignored
    facts["warnings"] = find_warnings(images, listing)
    for kind in kinds_of(listing.schema):
        facts |= kind.statistics(images)
    if listing.unused_fields:
        facts["unused_fields"] = list(listing.unused_fields)
    if listing.unused_categories:
        facts["unused_categories"] = list(listing.unused_categories)
    if listing.division:
        facts["division"] = listing.division.to_json()
    if listing.near_duplicates:
        facts["duplicates"] = listing.near_duplicates.to_json()
    return {**facts, "splits": recorded["splits"]}


def recorded_statistics(
    images: ImageStatistics, schema: Sequence[Feature], splits: Iterable[str], qualities: Mapping[str, ShuffleQualities]
) -> dict[str, Any]:
    """Returns the fields of `statistics.json` that can be recomputed from the records and the catalogs."""
    facts: dict[str, Any] = images.to_json()
    if not any(feature.name == IMAGE for feature in schema):
        del facts["images"]
    for kind in kinds_of(schema):
        facts |= kind.statistics(images) if kind.has_recount else {}
    facts["splits"] = {
        split: _split_statistics(images.splits[position], schema, qualities[split])
        for position, split in enumerate(splits)
    }
    return facts


def _split_statistics(split: SplitStatistics, schema: Sequence[Feature], qualities: ShuffleQualities) -> dict[str, Any]:
    features = {feature.name: feature for feature in schema}
    facts: dict[str, Any] = {"num_examples": split.num_examples}
    if IMAGE in features:
        facts["image_bytes"] = split.num_bytes
    facts |= label_statistics({LABEL: split.labels} | split.other_labels, schema)
    tensors = split.tensors
    if IMAGE in features:
        has_tensors = features[IMAGE].is_tensor
        facts["pixels"] = split.pixels.pixels_to_json(features[IMAGE].shape[-1] if has_tensors else 3)
        tensors = tensors | {IMAGE: split.pixels} if has_tensors and split.pixels.num_examples else tensors
    if tensors:
        facts["tensors"] = {name: sums.to_json() for name, sums in sorted(tensors.items())}
    if split.counts:
        facts["counts"] = {name: dict(sorted(counts.items())) for name, counts in sorted(split.counts.items())}
    facts["shuffle"] = qualities.to_json()
    return facts


def label_statistics(counts: Mapping[str, Mapping[int, int]], schema: Sequence[Feature]) -> dict[str, Any]:
    """Returns the number of examples with each label in a split, in the format of `statistics.json`.

    Args:
        counts: A mapping from class feature to the count of each label.
        schema: The schema of the dataset.
    """
    labels = {feature.name: feature for feature in schema if feature.is_categorical}
    named = {name: named_counts(counts.get(name, {}), labels[name].label_names) for name in sorted(labels)}
    is_single = LABEL in labels and not labels[LABEL].shape
    facts: dict[str, Any] = {"label_counts": named.pop(LABEL) if is_single else {}}
    return {**facts, "other_label_counts": named} if named else facts


def named_counts(counts: Mapping[int, int], names: Sequence[str]) -> dict[str, int]:
    """Returns a mapping from each class name, including unused names, to its number of examples."""
    return {name: counts.get(position, 0) for position, name in enumerate(names)}
