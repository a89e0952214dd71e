"""Features whose examples have lists of any length, in a batch: padded, with a mask or without, or ragged."""

from typing import Collection, Mapping

import tensorflow as tf

from tf_input.dataset_format import OBJECTS, Feature
from tf_input.decoding.schema import is_map
from tf_input.read_config import ReadConfig

MASK_SUFFIX = "_mask"


def is_list(feature: Feature) -> bool:
    """Whether a feature is a list of any length of numbers or texts: no classes, which become 0 or 1 each, and nothing of objects."""
    if feature.kind == "tensor":  # of three dimensions it is a map
        return feature.shape[:1] == (None,) and None not in feature.shape[1:] and not is_map(feature)
    return feature.is_ragged and feature.kind in ("integer", "float", "text") and not feature.name.startswith(f"{OBJECTS}/")


def check_lists(config: ReadConfig, target_names: Collection[str], features: Mapping[str, Feature], has_frames: bool = False) -> None:
    """Checks the options on lists.

    Args:
        config: The options with which the split is read.
        target_names: The names of the features that are to be predicted.
        features: The features of the data set, by name.
        has_frames: Whether there are images that have masks, too.

    Raises:
        ValueError: An option on lists is given, and there are none; or lists can't leave as the options say.
    """
    lists = [name for name in (*config.input_names, *target_names) if name in features and is_list(features[name])]
    for name in ("ragged", "max_length"):
        is_of_frames = has_frames and name == "ragged" and config.ragged == "mask"
        if not lists and not is_of_frames and (value := getattr(config, name)) != getattr(ReadConfig, name):
            raise ValueError(f"{name}={value!r}: no feature that is asked for has lists of any length; expected none of it")
    if config.ragged == "ragged":
        return
    for name in target_names:
        if name in lists and (features[name].kind != "integer" or len(features[name].shape) > 1):
            raise ValueError(
                f"targets={name!r}: lists of any length of kind {features[name].kind} can't be weighed value by value; expected "
                "ragged='ragged', or integers, such as a class for each word"
            )
    for name in lists if config.ragged == "mask" else ():
        if name in config.input_names and f"{name}{MASK_SUFFIX}" in config.input_names:
            raise ValueError(f"ragged='mask': there is a feature {name + MASK_SUFFIX!r} already; expected ragged='pad', or other inputs")


def pad(values: tf.RaggedTensor, max_length: int | None) -> tf.Tensor:
    """Lists in a dense tensor: [batch, None, ...] -> [batch, length, ...].

    Args:
        values: The lists of a batch.
        max_length: The length, to which longer lists are cut; None: that of the longest one, and at least 1, which layers that pool want.

    Returns:
        The lists, filled up with 0, or empty texts.
    """
    inner = values.shape[2:]
    dense = values.to_tensor(shape=tf.stack([-1, _length(values, max_length), *[-1] * len(inner)]))
    return tf.ensure_shape(dense, (values.shape[0], max_length, *inner))


def mask(values: tf.RaggedTensor, max_length: int | None) -> tf.Tensor:
    """Whether each of the padded values of `pad` is of its list: bool [batch, length]."""
    found = tf.sequence_mask(values.row_lengths(), _length(values, max_length))
    return tf.ensure_shape(found, (values.shape[0], max_length))


def _length(values: tf.RaggedTensor, max_length: int | None) -> tf.Tensor:
    return tf.constant(max_length, tf.int64) if max_length else tf.maximum(tf.cast(values.bounding_shape(axis=1), tf.int64), 1)
