"""A data set that was prepared, and what feeds it to Keras: `open`, PreparedDataset."""

import collections
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
import tensorflow as tf

from tf_input import overview, predictions
from tf_input.batch_examples import check_batch, config_of_any
from tf_input.batches import NumpyBatches, Reading, as_batches, as_numpy, read_plan
from tf_input.dataset_files import DatasetFiles
from tf_input.dataset_format import IMAGE, Feature, Manifest, default_channels, training_split
from tf_input.decoding import class_weights
from tf_input.folds import Fold, choose_fold, plain_fold
from tf_input.forks import check_fork
from tf_input.mapped_batches import MappedBatches, note_function
from tf_input.options import meant, named_options
from tf_input.random_access import ExampleReader, Examples, record_decoder
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions, make_config
from tf_input.split_reader import SplitReader
from tf_input.storage.cache import CachedFiles
from tf_input.storage.damaged import DamagedRecords
from tf_input.storage.files import Files
from tf_input.storage.open_files import open_manifest
from tf_input.storage.paths import is_url
from tf_input.transform.transform_format import TransformInfo

if TYPE_CHECKING:
    import keras


_NUM_MAPPED = 4  # functions of batches that are remembered


class PreparedDataset(Mapping[str, Examples]):
    """A data set: a mapping of the names of splits to their examples; `tf_input.open` makes it.

        print(flowers), list(flowers), "train" in flowers, flowers["train"][17], flowers["train"]["ant/17.jpg"]

    Attributes:
        directory: The place of the data set: a pathlib.Path, or a string if it is a URL.
        manifest: The contents of `manifest.json`.
        fold: The (number of folds, number of the one that is the split `validation`); None: it is read with the splits that it has.
        files: The files of the data set.
        mapped: The last calls of `map` on its batches, and the last batches with `map_example` or `map_batch`.
    """

    def __init__(self, directory: str | os.PathLike[str], manifest: Manifest, source: Files, fold: Fold | None = None) -> None:
        self.files = files = DatasetFiles(directory, manifest, source, fold)
        self.directory, self.manifest, self.fold = files.directory, manifest, fold
        # TensorFlow never lets go of what a generator calls, which opens files again should anybody still read on.
        weakref.finalize(self, files.store.close).atexit = False
        self.mapped: collections.deque[MappedBatches] = collections.deque(maxlen=_NUM_MAPPED)
        self._readers: dict[str, SplitReader] = {}
        self._examples: dict[str, Examples] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process opens the same data set, and counts what it skips itself."""
        return PreparedDataset, (self.directory, self.manifest, self.files.source, self.fold)

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

    @property
    def statistics(self) -> dict[str, Any]:
        """What `statistics.json` says, of the splits that are read; OSError or ValueError if it can't be read."""
        return self.files.statistics

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (height, width) of all images; None where they differ, or where `--check=none` left them unknown, or there are none."""
        return self.files.image_size()

    @property
    def channels(self) -> int | None:
        """The number of channels of images in batches, where nobody asks for another: 1 where all are grey, else 3; None without images."""
        return self.files.channels

    @property
    def cache(self) -> pathlib.Path | None:
        """The folder in which its blocks are kept, if they are."""
        return self.files.cache

    @property
    def skipped(self) -> DamagedRecords:
        """Damaged records that were left out, with `on_error="skip"`: how many by `len`, or one by one."""
        return self.files.store.skipped

    def num_examples(self, split: str) -> int:
        """Examples in a split; ValueError if there is no such split."""
        return self.split_reader(split).num_examples

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
            of_split = self.split_reader(split)
            records = of_split.open_records(ReadConfig(1))
            origin = _reopen_reader, (split, pickle.dumps(self))
            reader = ExampleReader(f"{self.manifest.name}, {split}", records, self._decode_record, of_split.catalog.find, origin)
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
        return self.split_reader(split).catalog.example_keys()

    @functools.cached_property
    def _decode_record(self) -> Callable[[bytes], dict[str, Any]]:
        return record_decoder(self.manifest.schema, self.files.mask_dtype, default_channels(self.statistics))

    @property
    def transform(self) -> TransformInfo:
        """What `recordmill analyze` found, and what its graph gives: schema, targets, mean and variance of channels.

        Raises:
            FileNotFoundError: It has not been run.
            OSError: What it wrote can't be read.
            ValueError: It is damaged, or of another version of the data set.
        """
        return self.files.transform.info

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
        split = training_split(self.splits) if split is None else self.split_reader(split).split
        targets = self.targets if target is None else (target,)
        if not set(targets) <= set(self.targets):
            expected = f"one of {', '.join(self.targets)}{meant(target, self.targets)}" if self.targets else "none, as there is no target"
            raise ValueError(f"target={target!r}: expected {expected}")
        if len(targets) != 1 or class_weights.heads(self.features, targets) != [*targets]:
            kinds = {name: self.features[name].kind if name in self.features else name for name in targets}
            found = [f"{name} ({'any number of classes' if _is_multi_label(self.features.get(name)) else kinds[name]})" for name in targets]
            raise ValueError(f"class weights are for a target with one class; here is {', '.join(found) or 'no target'}")
        return dict(enumerate(class_weights.balanced(self.features[targets[0]], self.statistics, split)))

    def normalization_layer(self, split: str | None = None, *, channels: int | None = None) -> "keras.layers.Normalization":
        """A layer after which each channel of a split's images has mean 0 and variance 1; see `layers.normalization_layer`.

            model = keras.Sequential([flowers.normalization_layer(), ...])

        Args:
            split: The name of the split; None: the training split.
            channels: The number of channels of images in batches; None: as many as `batches` gives.

        Raises:
            ValueError: There is no such split, or nothing is known of its pixels, or of them in so many channels.
        """
        from tf_input.decoding import layers  # Keras is for those who train with it

        split = training_split(self.splits) if split is None else self.split_reader(split).split
        if IMAGE not in self.features:
            raise ValueError(f"there is no {IMAGE!r} to be normalised, only {', '.join(self.features)}; expected images of uint8")
        return layers.normalization_layer(self.statistics, self.features[IMAGE], split, self.channels, channels)

    @named_options(ReadConfig)
    def batches(self, split: str, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> tf.data.Dataset:
        """Reads a split in batches, for `model.fit`, `evaluate` and `predict`.

            train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)

        Each pass over it is one epoch, with every example exactly once (except for a remainder that is dropped), and the next pass
        is the next epoch. A pass counts once its second batch is requested, even if it ends early, as in `fit(train.take(10),
        epochs=5)`. A look at one batch, as by `next(iter(train))` or `take(1)`, does not count, and iterators that begin together
        read the same epoch. A `prefetch` behind this dataset requests more batches than its reader sees.

        The cardinality is that of every pass, so no `steps_per_epoch` is needed, and an optimizer makes as many steps as there
        are batches. With `start_step`, a pass is as long as the rest of the first epoch, and begins where the pass before ended.
        A training of whole epochs continues with another dataset, or from the beginning with `BackupAndRestore`, which uses the
        attribute `position`. `export_serving` uses another attribute, `reading`, to know the training data of a model.

        Where there are several hosts, each reads its own part of every split; see `ReadConfig.hosts`.

        Args:
            split: The name of the split, one of `splits`.
            config: The options with which it is read; None: the options that follow.
            **options: The attributes of `ReadConfig`, which says what each means; `batch_size` has no default. Beside a `config` they
                replace its own.

        Returns:
            Batches of `x`, `(x, y)` where there are targets, `(x, y, weight)` where there are weights too; with `keys=True` a pair of that
            and the keys. `x` is the one of `inputs`, or all of them in a dictionary; `y` is the only target, or a dictionary of all. A
            weight is float32 [batch], or [batch, 1, 1] for a mask or a map, as Keras wants it, or [batch, height, width] where a mask's
            classes have weights; a dictionary of both where such a target is among others. Each feature is, by its kind:

            - `image`: uint8 [batch, height, width, 3], RGB, or with one channel where all images are grey; `channels` says otherwise. Where
              images keep 16 bits (`--keep_depth`), uint16. Of several images in an example each in its own size, all in as many channels.
            - `pixels`: uint8 [batch, height, width, channels], as stored, unless `channels` says otherwise.
            - `tensor`: of its own dtype, [batch, *shape], exact. Of [height, width, channels] it is the image, or a map that lies over it,
              as below; where what is seen is resized or mirrored, it is interpolated in float32, and rounded where it has no fractions.
              Maps that differ in size have that of the images. Of any number of rows, a list of any length: see `ragged`.
            - `class_label`: int64 [batch], or with `one_hot` float32 [batch, num_classes]; of any number of classes, float32 [batch,
              num_classes], which is 1 for those that it has.
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
        of_split = self.split_reader(split)
        config = of_split.settle(make_config(config, options))
        if config.service is not None:
            data, num_examples = of_split.read_served(config)
        else:
            plan = of_split.plan(config)
            data = read_plan(plan, of_split.identify(config, plan))
            num_examples = plan.share.num_examples
        data.reading = Reading(self, split, config)
        if config.has_functions:
            name = "map_batch" if config.map_batch is not None else "map_example"
            note_function(name, getattr(config, name), data)
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
            split: The name of the split, one of `splits`; the errors are those of `batches`.
            config: The options with which it is read; None: the options that follow.
            **options: The attributes of `ReadConfig`, as `batches` takes them.

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
        self,
        model: Any,
        split: str,
        config: ReadConfig | None = None,
        *,
        output: str | os.PathLike[str] | None = None,
        **options: Unpack[ReadOptions],
    ) -> dict[str, np.ndarray] | None:
        """What a model predicts for each example of a split, once, in the order of its shards, beside the example's key.

            found = flowers.predict(model, "test", batch_size=128, image_size=224)
            found["key"][found["predicted"] != found["label"]]  # the names of those that it takes for something else

        Args:
            model: A Keras model on any backend, or whatever else has a `predict_on_batch` or is a function of `x` (or of all of `inputs`
                in a dictionary), in NumPy arrays; texts are tensors of TensorFlow.
            split: The name of the split, one of `splits`.
            config: The options with which it is read; images are seen as in `batches` with the same options.
            output: The path of a local file that predictions are written to, `.parquet` or `.csv`, batch by batch, of which none is kept. A
                file that is there is replaced, once all are written. None: they are returned.
            **options: The attributes of `ReadConfig`, as `batches` takes them. What belongs to a training is refused: `augment`, `shuffle`,
                weights, `start_epoch` and its like. `hosts=None`: all is read here; else each host predicts its own part.

        Returns:
            Arrays of n rows, by name; None where they are written:

            - `key`: str, as an object.
            - `path`, and each feature that is one class label: where the image lay, and the name of its class; str or None. They are
              from the catalog, which takes pyarrow to read; a data set that `recordmill transform` wrote has none.
            - `predicted`: str, the name of the class with the highest score, if the only target is one class label and the model gives
              [batch, num_classes], or [batch, 1] for the second of two classes (in logits or not, as the loss of the compiled model says);
              None for a row with NaN. Of several outputs `predicted/NAME`, if a target of one class label has the output's name.
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
        batches, of_split = self.batches(split, config), self.split_reader(split)
        found = predictions.predict(model, batches, of_split.make_decoder(config), of_split.catalog, self)
        return predictions.collect(found) if output is None else predictions.write(found, output)

    @named_options(ReadConfig, without=("start_epoch", "start_step", "service", "keys"))
    def which(
        self, split: str, config: ReadConfig | None = None, *, epoch: int, step: int, **options: Unpack[ReadOptions]
    ) -> dict[str, np.ndarray]:
        """Tells the examples that a batch of any epoch is made of, without a log of it: `recordmill which` on the command line.

            flowers.which("train", epoch=3, step=9_000, batch_size=128, image_size=224, augment=True, seed=0)["key"]

        Their records are read, and none is decoded.

        Args:
            split: The name of the split, one of `splits`.
            config: The options with which the training read it.
            epoch: The epoch, from 0, as `start_epoch` counts.
            step: The batch of the epoch, from 0, as `start_step` counts.
            **options: The options of the training, as `batches` takes them. `hosts=None`: those of all hosts together.

        Returns:
            Arrays of str, as objects, in the order of the batch: `key`, and what else `predict` tells from the catalog.

        Raises:
            FileNotFoundError, OSError: A shard or a catalog can't be read.
            RuntimeError: This process was forked after TensorFlow had run.
            TypeError: There is no such option.
            ValueError: There is no such split or batch, or an option has a wrong value; or a record, an index or a catalog is damaged.
        """
        check_fork()
        of_split = self.split_reader(split)
        plan = of_split.plan(of_split.settle(config_of_any(make_config(config, options))), holds=False)
        check_batch(plan, epoch, step)
        with plan.open_inputs() as inputs:
            numbers, rows = inputs.numbers(int(epoch), int(step))
        return of_split.find_examples(plan, numbers[rows >= 0])[0]

    @named_options(ReadConfig)
    def example_spec(self, split: str | None = None, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> Any:
        """What `batches` with the same arguments would give: the shapes and dtypes of `x`, `(x, y)` or `(x, y, weight)`.

        No record is read for it. `split=None` is the training split.
        """
        of_split = self.split_reader(training_split(self.splits) if split is None else split)
        return of_split.example_spec(of_split.settle(make_config(config, options)))

    def split_reader(self, split: str) -> SplitReader:
        """What reads a split; ValueError if there is no such split."""
        if split not in self:
            raise ValueError(self._unknown(split))
        if split not in self._readers:
            self._readers.setdefault(split, SplitReader(self.files, split))  # another thread may have made it meanwhile
        return self._readers[split]

    def _unknown(self, split: object) -> str:
        return f"split={split!r}: expected one of {', '.join(self)}{meant(split, self)}"


@named_options()
def open(
    directory: str | os.PathLike[str],
    *,
    cache_directory: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    fold: tuple[int, int] | None = None,
) -> PreparedDataset:
    """Opens a data set that `recordmill prepare` wrote.

        tf_input.open("out/flowers")
        tf_input.open("gs://bucket/flowers")
        tf_input.open("s3://bucket/flowers", cache_directory="/local/ssd", cache_bytes=200 * 10**9)
        tf_input.open("out/scans", fold=(5, 0))

    Args:
        directory: The place of the data set: a directory (`~` is one's home), or a URL, such as `gs://`, `s3://`, `az://`, `https://`, or
            any other that fsspec knows (`pip install 'recordmill[remote]'`). Keys and endpoints come from where each cloud's own tools look
            for them; without any, public data are read.
        cache_directory: The local directory where copies are kept: filled while the first epoch is read, and read from in those that
            follow. All processes of a machine, and all data sets, may share it, and others' files in it stay. An exact order, which reads
            records one by one, needs one where the data set is not on this machine, with room for the split beside what is in use;
            what is read of other splits before the first epoch has ended takes room too.
        cache_bytes: The number of bytes that may lie in the cache directory: where they are taken, those of data sets that nobody has open
            go, the oldest first, and if there are none the rest is read without being kept. None: as many as the disk has room for, with a
            twentieth of it left free.
        fold: The (number of folds, number of one fold, from 0) of a data set that was prepared with `--folds N`: that fold is the split
            `validation`, and all others together are the split `train`. None: each fold is a split by its own name.

    Raises:
        FileNotFoundError: The directory is not a (finished) data set.
        OSError: It can't be read, or the cache directory can't be written.
        TypeError: There is no such option; the message says which was meant.
        ValueError: The manifest is damaged or of another format version, it has no such folds, nobody knows the URL's scheme, or an
            argument has a wrong value.
        ImportError: A package is missing that reads the URL.
    """
    for name, path in (("directory", directory), ("cache_directory", cache_directory)):
        if not isinstance(path, (str, os.PathLike)) and (path is not None or name == "directory"):
            raise ValueError(f"{name}={path!r}: expected a path{' or a URL' if name == 'directory' else ', or None'}")
    if cache_directory is not None and is_url(cache_directory):
        raise ValueError(f"cache_directory={os.fspath(cache_directory)!r}: expected a local directory")
    if cache_bytes is not None and (cache_directory is None or not _is_bytes(cache_bytes)):
        raise ValueError(f"cache_bytes={cache_bytes!r}: expected a positive number of bytes, together with cache_directory=...")
    fold = None if fold is None else plain_fold(fold)
    directory = os.path.expanduser(directory)
    source, manifest, data = open_manifest(directory)
    if cache_directory is not None:
        # By its content: what replaces a data set at its URL has another folder.
        folder = pathlib.Path(os.path.expanduser(cache_directory), f"{manifest.name}-{hashlib.sha256(data).hexdigest()[:16]}")
        source = CachedFiles(source, os.fspath(directory), folder, None if cache_bytes is None else int(cache_bytes))
    return PreparedDataset(directory, manifest if fold is None else choose_fold(manifest, fold), source, fold)


def _is_bytes(value: Any) -> bool:
    """Whether it is a number of bytes, also as a float, such as 200e9."""
    return isinstance(value, Real) and not isinstance(value, bool) and 1 <= value < math.inf


def _is_multi_label(feature: Feature | None) -> bool:
    return feature is not None and feature.kind == "class_label" and feature.is_ragged


# Of this process: a worker may be sent examples with each of its tasks, and is not to open their data set each time.
_reopen_once = functools.lru_cache(maxsize=8)(pickle.loads)


def _reopen_reader(split: str, dataset: bytes) -> ExampleReader:
    return _reopen_once(dataset)[split].reader
