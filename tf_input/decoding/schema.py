"""The schema as the reader needs it: serialized examples -> tensors, and which features are decoded further.

The writer's `beam_pipelines.tfrecord.example_encoder` derives from the same schema.
"""

import math
from typing import Any, Callable, Collection, Iterable, Mapping

import tensorflow as tf

from tf_input.dataset_format import FEATURE_KINDS, IMAGE, KEY, Feature, stored_features

# How a feature is stored in a tf.train.Example -> its dtype as a tensor.
_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}

SIDES = ("height", "width")
IMAGE_KINDS = ("image", "pixels")
STORED_KINDS = (*IMAGE_KINDS, "mask")  # of features that are decoded here, and have a size
_SEEN_KINDS = (*STORED_KINDS, "bbox")
NUM_MAP_DIMENSIONS = 3


def feature_spec(schema: Iterable[Feature]) -> dict[str, tf.io.FixedLenFeature | tf.io.RaggedFeature]:
    """What `tf.io.parse_example` needs to know of a data set.

    Args:
        schema: The features, as in `Manifest.schema`.

    Returns:
        By name, as `stored_features` has it: dtype string for images, pixels, tensors and masks (one string each) and texts (UTF-8), int64
        for class labels and integers, float32 for floats and boxes. Of a feature whose examples differ in how many values they have, the
        values are flat: `parse_examples` folds them.
    """
    return {feature.name: _spec(feature) for feature in stored_features(schema)}


def _spec(feature: Feature) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    dtype = _DTYPES[FEATURE_KINDS[feature.kind]]
    if feature.is_ragged:
        return tf.io.RaggedFeature(dtype)
    return tf.io.FixedLenFeature(feature.stored_shape, dtype)


@tf.autograph.experimental.do_not_convert  # nor what it calls: there is nothing of Python's to be converted
def parse_examples(
    serialized: tf.Tensor, schema: Iterable[Feature], names: Collection[str] | None = None
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """Parses a batch of records; a batch at once costs a fraction of one at a time.

    Args:
        serialized: string [batch], each a `tf.train.Example`.
        schema: The features, as in `Manifest.schema`.
        names: Those that are wanted; the others are skipped unread. None: all.

    Returns:
        By name, of the dtype that `feature_spec` says: a tensor [batch, *shape], or a ragged one [batch, None, *shape[1:]] where
        examples differ in how many values they have; a record that lacks such a feature has none. Pixels and tensors are strings still;
        where a tensor's shape is stored beside it, that is `NAME/shape`, int64 [batch, dimensions].

    Raises:
        ValueError: The schema has no such feature.
        tf.errors.InvalidArgumentError: A record is no example, or lacks a feature, or has a wrong number of values. Raised when
            the tensors are computed.
    """
    features = {feature.name: feature for feature in schema}
    wanted = list(features) if names is None else names
    if unknown := [name for name in wanted if name not in features]:
        raise ValueError(f"no feature {', '.join(unknown)}; the schema has {', '.join(features)}")
    stored = {feature.name: feature for feature in stored_features(features[name] for name in wanted)}
    parsed = tf.io.parse_example(serialized, {name: _spec(feature) for name, feature in stored.items()})
    return {_name(stored[name]): _fold(value, stored[name]) for name, value in parsed.items()}


def _name(stored: Feature) -> str:
    return stored.name.removesuffix("/value") if stored.kind == "tensor" else stored.name


def _fold(value: tf.Tensor | tf.RaggedTensor, feature: Feature) -> tf.Tensor | tf.RaggedTensor:
    """[batch, None] -> [batch, None, *shape[1:]]."""
    inner = feature.shape[1:]
    if not (feature.is_ragged and inner):
        return value
    size = math.prod(inner)
    message = f"{feature.name} has the shape {feature.shape}: expected multiples of {size} values"
    check = tf.debugging.assert_equal(value.row_lengths() % size, tf.constant(0, value.row_splits.dtype), message)
    with tf.control_dependencies([check]):
        folded = tf.reshape(value.values, (-1, *inner))
    return tf.RaggedTensor.from_row_splits(folded, value.row_splits // size, validate=False)


def sides_of(image: str) -> tuple[str, str]:
    """The features that state the height and the width of an image."""
    return SIDES if image == IMAGE else (f"{image}/{SIDES[0]}", f"{image}/{SIDES[1]}")


def is_other_image(feature: Feature) -> bool:
    """Whether a feature is an image beside `image`, which has sizes and views of its own."""
    return feature.name != IMAGE and feature.kind in IMAGE_KINDS


def key_parser(
    parse: Callable[[tf.Tensor, Collection[str]], Mapping[str, Any]], features: Mapping[str, Feature]
) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """A function from records, string [batch], to their keys, string [batch]; None where they have none.

    Args:
        parse: From records and names to the features of these names.
        features: The features that a record has, by name.
    """
    feature = features.get(KEY)
    if feature is None or feature.shape or feature.kind not in ("text", "integer"):
        return None
    as_text = tf.identity if feature.kind == "text" else tf.strings.as_string
    return lambda serialized: as_text(parse(serialized, [KEY])[KEY])


def is_seen(feature: Feature) -> bool:
    """Whether a feature's values depend on what is seen of the image."""
    return feature.kind in _SEEN_KINDS or is_map(feature)


def is_map(feature: Feature) -> bool:
    """Whether a feature is numbers that lie over the image; or `image` itself, as a tensor or transformed."""
    return feature.kind in ("float", "tensor") and not feature.is_ragged and len(feature.shape) == NUM_MAP_DIMENSIONS
