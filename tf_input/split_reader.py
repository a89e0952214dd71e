"""Reads one split of a dataset by selecting, ordering and decoding its examples."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any, Mapping

import numpy as np

from tf_input.batch_examples import find_examples
from tf_input.dataset_files import DatasetFiles
from tf_input.dataset_format import IMAGE, LABEL, is_training_split
from tf_input.decoders import make_decoder
from tf_input.decoding import class_weights, crop_warnings
from tf_input.decoding.batch_decoder import BatchDecoder
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.epochs import hosts
from tf_input.epochs.fingerprint import fingerprint
from tf_input.epochs.selection import Selection
from tf_input.folds import has_folds
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline import file_pipeline, memory
from tf_input.pipeline.inputs import run_bytes
from tf_input.pipeline.plan import Plan, make_share
from tf_input.read_config import ReadConfig
from tf_input.selection.catalog import Catalog
from tf_input.choices import FoldPart
from tf_input.selection.select import select
from tf_input.storage.record_reader import RecordReader
from tf_input.verbatim_decoder import make_verbatim_decoder

_MOST_SHRINKING = 2  # downscaling factor that is acceptable without averaging
_logger = logging.getLogger("tf_input")


class SplitReader:
    """Reads one split. `PreparedDataset.split_reader` creates it.

    Attributes:
        name: The name of the split, with the slice that is read, such as "train[:10%]".
        split: The name of the split.
        indices: The indices of the examples that are read.
        shards: The shards of the split.
        num_examples: The number of examples in the whole split.
    """

    def __init__(self, files: DatasetFiles, name: str, split: str, indices: range) -> None:
        self.name, self.split, self.indices = name, split, indices
        self.shards = files.manifest.splits[split]
        self.num_examples = files.manifest.num_examples(split)
        self._files = files
        self._crop_warnings = crop_warnings.CropWarnings()
        self._was_warned = self._warned_of_aliasing = False

    @property
    def catalog(self) -> Catalog:
        """The catalog of the split."""
        return self._files.catalog(self.split)

    def resolve(self, config: ReadConfig) -> ReadConfig:
        """Returns `config` with default values for `hosts` and `shuffle` if these options are not set. Detected hosts
        are logged.

        Raises:
            ValueError: The index of this host can't be detected.
        """
        if config.shuffle is None and not config.augment and is_training_split(self.split) is None and not self._was_warned:
            self._was_warned = True
            _logger.warning(
                "%s is read in shard order, because its name does not show whether it is for training. Pass "
                "shuffle=True "
                "or shuffle=False.",
                self.split,
            )
        augmentation = config.augmentation
        if augmentation is not None and augmentation.saturation + augmentation.hue and 1 == (config.channels or self._files.channels):
            message = "%s: images have 1 channel, so saturation and hue have no effect. Use brightness and contrast."
            _logger.warning(message, self.split)
        resolved_hosts = hosts.hosts_of(self.split) if config.hosts is None else config.hosts
        shuffle = config.order(self.split) is not None if config.shuffle is None else config.shuffle
        return dataclasses.replace(config, hosts=resolved_hosts, shuffle=shuffle)

    def plan(self, config: ReadConfig, *, holds: bool = True, decoder: ExampleDecoder | None = None) -> Plan:
        """Returns the plan, which defines the records of each batch. It raises the errors of `batches`.

        Args:
            config: The reading options.
            holds: Whether to decode and cache a split that is small enough. If False, the plan has the same batches
                without the cost of caching. Default: True.
            decoder: The decoder of examples, if it was made before. Default: None.
        """
        files = self._files
        if holds:
            self._check_parse(config)
        if not holds and config.image_size is None and IMAGE in files.features and files.image_size() is None and not config.transform:
            # The size is arbitrary, because it does not affect the choice of examples.
            config = dataclasses.replace(config, image_size=1)
        decoder, kind = decoder or self.make_decoder(config), config.order(self.split)
        if holds:
            self._warn_of_crop(decoder, config)
        selection = self.select(config)
        num_bytes = self.decoded_bytes(decoder, None if selection is None else len(selection.numbers))
        is_small = num_bytes is not None and num_bytes <= config.cache_in_memory
        if holds:
            self._warn_of_aliasing(decoder, is_small)
        if is_small:
            kind = "exact" if kind == "window" else kind
            # the number of corrupt records is known only after reading all of them
            if holds or config.skip_corrupt:
                cached = self._cache(decoder, config, num_bytes, selection)
                return Plan.of(self.split, config, kind, decoder, cached=cached)
        if holds and kind in ("exact", "key"):
            files.check_cache_space(self.split, self.selects(config))
        return Plan.of(self.split, config, kind, decoder, self.open_records(config, selection))

    def make_decoder(self, config: ReadConfig) -> ExampleDecoder:
        """Returns the decoder of examples, without reading records."""
        if self._files.manifest.is_verbatim:
            return make_verbatim_decoder(config, f"{self._files.directory}, {self.split}")
        if config.parse is not None:
            raise ValueError("parse=... needs a dataset that was prepared with --records verbatim. Use map_example=... instead.")
        return make_decoder(self._files, config, self.counted(config), self.split)

    def batch_decoder(self, config: ReadConfig, has_padding: bool) -> BatchDecoder:
        """Returns the decoder of batches, without reading records. `has_padding` is as in `ExampleDecoder`."""
        return BatchDecoder((self.make_decoder(config),)).pad(has_padding)

    def fingerprint(self, config: ReadConfig, plan: Plan) -> dict[str, Any] | None:
        """Returns the values that identify the batches in a checkpoint; see `epochs.fingerprint.fingerprint`."""
        facts = {"shuffle": plan.kind, "num_examples": plan.share.num_examples, "selection": plan.selection and plan.selection.digest}
        if config.transform:
            facts["transform"] = self._files.transform.digest
        return fingerprint(self._files.manifest, self.name, config, {**plan.decoder.resolved_options, **facts}, self._files.fold)

    def select(self, config: ReadConfig) -> Selection | None:
        """Returns the records of an epoch; None if it contains each record once. It raises the errors of `batches`."""
        if config.shuffle == "key":
            selection = self._select(config) or Selection(np.arange(self.num_examples))
            return selection.ordered_by(self.catalog.example_keys()[selection.numbers].astype(str))
        return self._select(config)

    def _select(self, config: ReadConfig) -> Selection | None:
        if not self.selects(config):
            return None
        if any(isinstance(choice, FoldPart) for choice in config.select or ()) and has_folds(self._files.manifest, self._files.fold):
            raise ValueError(
                "select=Fold(...): the dataset was prepared with --folds. To read its folds, use tf_input.open(..., fold=Fold(5, 0))."
            )
        labels = {name: self._files.features[name].label_names for name in self._class_targets(config)}
        return select(self.name, self.indices, config, self.catalog, labels)

    def counted(self, config: ReadConfig) -> Mapping[str, Any]:
        """Returns the statistics of the dataset. Their class counts include only the examples that are read."""
        files = self._files
        if config.class_weight is None or (selection := self.select(config)) is None:
            return files.statistics
        numbers, counts = selection.of_epoch(0), {}
        for name in self._class_targets(config):
            labels, names = self.catalog.labels(name)[numbers], files.features[name].label_names
            counts[name] = dict(zip(names, np.bincount(labels[labels >= 0], minlength=len(names)).tolist()))
        return {**files.statistics, "splits": {self.split: {"label_counts": counts.get(LABEL, {}), "other_label_counts": counts}}}

    def _class_targets(self, config: ReadConfig) -> list[str]:
        """Returns the names of the stored targets with exactly one class label."""
        targets = self._files.manifest.targets
        return class_weights.class_targets(self._files.features, targets if config.transform else config.target_names(targets))

    def selects(self, config: ReadConfig) -> bool:
        """Returns whether examples are selected or repeated. Otherwise, an epoch contains each example once."""
        return config.selects or len(self.indices) < self.num_examples

    def num_chosen(self, config: ReadConfig) -> int:
        """Returns the number of examples in an epoch."""
        selection = self._select(config)
        return self.num_examples if selection is None else selection.num_examples

    def example_spec(self, config: ReadConfig) -> Any:
        """Returns the shapes and dtypes of the batches; see `PreparedDataset.example_spec`."""
        self._check_parse(config)
        decoder = self.make_decoder(config)
        share = make_share(self.split, self.num_chosen(config), config, decoder.has_targets)
        decoder = dataclasses.replace(decoder, has_padding=share.has_padding)
        return file_pipeline.example_spec(decoder.decode, config)

    def open_records(self, config: ReadConfig, selection: Selection | None = None) -> RecordReader:
        """Opens all records, or the selected ones. It raises the errors of `batches`."""
        store, files = self._files.store, self._files
        records = store.open_records(self.shards, config.skip_corrupt, run_bytes(config.read_buffer), selection)
        if config.with_keys and files.manifest.is_verbatim:
            counts = store.counts(self.shards, config.skip_corrupt)
            ends = np.cumsum([shard.num_examples for shard in self.shards])
            of_shards = np.split(self.catalog.example_keys(), ends[:-1])
            keys = np.concatenate([of_shard[:count] for of_shard, count in zip(of_shards, counts)])
            records.keys = np.array([key.encode() for key in keys], object)
        return records

    def _check_parse(self, config: ReadConfig) -> None:
        """Raises ValueError if the records can't be read without the option `parse`."""
        if self._files.manifest.is_verbatim and config.parse is None and config.map_batch is None:
            raise ValueError(
                f"{self._files.directory} was prepared with --records verbatim, so the contents of its records are unknown. "
                "Pass parse=..., a function that takes one record, a string tensor, or map_batch=..., a function that takes a "
                "batch of records."
            )

    def find_examples(self, plan: Plan, numbers: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the keys and catalog columns of the given examples; see `batch_examples.find_examples`."""
        return find_examples(self.open_records(plan.config), self.catalog, numbers)

    def decoded_bytes(self, decoder: ExampleDecoder, num_chosen: int | None = None) -> int | None:
        """Returns `memory.decoded_bytes` for the whole split, or for `num_chosen` examples of the split."""
        of_split = self._files.statistics.get("splits", {}).get(self.split, {})
        tensors = [item for name, item in self._files.features.items() if name != IMAGE and item.is_tensor and None not in item.shape]
        per_example = sum(np.dtype(tensor.dtype).itemsize * math.prod(tensor.shape) for tensor in tensors)
        stored = sum(shard.num_bytes for shard in self.shards) - (of_split.get("image_bytes") or 0)
        record_bytes = max(0, stored - self.num_examples * per_example)
        num_read = self.num_examples if num_chosen is None else num_chosen
        return memory.decoded_bytes(decoder, num_read, record_bytes * num_read // max(1, self.num_examples))

    def _cache(self, decoder: ExampleDecoder, config: ReadConfig, num_bytes: int, selection: Selection | None) -> memory.CachedExamples:
        """Returns all or the selected examples, decoded. Readers of the same features share the cached examples.

        The most recently used examples of all splits stay cached for later readers if they fit into the memory budget.
        """
        cache = self._files.memory_cache
        wanted = (self.split, config.skip_corrupt, config.transform, config.with_keys, config.channels, *decoder.wanted())
        total_bytes = self.decoded_bytes(decoder)
        # For example, a fold and its complement are parts of one cached split.
        is_most = selection is not None and 2 * len(selection.numbers) > self.num_examples
        is_part = selection is not None and total_bytes <= config.cache_in_memory and (is_most or (*wanted, None) in cache)
        key, num_bytes = ((*wanted, None), total_bytes) if is_part else ((*wanted, selection and selection.digest), num_bytes)
        if selection is not None:
            selection = self.open_records(config, selection).selection

        def load() -> memory.CachedExamples:
            records = self.open_records(config, None if is_part else selection).each_once()
            result = memory.load(records, decoder, num_bytes, config.read_buffer)
            message = "%s: %d images cached in memory, %.1f MB of a budget of %.1f MB. Shuffling is exact."
            _logger.info(message, self.split, len(result.numbers), num_bytes / 1e6, config.cache_in_memory / 1e6)
            return result

        return cache.get(key, num_bytes, config.cache_in_memory, load).select(selection)

    def _warn_of_aliasing(self, decoder: ExampleDecoder, is_cached: bool) -> None:
        """Warns once if images are downscaled by a factor of more than 2 without antialiasing. JPEGs are exempt."""
        for name in () if decoder.config.interpolation != "bilinear" or self._warned_of_aliasing else decoder.image_names:
            stored_size, shown = self._files.mean_size(name), decoder.sizes_of(name).shown
            if stored_size is None or shown is None or not is_cached and self._files.has_jpegs_only(name):
                continue
            if min(stored / side for stored, side in zip(stored_size, shown)) > _MOST_SHRINKING:
                self._warned_of_aliasing = True
                _logger.warning(
                    "%s: %r has about %.0f x %.0f pixels and is read at %d x %d. PNGs, raw pixels and images that are "
                    "cached in memory are resized without averaging, which causes aliasing. Pass interpolation='antialiased', or "
                    "resize the images once with `recordmill prepare --image_size`.",
                    *(self.split, name, *stored_size, *shown),
                )

    def _warn_of_crop(self, decoder: ExampleDecoder, config: ReadConfig) -> None:
        self._crop_warnings.log_warnings(self.split, decoder, lambda: crop_warnings.read_sample(self.open_records(config), self.shards))
