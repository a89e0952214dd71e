"""Measures how much of the boxes, masks and dense targets is outside the crop of `fit="crop"`."""

from __future__ import annotations

import logging
from typing import Callable, Sequence

import numpy as np

from tf_input.dataset_format import OBJECTS, ShardInfo
from tf_input.decoding import targets
from tf_input.decoding.coordinates import describe_unmoved
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.crop_geometry import CropGeometry, move_boxes, value_rows
from tf_input.features.kinds import kind_of
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig
from tf_input.storage.record_reader import RecordReader

_NUM_RECORDS, _NUM_BYTES = 1000, 32 << 20  # size of the sample; shuffled records are a random sample
_logger = logging.getLogger("tf_input")


class CropWarnings:
    """Logs warnings about targets outside the crop of `fit="crop"`, and about coordinates that crops do not adjust."""

    def __init__(self) -> None:
        self._logged_messages: set[str] = set()

    def log_warnings(self, split: str, decoder: ExampleDecoder, config: ReadConfig, read_sample: Callable[[], Sequence[bytes]]) -> None:
        """Logs warnings about boxes, masks and dense targets outside a crop, and about features that look like
        coordinates.

        Args:
            split: The name of the split, for the message.
            decoder, config: The decoder of the split, and the reading options.
            read_sample: A function that returns the first records. It is called only if necessary.
        """
        messages = [describe_unmoved(decoder, read_sample), *_describe_flips(decoder)]
        if config.fit == "crop" and decoder.default_fit == "pad" and len(records := read_sample()):
            messages.append(describe_lost(decoder, records))
        for message in messages:
            if message and (text := f"{split}: {message}") not in self._logged_messages:
                self._logged_messages.add(text)
                _logger.warning(text)


def _describe_flips(decoder: ExampleDecoder) -> list[str]:
    """Returns warnings about features whose values may be wrong if the image is flipped."""
    augmentation = decoder.config.augmentation
    if augmentation is None or not augmentation.flip:
        return []
    features = [decoder.features[name] for name in decoder.feature_names]
    return [kind_of(feature).describe_flips(feature, decoder.config) for feature in features]


def _describe_lost_positions(decoder: ExampleDecoder, name: str, column: tf.Tensor | tf.RaggedTensor, crops: CropGeometry) -> str:
    feature, is_of_objects = decoder.features[name], isinstance(column, tf.RaggedTensor)
    before, images = (column.values, value_rows(column)) if is_of_objects else (column, None)
    kind = kind_of(feature)
    return kind.describe_lost(before.numpy(), kind.move(before, crops, feature, decoder.config, images).numpy())


def read_sample(reader: RecordReader, shards: Sequence[ShardInfo]) -> list[bytes]:
    """Returns the first records of a split.

    Raises:
        ValueError: A record is corrupt.
    """
    mean = sum(shard.num_bytes for shard in shards) // max(1, reader.num_examples)
    count = min(_NUM_RECORDS, max(1, _NUM_BYTES // max(1, mean)), reader.num_examples)
    return [record for record in reader.read(np.arange(count)) if record is not None]


def describe_lost(decoder: ExampleDecoder, records: Sequence[bytes]) -> str:
    """Returns a warning if boxes, masks or dense targets are partly outside the crop; "" if all targets are visible.

    Args:
        decoder: The decoder, with `fit="crop"` and without augmentation.
        records: One or more records.
    """
    with tf.device("CPU:0"):
        parsed = decoder.parse_batch(tf.constant([*records], tf.string))
        if (crops := decoder.crops(parsed)) is None:
            return ""
        column = parsed.get(f"{OBJECTS}/{targets.BBOX}")
        areas = tf.reduce_prod(tf.cast(crops.boxes[:, 2:], tf.float64), 1) / tf.reduce_prod(tf.cast(crops.sizes, tf.float64), 1)
        lost = []
        if column is not None:
            seen = move_boxes(column, crops)[1].values.numpy()
            lost += [f"{(~seen).sum()} of {len(seen)} objects"] * (not seen.all())
        for name in (item for item in parsed if item in decoder.features and decoder.features[item].has_positions):
            lost += filter(None, [_describe_lost_positions(decoder, name, parsed[name], crops)])
        if any(not decoder.features[name].has_positions for name in decoder.wanted() if decoder.is_spatial_target(name)):
            hidden = 1 - float(tf.reduce_mean(areas))
            lost += [f"{hidden:.0%} of the area of masks and maps"] * (hidden >= 0.005)
    if not lost:
        return ""
    return (
        f"fit='crop' cuts off {' and '.join(lost)} in the first {len(records)} images. fit='pad', the default, keeps "
        "all."
    )
