"""A data set that was prepared, and what feeds it to Keras: PreparedDataset."""

import dataclasses
import functools
import logging
import math
import os
import pathlib
import pickle
from typing import Any, Callable, KeysView, Mapping, Sequence, Unpack, overload

import numpy as np
import tensorflow as tf

from tf_input import predictions
from tf_input.batch_examples import check_batch, config_of_any, find_examples
from tf_input.batches import NumpyBatches, Reading, as_batches, as_numpy, read_plan
from tf_input.dataset_format import IMAGE, LABEL, Manifest, default_channels
from tf_input.decoders import make_decoder, make_transformed_decoder
from tf_input.decoding import class_weights, crops
from tf_input.decoding.batch_decoder import BatchDecoder
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.description import Description
from tf_input.epochs.position import identify
from tf_input.epochs.selection import Selection
from tf_input.folds import Fold
from tf_input.forks import check_fork
from tf_input.options import named_options
from tf_input.pipeline import distribute, ladder, memory
from tf_input.pipeline.inputs import run_bytes
from tf_input.pipeline.plan import Plan, make_share
from tf_input.random_access import ExampleReader, Examples, record_decoder
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions, make_config
from tf_input.selection.catalog import Catalog
from tf_input.selection.select import select
from tf_input.storage.cache import CachedFiles
from tf_input.storage.damaged import DamagedRecords
from tf_input.storage.files import Files
from tf_input.storage.store import Store
from tf_input.transform.transform_format import TransformInfo
from tf_input.transform.transforms import Transform

_logger = logging.getLogger("tf_input")


class PreparedDataset(Description, Mapping[str, Examples]):
    """A data set: a mapping of the names of splits to their examples; `tf_input.open` makes it.

        print(flowers), list(flowers), "train" in flowers, flowers["train"][17], flowers["train"]["ant/17.jpg"]

    Attributes:
        directory: Where it lies: a pathlib.Path, or a string if it is a URL.
        manifest: What its `manifest.json` says.
        fold: Which fold is its split `validation`; None: it is read with the splits that it has.
    """

    def __init__(self, directory: str | os.PathLike[str], manifest: Manifest, files: Files, fold: Fold | None = None) -> None:
        super().__init__(directory, manifest, files, fold)
        self._store = Store(directory, files, manifest)
        self._held: dict[tuple[Any, ...], memory.Held] = {}
        self._examples: dict[str, Examples] = {}
        self._catalogs: dict[str, Catalog] = {}
        self._crops = crops.Crops()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process opens the same data set, and counts what it skips itself."""
        return PreparedDataset, (self.directory, self.manifest, self._files, self.fold)

    @property
    def cache(self) -> pathlib.Path | None:
        """The folder in which its blocks are kept, if they are."""
        return self._files.folder if isinstance(self._files, CachedFiles) else None

    @property
    def skipped(self) -> DamagedRecords:
        """Damaged records that were left out, with `on_error="skip"`: how many by `len`, or one by one."""
        return self._store.skipped

    def __getitem__(self, split: str) -> Examples:
        """The examples of a split one by one, by their numbers or keys: `flowers["train"][17]`, `flowers["train"]["ant/17.jpg"]`.

        Raises:
            FileNotFoundError: A shard is missing.
            KeyError: There is no such split.
            OSError: A shard can't be read.
            ValueError: A shard is damaged.
        """
        if split not in self:
            raise KeyError(self._unknown(split))
        if split not in self._examples:  # `flowers["train"][17]` in a loop is not to look at all shards each time
            records = self._store.open_records(self.manifest.splits[split], "raise", run_bytes(ReadConfig.read_buffer))
            origin = _reopen_reader, (split, pickle.dumps(self))
            reader = ExampleReader(f"{self.manifest.name}, {split}", records, self._decode_record, self._catalog(split).find, origin)
            self._examples[split] = Examples(reader, range(records.num_examples))
        return self._examples[split]

    @overload
    def keys(self) -> KeysView[str]: ...

    @overload
    def keys(self, split: str) -> np.ndarray: ...

    def keys(self, split: str | None = None) -> KeysView[str] | np.ndarray:
        """The names of the splits; or the keys of a split's examples, in the order of its shards: str [n], as objects.

            flowers.keys("train")[17] == flowers["train"][17]["key"]

        Raises:
            ImportError: pyarrow is missing, which reads them in the catalog.
            OSError, ValueError: There is no such split, or no catalog, or it can't be read.
        """
        if split is None:
            return super().keys()
        self._check_split(split)
        return self._catalog(split).example_keys()

    @functools.cached_property
    def _decode_record(self) -> Callable[[bytes], dict[str, Any]]:
        return record_decoder(self.manifest.schema, self.mask_dtype, default_channels(self.statistics))

    @property
    def transform(self) -> TransformInfo:
        """What `recordmill analyze` found, and what its graph gives: schema, targets, mean and variance of channels.

        Raises:
            FileNotFoundError: It has not been run.
            OSError: What it wrote can't be read.
            ValueError: It is damaged, or of another version of the data set.
        """
        return self.loaded_transform.info

    @functools.cached_property
    def loaded_transform(self) -> Transform:
        """The transform with its graph; errors as in `transform`."""
        if self.fold is not None:
            raise ValueError(f"transform=True: {self.directory} was analysed as a whole, and is read as fold {self.fold[1]} of {self.fold[0]}; expected no fold")
        # It may be made anew while the data set stays the same, and so is not read from what is kept of that.
        files = self._files.source if isinstance(self._files, CachedFiles) else self._files
        return Transform(self.directory, files, self.cache, self.manifest)

    @named_options(ReadConfig)
    def batches(self, split: str, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> tf.data.Dataset:
        """Reads a split in batches, for `model.fit`, `evaluate` and `predict`.

            train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)

        Each pass over it is one epoch, with every example exactly once (but for a remainder that is dropped), and the next pass
        the next epoch. A pass counts once its last batch was delivered: a look at some batches, as by `take(1)`, or two passes at a
        time use up no epoch, and neither does `fit(steps_per_epoch=...)` that ends in the middle of one. (What reads ahead of the
        model, such as a `prefetch` of one's own, counts as soon as it has the last batch.)

        Its cardinality is that of every pass, so that no `steps_per_epoch` is needed, and an optimizer makes as many steps as there
        are batches. With `start_step` a pass is as long as what is left of the first epoch, and begins where the last one ended:
        a training of whole epochs goes on with another data set, or from the beginning with `BackupAndRestore`, for which what is
        returned has an attribute `position`. By another, `reading`, `export_serving` knows what a model was trained on.

        Where there are several hosts, each reads its own part of every split; see `ReadConfig.hosts`.

        Args:
            split: One of `splits`.
            config: How it is read; None: as the options say.
            **options: The attributes of `ReadConfig`, which says what each means; `batch_size` has no default. Beside a `config`
                they replace its own.

        Returns:
            Of `x`, `(x, y)` where there are targets, `(x, y, weight)` where there are weights too; with `keys=True` a pair of that and the
            keys. `x` is the one of `inputs`, or
            all of them in a dictionary; `y` is the only target, or a dictionary of all. A weight is float32 [batch], or [batch, 1,
            1] for a mask or a map, as Keras wants it, or [batch, height, width] where a mask's classes have weights; a dictionary of both where such a target is among others. Each feature is, by
            its kind:

            - `image`: uint8 [batch, height, width, 3], RGB, or with one channel where all images are grey; `channels` says otherwise. Where
              images keep 16 bits (`--keep_depth`), uint16. Of several images in an example each in its own size, all in as many channels.
            - `pixels`: uint8 [batch, height, width, channels], as stored, unless `channels` says otherwise.
            - `tensor`: of its own dtype, [batch, *shape], exact. Of [height, width, channels] it is the image, or a map that lies over it,
              as below; where what is seen is resized or mirrored, it is interpolated in float32, and rounded where it has no fractions. Maps
              that differ in size have that of the images. Of any number of rows, a list of any length: see `ragged`.
            - `class_label`: int64 [batch], or with `one_hot` float32 [batch, num_classes]; of any number of classes, float32 [batch, num_classes], which is 1 for those that it has.
            - `mask`: uint8 [batch, height, width, 1], or int32 where a value is above 255; it shows what its image shows.
            - `float`: float32 [batch, *shape]. Of three dimensions it is a map that lies over its image, and shows what that does; of
              two, it goes with whole images alone (`fit="stretch"`, no augmentation). An image that `recordmill transform` wrote is
              such a map, and of the size that is asked for.
            - `integer`: int64 [batch, *shape]; of the shape of such an image, with one channel, it shows what that does.
            - `text`: string [batch, *shape].
            - any of the last three, where examples differ in how many values they have: [batch, n], filled up with 0 or empty texts to
              the longest or to `max_length`; or otherwise, as `ragged` says.
            - `objects`: a dictionary of `bbox`, float32 [batch, n, 4], (ymin, xmin, ymax, xmax) in 0..1 of what the image shows;
              `label`, int64 [batch, n]; `valid`, bool [batch, n]; and others that they have. Where an image has fewer than n, the
              rest is 0, labels are -1, and `valid` is False. An object whose centre is not in view is left out.

        Raises:
            FileNotFoundError: A shard is missing, or there is no transform where `transform=True`.
            OSError: A shard can't be read.
            RuntimeError: This process was forked after TensorFlow had run; also where the batches of another one are read there.
            TypeError: There is no such option; the message says which was meant.
            ValueError: There is no such split, an option has a wrong value, or a shard or an index is damaged.
            tf.errors.InvalidArgumentError: A record is damaged, or can't be read. Raised then; it names shard, record and offset.
        """
        check_fork()
        config = self.settle(split, make_config(config, options))
        if config.service is not None:
            counts, times = [shard.num_examples for shard in self.manifest.splits[split]], None
            if (selection := self.select(split, config)) is not None:
                times = selection.times(config.start_epoch, counts)
                counts = [int(of_shard.sum()) for of_shard in times]
            data = distribute.service_batches(split, config, counts, functools.partial(self.read_files, split, times=times))
            num_examples = sum(counts)
        else:
            plan = self.plan(split, config)
            data = read_plan(plan, self.identify(split, config, plan))
            num_examples = plan.share.num_examples
        data.reading = Reading(self, split, config)
        chosen = f" ({num_examples:,} examples, chosen from {self.num_examples(split):,})" if config.selects else ""
        return as_batches(data, f"{self.manifest.name}, {split}{chosen}", config.batch_size)

    @named_options(ReadConfig)
    def as_numpy(self, split: str, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> NumpyBatches:
        """Reads a split in batches of NumPy arrays, for loops.

            train = flowers.as_numpy("train", batch_size=128, image_size=224, seed=0)
            for epoch in range(10):
                for images, labels in train:  # ends with the epoch; the next loop is the next one
                    ...

        Args:
            split: As in `batches`; and so are the errors.
            config: As in `batches`.
            **options: As in `batches`.

        Returns:
            Something to iterate over any number of times; `len` counts the batches of the next pass. They are those of `batches`, in
            as many epochs as there are passes. `iter(...)` is an iterator over one of them, which several threads may share. With
            `start_step`, the first pass is the rest of its epoch, and those that follow are whole epochs. Keras is fed with
            `batches`, or batch by batch: `model.train_on_batch(images, labels)`.
        """
        return as_numpy(functools.partial(self.batches, split), make_config(config, options))

    @overload
    def predict(
        self, model: Any, split: str, config: ReadConfig | None = None, *, output: None = None, **options: Unpack[ReadOptions]
    ) -> dict[str, np.ndarray]: ...

    @overload
    def predict(
        self, model: Any, split: str, config: ReadConfig | None = None, *, output: str | os.PathLike[str], **options: Unpack[ReadOptions]
    ) -> None: ...

    @named_options(ReadConfig, without=predictions.OF_TRAINING)
    def predict(
        self, model: Any, split: str, config: ReadConfig | None = None, *, output: str | os.PathLike[str] | None = None, **options: Unpack[ReadOptions]
    ) -> dict[str, np.ndarray] | None:
        """What a model predicts for each example of a split, once, in the order of its shards, beside the example's key.

            found = flowers.predict(model, "test", batch_size=128, image_size=224)
            found["key"][found["predicted"] != found["label"]]  # the names of those that it takes for something else

        Args:
            model: A Keras model on any backend, or whatever else has a `predict_on_batch` or is a function of `x` (or of all of `inputs`
                in a dictionary), in NumPy arrays; texts are tensors of TensorFlow.
            split: One of `splits`.
            config: As in `batches`; images are seen as there with the same options.
            output: A local file that predictions are written to, `.parquet` or `.csv`, batch by batch, of which none is kept. A file
                that is there is replaced, once all are written. None: they are returned.
            **options: As in `batches`. What belongs to a training is refused: `augment`, `shuffle`, weights, `start_epoch` and its like.
                `hosts=None`: all is read here; else each host predicts its own part.

        Returns:
            Arrays of n rows, by name; None where they are written:

            - `key`: str, as an object.
            - `path`, and each feature that is one class label: where the image lay, and the name of its class; str or None. They are
              from the catalog, which takes pyarrow to read; a data set that `recordmill transform` wrote has none.
            - `predicted`: str, the name of the class that has the most, where the only target is one class label and the model gives
              [batch, num_classes]; None where it gives NaN. Of several outputs `predicted/NAME`, where a target of one class label has
              the output's name.
            - `output`: [n, ...], what the model gives; texts are str, as objects. Of several outputs `output/NAME`. In a CSV file
              `output/INDEX` for each number.

        Raises:
            FileNotFoundError, OSError: As in `batches`; or `output` can't be written.
            ImportError: The package that writes Parquet is missing.
            TypeError: There is no such option, or the model can't be called.
            ValueError: As in `batches`; or it is not known how to write `output`, or the model gives something else than rows.
            tf.errors.InvalidArgumentError: A record is damaged, or can't be read.
        """
        config = predictions.prediction_config(make_config(config, options))
        predictions.check_output(model, output)
        batches, decoder = self.batches(split, config), self.make_decoder(config, split)
        found = predictions.predict(model, batches, decoder, self._catalog(split))
        return predictions.collect(found) if output is None else predictions.write(found, output)

    @named_options(ReadConfig, without=("start_epoch", "start_step", "service", "keys"))
    def which(
        self, split: str, config: ReadConfig | None = None, *, epoch: int, step: int, **options: Unpack[ReadOptions]
    ) -> dict[str, np.ndarray]:
        """Which examples a batch is made of, of any epoch, without a log of it: `recordmill which` on the command line.

            flowers.which("train", epoch=3, step=9_000, batch_size=128, image_size=224, augment=True, seed=0)["key"]

        Their records are read, and none is decoded.

        Args:
            split: One of `splits`.
            config: How the training read it.
            epoch: Which epoch, from 0, as `start_epoch` counts.
            step: Which batch of it, from 0, as `start_step` counts.
            **options: As in `batches`, those of the training. `hosts=None`: those of all hosts together.

        Returns:
            Arrays of str, as objects, in the order of the batch: `key`, and what else `predict` tells from the catalog.

        Raises:
            FileNotFoundError, OSError: A shard or a catalog can't be read.
            RuntimeError: This process was forked after TensorFlow had run.
            TypeError: There is no such option.
            ValueError: There is no such split or batch, or an option has a wrong value; or a record, an index or a catalog is damaged.
        """
        check_fork()
        config = self.settle(split, config_of_any(make_config(config, options)))
        plan = self.plan(split, config, holds=False)
        check_batch(plan, epoch, step)
        with plan.open_inputs() as inputs:
            numbers, rows = inputs.numbers(int(epoch), int(step))
        return self.find_examples(split, plan, numbers[rows >= 0])[0]

    def find_examples(self, split: str, plan: Plan, numbers: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What is known of some examples of a split: see `batch_examples.find_examples`."""
        config = plan.config
        reader = self._store.open_records(self.manifest.splits[split], config.on_error, run_bytes(config.read_buffer))
        return find_examples(plan.decoder.parse_keys, reader, self._catalog(split), numbers)

    def identify(self, split: str, config: ReadConfig, plan: Plan) -> dict[str, Any] | None:
        """What its batches depend on; see `position.identify`."""
        settled = {"shuffle": plan.kind, "num_examples": plan.share.num_examples, "selection": plan.selection and plan.selection.digest}
        if config.transform:
            settled["transform"] = self.loaded_transform.digest
        return identify(self.manifest, split, config, {**plan.decoder.settled_options, **settled}, self.fold)

    def select(self, split: str, config: ReadConfig) -> Selection | None:
        """Which records an epoch of a split has; None: each once. The errors are those of `batches`."""
        if not config.selects:
            return None
        labels = {name: self.features[name].label_names for name in self._heads(config)}
        return select(split, config, self._catalog(split), labels)

    def counted(self, split: str, config: ReadConfig) -> Mapping[str, Any]:
        """As `Description.counted`, where examples are chosen or classes balanced too."""
        if config.class_weight is None or (selection := self.select(split, config)) is None:
            return self.statistics
        numbers, counts = selection.of_epoch(config.start_epoch), {}
        for name in self._heads(config):
            labels, names = self._catalog(split).labels(name)[numbers], self.features[name].label_names
            counts[name] = dict(zip(names, np.bincount(labels[labels >= 0], minlength=len(names)).tolist()))
        return {**self.statistics, "splits": {split: {"label_counts": counts.get(LABEL, {}), "other_label_counts": counts}}}

    def _heads(self, config: ReadConfig) -> list[str]:
        """The targets, as they are stored, that are one class label each."""
        return class_weights.heads(self.features, self.targets if config.transform else config.target_names(self.targets))

    def _catalog(self, split: str) -> Catalog:
        if split not in self._catalogs:
            shards = self.manifest.splits[split]
            self._catalogs[split] = Catalog(self.directory, split, shards, self.features, self._store)
        return self._catalogs[split]

    def plan(self, split: str, config: ReadConfig, *, holds: bool = True) -> Plan:
        """How a split is read, by `batches` and by `Sequence`; the errors are theirs.

        Args:
            split: One of `splits`.
            config: How it is read.
            holds: Whether a split that is small enough is decoded, to be held in memory. If not, a plan is of the same batches, for who
                looks at a few.
        """
        self._check_split(split)
        if not holds and config.image_size is None and IMAGE in self.features and self.image_size is None and not config.transform:
            config = dataclasses.replace(config, image_size=1)  # of any, the batches are of the same examples
        decoder, kind = self.make_decoder(config, split), config.order(split)
        shards = self.manifest.splits[split]
        if holds:
            self._tell_of_crop(split, decoder, config)
        selection = self.select(split, config)
        num_bytes = self.decoded_bytes(split, decoder, None if selection is None else len(selection.numbers))
        if num_bytes is not None and num_bytes <= config.memory_budget:
            kind = kind and "exact"
            if holds or config.on_error == "skip":  # how many are damaged is known once all were read
                held = self._hold(split, decoder, config, num_bytes, selection)
                return Plan.of(split, config, kind, decoder, held=held)
        split_bytes = sum(shard.num_bytes for shard in shards)
        if holds and kind == "exact" and not self._store.files.can_hold(split_bytes):
            there = f"more cache_bytes, or free space, for {self.cache}"
            cache = "tf_input.open(..., cache_directory=...)" if self.cache is None else there
            raise ValueError(
                f"shuffle='exact': {self.directory} is not on a disk of this machine, from where records can be read one by one; expected "
                f"'window', or {cache} with room for the split, {split_bytes:,} bytes"
            )
        reader = self._store.open_records(shards, config.on_error, run_bytes(config.read_buffer), selection)
        return Plan.of(split, config, kind, decoder, reader)

    def read_files(
        self, split: str, config: ReadConfig, shards: Sequence[int] | None = None, times: Sequence[np.ndarray] | None = None
    ) -> tf.data.Dataset:
        """The batches of a split for readers that are dealt its shards one by one; see `distribute.service_batches`.

        Args:
            split: One of `splits`.
            config: How it is read.
            shards: Which of its shards; None: all.
            times: How often each record is read, int [num_examples] of each of the split's shards; None: once.
        """
        self._check_split(split)
        indexes = range(len(self.manifest.splits[split])) if shards is None else shards
        shards = [self.manifest.splits[split][index] for index in indexes]
        times = None if times is None else [times[index] for index in indexes]
        paths, decode_batch = self._store.tensorflow_paths(shards, config.on_error), self.make_decoder(config, split)
        self._tell_of_crop(split, decode_batch, config)
        num_examples = sum(shard.num_examples for shard in shards)
        buffer = ladder.shuffle_buffer(num_examples, sum(shard.num_bytes for shard in shards))
        return ladder.read_files(paths, decode_batch, config, split, buffer, dealt=True, times=times)

    @named_options(ReadConfig)
    def example_spec(self, split: str | None = None, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> Any:
        """What `batches` with the same arguments would give: the shapes and dtypes of `x`, `(x, y)` or `(x, y, weight)`.

        No record is read for it. `split=None` is the training split.
        """
        config = self.settle(split := self._find_split(split), make_config(config, options))
        decoder = self.make_decoder(config, split)
        if config.service is None:
            share = make_share(split, self.num_chosen(split, config), config, bool(decoder.targets))
            decoder = dataclasses.replace(decoder, has_padding=share.has_padding)
        return ladder.example_spec(decoder.decode, config)

    def num_chosen(self, split: str, config: ReadConfig) -> int:
        """Examples that an epoch of a split has."""
        selection = self.select(split, config)
        return self.num_examples(split) if selection is None else selection.num_examples

    def decoded_bytes(self, split: str, decoder: ExampleDecoder, num_chosen: int | None = None) -> int | None:
        """As `memory.decoded_bytes`, of a split, or of so many of its examples."""
        num_examples, of_split = self.num_examples(split), self.statistics.get("splits", {}).get(split, {})
        tensors = [one for name, one in self.features.items() if name != IMAGE and one.kind == "tensor" and None not in one.shape]
        per_example = sum(tf.as_dtype(one.dtype).size * math.prod(one.shape) for one in tensors)
        stored = sum(shard.num_bytes for shard in self.manifest.splits[split]) - (of_split.get("image_bytes") or 0)
        record_bytes = max(0, stored - num_examples * per_example)
        num_read = num_examples if num_chosen is None else num_chosen
        return memory.decoded_bytes(decoder, num_read, record_bytes * num_read // max(1, num_examples))

    def _hold(
        self, split: str, decoder: ExampleDecoder, config: ReadConfig, num_bytes: int, selection: Selection | None
    ) -> memory.Held:
        """All examples of a split, or those that are chosen, decoded; read once for all who ask for the same features of them."""
        wanted = (split, config.on_error, config.transform, config.keys, config.channels, *decoder.wanted())
        open_records = functools.partial(self._store.open_records, self.manifest.splits[split], config.on_error, run_bytes(config.read_buffer))
        whole_bytes = self.decoded_bytes(split, decoder)
        # Folds and their rest, say, are parts of what is held once.
        is_most = selection is not None and 2 * len(selection.numbers) > self.num_examples(split)
        is_part = selection is not None and whole_bytes <= config.memory_budget and (is_most or (*wanted, None) in self._held)
        key, num_bytes = ((*wanted, None), whole_bytes) if is_part else ((*wanted, selection and selection.digest), num_bytes)
        if selection is not None:
            selection = open_records(selection).selection
        if key not in self._held:
            # Of selections the last ones are kept for who asks again, as many as fit; batches that were made of others keep theirs.
            selections = [other for other in self._held if other[-1] is not None]
            while selections and num_bytes + sum(self._held[one].num_bytes for one in selections) > config.memory_budget:
                del self._held[selections.pop(0)]
            self._held[key] = memory.load(open_records(None if is_part else selection).each_once(), decoder, num_bytes, config.read_buffer)
            message = "%s: %d images held in memory, %.1f MB of a budget of %.1f; shuffled, their order is exact"
            _logger.info(message, split, len(self._held[key].numbers), num_bytes / 1e6, config.memory_budget / 1e6)
        return self._held[key].select(selection)

    def _tell_of_crop(self, split: str, decoder: ExampleDecoder, config: ReadConfig) -> None:
        shards = self.manifest.splits[split]
        reader = functools.partial(self._store.open_records, shards, config.on_error, run_bytes(config.read_buffer))
        self._crops.tell(split, decoder, config, lambda: crops.read_sample(reader(), shards))

    def batch_decoder(self, split: str, config: ReadConfig, has_padding: bool) -> BatchDecoder:
        """What decodes a split's batches, without reading any; `has_padding` as in `ExampleDecoder`."""
        return BatchDecoder((dataclasses.replace(self.make_decoder(config, split), has_padding=has_padding),))

    def make_decoder(self, config: ReadConfig, split: str) -> ExampleDecoder:
        if config.transform:
            return make_transformed_decoder(self, self.loaded_transform, config, split)
        return make_decoder(self, config, split)


# Of this process: a worker may be sent examples with each of its tasks, and is not to open their data set each time.
_reopen_once = functools.lru_cache(maxsize=8)(pickle.loads)


def _reopen_reader(split: str, dataset: bytes) -> ExampleReader:
    return _reopen_once(dataset)[split].reader
