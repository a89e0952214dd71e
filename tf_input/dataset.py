"""Opens a data set and feeds it to Keras: PreparedDataset and its ladder of tf.data steps."""

import functools
import json
import os
import pathlib
from typing import Any, Callable

import tensorflow as tf

from tf_input import augment, decode
from tf_input.dataset_format import IMAGE, LABEL, MANIFEST, STATISTICS, Manifest, read_manifest
from tf_input.read_config import ReadConfig
from tf_input.schema import parse_examples

__all__ = ["PreparedDataset", "ReadConfig", "open"]

_SIDES = ("height", "width")
_CYCLE_LENGTH = 16  # shards that are read at a time
_BLOCK_LENGTH = 32  # records from one before the next has its turn: tiny records feel each change
_SHUFFLE_RECORDS, _SHUFFLE_BYTES = 2048, 128 << 20


def open(directory: str | os.PathLike[str]) -> "PreparedDataset":
    """Opens a data set that `recordmill prepare` wrote.

    Raises:
        FileNotFoundError: The directory is not a (finished) data set.
        ValueError: Its manifest is damaged or of another format version.
    """
    return PreparedDataset(directory, read_manifest(directory))


class PreparedDataset:
    """A data set on disk; `open` makes it.

    Attributes:
        directory: Where it lies.
        manifest: What its `manifest.json` says.
    """

    def __init__(self, directory: str | os.PathLike[str], manifest: Manifest) -> None:
        self.directory = pathlib.Path(directory)
        self.manifest = manifest

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.manifest.splits)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Class names; a label is a position in it."""
        return self.manifest.label_names

    def num_examples(self, split: str) -> int:
        """Examples in a split; ValueError if there is no such split."""
        self._check_split(split)
        return self.manifest.num_examples(split)

    @functools.cached_property
    def statistics(self) -> dict[str, Any]:
        """What `statistics.json` says; FileNotFoundError or ValueError if it can't be read."""
        path = self.directory / STATISTICS
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (height, width) of all images; None where they differ, or where `--check=none` left them unknown."""
        ranges = [self.statistics["images"][side] for side in _SIDES]
        if not all(values and values["min"] == values["max"] for values in ranges):
            return None
        return ranges[0]["min"], ranges[1]["min"]

    def class_weight(self, split: str = "train") -> dict[int, float]:
        """Weights for `model.fit(class_weight=...)` with which every class counts the same in the loss.

        Returns:
            Label -> num_examples / (num_classes * examples of the class), over the classes that occur in the split; 0 for
            the others.

        Raises:
            ValueError: There is no such split.
        """
        self._check_split(split)
        counts = self.statistics["splits"][split]["label_counts"]
        share = sum(counts.values()) / sum(count > 0 for count in counts.values())
        return {label: share / counts[name] if counts[name] else 0.0 for label, name in enumerate(self.label_names)}

    def batches(self, split: str, **options: Any) -> tf.data.Dataset:
        """Reads a split in batches, for `model.fit`, `evaluate` and `predict`.

            train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)

        Each pass over it is one epoch, with every example exactly once (but for a remainder that is dropped). Its cardinality
        is known, so that no `steps_per_epoch` is needed.

        Args:
            split: One of `splits`.
            **options: The attributes of `ReadConfig`; `batch_size` has no default.

        Returns:
            Of (images, labels): uint8 [batch, height, width, 3], RGB, and int64 [batch].

        Raises:
            FileNotFoundError: A shard is missing.
            ValueError: There is no such split, an option has a wrong value, or a shard has a wrong size.
        """
        config = ReadConfig(**options)
        num_batches = config.num_batches(split, self.num_examples(split))
        paths = self._shard_paths(split)
        decode_batch = self._make_decoder(config)
        shuffles = config.shuffles(split)

        data = tf.data.Dataset.from_tensor_slices(paths)
        if shuffles:
            data = data.shuffle(len(paths), config.seed)  # anew in each epoch, like the records below
        # AUTOTUNE only sets how many threads read: with any number of them, the order is the same.
        data = data.interleave(
            tf.data.TFRecordDataset,
            cycle_length=_CYCLE_LENGTH if shuffles else 1,
            block_length=_BLOCK_LENGTH,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        if shuffles:
            # Small, because the data set was shuffled as a whole before it was written: records that lie together are a fair
            # sample already, and the buffer only has to deal them out differently in each epoch.
            data = data.shuffle(self._shuffle_buffer(split), config.seed)
        data = data.batch(config.batch_size, drop_remainder=config.drop_remainder)
        if config.augment:
            # A number for each batch, other ones in each epoch: all that its crops and flips depend on.
            data = tf.data.Dataset.zip(data, tf.data.Dataset.random(config.seed, rerandomize_each_iteration=True))
        # Only after batching, so that it is one call and one parse for a whole batch.
        data = data.map(decode_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        data = data.apply(tf.data.experimental.assert_cardinality(num_batches))
        return data.prefetch(tf.data.AUTOTUNE)

    def _check_split(self, split: str) -> None:
        if split not in self.splits:
            raise ValueError(f"split={split!r}: expected one of {', '.join(self.splits)}")

    def _shard_paths(self, split: str) -> list[str]:
        """A data set that was half copied is refused here, not in the middle of an epoch."""
        paths = []
        for shard in self.manifest.splits[split]:
            path = self.directory / shard.name
            if not path.exists():
                raise FileNotFoundError(f"shard {path} is missing; {MANIFEST} lists it")
            if (num_bytes := path.stat().st_size) != shard.num_bytes:
                raise ValueError(f"shard {path} has {num_bytes} bytes; {MANIFEST} says {shard.num_bytes}")
            paths.append(str(path))
        return paths

    def _shuffle_buffer(self, split: str) -> int:
        num_bytes = sum(shard.num_bytes for shard in self.manifest.splits[split])
        return max(1, min(_SHUFFLE_RECORDS, _SHUFFLE_BYTES * self.num_examples(split) // num_bytes))

    def _output_size(self, config: ReadConfig) -> tuple[int, int]:
        size = config.height_and_width or self.image_size
        if size is None:
            ranges = [(side, self.statistics["images"][side]) for side in _SIDES]
            known = [f"{side}s from {values['min']} to {values['max']}" for side, values in ranges if values]
            found = f"images have {' and '.join(known)}" if known else "sizes are unknown after --check=none"
            raise ValueError(f"image_size=None: {found}; expected a size such as 224, or (height, width)")
        return size

    def _make_decoder(self, config: ReadConfig) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
        """A function from a batch of records, and a number if it is to augment, to images and labels."""
        schema, augmentation, image_size = self.manifest.schema, config.augmentation, self._output_size(config)
        keeps_whole = augmentation is None and image_size == self.image_size
        states_sizes = {feature.name for feature in schema}.issuperset(_SIDES)

        def decode_batch(serialized: tf.Tensor, number: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
            features = parse_examples(serialized, schema, (IMAGE, LABEL, *(_SIDES if states_sizes else ())))
            encoded, labels = features[IMAGE], features[LABEL]
            if keeps_whole:
                return decode.decode_images(encoded, image_size), labels
            if states_sizes:
                sizes = tf.cast(tf.stack([features[side] for side in _SIDES], axis=1), tf.int32)
            else:
                sizes = decode.stored_sizes(encoded)
            if augmentation is None:
                boxes, mirrored = decode.central_boxes(sizes, image_size), None
            else:
                boxes, mirrored = augment.random_views(sizes, image_size, augmentation, number)
            return decode.decode_boxes(encoded, boxes, image_size, mirrored), labels

        return decode_batch
