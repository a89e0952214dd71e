"""Reads TFRecords that a user function parses, for `open_tfrecords(parse=...)`."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence, Unpack

from tf_input.batches import as_batches
from tf_input.epochs.hosts import warn_undivided
from tf_input.process import check_fork
from tf_input.lazy_tensorflow import tf
from tf_input.options import named_options
from tf_input.pipeline import file_pipeline
from tf_input.pipeline.user_functions import check_parsed, convert_parse, parse_error
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions, make_config

_OPTIONS = ("batch_size", "shuffle", "seed", "drop_remainder")


class ParsedRecords:
    """A dataset of TFRecords that a user function parses. `open_tfrecords(parse=...)` returns it.

    Attributes:
        paths: The file paths of the only split, `train`.
        parse: The user function that parses a record.
        compression: The compression of the files: "", "GZIP" or "ZLIB".
    """

    def __init__(
        self,
        paths: Sequence[str],
        parse: Callable[..., Any],
        compression: str,
        num_examples: int | None,
        records: Sequence[bytes],
    ) -> None:
        self.paths: Mapping[str, Sequence[str]] = {"train": paths}
        self.parse = parse
        self.compression = compression
        self._num_examples = num_examples
        self._record_bytes = max(1, sum(map(len, records)) // len(records))
        self._is_ragged = self._has_varying_shapes(records)

    def __repr__(self) -> str:
        return f"<ParsedRecords, {len(self.paths['train']):,} files, parse={self.parse!r}>"

    def num_examples(self, split: str = "train") -> int | None:
        """Returns the number of examples in the split; None if it is unknown."""
        return self._num_examples

    @named_options(ReadConfig, without=[name for name in ReadOptions.__annotations__ if name not in _OPTIONS])
    def batches(self, split: str = "train", config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> tf.data.Dataset:
        """Returns batches of the results of `parse`. Values whose shapes differ between records become ragged tensors.

        Args:
            split: The split, which is always `train`. It is shuffled unless `shuffle` is False.
            config: The reading options. Default: None, which uses only `options`.
            **options: Only `batch_size`, `shuffle`, `seed` and `drop_remainder` of `ReadConfig`.

        Raises:
            RuntimeError: The process was forked after TensorFlow had run.
            TypeError: An option does not exist; the message suggests a similar name.
            ValueError: The split does not exist, an option has a wrong value, or an option is not supported.
        """
        check_fork()
        config = make_config(config, options)
        if not isinstance(split, str) or split not in self.paths:
            raise ValueError(f"split={split!r} does not exist. Pass 'train', the only split of these files.")
        for name in ReadOptions.__annotations__:
            if name not in _OPTIONS and getattr(config, name) != getattr(ReadConfig, name):
                given = f"{name}={getattr(config, name)!r}"
                raise ValueError(f"{given} is not available with parse=..., which only supports {', '.join(_OPTIONS)}.")
        if config.order(split) in ("exact", "key"):
            raise ValueError(
                f"shuffle={config.shuffle!r} needs the index of a prepared dataset. Use shuffle='window', or prepare "
                "the files."
            )
        warn_undivided(f"TFRecords, {split}")
        buffer = file_pipeline.shuffle_buffer(1, self._record_bytes)
        data = file_pipeline.read_records(self.paths[split], config, split, buffer, compression=self.compression)
        data = data.map(self.parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        batch = data.ragged_batch if self._is_ragged else data.batch
        data = batch(config.batch_size, drop_remainder=config.drop_remainder)
        if self._num_examples is not None:
            data = data.apply(tf.data.experimental.assert_cardinality(config.num_batches(split, self._num_examples)))
        return as_batches(data.prefetch(tf.data.AUTOTUNE), f"TFRecords, {split}", config.batch_size)

    def _has_varying_shapes(self, records: Sequence[bytes]) -> bool:
        """Returns whether the first records have different shapes after parsing.

        Raises:
            ValueError: The first records can't be parsed, or the results can't be batched.
        """
        source = f"{self.paths['train'][0]}: parse={self.parse!r}"
        try:
            data = tf.data.Dataset.from_tensor_slices(list(records)).map(convert_parse(self.parse))
            shapes = {str([tf.shape(leaf).numpy().tolist() for leaf in _dense(element)]) for element in data}
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise parse_error(source, error) from error
        check_parsed(source, data.element_spec)
        return len(shapes) > 1


def _dense(element: Any) -> list[tf.Tensor]:
    """Returns the dense tensors of an element. Unlike ragged tensors, they must have equal shapes in a batch."""
    return [leaf for leaf in tf.nest.flatten(element) if isinstance(leaf, tf.Tensor)]
