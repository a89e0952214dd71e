"""What a data set says of itself: its manifest and statistics."""

import dataclasses
import functools
import json
import logging
import os
import pathlib
from typing import TYPE_CHECKING, Any, Iterator, Mapping

import numpy as np
import tensorflow as tf

from tf_input import overview
from tf_input.dataset_format import IMAGE, STATISTICS, Feature, Manifest, default_channels, is_training_split, training_split
from tf_input.decoding import class_weights
from tf_input.decoding.schema import SIDES, is_map
from tf_input.epochs import hosts
from tf_input.folds import Fold, choose_statistics
from tf_input.options import meant
from tf_input.read_config import ReadConfig
from tf_input.storage.files import Files
from tf_input.storage.paths import is_url, join

if TYPE_CHECKING:
    import keras

_logger = logging.getLogger("tf_input")


class Description:
    """What is known of a data set before a record is read: its splits, as the keys of a mapping, and what they hold.

    Attributes:
        directory: Where it lies: a pathlib.Path, or a string if it is a URL.
        manifest: What its `manifest.json` says.
        fold: Which fold is its split `validation`; None: it is read with the splits that it has.
    """

    def __init__(self, directory: str | os.PathLike[str], manifest: Manifest, files: Files, fold: Fold | None = None) -> None:
        self.directory = os.fspath(directory) if is_url(directory) else pathlib.Path(directory)
        self.manifest = manifest
        self.fold = fold
        self._files = files
        self._warned: set[str] = set()  # splits of which nobody knows whether they are to be shuffled

    def __len__(self) -> int:
        """The number of splits."""
        return len(self.manifest.splits)

    def __iter__(self) -> Iterator[str]:
        """The names of the splits."""
        return iter(self.manifest.splits)

    def __contains__(self, split: object) -> bool:
        return isinstance(split, str) and split in self.manifest.splits

    # Two that lie at different places may be read differently, so that one data set is equal to itself alone.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {overview.title(self.manifest, self.directory)}>"

    def __str__(self) -> str:
        return overview.text(self.manifest, self.directory)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return overview.html_text(self.manifest, self.directory)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.manifest.splits)

    @property
    def class_names(self) -> tuple[str, ...]:
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
        """What `statistics.json` says, of the splits that are read; OSError or ValueError if it can't be read."""
        path = join(self.directory, STATISTICS)
        try:
            found = json.loads(self._files.read(path))
            return found if self.fold is None else choose_statistics(found, self.fold)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def counted(self, split: str, config: ReadConfig) -> Mapping[str, Any]:
        """`statistics`, with how often each class comes among the examples that are read of a split."""
        return self.statistics

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (height, width) of all images; None where they differ, or where `--check=none` left them unknown, or there are none."""
        return self.image_size_of(IMAGE)

    def image_size_of(self, name: str) -> tuple[int, int] | None:
        """The (height, width) of all images of a feature, as `image_size` has it of `image`."""
        image = self.features.get(name)
        if image is None or image.kind == "pixels" or (is_map(image) and None not in image.shape):
            return image and image.shape[:2]
        if image.kind not in ("image", "tensor"):
            return None
        ranges = list(self.side_ranges(name).values())
        if not all(values and values["min"] == values["max"] for values in ranges):
            return None
        return ranges[0]["min"], ranges[1]["min"]

    def side_ranges(self, name: str) -> dict[str, dict[str, Any] | None]:
        """`height` and `width` -> the smallest and the largest of a feature's images, as `statistics.json` has them; None: unknown."""
        found = self.statistics.get("images", {}) if name == IMAGE else self.statistics.get("other_images", {}).get(name, {})
        return {side: found.get(side) for side in SIDES}

    @property
    def channels(self) -> int | None:
        """Of images in batches, where `ReadConfig.channels` says nothing: 1 where all are grey, else 3; None where there are none."""
        image = self.features.get(IMAGE)
        if image is None or image.kind != "image":
            return image and image.shape[-1]
        return default_channels(self.statistics)

    def class_weight(self, split: str | None = None, target: str | None = None) -> dict[int, float]:
        """Weights for `model.fit(class_weight=...)` with which every class counts the same in the loss.

        Keras takes them for one target only, and without weights of examples: read a set with a feature `weight` with
        `use_weights=False`. With the option `class_weight` of `batches` there are both, for any number of targets.

        Args:
            split: The split whose classes are counted; None: the training split.
            target: A target that is one class label; None: the only target.

        Returns:
            Label -> num_examples / (num_classes * examples of the class), over the classes that occur in the split; 0 for
            the others.

        Raises:
            ValueError: There is no such split, or the target is not one class label.
        """
        split = self._find_split(split)
        targets = self.targets if target is None else (target,)
        if not set(targets) <= set(self.targets):
            expected = f"one of {', '.join(self.targets)}{meant(target, self.targets)}" if self.targets else "none, as there is no target"
            raise ValueError(f"target={target!r}: expected {expected}")
        if len(targets) != 1 or class_weights.heads(self.features, targets) != [*targets]:
            kinds = {name: self.features[name].kind if name in self.features else name for name in targets}
            found = [f"{name} ({'any number of classes' if self._is_multi_label(name) else kinds[name]})" for name in targets]
            raise ValueError(f"class weights are for a target with one class; here is {', '.join(found) or 'no target'}")
        return dict(enumerate(class_weights.balanced(self.features[targets[0]], self.statistics, split)))

    def normalization_layer(self, split: str | None = None, *, channels: int | None = None) -> "keras.layers.Normalization":
        """A layer after which each channel of a split's images has mean 0 and variance 1; see `layers.normalization_layer`.

            model = keras.Sequential([flowers.normalization_layer(), ...])

        Args:
            split: None: the training split.
            channels: As in `batches`.

        Raises:
            ValueError: There is no such split, or nothing is known of its pixels, or of them in so many channels.
        """
        from tf_input.decoding import layers  # Keras is for those who train with it

        split = self._find_split(split)
        if IMAGE not in self.features:
            raise ValueError(f"there is no {IMAGE!r} to be normalised; the data set has {', '.join(self.features)}")
        return layers.normalization_layer(self.statistics, self.features[IMAGE], split, self.channels, channels)

    def _is_multi_label(self, name: str) -> bool:
        return name in self.features and self.features[name].kind == "class_label" and self.features[name].is_ragged

    def settle(self, split: str, config: ReadConfig) -> ReadConfig:
        """`config` with what it leaves to be found out: `hosts` and `shuffle`. What was found is logged.

        Raises:
            ValueError: There is no such split, or it is not known from here which host this is.
        """
        self._check_split(split)
        if config.shuffle is None and not config.augment and is_training_split(split) is None and split not in self._warned:
            self._warned.add(split)
            _logger.warning(
                "%s is read in the order of its shards, as its name does not tell whether it is for training; shuffle=True or "
                "shuffle=False decides",
                split,
            )
        augmentation = config.augmentation
        if augmentation is not None and augmentation.saturation + augmentation.hue and 1 == (config.channels or self.channels):
            _logger.warning("%s: images have 1 channel, so that saturation and hue vary nothing; brightness and contrast do", split)
        found = hosts.hosts_of(split) if config.hosts is None else config.hosts
        shuffle = config.order(split) is not None if config.shuffle is None else config.shuffle
        return dataclasses.replace(config, hosts=found, shuffle=shuffle)

    def _find_split(self, split: str | None) -> str:
        """A split that was named, or else the training split; ValueError if there is none such."""
        if split is None:
            return training_split(self.splits)
        self._check_split(split)
        return split

    def _check_split(self, split: str) -> None:
        if split not in self:
            raise ValueError(self._unknown(split))

    def _unknown(self, split: object) -> str:
        return f"split={split!r}: expected one of {', '.join(self)}{meant(split, self)}"

    @property
    def mask_dtype(self) -> tf.DType:
        """The dtype of masks in batches: uint8, or int32 where a class needs more."""
        masks = self.statistics.get("mask") or {"max": 0}
        return tf.uint8 if masks["max"] <= np.iinfo(np.uint8).max else tf.int32
