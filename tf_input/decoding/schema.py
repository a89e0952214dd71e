"""Parses serialized examples to tensors, from the schema of the dataset.

The writer's `beam_pipelines.tfrecord.example_encoder` uses the same schema.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Iterable, Mapping

from tf_input.dataset_format import IMAGE, KEY, Feature, stored_features
from tf_input.lazy_tensorflow import tf

# Storage in a tf.train.Example -> dtype of the tensor.
_DTYPES = {"bytes": "string", "int64": "int64", "float": "float32"}

SIDES = ("height", "width")


def feature_spec(schema: Iterable[Feature]) -> dict[str, tf.io.FixedLenFeature | tf.io.RaggedFeature]:
    """Returns the feature specs of a dataset for `tf.io.parse_example`.

    Args:
        schema: The features, as in `Manifest.schema`.

    Returns:
        Specs by name, as in `stored_features`. The dtype is string for images, pixels, tensors, masks and text
        (UTF-8), int64 for class labels and integers, and float32 for floats and boxes. Variable-length features are
        flat; `parse_examples` restores their shape.
    """
    return {feature.name: _spec(feature) for feature in stored_features(schema)}


def _spec(feature: Feature) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    dtype = tf.as_dtype(_DTYPES[feature.storage])
    if feature.is_ragged:
        return tf.io.RaggedFeature(dtype)
    return tf.io.FixedLenFeature(feature.stored_shape, dtype)


def parse_examples(
    serialized: tf.Tensor, schema: Iterable[Feature], names: Collection[str] | None = None
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """Parses a batch of records. Parsing a whole batch is much faster than parsing single records.

    Args:
        serialized: The records, string [batch].
        schema: The features, as in `Manifest.schema`.
        names: The names of the features to parse. Default: None, which parses all features.

    Returns:
        Tensors by name, with the dtypes of `feature_spec`: [batch, *shape], or ragged [batch, None, *shape[1:]] for
            variable-length features, which are empty if a record lacks them. Pixels and tensors are not decoded from
            strings. If the shape of a tensor is stored too, it is `NAME/shape`, int64 [batch, dimensions].

    Raises:
        ValueError: The schema does not contain a feature.
        tf.errors.InvalidArgumentError: A record is not an example, lacks a feature, or has a wrong number of values.
            Raised when the tensors are computed.
    """
    # AutoGraph would take time to convert the function, which has no control flow that depends on tensors.
    return tf.autograph.experimental.do_not_convert(_parse_examples)(serialized, schema, names)


def _parse_examples(
    serialized: tf.Tensor, schema: Iterable[Feature], names: Collection[str] | None
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    features = {feature.name: feature for feature in schema}
    wanted = list(features) if names is None else names
    if unknown := [name for name in wanted if name not in features]:
        raise ValueError(f"the schema has no feature {', '.join(unknown)}, only {', '.join(features)}")
    stored = {feature.name: feature for feature in stored_features(features[name] for name in wanted)}
    parsed = tf.io.parse_example(serialized, {name: _spec(feature) for name, feature in stored.items()})
    return {_name(stored[name]): _fold(value, stored[name]) for name, value in parsed.items()}


def _name(stored: Feature) -> str:
    return stored.name.removesuffix("/value") if stored.is_tensor else stored.name


def _fold(value: tf.Tensor | tf.RaggedTensor, feature: Feature) -> tf.Tensor | tf.RaggedTensor:
    """Reshapes [batch, None] to [batch, None, *shape[1:]]."""
    inner = feature.shape[1:]
    if not (feature.is_ragged and inner):
        return value
    size = math.prod(inner)
    message = f"{feature.name} has shape {feature.shape}, so its number of values must be a multiple of {size}"
    check = tf.debugging.assert_equal(value.row_lengths() % size, tf.constant(0, value.row_splits.dtype), message)
    with tf.control_dependencies([check]):
        folded = tf.reshape(value.values, (-1, *inner))
    return tf.RaggedTensor.from_row_splits(folded, value.row_splits // size, validate=False)


def sides_of(image: str) -> tuple[str, str]:
    """Returns the names of the features that store the height and width of an image."""
    return SIDES if image == IMAGE else (f"{image}/{SIDES[0]}", f"{image}/{SIDES[1]}")


def key_parser(
    parse: Callable[[tf.Tensor, Collection[str]], Mapping[str, Any]], features: Mapping[str, Feature]
) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Returns a function that extracts keys, string [batch], from records, string [batch]; None if records have no
    keys.

    Args:
        parse: A function from records and names to the features with these names.
        features: The features of a record, by name.
    """
    feature = features.get(KEY)
    if feature is None or feature.shape or not (feature.is_text or feature.is_integer):
        return None

    def parse_keys(serialized: tf.Tensor) -> tf.Tensor:
        keys = parse(serialized, [KEY])[KEY]
        return keys if feature.is_text else tf.strings.as_string(keys)

    return parse_keys
