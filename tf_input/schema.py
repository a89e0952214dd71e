"""Serialized examples -> tensors. The writer's `beam_pipelines.examples` derives from the same schema."""

from typing import Collection, Iterable

import tensorflow as tf

from tf_input.dataset_format import FEATURE_KINDS, Feature

# How a feature is stored in a tf.train.Example -> its dtype as a tensor.
_DTYPES = {"bytes": tf.string, "int64": tf.int64}


def feature_spec(schema: Iterable[Feature]) -> dict[str, tf.io.FixedLenFeature]:
    """What `tf.io.parse_example` needs to know of a data set: each feature is a scalar that every record has.

    Args:
        schema: The features, as in `Manifest.schema`.

    Returns:
        By name: dtype string for images (encoded) and texts (UTF-8), int64 for class labels and integers.
    """
    return {feature.name: tf.io.FixedLenFeature((), _DTYPES[FEATURE_KINDS[feature.kind]]) for feature in schema}


def parse_examples(
    serialized: tf.Tensor, schema: Iterable[Feature], names: Collection[str] | None = None
) -> dict[str, tf.Tensor]:
    """Parses a batch of records; a batch at once costs a fraction of one at a time.

    Args:
        serialized: string [batch], each a `tf.train.Example`.
        schema: The features, as in `Manifest.schema`.
        names: Those that are wanted; the others are skipped unread. None: all.

    Returns:
        By name: a tensor [batch] of the dtype that `feature_spec` says.

    Raises:
        ValueError: The schema has no such feature.
        tf.errors.InvalidArgumentError: A record is no example, or lacks a feature. Raised when the tensors are computed.
    """
    spec = feature_spec(schema)
    wanted = list(spec) if names is None else names
    if unknown := [name for name in wanted if name not in spec]:
        raise ValueError(f"no feature {', '.join(unknown)}; the schema has {', '.join(spec)}")
    return tf.io.parse_example(serialized, {name: spec[name] for name in wanted})
