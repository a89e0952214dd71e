"""The contents of the metadata files, from the manifest and the statistics. Plain."""

from typing import Any, Mapping, Sequence

from beam_pipelines.config import PrepareConfig
from beam_pipelines.quality import shuffle_quality
from beam_pipelines.shard_writer import WrittenShard
from beam_pipelines.sources import Listing
from beam_pipelines.statistics import ImageStatistics, SplitStatistics
from tf_input.dataset_format import Feature, Manifest

_TFDS = "tensorflow_datasets.core.features"


def make_manifest(
    config: PrepareConfig, listing: Listing, shards: Mapping[str, Sequence[WrittenShard]], num_dead_letters: int
) -> Manifest:
    """The manifest of a data set whose shards are written, each split's in order."""
    return Manifest(
        name=config.name,
        seed=config.seed,
        schema=config.schema,
        label_names=listing.label_names,
        splits={split: tuple(shard.info for shard in shards[split]) for split in listing.splits},
        num_inputs=listing.num_inputs,
        num_dead_letters=num_dead_letters,
    )


def dataset_info(manifest: Manifest) -> dict[str, Any]:
    """`dataset_info.json` of TensorFlow Datasets, which refuses any key that it does not know."""
    return {
        "name": manifest.name,
        "version": "1.0.0",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": split,
                "shardLengths": [str(shard.num_examples) for shard in shards],
                "numBytes": str(sum(shard.num_bytes for shard in shards)),
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split, shards in manifest.splits.items()
        ],
        "supervisedKeys": {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}},
    }


def features(manifest: Manifest) -> dict[str, Any]:
    """`features.json` of TensorFlow Datasets."""
    return {
        "pythonClassName": f"{_TFDS}.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {feature.name: _tfds_feature(feature, manifest) for feature in manifest.schema},
        },
    }


def _tfds_feature(feature: Feature, manifest: Manifest) -> dict[str, Any]:
    match feature.kind:
        case "image":
            image = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}
            return {"pythonClassName": f"{_TFDS}.image_feature.Image", "image": image}
        case "class_label":
            label = {"numClasses": str(len(manifest.label_names))}
            return {"pythonClassName": f"{_TFDS}.class_label_feature.ClassLabel", "classLabel": label}
        case "text":
            return {"pythonClassName": f"{_TFDS}.text_feature.Text", "text": {}}
        case "integer":
            tensor = {"shape": {}, "dtype": "int64", "encoding": "none"}
            return {"pythonClassName": f"{_TFDS}.tensor_feature.Tensor", "tensor": tensor}
    raise ValueError(f"feature {feature.name!r} has kind {feature.kind!r}, which TensorFlow Datasets has no word for")


def schema_pbtxt(manifest: Manifest) -> str:
    """A TensorFlow Metadata schema, for TFDV, TFT and TFX."""
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema()
    for feature in manifest.schema:
        column = schema.feature.add(name=feature.name)
        column.presence.min_fraction = 1.0
        column.presence.min_count = 1
        column.shape.SetInParent()  # a scalar
        is_bytes = feature.kind in ("image", "text")
        column.type = schema_pb2.BYTES if is_bytes else schema_pb2.INT
        if feature.kind == "image":
            column.image_domain.SetInParent()
        if feature.kind == "class_label":
            column.int_domain.min = 0
            column.int_domain.max = len(manifest.label_names) - 1
            column.int_domain.is_categorical = True
    return text_format.MessageToString(schema)


def statistics(
    images: ImageStatistics, listing: Listing, shards: Mapping[str, Sequence[WrittenShard]]
) -> dict[str, Any]:
    """`statistics.json`. Pixel values are 0..255; pixel statistics are of a sample of the split's images."""
    return {
        "images": images.to_json(),
        "num_ignored_files": listing.num_ignored,
        "splits": {
            split: _split_statistics(images.splits[position], listing, shards[split])
            for position, split in enumerate(listing.splits)
        },
    }


def _split_statistics(split: SplitStatistics, listing: Listing, shards: Sequence[WrittenShard]) -> dict[str, Any]:
    return {
        "num_examples": split.num_examples,
        "image_bytes": split.num_bytes,
        "label_counts": {name: split.labels[position] for position, name in enumerate(listing.label_names)},
        "pixels": split.pixels.to_json(),
        "shuffle": shuffle_quality([shard.labels for shard in shards], split.labels),
    }
