"""Implements `open_tfrecords`, which reads TFRecords from other tools without converting them."""

from __future__ import annotations

import concurrent.futures
import os
from typing import Any, Callable, Iterable, Mapping, Sequence, Unpack

import numpy as np

from tf_input.batches import as_batches
from tf_input.dataset_format import IMAGE, MANIFEST, Feature
from tf_input.decoding import class_weights, crop_warnings, feature_checks
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.schema import key_parser
from tf_input.decoding.feature_checks import with_inputs
from tf_input.epochs.hosts import warn_undivided
from tf_input.first_records import MAX_BYTES, MAX_RECORDS
from tf_input.foreign import tfds_directory
from tf_input.foreign.parsed_records import ParsedRecords
from tf_input.foreign.record_layouts import RecordLayout, find_record_layout
from tf_input.process import check_fork
from tf_input.lazy_tensorflow import tf
from tf_input.options import suggest_option, named_options
from tf_input.pipeline import file_pipeline
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions, make_config
from tf_input.storage.corrupt_records import CorruptRecords
from tf_input.storage.paths import is_url, join

SPLIT = "train"  # the split of files without split names
# Options of ReadConfig that need an index.
_INDEXED = ("select", "balance", "hosts", "cache_in_memory", "read_buffer")
_COMPRESSIONS = ("", "GZIP", "ZLIB")
_MAX_SHOWN = 200  # largest number of characters of a wrong value in messages
_NUM_OPEN_FILES = 32  # files are opened in parallel, because object stores have a high latency


@named_options()
def open_tfrecords(
    pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | tf.Tensor,
    layout: str | Mapping[str, Any] | None = None,
    *,
    parse: Callable[..., Any] | None = None,
    label_names: Sequence[str] = (),
    compression: str | None = None,
    count: bool = False,
) -> "RecordFiles | ParsedRecords":
    """Opens TFRecords that other tools wrote.

    Records are shuffled only with a buffer of a few thousand records, so their order is close to the stored order. If
    the records are sorted by class, use `recordmill prepare --source=tfrecord` instead, which shuffles all records.

    Examples:
        ```python
        tf_input.open_tfrecords("gs://bucket/train-*.tfrecord")
        tf_input.open_tfrecords("mnist.tfrecords", "image=pixels,height=28,width=28,depth=1,label=digit")
        tf_input.open_tfrecords("tensorflow_datasets/coco/2017/1.1.0")
        tf_input.open_tfrecords("mine.tfrecords", parse=parser)
        ```

    Args:
        pattern: File names or patterns, such as "train-*.tfrecord", also as a list, an array, a string tensor or a
            dataset of names. All files belong to one split, `train`. Alternatively, a directory of TensorFlow Datasets,
            which has its own splits.
        layout: The meaning of stored features, as in `recordmill prepare --layout`: the name of a layout, or items such
            as "image=pixels,shape=size,label=digit". Items can also be a mapping, {"image": "pixels", "shape": "size",
            "label": "digit"}. The documentation lists all names and items. Default: None, which detects the layout from
            the first 64 records. These records also determine the number of values of each feature, and whether raw
            pixels have one size. A feature has variable length if its number of values differs.
        parse: A function for records that no layout describes. It is called as by `Dataset.map`, with one record, a
            string tensor. It returns a dictionary of tensors, x, (x, y) or (x, y, weight). Default: None.
        label_names: The class names in label order. Class names are required if labels are strings, or if an example
            may have any number of labels. A label without a name raises an error when it is read. Default: ().
        compression: The compression of all files: "", "GZIP" or "ZLIB". Default: None, which detects it from the first
            record.
        count: Whether to count the examples by reading all files once. Datasets of TensorFlow Datasets store their
            counts. Default: False.

    Returns:
        `RecordFiles`; with `parse`, `ParsedRecords`.

    Raises:
        FileNotFoundError: The files do not exist.
        ValueError: The files contain no records, do not match the layout, or belong to a prepared dataset; or `parse`
            fails for the first records.
    """
    check_fork()
    label_names = _names(label_names)
    if parse is not None and (not callable(parse) or layout is not None or label_names):
        raise ValueError(
            f"parse={parse!r} is invalid. Pass a function that takes one record, without layout and label_names."
        )
    if compression not in (None, *_COMPRESSIONS):
        raise ValueError(
            f"compression={compression!r} is unknown. Pass None, or one of {', '.join(map(repr, _COMPRESSIONS))}."
        )
    pattern = _plain_pattern(pattern)
    if isinstance(pattern, str) and parse is None and tfds_directory.is_tfds_directory(pattern):
        _reject_prepared([pattern])  # TensorFlow Datasets can read prepared datasets, too
        if layout not in (None, "tfds"):
            raise ValueError(
                f"layout={layout!r}: {pattern} is a directory of TensorFlow Datasets, which defines its own layout. "
                "Omit layout."
            )
        if label_names or compression:
            raise ValueError(
                f"{pattern} is a directory of TensorFlow Datasets, which defines its own class names and is not "
                "compressed. "
                "Omit label_names and compression."
            )
        splits = tfds_directory.read_splits(pattern)
        counts = {split: num_examples for split, (_, num_examples) in splits.items()}
        paths = {split: files for split, (files, _) in splits.items() if files}
        _, records, _ = _first_records([path for files in paths.values() for path in files], "")
        return RecordFiles(paths, tfds_directory.read_layout(pattern), "", counts, _mean_bytes(records))
    paths = _find_files(pattern)
    path, records, compression = _first_records(paths, compression)
    _check_compression(paths, compression)
    record_layout = find_record_layout(records, path, layout, label_names) if parse is None else None
    counts = {SPLIT: _count(paths, compression)} if count else {}
    if parse is not None:
        return ParsedRecords(paths, parse, compression, counts.get(SPLIT), records)
    return RecordFiles({SPLIT: paths}, record_layout, compression, counts, _mean_bytes(records))


class RecordFiles:
    """A dataset of TFRecords that other tools wrote. `open_tfrecords` returns it.

    Attributes:
        paths: The file paths of each split.
        layout: The layout of the records.
        compression: The compression of the files: "", "GZIP" or "ZLIB".
        skipped: The undecodable records that `skip_corrupt=True` left out. The collection supports `len` and iteration.
    """

    def __init__(
        self,
        paths: Mapping[str, Sequence[str]],
        layout: RecordLayout,
        compression: str,
        num_examples: Mapping[str, int],
        record_bytes: int,
    ) -> None:
        self.paths = paths
        self.layout = layout
        self.compression = compression
        self._num_examples = num_examples
        self._record_bytes = record_bytes
        self.skipped = CorruptRecords()
        self._crop_warnings = crop_warnings.CropWarnings()

    def __repr__(self) -> str:
        files = ", ".join(f"{len(paths):,} of {split}" for split, paths in self.paths.items())
        return f"<RecordFiles, {files}; layout {self.layout.name}{self.layout.text and ': '}{self.layout.text}>"

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.paths)

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features by name, with their kind, shape and class names."""
        return self.layout.features

    @property
    def targets(self) -> tuple[str, ...]:
        """The default names of the target features. `ReadConfig.targets` overrides them."""
        return self.layout.targets

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class names of the feature `label` or, without `label`, of `objects`; empty if they are unknown."""
        label = self.features.get("label") or self.features.get("objects/label")
        return label.label_names if label else ()

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (height, width) of all images; None if the size is unknown, for example because images are encoded."""
        image = self.features.get(IMAGE)
        is_known = image is not None and image.shape and image.may_be_image and None not in image.shape
        return image.shape[:2] if is_known else None

    def num_examples(self, split: str = SPLIT) -> int | None:
        """Returns the number of examples in a split; None if it is unknown."""
        self._check_split(split)
        return self._num_examples.get(split)

    @named_options(ReadConfig, without=_INDEXED)
    def batches(self, split: str = SPLIT, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> tf.data.Dataset:
        """Returns the batches of a split, like `PreparedDataset.batches`.

        If `num_examples` is None, the cardinality is unknown. Keras then counts the steps in the first epoch.

        Args:
            split: The name of the split, one of `splits`. Default: `train`.
            config: The reading options. Default: None, which uses only `options`.
            **options: The attributes of `ReadConfig`, which override those of `config`. `batch_size` is required, and
                `image_size` for encoded images. Options that need an index are rejected: exact order, `select`, `balance`, `hosts`, `cache_in_memory`,
                `read_buffer`.

        Raises:
            RuntimeError: The process was forked after TensorFlow had run.
            TypeError: An option does not exist; the message suggests a similar name.
            ValueError: The split does not exist, or an option has a wrong value.
        """
        check_fork()
        decoder = self._make_decoder(split, config := make_config(config, options))
        warn_undivided(f"TFRecords, {split}")
        self._crop_warnings.log_warnings(split, decoder, lambda: _first_records(self.paths[split], self.compression)[1])
        buffer = file_pipeline.shuffle_buffer(1, self._record_bytes)
        data = file_pipeline.read_files(
            self.paths[split], decoder, config, split, buffer, self.skipped, self.compression
        )
        if (num_examples := self.num_examples(split)) is not None:
            data = data.apply(tf.data.experimental.assert_cardinality(config.num_batches(split, num_examples)))
        return as_batches(data.prefetch(tf.data.AUTOTUNE), f"TFRecords, {split}", config.batch_size)

    @named_options(ReadConfig, without=_INDEXED)
    def example_spec(self, split: str = SPLIT, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> Any:
        """Returns the shapes and dtypes of the batches that `batches` returns. No record is read."""
        return file_pipeline.example_spec(self._make_decoder(split, config := make_config(config, options)).decode, config)

    def _check_split(self, split: str) -> None:
        if not isinstance(split, str) or split not in self.splits:
            raise ValueError(
                f"split={split!r} does not exist. Choose one of {', '.join(self.splits)}{suggest_option(split, self.splits)}"
            )

    def _make_decoder(self, split: str, config: ReadConfig) -> ExampleDecoder:
        self._check_split(split)
        for name in _INDEXED:
            if getattr(config, name) != getattr(ReadConfig, name):
                raise ValueError(
                    f"{name}={getattr(config, name)!r} needs the index of a prepared dataset. "
                    "Omit it, or run `recordmill prepare --source tfrecord`."
                )
        if config.transform:
            raise ValueError("transform=True needs a dataset that was prepared and analyzed. Omit it.")
        if config.order(split) in ("exact", "key"):
            raise ValueError(
                f"shuffle={config.shuffle!r} needs the index of a prepared dataset. Use shuffle='window', or prepare "
                "the files."
            )
        feature_checks.check_shown(config, self.features)
        targets = config.target_names(self.targets)
        decoder = ExampleDecoder(
            parse=self.layout.parse,
            features=feature_checks.undecoded(config, self.features),
            config=with_inputs(config, self.features, targets),
            targets=targets,
            image_size=config.height_and_width or self.image_size,
            stored_size=self.image_size,
            mask_dtype=np.dtype("int32"),  # the range of values is unknown
            class_weights=class_weights.weight_tables(config.class_weight, self.features, targets, None, split),
            parse_keys=key_parser(self.layout.parse, self.features),
        )
        if (IMAGE in decoder.image_names and decoder.image_size is None) or decoder.unsized:
            raise ValueError(
                f"image_size={config.image_size!r}: the sizes of the images are unknown. Pass a size, such as 224 or "
                "(height, width)."
            )
        return decoder


def _plain_pattern(pattern: Any) -> str | list[str]:
    """Converts a file pattern to str, or several patterns to a list of str.

    Patterns may be paths, bytes, tensors, arrays, datasets of strings, or other iterables.

    Raises:
        ValueError: The value contains something else.
    """
    plain = pattern
    if isinstance(plain, tf.data.Dataset):
        plain = [*plain.as_numpy_iterator()]
    if isinstance(plain, (tf.Tensor, np.ndarray)):
        plain = np.asarray(plain).tolist()
    is_one = isinstance(plain, (str, bytes, os.PathLike))
    ones = [plain] if is_one else [*plain] if isinstance(plain, Iterable) and not isinstance(plain, Mapping) else [None]
    if not all(isinstance(entry, (str, bytes, os.PathLike)) for entry in ones):
        plain = " ".join(repr(pattern).split())[:_MAX_SHOWN]
        raise ValueError(f"pattern={plain} is invalid. Pass names of files, or patterns such as 'train-*.tfrecord'.")
    names = [os.path.expanduser(os.fsdecode(item)) for item in ones]
    return names[0] if is_one else names


def _names(label_names: Any) -> tuple[str, ...]:
    is_some = isinstance(label_names, Iterable) and not isinstance(label_names, (str, set, frozenset))
    names = tuple(label_names) if is_some else ()
    if not is_some or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(
            f"label_names={label_names!r} is invalid. List each class name once, in the order of the labels."
        )
    return tuple(map(str, names))  # NumPy strings are a subclass of str


def _find_files(pattern: str | Sequence[str]) -> list[str]:
    paths = []
    for path_or_pattern in [pattern] if isinstance(pattern, str) else pattern:
        found_paths = tf.io.gfile.glob(path_or_pattern)
        if not found_paths:
            raise FileNotFoundError(f"{path_or_pattern}: no such file")
        folders = [path for path in found_paths if tf.io.gfile.isdir(path)]
        _reject_prepared([*folders, *dict.fromkeys(os.path.dirname(path) or "." for path in found_paths)])
        for path in folders:
            raise ValueError(f"{path} is a directory. Pass files, such as {join(path, '*.tfrecord')}")
        for path in filter(_is_irregular, found_paths):
            raise ValueError(f"{path} is a pipe, a socket or a device. Pass a regular file.")
        paths += found_paths
    if not paths:
        raise ValueError("pattern=[] names no file. Pass at least one.")
    return sorted(set(paths))


def _is_irregular(path: str) -> bool:
    """Returns whether a local path is a pipe, a device or another special file, which may have no end."""
    return not is_url(path) and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _reject_prepared(directories: Sequence[str]) -> None:
    """Rejects prepared datasets, which users should open with `tf_input.open`."""
    for directory in directories:
        path = join(directory, MANIFEST)
        if tf.io.gfile.exists(path) and not _is_irregular(path):
            with tf.io.gfile.GFile(path, "rb") as file:
                if b'"recordmill"' in file.read(100):  # other tools may use this file name
                    raise ValueError(f"{directory} is a prepared dataset. Open it with tf_input.open.")


def _first_records(paths: Sequence[str], compression: str | None) -> tuple[str, list[bytes], str]:
    """Returns the path of the first file that contains records, its first records, and its compression."""
    first_path, records = "", []
    for path in paths:
        if (found_compression := _find_compression(path, compression)) is None:
            continue
        first_path, compression = first_path or path, found_compression
        try:
            for record in tf.data.TFRecordDataset(path, compression).as_numpy_iterator():
                records.append(record)
                if len(records) == MAX_RECORDS or sum(map(len, records)) >= MAX_BYTES:
                    return first_path, records, compression
        except (tf.errors.DataLossError, tf.errors.OutOfRangeError):
            raise ValueError(
                f"{path}: one of the first {MAX_RECORDS} records is corrupt or truncated. Copy the file again."
            ) from None
    if not records:
        raise ValueError(
            f"{', '.join(paths[:3])}{', …' if len(paths) > 3 else ''}: there are no records in these files"
        )
    return first_path, records, compression


def _find_compression(path: str, compression: str | None) -> str | None:
    """Returns the compression of a file. If `compression` is given, the file must have this compression. Returns None
    if the file is empty.

    All compressions are tried, because the first bytes of an uncompressed file may look like those of a compressed
    file.
    """
    for guess in _COMPRESSIONS if compression is None else (compression,):
        try:
            has_records = any(True for _ in tf.data.TFRecordDataset(path, guess).take(1))
            return guess if has_records else None
        except (tf.errors.DataLossError, tf.errors.OutOfRangeError):
            continue
    raise ValueError(
        f"{path} is not a TFRecord file{'' if compression is None else f' with compression {compression!r}'}"
    )


def _check_compression(paths: Sequence[str], compression: str) -> None:
    """Checks that all files have the given compression.

    Reads a record only if the first bytes of the file do not match this compression.
    """

    def check(path: str) -> None:
        with tf.io.gfile.GFile(path, "rb") as file:
            start = file.read(2)
        looks = "GZIP" if start == b"\x1f\x8b" else "ZLIB" if start[:1] == b"\x78" else ""
        if start and looks != compression:
            _find_compression(path, compression)

    with concurrent.futures.ThreadPoolExecutor(_NUM_OPEN_FILES) as threads:
        for _ in threads.map(check, paths):
            pass


def _mean_bytes(records: Sequence[bytes]) -> int:
    return max(1, sum(map(len, records)) // len(records))


def _count(paths: Sequence[str], compression: str) -> int:
    data = tf.data.Dataset.from_tensor_slices(list(paths)).interleave(
        lambda path: tf.data.TFRecordDataset(path, compression), num_parallel_calls=tf.data.AUTOTUNE, deterministic=False
    )
    return int(data.reduce(tf.constant(0, tf.int64), lambda number, _: number + 1))
