"""Opens a data set and feeds it to Keras: PreparedDataset and its ladder of tf.data steps."""

import functools
import hashlib
import json
import os
import pathlib
import random
from typing import Any, Callable

import tensorflow as tf

from tf_input import augment, decode, locations
from tf_input.dataset_format import IMAGE, LABEL, MANIFEST, STATISTICS, Manifest, decode_manifest, not_a_data_set
from tf_input.read_config import ReadConfig
from tf_input.schema import parse_examples

__all__ = ["PreparedDataset", "ReadConfig", "open"]

_SIDES = ("height", "width")
_CYCLE_LENGTH = 16  # shards that are read at a time
_DEALT_CYCLE_LENGTH = 4
_BLOCK_LENGTH = 32  # records from one before the next has its turn: tiny records feel each change
_SHUFFLE_RECORDS, _SHUFFLE_BYTES = 2048, 128 << 20


def open(
    directory: str | os.PathLike[str], *, cache_directory: str | os.PathLike[str] | None = None
) -> "PreparedDataset":
    """Opens a data set that `recordmill prepare` wrote.

        tf_input.open("out/flowers")
        tf_input.open("gs://bucket/flowers")
        tf_input.open("s3://bucket/flowers", cache_directory="/local/ssd")

    Args:
        directory: Where it lies: a directory, or a URL. TensorFlow reads `gs://` itself; for what it does not read, such as
            `s3://`, there is fsspec (`pip install 'recordmill[remote]'`, and the package of the scheme, such as s3fs).
        cache_directory: Where to keep copies of shards, for URLs: a split's shards are copied when it is first read, checked
            against the manifest, and read from there. All processes and data sets may share it. TensorFlow needs none for
            what it reads itself, but one spares it reading the same objects again in each epoch.

    Raises:
        FileNotFoundError: The directory is not a (finished) data set.
        OSError: It can't be read.
        ValueError: Its manifest is damaged or of another format version, or its URL needs a cache_directory.
        ImportError: A package is missing that reads the URL.
    """
    source = locations.make_source(directory, has_cache=cache_directory is not None)
    path = locations.join(directory, MANIFEST)
    try:
        data = source.read(path)
    except FileNotFoundError:
        raise not_a_data_set(directory) from None
    manifest = decode_manifest(data, path)
    if cache_directory is None:
        return PreparedDataset(directory, manifest, source)
    # By its content: what replaces a data set at its URL has another folder.
    folder = f"{manifest.name}-{hashlib.sha256(data).hexdigest()[:16]}"
    return PreparedDataset(directory, manifest, source, pathlib.Path(cache_directory, folder))


class PreparedDataset:
    """A data set; `open` makes it.

    Attributes:
        directory: Where it lies: a pathlib.Path, or a string if it is a URL.
        manifest: What its `manifest.json` says.
        cache: Where copies of its shards are kept, if they are.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        manifest: Manifest,
        source: locations.Source,
        cache: pathlib.Path | None = None,
    ) -> None:
        self.directory = os.fspath(directory) if locations.is_url(directory) else pathlib.Path(directory)
        self.manifest = manifest
        self.cache = cache
        self._source = source

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
        """What `statistics.json` says; OSError or ValueError if it can't be read."""
        path = locations.join(self.directory, STATISTICS)
        try:
            return json.loads(self._source.read(path))
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
            OSError: A shard can't be read, or copied to the cache.
            ValueError: There is no such split, an option has a wrong value, or a shard has a wrong size or checksum.
        """
        config = ReadConfig(**options)
        num_batches = config.num_batches(split, self.num_examples(split))
        data = self.uncounted_batches(split, config)
        data = data.apply(tf.data.experimental.assert_cardinality(num_batches))
        return data.prefetch(tf.data.AUTOTUNE)

    def uncounted_batches(self, split: str, config: ReadConfig, *, dealt: bool = False) -> tf.data.Dataset:
        """The same without its cardinality, for who reads it in parts (see `distribute`).

        Args:
            split: One of `splits`.
            config: How to read it.
            dealt: Whether many readers are dealt its shards one by one: each then opens few, and leaves the others to the rest.
        """
        self._check_split(split)
        paths = self._shard_paths(split)
        decode_batch = self._make_decoder(config)
        shuffles = config.shuffles(split)

        if shuffles and dealt:
            random.Random(config.seed).shuffle(paths)  # here, as a shuffle buffer would draw all that are left at once
        data = tf.data.Dataset.from_tensor_slices(paths)
        if shuffles and not dealt:
            data = data.shuffle(len(paths), config.seed)  # anew in each epoch, like the records below
        # AUTOTUNE only sets how many threads read: with any number of them, the order is the same.
        data = data.interleave(
            tf.data.TFRecordDataset,
            cycle_length=(_DEALT_CYCLE_LENGTH if dealt else _CYCLE_LENGTH) if shuffles else 1,
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
        return data.map(decode_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _check_split(self, split: str) -> None:
        if split not in self.splits:
            raise ValueError(f"split={split!r}: expected one of {', '.join(self.splits)}")

    def _shard_paths(self, split: str) -> list[str]:
        shards = self.manifest.splits[split]
        if self.cache is None:
            return locations.check_shards(self.directory, shards)
        return locations.cache_shards(self._source, self.directory, self.cache, shards)

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
