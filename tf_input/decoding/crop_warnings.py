"""Logs warnings about features whose values may be wrong after images are cropped or flipped."""

from __future__ import annotations

import logging
from typing import Callable, Sequence

import numpy as np

from tf_input.dataset_format import ShardInfo
from tf_input.decoding.coordinates import describe_unmoved
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.features.kinds import kind_of
from tf_input.storage.record_reader import RecordReader

_NUM_RECORDS, _NUM_BYTES = 64, 32 << 20  # size of the sample; shuffled records are a random sample
_logger = logging.getLogger("tf_input")


class CropWarnings:
    """Logs each warning about coordinates that crops and flips do not adjust once."""

    def __init__(self) -> None:
        self._logged_messages: set[str] = set()

    def log_warnings(self, split: str, decoder: ExampleDecoder, read_sample: Callable[[], Sequence[bytes]]) -> None:
        """Logs warnings about features that look like coordinates, and about points that a flip does not exchange.

        Args:
            split: The name of the split, for the message.
            decoder: The decoder of the split.
            read_sample: A function that returns the first records. It is called only if necessary.
        """
        for message in (describe_unmoved(decoder, read_sample), *_describe_flips(decoder)):
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


def read_sample(reader: RecordReader, shards: Sequence[ShardInfo]) -> list[bytes]:
    """Returns the first records of a split.

    Raises:
        ValueError: A record is corrupt.
    """
    mean = sum(shard.num_bytes for shard in shards) // max(1, reader.num_examples)
    count = min(_NUM_RECORDS, max(1, _NUM_BYTES // max(1, mean)), reader.num_examples)
    return [record for record in reader.read(np.arange(count)) if record is not None]
