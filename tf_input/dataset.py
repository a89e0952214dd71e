"""Implements the function `open`, which opens a prepared dataset, and the class `PreparedDataset`."""

import collections
import dataclasses
import functools
import hashlib
import math
import os
import pathlib
import pickle
import weakref
from numbers import Real
from typing import TYPE_CHECKING, Any, Callable, Iterator, KeysView, Mapping, Unpack, overload

import numpy as np

from tf_input import overview, predictions
from tf_input.batch_examples import check_batch, config_of_any
from tf_input.batches import NumpyBatches, Reading, as_batches, read_plan
from tf_input.choices import Fold, parse_split, plain_fold
from tf_input.dataset_files import DatasetFiles
from tf_input.dataset_format import IMAGE, Feature, Manifest, default_channels, training_split
from tf_input.decoding import class_weights
from tf_input.example_values import read_example
from tf_input.folds import choose_fold
from tf_input.process import check_fork
from tf_input.loaders import loader
from tf_input.mapped_batches import MappedBatches, note_function
from tf_input.options import suggest_option, named_options
from tf_input.random_access import ExampleReader, Examples
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions, make_config
from tf_input.serialized_example import SerializedExample
from tf_input.split_reader import SplitReader
from tf_input.storage.cache import CachedFiles
from tf_input.storage.corrupt_records import CorruptRecords
from tf_input.storage.files import Files
from tf_input.storage.open_files import open_manifest
from tf_input.storage.paths import is_url
from tf_input.transform.transform_format import TransformInfo

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


_NUM_MAPPED = 4  # number of `map` functions that a dataset remembers


class PreparedDataset(Mapping[str, Examples]):
    """A prepared dataset, which is a mapping from split names to examples. Use `tf_input.open` to create it.

    Examples:
        ```python
        print(flowers), list(flowers), "train" in flowers, flowers["train"][17], flowers["train"]["ant/17.jpg"]
        ```

    Attributes:
        directory: The directory of the dataset, a pathlib.Path; a string if it is a URL.
        manifest: The contents of `manifest.json`.
        fold: The pair (number of folds, index of the validation fold) that was passed to `open`; None if no fold was
            passed.
        files: The files of the dataset, a `DatasetFiles`.
        mapped: The last four functions that `map`, `map_example` or `map_batch` applied to its batches.
    """

    def __init__(self, directory: str | os.PathLike[str], manifest: Manifest, source: Files, fold: Fold | None = None) -> None:
        self.files = files = DatasetFiles(directory, manifest, source, fold)
        self.directory, self.manifest, self.fold = files.directory, manifest, fold
        # TensorFlow never frees generator functions, which refer to the store. Therefore, the files are closed together
        # with the dataset, and are opened again if reading continues.
        weakref.finalize(self, files.store.close).atexit = False
        self.mapped: collections.deque[MappedBatches] = collections.deque(maxlen=_NUM_MAPPED)
        self._readers: dict[str, SplitReader] = {}
        self._examples: dict[str, Examples] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments of the dataset. The unpickled dataset opens the same files."""
        return PreparedDataset, (self.directory, self.manifest, self.files.source, self.fold)

    def __len__(self) -> int:
        """Returns the number of splits."""
        return len(self.manifest.splits)

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the splits."""
        return iter(self.manifest.splits)

    def __contains__(self, split: object) -> bool:
        return isinstance(split, str) and split in self.manifest.splits

    # `Mapping` would compare the splits, but equal splits in different directories may be read differently.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {overview.title(self.manifest, self.directory)}>"

    def __str__(self) -> str:
        return overview.text(self.manifest, self.directory)

    def _repr_html_(self) -> str:
        """Returns the HTML summary that notebooks show."""
        return overview.html_text(self.manifest, self.directory)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.manifest.splits)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class names of the feature `label`, in label order. Without `label`, the class names of `objects`."""
        return self.manifest.label_names

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features by name, with their kind, dtype, shape and class names."""
        return self.manifest.features

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the target features. In addition, the target `objects` stands for all features whose names start
        with `objects/`."""
        return self.manifest.targets

    @property
    def statistics(self) -> dict[str, Any]:
        """The contents of `statistics.json`, as a dictionary.

        Raises:
            OSError, ValueError: The file can't be read, or does not belong to the dataset.
        """
        return self.files.statistics

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (height, width) of all images in pixels. None if image sizes differ or are unknown."""
        return self.files.image_size()

    @property
    def channels(self) -> int | None:
        """The default number of image channels: 1 if all are grayscale, otherwise 3. None if there are no images."""
        return self.files.channels

    @property
    def cache(self) -> pathlib.Path | None:
        """The local folder that caches blocks of remote files; None if no cache is used."""
        return self.files.cache

    @property
    def skipped(self) -> CorruptRecords:
        """A collection of the corrupt records that `skip_corrupt=True` left out, with `len` and iteration."""
        return self.files.store.skipped

    def num_examples(self, split: str) -> int:
        """Returns the number of examples in a split.

        Raises:
            ValueError: The split does not exist.
        """
        return len(self.split_reader(split).indices)

    def __getitem__(self, split: str) -> Examples:
        """Returns the examples of a split, for access by index or key.

            flowers["train"][17], flowers["train"]["ant/17.jpg"]

        Raises:
            FileNotFoundError: A shard is missing.
            KeyError: The split does not exist.
            OSError: A shard can't be read.
            ValueError: A shard is corrupt.
        """
        if not isinstance(split, str) or split not in self._examples:  # a loop over `flowers["train"][17]` opens the shards once
            try:
                of_split = self._split_reader(split)
            except KeyError:
                raise KeyError(self._unknown(split)) from None
            records = of_split.open_records(ReadConfig(1))
            origin = _reopen_reader, (split, pickle.dumps(self))
            reader = ExampleReader(f"{self.manifest.name}, {split}", records, self._decode_record, of_split.catalog.find, of_split.catalog.has_key, origin)
            self._examples[split] = Examples(reader, range(records.num_examples)[of_split.indices.start : of_split.indices.stop])
        return self._examples[split]

    @overload
    def keys(self) -> KeysView[str]: ...

    @overload
    def keys(self, split: str) -> np.ndarray: ...

    def keys(self, split: str | None = None) -> KeysView[str] | np.ndarray:
        """Returns the names of the splits. If a split is given, returns the keys of its examples in shard order.

        Examples:
            ```python
            flowers.keys("train")[17] == flowers["train"][17]["key"]
            ```

        Args:
            split: The name of a split. Default: None, which returns the names of all splits.

        Returns:
            A view of the split names; with `split`, an object array of str [num_examples].

        Raises:
            ImportError: pyarrow, which reads the catalog, is missing.
            OSError, ValueError: The split does not exist, or its catalog is missing or can't be read.
        """
        if split is None:
            return super().keys()
        of_split = self.split_reader(split)
        return of_split.catalog.example_keys()[of_split.indices.start : of_split.indices.stop]

    @functools.cached_property
    def _decode_record(self) -> Callable[[bytes], dict[str, Any]]:
        if self.manifest.is_verbatim:
            return lambda record: record
        mask_dtype, channels = self.files.mask_dtype, default_channels(self.statistics)
        return lambda record: read_example(SerializedExample(record), self.features, mask_dtype, channels)

    @property
    def transform(self) -> TransformInfo:
        """The output features, targets and channel statistics of the transform that `recordmill analyze` computed.

        Raises:
            FileNotFoundError: `recordmill analyze` has not been run.
            OSError: The results can't be read.
            ValueError: The results are corrupt, or belong to another version of the dataset.
        """
        return self.files.transform.info

    def class_weight(self, split: str | None = None, target: str | None = None) -> dict[int, float]:
        """Returns class weights for `model.fit(class_weight=...)` that give all classes the same total weight.

        Keras accepts class weights only if the model has a single target and the batches have no example weights. If
        the dataset has a feature `weight`, use the option `class_weight` of `batches`, which multiplies the weights and
        also works with several targets, or drop the weights with `train.map(lambda x, y, weight: (x, y))`.

        Args:
            split: The split whose classes are counted. Default: None, the training split.
            target: A target with one class label. Default: None, the only target.

        Returns:
            A dictionary {label: num_examples / (num_classes * examples of the class)}. `num_classes` is the number of
            classes that occur in the split. All other classes have weight 0.

        Raises:
            ValueError: The split does not exist, or the target does not have exactly one class label.
        """
        split = training_split(self.splits) if split is None else self.split_reader(split).split
        targets = self.targets if target is None else (target,)
        if not set(targets) <= set(self.targets):
            known = ", ".join(self.targets)
            advice = f"Choose one of {known}{suggest_option(target, self.targets)}" if known else "There are none."
            raise ValueError(f"target={target!r} is not a target of the dataset. {advice}")
        if len(targets) != 1 or class_weights.class_targets(self.features, targets) != [*targets]:
            kinds = {name: self.features[name].kind if name in self.features else name for name in targets}
            descriptions = [
                f"{name} ({'any number of classes' if _is_multi_label(self.features.get(name)) else kinds[name]})"
                for name in targets
            ]
            raise ValueError(
                "Class weights need a target with one class per example: "
                f"found {', '.join(descriptions) or 'no target'}. Choose such a target with target=..."
            )
        return dict(enumerate(class_weights.balanced(self.features[targets[0]], self.statistics, split)))

    def normalization_layer(self, split: str | None = None, *, channels: int | None = None) -> "keras.layers.Normalization":
        """Returns a Keras layer that normalizes each channel to mean 0 and variance 1.

        Examples:
            ```python
            model = keras.Sequential([flowers.normalization_layer(), ...])
            ```

        Args:
            split: The split whose mean and variance are used. Default: None, the training split.
            channels: The number of channels of images in batches. Default: None, the same default as in `batches`.

        Raises:
            ValueError: The split does not exist, or there are no pixel statistics for it or for this number of
                channels.
        """
        from tf_input.decoding import layers  # imported late, because reading does not need Keras

        split = training_split(self.splits) if split is None else self.split_reader(split).split
        if IMAGE not in self.features:
            raise ValueError(
                f"The dataset has no {IMAGE!r} to normalize, only {', '.join(self.features)}. Normalization needs "
                "images of uint8."
            )
        return layers.normalization_layer(self.statistics, self.features[IMAGE], split, self.channels, channels)

    @named_options(ReadConfig)
    def batches(self, split: str, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> "tf.data.Dataset":
        """Returns the batches of a split as a `tf.data.Dataset`, for `model.fit`, `evaluate` and `predict`.

        Each iteration over the dataset is one epoch. An epoch contains every example exactly once, unless the
        incomplete last batch is dropped. The next iteration reads the next epoch. Requesting the second batch of an
        iteration advances the epoch, even if the iteration ends early, as in `fit(train.take(10), epochs=5)`.
        Requesting a single batch, as in `next(iter(train))` or `take(1)`, does not advance the epoch. Iterators that
        are created before the epoch advances read the same epoch. Batches that are requested by `prefetch` also advance
        the epoch.

        The cardinality is known, so `fit` needs no `steps_per_epoch`.

        The returned dataset has two additional attributes. `iterator_state` is the iterator state that `BackupAndRestore`
        saves, and that loops can save and restore. `reading` contains the dataset, the split and the options, for `export_serving`.

        With several hosts, each host reads a part of every batch; see `ReadConfig.hosts`.

        Examples:
            ```python
            train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
            ```

        Args:
            split: The name of the split, one of `splits`.
            config: The reading options. Default: None, which uses only `options`.
            **options: The attributes of `ReadConfig`, which describes them. `batch_size` is required unless it is in
                `config`. Options override the attributes of `config`.

        Returns:
            Batches of `x`, `(x, y)` with targets, or `(x, y, weight)` with weights. With `with_keys=True`, pairs of such a
            batch and the keys, string [batch]. `x` and `y` are single tensors, or dictionaries by name if there are
            several inputs or targets. A weight is float32 [batch]. For a mask or dense target, a weight is [batch, 1,
            1], as Keras requires, or [batch, height, width] with class weights. If a mask or dense target is one of
            several targets, weights are a dictionary. Features have these shapes and dtypes:

            - `image`: uint8 [batch, height, width, 3] in RGB, or one channel if all images are grayscale; see
              `channels`. Datasets prepared with `--keep_depth` have uint16 images. Several images in an example may
              have different sizes, but have the same number of channels.
            - `pixels`: uint8 [batch, height, width, channels], with the stored number of channels unless `channels` is
              set.
            - `tensor`: [batch, *shape], with its own dtype and exact values. A tensor [height, width, channels] is the
              image, or a dense target, which is cropped and flipped like its image. Resized or flipped values are
              interpolated in float32, and rounded for integer dtypes. Dense targets of varying size are resized to the
              size of the images. A tensor with a varying number of rows is a variable-length list; see `padding`.
            - `class_label`: int64 [batch], or float32 [batch, num_classes] with `one_hot`. Features with any number of
              classes are multi-hot, float32 [batch, num_classes].
            - `mask`: uint8 [batch, height, width, 1], or int32 if values exceed 255. Masks are cropped, flipped and
              resized like their image.
            - `float`: float32 [batch, *shape]. A three-dimensional feature is a dense target, which is cropped and
              flipped like its image. A two-dimensional feature can be read only with uncropped images (`fit="stretch"`,
              no augmentation). An image from `recordmill transform` is a dense target with the requested size.
            - `integer`: int64 [batch, *shape]. With an image from `recordmill transform`, a feature of the image's
              height and width with one channel is cropped and flipped like the image.
            - `keypoints`: float32 [batch, n, 2 or 3], x, y and visibility (0, 1 or 2) of each point. x and y are
              fractions of the returned image's width and height. Keypoints follow their image; a flip swaps left and
              right points, see `Augmentation`. Points outside the image are 0, 0, 0, or keep their position if they have
              no visibility.
            - `text`: string [batch, *shape].
            - `float`, `integer` and `text` of variable length: [batch, n], padded with 0 or "" to the longest list or
              to a fixed length; see `padding`.
            - `objects`: a dictionary of `bbox`, float32 [batch, n, 4], (ymin, xmin, ymax, xmax) as fractions of the
              returned image's sides; `label`, int64 [batch, n]; `valid`, bool [batch, n]; and further features of
              objects. Padding objects have boxes of 0, label -1 and `valid` False. Objects whose center is not visible
              are dropped.

        Raises:
            FileNotFoundError: A shard is missing, or `transform=True` is set and the transform is missing.
            OSError: A shard can't be read.
            RuntimeError: The process was forked after TensorFlow had run. Iteration in a forked process raises the
                error, too.
            TypeError: An option does not exist; the message suggests a similar name.
            ValueError: The split does not exist, an option has a wrong value, or a shard or an index is corrupt.
            tf.errors.InvalidArgumentError: A record is corrupt or can't be read. Raised during iteration, with shard,
                record and offset.
        """
        check_fork()
        of_split = self.split_reader(split)
        config = of_split.resolve(make_config(config, options))
        plan = of_split.plan(config)
        data = read_plan(plan, of_split.fingerprint(config, plan))
        num_examples = plan.share.num_examples
        data.reading = Reading(self, split, config)
        if config.has_functions and not self.manifest.is_verbatim:  # whose records are not compared with a model's inputs
            name = "map_batch" if config.map_batch is not None else "map_example"
            note_function(name, getattr(config, name), data)
        chosen = f" ({num_examples:,} examples, chosen from {of_split.num_examples:,})" if of_split.selects(config) else ""
        return as_batches(data, f"{self.manifest.name}, {split}{chosen}", config.batch_size, config.hosts)

    @named_options(ReadConfig)
    def as_numpy(self, split: str, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> NumpyBatches:
        """Returns the batches of a split as NumPy arrays, for training loops.

        For Keras, use `batches` instead, or call `model.train_on_batch(images, labels)` in the loop. `as_numpy` raises
        the same errors as `batches`.

        Examples:
            ```python
            train = flowers.as_numpy("train", batch_size=128, image_size=224, seed=0)
            for epoch in range(10):
                for images, labels in train:  # one epoch; the next loop reads the next epoch
                    ...
            ```

        Args:
            split: The name of the split, one of `splits`.
            config: The reading options. Default: None, which uses only `options`.
            **options: The attributes of `ReadConfig`, as in `batches`.

        Returns:
            An iterable over the batches that `batches` returns. Each iteration is one epoch, and `len` is the number of
            batches in an epoch. Threads may share an iterator. `iterator_state.state_dict()` returns the position after
            the last batch. After `load_state_dict`, the first iteration reads the rest of its epoch.
        """
        return NumpyBatches(self.batches(split, config, **options))

    @named_options(ReadConfig, without=loader.OTHER_OPTIONS)
    def loader(
        self,
        split: str,
        config: ReadConfig | None = None,
        *,
        transform: loader.Transform | None = None,
        num_threads: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> loader.Loader:
        """Returns the batches of a split as NumPy arrays, without TensorFlow.

        Threads decode, crop and flip the images. JPEGs that are much larger than `image_size` are downscaled during
        decoding. The crops are random like those of `batches`, but not identical.

        Examples:
            ```python
            train = flowers.loader("train", batch_size=128, image_size=224, augment=True, seed=0)
            for batch in train:
                step(batch["image"], batch["label"])
            ```

        Args:
            split: The name of the split.
            config: The options. Keyword options override its attributes. Default: None.
            transform: A function that is applied to each example, in the threads. It receives the dictionary of
                features of `flowers[split][0]`, and returns the values to stack. A parameter named `rng` receives a
                `numpy.random.Generator` that depends only on the seed, the epoch and the example. Without `image_size`,
                it receives whole images. Default: None.
            num_threads: The number of threads. Default: None, the number of CPU cores.
            **options: The attributes of `ReadConfig` that the signature lists.

        Returns:
            A `Loader`, an iterator of dictionaries that can be saved and restored.

        Raises:
            ValueError: An option has a wrong value, or does not fit the dataset.
        """
        of_split = self.split_reader(split)
        config = of_split.resolve(make_config(config, options))
        loader.check_options(config, self.features)
        # Without the cache, the plan does not depend on the memory budget.
        plan = of_split.plan(dataclasses.replace(config, cache_in_memory=0), holds=False)
        fingerprint = of_split.fingerprint(config, plan)
        if fingerprint is not None and transform is not None:
            fingerprint |= {"transform": getattr(transform, "__qualname__", type(transform).__qualname__)}
        config = dataclasses.replace(config, fit=plan.decoder.config.fit, seed=plan.seed)
        channels = config.channels or default_channels(self.statistics)
        decode = loader.ExampleCropper(config, self.features, self.files.mask_dtype, channels, transform)
        stored_size = self.image_size if IMAGE in self.features else None
        varying = loader.find_varying(self.features, config.image_size is not None, stored_size)
        # A copy in another process reads the same batches, even if no seed is given, and the share of the same host.
        reopen = functools.partial(PreparedDataset.loader, self, split, config, transform=transform, num_threads=num_threads)
        varying, pictures = ((), ()) if transform else (varying, [name for name, feature in self.features.items() if feature.is_picture])
        return loader.Loader(plan, decode, varying, num_threads, fingerprint, pictures, reopen)

    @overload
    def predict(
        self,
        model: Any,
        split: str,
        config: ReadConfig | None = None,
        *,
        output: None = None,
        **options: Unpack[ReadOptions],
    ) -> dict[str, np.ndarray]: ...

    @overload
    def predict(
        self,
        model: Any,
        split: str,
        config: ReadConfig | None = None,
        *,
        output: str | os.PathLike[str],
        **options: Unpack[ReadOptions],
    ) -> None: ...

    @named_options(ReadConfig, without=predictions.OF_TRAINING)
    def predict(
        self,
        model: Any,
        split: str,
        config: ReadConfig | None = None,
        *,
        output: str | os.PathLike[str] | None = None,
        **options: Unpack[ReadOptions],
    ) -> dict[str, np.ndarray] | None:
        """Returns or writes a model's predictions for all examples of a split, together with their keys.

        Examples:
            ```python
            found = flowers.predict(model, "test", batch_size=128, image_size=224)
            found["key"][found["predicted"] != found["label"]]  # the keys of the misclassified examples
            ```

        Args:
            model: A Keras model on any backend, an object with `predict_on_batch`, or a function. The model is called
                with `x`, or with a dictionary of all `inputs`, as NumPy arrays. Text features are TensorFlow tensors.
            split: The name of the split, one of `splits`.
            config: The reading options. Images are processed as in `batches` with the same options. Default: None.
            output: The path of a local `.parquet` or `.csv` file. Predictions are written batch by batch, and are not
                kept in memory. An existing file is replaced when all predictions are written. Default: None, which
                returns the predictions.
            **options: The attributes of `ReadConfig`, as in `batches`. The examples are in shard order, or sorted by key
                with `shuffle="key"`, which keeps all keys and paths in memory. Options for training are rejected, such
                as `augment` and weights. With `hosts=None`, this process predicts all examples.
                Otherwise, each host predicts only the examples that it reads.

        Returns:
            Arrays with n rows, by name; None if `output` is set:

            - `key`: str, as objects.
            - `path` and each feature with one class label: the path of the image and the name of the class, as str or
              None. These columns are read from the catalog, which requires pyarrow. Datasets from `recordmill
              transform` have no catalog.
            - each target with one number or a vector of numbers: its value, as in batches. These columns are omitted with
              `map_example` and `map_batch`.
            - `predicted`: the name of the class with the highest score, as str. The column exists if the only target
              has one class label and the model returns [batch, num_classes], or [batch, 1] with the score of the second
              of two classes. Whether a single score is a logit is read from the loss of the compiled model. The value
              is None for a row with NaN. For several outputs, the column is `predicted/NAME` for each output NAME that
              is a target with one class label.
            - `output`: the output of the model, [n, ...]. Strings are str, as objects. For several outputs,
              `output/NAME`. A CSV file has a column `output/INDEX` for each number.

        Raises:
            FileNotFoundError, OSError: A file of the dataset can't be read, as in `batches`, or `output` can't be
                written.
            ImportError: A package that is needed to write Parquet is missing.
            TypeError: An option does not exist, or the model can't be called.
            ValueError: As in `batches`; or the format of `output` is unknown, or the model does not return one row per
                example.
            tf.errors.InvalidArgumentError: A record is corrupt or can't be read.
        """
        config = predictions.prediction_config(make_config(config, options))
        predictions.check_output(model, output)
        batches, of_split = self.batches(split, config), self.split_reader(split)
        batches_of_predictions = predictions.predict(model, batches, of_split.make_decoder(config), of_split.catalog, self)
        return predictions.collect(batches_of_predictions) if output is None else predictions.write(batches_of_predictions, output)

    @named_options(ReadConfig, without=("with_keys",))
    def which(
        self, split: str, config: ReadConfig | None = None, *, epoch: int, step: int, **options: Unpack[ReadOptions]
    ) -> dict[str, np.ndarray]:
        """Returns the keys of the examples in an earlier training batch. The equivalent command is `recordmill which`.

        The records are read, but images are not decoded.

        Examples:
            ```python
            flowers.which("train", epoch=3, step=9_000, batch_size=128, image_size=224, augment=True, seed=0)["key"]
            ```

        Args:
            split: The name of the split, one of `splits`.
            config: The options of reading in the training run. Default: None, which uses only `options`.
            epoch: The number of the epoch, from 0.
            step: The number of the batch in the epoch, from 0.
            **options: The attributes of `ReadConfig` in the training run, as in `batches`. With `hosts=None`, examples of
                all hosts are returned.

        Returns:
            Object arrays of str in batch order: `key`, and the columns that `predict` reads from the catalog.

        Raises:
            FileNotFoundError, OSError: A shard or a catalog can't be read.
            RuntimeError: The process was forked after TensorFlow had run.
            TypeError: An option does not exist.
            ValueError: The split or the batch does not exist, an option has a wrong value, or a record, an index or a
                catalog is corrupt.
        """
        check_fork()
        of_split = self.split_reader(split)
        plan = of_split.plan(of_split.resolve(config_of_any(make_config(config, options))), holds=False)
        check_batch(plan, epoch, step)
        with plan.make_inputs() as inputs:
            numbers, rows = inputs.numbers(int(epoch), int(step))
        return of_split.find_examples(plan, numbers[rows >= 0])[0]

    @named_options(ReadConfig)
    def example_spec(self, split: str | None = None, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> Any:
        """Returns the shapes and dtypes of the batches that `batches` returns with the same arguments.

        No record is read.

        Args:
            split: The name of the split. Default: None, the training split.
            config: The reading options. Default: None, which uses only `options`.
            **options: The attributes of `ReadConfig`, as in `batches`.

        Returns:
            A nested structure of `tf.TensorSpec`, such as `(x, y)`.
        """
        of_split = self.split_reader(training_split(self.splits) if split is None else split)
        return of_split.example_spec(of_split.resolve(make_config(config, options)))

    def split_reader(self, split: str) -> SplitReader:
        """Returns the reader of a split, or of a slice such as "train[:10%]".

        Raises:
            ValueError: The split does not exist.
        """
        try:
            return self._split_reader(split)
        except KeyError:
            raise ValueError(self._unknown(split)) from None

    def _split_reader(self, split: str) -> SplitReader:
        if not isinstance(split, str):
            raise KeyError(split)
        if split not in self._readers:
            name, indices = parse_split(split, self.manifest.splits, self.manifest.num_examples)
            self._readers.setdefault(split, SplitReader(self.files, split, name, indices))  # another thread may have added it
        return self._readers[split]

    def _unknown(self, split: object) -> str:
        return f"split={split!r} does not exist. Choose one of {', '.join(self)}{suggest_option(split, self)}"


@named_options()
def open(
    directory: str | os.PathLike[str],
    *,
    cache_directory: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    fold: Fold | tuple[int, int] | None = None,
) -> PreparedDataset:
    """Opens a dataset that `recordmill prepare` wrote.

    Examples:
        ```python
        tf_input.open("out/flowers")
        tf_input.open("gs://bucket/flowers")
        tf_input.open("s3://bucket/flowers", cache_directory="/local/ssd", cache_bytes=200 * 10**9)
        tf_input.open("out/scans", fold=tf_input.Fold(5, 0))
        ```

    Args:
        directory: The directory of the dataset (`~` is expanded), or a URL with `gs://`, `s3://`, `az://`, `https://`
            or another scheme that fsspec supports (`pip install 'recordmill[remote]'`). Credentials and endpoints are
            taken from the default locations of each cloud's own tools. Without credentials, public data can be read.
        cache_directory: A local directory for cached file blocks. The blocks are written in the first epoch and read in
            later epochs. Several processes and datasets may share the directory, and other files in it are not touched.
            Exact shuffling of a remote dataset requires a cache with free space for the whole split. Data from other
            splits that is read during the first epoch needs space too. Default: None, no cache.
        cache_bytes: The size limit of the cache directory, in bytes. When it is reached, the oldest datasets that no
            process has open are deleted. If all datasets in the cache are open, further data is read without caching.
            Default: None, which uses the free disk space except for 5% of the disk.
        fold: A pair (number of folds, index of the validation fold, from 0), for a dataset that was prepared with
            `--folds N`. The validation fold becomes the split `validation`, and all other folds become the split
            `train`. Default: None, which keeps each fold as a separate split.

    Returns:
        The dataset. Only its manifest is read.

    Raises:
        FileNotFoundError: The directory does not contain a finished dataset.
        ImportError: A package for reading the URL is missing.
        OSError: The dataset can't be read, or the cache directory can't be written.
        TypeError: An option does not exist; the message suggests a similar name.
        ValueError: The manifest is corrupt or has another format version, the dataset does not have these folds, the
            URL scheme is unknown, or an argument has a wrong value.
    """
    for name, path in (("directory", directory), ("cache_directory", cache_directory)):
        if not isinstance(path, (str, os.PathLike)) and (path is not None or name == "directory"):
            raise ValueError(
                f"{name}={path!r} is invalid. Pass a path{' or a URL' if name == 'directory' else ', or None'}."
            )
    if cache_directory is not None and is_url(cache_directory):
        raise ValueError(f"cache_directory={os.fspath(cache_directory)!r} is a URL. Pass a directory on a local disk.")
    if cache_bytes is not None and (cache_directory is None or not _is_bytes(cache_bytes)):
        raise ValueError(
            f"cache_bytes={cache_bytes!r} is invalid. Pass a positive number of bytes, together with "
            "cache_directory=..."
        )
    fold = None if fold is None else plain_fold(fold)
    directory = os.path.expanduser(directory)
    source, manifest, data = open_manifest(directory)
    if cache_directory is not None:
        # The folder name contains a hash of the manifest, so a new dataset at the same URL gets another folder.
        folder = pathlib.Path(os.path.expanduser(cache_directory), f"{manifest.name}-{hashlib.sha256(data).hexdigest()[:16]}")
        source = CachedFiles(source, os.fspath(directory), folder, None if cache_bytes is None else int(cache_bytes))
    return PreparedDataset(directory, manifest if fold is None else choose_fold(manifest, fold), source, fold)


def _is_bytes(value: Any) -> bool:
    """Returns whether a value is a positive whole number, which may be a float such as 200e9."""
    return isinstance(value, Real) and not isinstance(value, bool) and 1 <= value < math.inf


def _is_multi_label(feature: Feature | None) -> bool:
    return feature is not None and feature.is_categorical and feature.is_ragged


# A worker process may receive examples with each of its tasks, so it keeps the datasets that it opened.
_reopen_once = functools.lru_cache(maxsize=8)(pickle.loads)


def _reopen_reader(split: str, dataset: bytes) -> ExampleReader:
    return _reopen_once(dataset)[split].reader
