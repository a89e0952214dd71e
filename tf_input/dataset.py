"""Opens a data set that was prepared, and feeds it to Keras: PreparedDataset."""

import functools
import hashlib
import json
import os
import pathlib
from typing import Any, Mapping

import numpy as np
import tensorflow as tf

from tf_input import ladder, locations
from tf_input.dataset_format import IMAGE, LABEL, MANIFEST, STATISTICS, Feature, Manifest, decode_manifest, not_a_data_set
from tf_input.example_decoder import SIDES, ExampleDecoder
from tf_input.read_config import ReadConfig
from tf_input.schema import parse_examples

__all__ = ["PreparedDataset", "ReadConfig", "open"]


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
        """Class names of `label`, or else of the objects; a label is a position in it. Empty where there are none."""
        return self.manifest.label_names

    @property
    def features(self) -> Mapping[str, Feature]:
        """What each example has, by name: kind, shape, and the class names of class labels."""
        return self.manifest.features

    @property
    def targets(self) -> tuple[str, ...]:
        """What a model is to predict: names of features, and `objects` for all that begin with `objects/`."""
        return self.manifest.targets

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
        image = self.features[IMAGE]
        if image.kind == "pixels":
            return image.shape[:2]
        ranges = [self.statistics["images"][side] for side in SIDES]
        if not all(values and values["min"] == values["max"] for values in ranges):
            return None
        return ranges[0]["min"], ranges[1]["min"]

    def class_weight(self, split: str = "train") -> dict[int, float]:
        """Weights for `model.fit(class_weight=...)` with which every class counts the same in the loss.

        Keras takes them or weights of examples, not both: read a set with a feature `weight` with `use_weights=False`.

        Returns:
            Label -> num_examples / (num_classes * examples of the class), over the classes that occur in the split; 0 for
            the others.

        Raises:
            ValueError: There is no such split, or the target is not one class label.
        """
        self._check_split(split)
        label = self.features.get(LABEL)
        if self.targets != (LABEL,) or label is None or label.kind != "class_label" or label.shape:
            found = [f"{name} ({self.features[name].kind if name in self.features else name})" for name in self.targets]
            if label is not None and label.is_ragged:
                found = [f"{LABEL} (any number of classes)"]
            raise ValueError(f"class weights are for a target with one class; here is {', '.join(found) or 'no target'}")
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
            Of `x`, `(x, y)` where there are targets, `(x, y, weight)` where there are weights too. `x` is the one of `inputs`, or
            all of them in a dictionary; `y` likewise of the targets. A weight is float32 [batch], or [batch, 1, 1] for a mask or a
            map, as Keras wants it; a dictionary of both where such a target is among others. Each feature is, by kind:

            image         uint8 [batch, height, width, 3], RGB
            pixels        uint8 [batch, height, width, channels], as stored
            class_label   int64 [batch], or, of any number of labels, float32 [batch, num_classes]: 1 for those that it has
            mask          uint8 [batch, height, width, 1], or int32 where a value is above 255; what its image shows
            float         float32 [batch, *shape]; of three dimensions it is a map that lies over its image, and shows what
                          that does; of two, it goes with whole images alone (`fit="stretch"`, no augmentation)
            integer       int64 [batch, *shape]
            text          string [batch, *shape]
            objects       a dictionary: `bbox`, float32 [batch, n, 4], (ymin, xmin, ymax, xmax) in 0..1 of what the image shows;
                          `label`, int64 [batch, n]; `valid`, bool [batch, n]; others that they have. Where an image has fewer
                          than n, the rest is 0, labels -1, `valid` False. An object whose centre is not in view is left out.

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
        paths, decode_batch = self._shard_paths(split), self._make_decoder(config)
        return ladder.read(paths, decode_batch, config, split, self._shuffle_buffer(split), dealt=dealt)

    def example_spec(self, split: str = "train", **options: Any) -> Any:
        """What `batches` with the same arguments would give: the shapes and dtypes of `x`, `(x, y)` or `(x, y, weight)`.

        No record is read for it.
        """
        self._check_split(split)
        return ladder.example_spec(self._make_decoder(config := ReadConfig(**options)), config, split)

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
        return ladder.shuffle_buffer(self.num_examples(split), num_bytes)

    def _make_decoder(self, config: ReadConfig) -> ExampleDecoder:
        schema, stored_size = self.manifest.schema, self.image_size
        masks = self.statistics.get("mask") or {"max": 0}
        decoder = ExampleDecoder(
            parse=lambda serialized, names: parse_examples(serialized, schema, names),
            features=self.features,
            config=config,
            targets=config.target_names(self.targets),
            image_size=config.height_and_width or stored_size,
            stored_size=stored_size,
            mask_dtype=tf.uint8 if masks["max"] <= np.iinfo(np.uint8).max else tf.int32,
        )
        if decoder.sees_images and decoder.image_size is None:
            ranges = [(side, self.statistics["images"][side]) for side in SIDES]
            known = [f"{side}s from {values['min']} to {values['max']}" for side, values in ranges if values]
            found = f"images have {' and '.join(known)}" if known else "sizes are unknown after --check=none"
            raise ValueError(f"image_size=None: {found}; expected a size such as 224, or (height, width)")
        return decoder
