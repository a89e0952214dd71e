"""Converts variable-length lists to padded or ragged batches."""

from __future__ import annotations

from typing import Any, Collection, Mapping

from tf_input.dataset_format import OBJECTS, Feature
from tf_input.features.roles import is_grid, is_list
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import Padding, ReadConfig

MASK_SUFFIX = "_mask"


def check_lists(config: ReadConfig, target_names: Collection[str], features: Mapping[str, Feature], has_frames: bool = False) -> None:
    """Checks the options for lists.

    Args:
        config: The reading options.
        target_names: The names of the targets.
        features: The features of the dataset, by name.
        has_frames: Whether there are images with masks. Default: False.

    Raises:
        ValueError: An option for lists is set but no list is read, or a list can't be returned as requested.
    """
    feature_names = [name for name in (*config.input_names, *target_names) if name in features]
    lists = [name for name in feature_names if is_list(features[name])]
    grids = [name for name in feature_names if is_grid(features[name])]
    named = (*lists, *grids, *([OBJECTS] if OBJECTS in (*config.input_names, *target_names) else ()))
    if not named and config.padding != Padding() and not (has_frames and config.padding == Padding(mask=True)):
        raise ValueError(f"padding={config.padding!r} needs a list of any length among the inputs and targets. Omit it.")
    for value in (config.pads.length, config.pads.value):
        if isinstance(value, Mapping) and (unknown := [name for name in value if name not in named]):
            raise ValueError(
                f"padding={value!r}: {unknown[0]!r} is not a list of any length among the inputs and targets. Use {', '.join(named)}."
            )
    _check_grids(config, grids, target_names, features)
    for name in (*lists, *grids):
        _check_padding(name, config.pads.value_of(name), features[name])
        _check_length(name, config.pads.length_of(name), features[name])
    if not config.padding:
        return
    for name in target_names:
        if name in lists and (not features[name].is_integer or len(features[name].shape) > 1):
            raise ValueError(
                f"targets={name!r}: lists of kind {features[name].kind} with any length can't be weighted value by "
                "value. "
                "Use padding=False, or lists of integers, such as a class for each word."
            )
    for name in lists if config.pads.mask else ():
        if name in config.input_names and f"{name}{MASK_SUFFIX}" in config.input_names:
            raise ValueError(
                f"Padding(mask=True): a feature {name + MASK_SUFFIX!r} already exists. Use mask=False, or other inputs."
            )


def _check_grids(config: ReadConfig, grids: Collection[str], target_names: Collection[str], features: Mapping[str, Feature]) -> None:
    for name in grids:
        problem = f"{name!r} has shape {features[name].shape}, with several unknown dimensions"
        if not config.padding:
            raise ValueError(f"padding=False: {problem}, and must be padded. Use padding=True.")
        if name in target_names:
            raise ValueError(
                f"targets={name!r}: {problem}, so the loss would include padding. Read it as an input instead."
            )


def _check_padding(name: str, value: Any, feature: Feature) -> None:
    """Raises ValueError if a padding value does not fit the dtype of a list."""
    if value is None:
        return
    dtype = tf.as_dtype(feature.value_dtype or "string")
    is_fitting = isinstance(value, str) == (dtype == tf.string)
    if is_fitting and dtype.is_integer:
        is_fitting = value == int(value) and dtype.min <= value <= dtype.max
    if not is_fitting:
        raise ValueError(
            f"padding value {value!r} does not fit {name!r}, whose values are {dtype.name}. Pass such a value, or "
            f"Padding(value={{{name!r}: ...}})."
        )


def _check_length(name: str, length: int | tuple[int, ...] | None, feature: Feature) -> None:
    """Raises ValueError if the number of given lengths differs from the feature's number of unknown dimensions."""
    if isinstance(length, tuple) and len(length) != feature.shape.count(None):
        problem = f"{name!r} has the shape {feature.shape}, with {feature.shape.count(None)} unknown dimensions"
        raise ValueError(f"padding length {length!r}: {problem}. Pass one length for each of them.")


def pad(values: tf.RaggedTensor, max_length: int | tuple[int] | None, padding_value: Any = None) -> tf.Tensor:
    """Pads lists to the same length. Converts [batch, None, ...] to [batch, length, ...].

    Args:
        values: The lists of a batch.
        max_length: The length; longer lists are truncated. None stands for the length of the longest list, but at least
            1, which pooling layers need.
        padding_value: The padding value. Default: None, 0 or an empty string.
    """
    max_length = one_length(max_length)
    inner = values.shape[2:]
    padding = None if padding_value is None else tf.constant(padding_value, values.dtype)
    dense = values.to_tensor(padding, shape=tf.stack([-1, _length(values, max_length), *[-1] * len(inner)]))
    return tf.ensure_shape(dense, (values.shape[0], max_length, *inner))


def mask(values: tf.RaggedTensor, max_length: int | tuple[int] | None) -> tf.Tensor:
    """Returns a mask that is False for the padding that `pad` adds, bool [batch, length]."""
    max_length = one_length(max_length)
    is_value = tf.sequence_mask(values.row_lengths(), _length(values, max_length))
    return tf.ensure_shape(is_value, (values.shape[0], max_length))


def one_length(max_length: int | tuple[int, ...] | None) -> int | None:
    """Returns the length of a padded list as a number. A tuple must contain one number. None is unchanged."""
    return max_length[0] if isinstance(max_length, tuple) else max_length


def _length(values: tf.RaggedTensor, max_length: int | None) -> tf.Tensor:
    return tf.constant(max_length, tf.int64) if max_length else tf.maximum(tf.cast(values.bounding_shape(axis=1), tf.int64), 1)
