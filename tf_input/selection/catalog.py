"""Reads the columns of a split's catalogs, and the labels in its index files."""

import functools
import hashlib
import io
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from tf_input.dataset_format import KEY, LABEL, MAX_CATALOG_TEXT_BYTES, Feature, ShardInfo, catalog_features
from tf_input.options import suggest_option
from tf_input.selection.columns import Column, TextLists, BinaryColumn
from tf_input.storage.packages import import_package
from tf_input.storage.paths import join
from tf_input.storage.store import Store

_NUM_REQUESTS = 16  # number of shards that are read in parallel, to hide the latency of requests
PATH, GROUP, SHARD = "path", "group", "shard"
_FINDING = b"key"  # the purpose of hashes for looking up keys

_logger = logging.getLogger("tf_input")


class Catalog(Mapping[str, Column]):
    """The catalogs of a split as a mapping from column names to columns, which are read on first access and cached.

    If the index files contain labels, the column `label` is read from the index files and does not require catalogs.

    Args:
        directory: The directory of the dataset.
        split: The name of the split, for messages.
        shards: The shards of the split.
        features: The features of the dataset, by name.
        store: The store, which opens the files of the dataset.
    """

    def __init__(
        self, directory: str | os.PathLike[str], split: str, shards: Sequence[ShardInfo], features: Mapping[str, Feature], store: Store
    ) -> None:
        self._directory, self._split, self._shards, self._features, self._store = directory, split, shards, features, store
        self._with_names = {name: item for name, item in catalog_features(features.values()).items() if item.is_categorical}
        self._read: dict[str, Column] = {}
        self.num_examples = sum(shard.num_examples for shard in shards)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Column:
        """Returns a column for all examples of the split.

        Raises:
            ImportError: pyarrow is missing.
            KeyError: The column does not exist.
            OSError, ValueError: A catalog can't be read.
        """
        if name in self._read:
            return self._read[name]
        names = self._with_names[name].label_names if name in self._with_names else None
        if name == LABEL and self._has_labels:
            self._read[name] = BinaryColumn(self.labels(LABEL), names, names)
        elif name in self._names:
            self._read[name] = _to_column([*self._each(functools.partial(_read_column, name=name))], names)
        elif name in self._features and self._features[name].is_long:
            raise KeyError(
                f"{name!r} is not in the catalog, as one of its values has more than {MAX_CATALOG_TEXT_BYTES:,} bytes; "
                f"{self.described()}"
            )
        else:
            raise KeyError(f"there is no column {name!r}; {self.described()}{suggest_option(name, self)}")
        return self._read[name]

    def described(self) -> str:
        """Returns a clause for error messages that lists the existing columns."""
        if all(shard.catalog for shard in self._shards):
            return f"the catalog has {', '.join(self)}"
        return (
            f"{self._directory} has no catalog, as `recordmill transform` writes none; its indexes have "
            f"{', '.join(self) or 'no labels'}"
        )

    def labels(self, name: str) -> np.ndarray:
        """Returns the label of each example, int64 [n]; -1 if there is no label.

        Args:
            name: A feature with one class label.

        Raises:
            ImportError, OSError, ValueError: As in `[]`; or a label is out of range.
        """
        names = self._features[name].label_names
        if name == LABEL:
            labels = self._labels
            if len(labels) and not -1 <= labels.min() <= labels.max() < len(names):
                raise ValueError(
                    f"{self._directory}: an index of {self._split} is corrupt: its labels range from {labels.min()} "
                    f"to {labels.max()}. "
                    "Run `recordmill repair`."
                )
            return labels
        indices = {label: index for index, label in enumerate(names)}
        column = next(column for column, feature in self._with_names.items() if feature.name == name)
        return self[column].look_up(lambda label: indices.get(label, -1), -1)

    def row_columns(self) -> list[str]:
        """Returns the columns that `rows` can read: `path`, and the class names of each feature with one class label.

        The result is empty if the dataset has no catalog, for example after `recordmill transform`. If pyarrow is not
        installed, the result is empty and a message is logged.
        """
        if not all(shard.catalog for shard in self._shards):
            return []
        try:
            _parquet()
        except ImportError as error:
            _logger.warning("paths and class names are left out: %s", error)
            return []
        return [PATH, *(column for column, feature in self._with_names.items() if not feature.shape)]

    def rows(self, columns: Sequence[str], paths: Collection[str] | None = None) -> Iterator[tuple[str | None, ...]]:
        """Yields the key of each example and its values in the given string columns. Only the catalog of one shard is
        in memory at a time.

        Args:
            columns: The names of columns with strings.
            paths: The paths of the shards to read. Default: None, all shards.

        Raises:
            ImportError, OSError, ValueError: As in `[]`.
        """
        for shard in self._shards:
            if paths is not None and join(self._directory, shard.name) not in paths:
                continue
            with self._open(shard) as file:
                try:
                    table = file.read([KEY, *columns], use_threads=False)
                    values = [table.column(name).to_pylist() for name in (KEY, *columns)]
                except (OSError, ValueError, KeyError, NotImplementedError) as error:
                    raise _failed(join(self._directory, shard.catalog), error) from error
            yield from zip(*values)

    def no_row(self, key: str) -> ValueError:
        """Returns the error message for a record whose key has no row in the catalog."""
        return ValueError(
            f"{self._directory}: a catalog of {self._split} does not have the key {key!r}. To rebuild it, run "
            "`recordmill repair`."
        )

    def example_keys(self) -> np.ndarray:
        """Returns the key of each example, as an object array of str [n]. It raises the errors of `hashes`."""
        return np.concatenate([np.zeros(0, object), *self._each(_read_keys)])

    def find(self, key: str) -> list[int]:
        """Returns the indices of the examples whose keys have the hash of `key`. It raises the errors of `hashes`."""
        hashes, numbers = self._by_hash
        wanted = np.uint64(int.from_bytes(_digest(key.encode("utf-8", "surrogatepass"), _FINDING), "big"))
        return numbers[np.searchsorted(hashes, wanted, "left") : np.searchsorted(hashes, wanted, "right")].tolist()

    def has_key(self, number: int, key: str) -> bool:
        """Returns whether the example with this index has a key. It raises the errors of `hashes`."""
        for shard in self._shards:
            if number < shard.num_examples:
                with self._open(shard) as file:
                    return _read_keys(file)[number] == key
            number -= shard.num_examples
        return False

    def hashes(self, by_group: bool, purpose: str) -> np.ndarray:
        """Returns a hash of each example's group, or of its key if it has no group, uint64 [n].

        The hash is BLAKE2b-64 of the UTF-8 string, keyed by `purpose`. The keys of each shard are released as soon as
        they are hashed, because the column of keys is the largest column.

        Raises:
            ImportError, OSError, ValueError: As in `[]`.
        """
        return np.concatenate(
            [np.zeros(0, np.uint64), *self._each(functools.partial(_hash_keys, by_group=by_group, purpose=purpose.encode()))]
        )

    @functools.cached_property
    def _by_hash(self) -> tuple[np.ndarray, np.ndarray]:
        """The sorted hashes of all keys, and the indices of the examples. Keys would need ten times as much memory."""
        hashes = self.hashes(False, _FINDING.decode())
        numbers = np.argsort(hashes, kind="stable")
        return hashes[numbers], numbers

    @property
    def _has_labels(self) -> bool:
        feature = self._features.get(LABEL)
        return feature is not None and feature.is_categorical and not feature.shape and len(feature.label_names) > 0

    @functools.cached_property
    def _labels(self) -> np.ndarray:
        return self._store.labels(self._shards)

    @functools.cached_property
    def _names(self) -> list[str]:
        if not self._shards or not all(shard.catalog for shard in self._shards):
            return [LABEL] * self._has_labels
        with self._open(self._shards[0]) as file:
            return list(file.schema_arrow.names)

    def _each(self, read: Callable[[Any], Any]) -> Iterator[Any]:
        """Applies a function to the catalog of each shard and yields the results in shard order."""
        if not all(shard.catalog for shard in self._shards):
            raise ValueError(f"keys and groups are only in the catalog, and {self.described()}")

        # The shards are read in threads of their own. Arrow's threads, which `pre_buffer` and `use_threads` start, could
        # still hold buffers of Python when the program exits, which would abort it.
        def read_one(shard: ShardInfo) -> Any:
            with self._open(shard) as file:
                try:
                    return read(file)
                except (OSError, ValueError, KeyError, NotImplementedError) as error:
                    raise _failed(join(self._directory, shard.catalog), error) from error

        with ThreadPoolExecutor(_NUM_REQUESTS) as threads:
            yield from threads.map(read_one, self._shards)

    def _open(self, shard: ShardInfo) -> Any:
        """Opens the catalog of a shard and reads only the Parquet footer."""
        parquet = _parquet()
        path = join(self._directory, shard.catalog)
        try:
            file = parquet.ParquetFile(_Range(self._store.files, path, shard.catalog_bytes), pre_buffer=False)
        except (OSError, ValueError) as error:
            raise _failed(path, error) from error
        if file.metadata.num_rows != shard.num_examples:
            raise ValueError(
                f"{path} has {file.metadata.num_rows} rows, and its shard {shard.num_examples} records. To rebuild "
                "it, run "
                "`recordmill repair`."
            )
        if (name := _shard_name(file.metadata)) not in ("", shard.name):
            raise ValueError(
                f"{path} is the catalog of {name}, not of {shard.name}. Copy the catalogs again, or run `recordmill "
                "repair`."
            )
        return file


def _shard_name(metadata: Any) -> str:
    """Reads the name of a catalog's shard from the Parquet statistics; returns "" if there are no statistics."""
    for group in range(metadata.num_row_groups):
        columns = (metadata.row_group(group).column(column) for column in range(metadata.num_columns))
        for column in columns:
            if column.path_in_schema == SHARD and column.statistics is not None and column.statistics.has_min_max:
                return str(column.statistics.min)
    return ""


def _parquet() -> Any:
    return import_package("pyarrow.parquet", "reading catalogs", "pyarrow")


class _Range(io.RawIOBase):
    """A Python file object for pyarrow, which reads byte ranges of a file in a dataset."""

    def __init__(self, files: Any, path: str, num_bytes: int) -> None:
        self._files, self._path, self._num_bytes, self._at = files, path, num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._num_bytes)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = self._files.read_into(self._path, self._at, view[: max(0, min(len(view), self._num_bytes - self._at))])
        self._at += count
        return count


def _failed(path: str, error: Exception) -> Exception:
    """Returns an exception for an error in reading a catalog, with a one-line message that contains its path."""
    message = str(error).partition("\n")[0].rstrip(".")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"catalog {path} is missing")
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, f"{error.strerror}", path)
    return ValueError(f"{path}: the catalog is corrupt: {message}. To rebuild it, run `recordmill repair`.")


def _read_column(file: Any, name: str) -> Any:
    """Reads a column as one Arrow array."""
    return file.read([name], use_threads=False).column(name).combine_chunks()


def _read_keys(file: Any) -> np.ndarray:
    return _read_column(file, KEY).cast("string").to_numpy(zero_copy_only=False)


def _hash_keys(file: Any, by_group: bool, purpose: bytes) -> np.ndarray:
    table = file.read([KEY, GROUP] if by_group else [KEY], use_threads=False)
    texts = table.column(KEY).cast("string").to_pylist()
    if by_group:
        texts = [group or key for group, key in zip(table.column(GROUP).cast("string").to_pylist(), texts)]
    digests = b"".join([_digest((text or "").encode(), purpose) for text in texts])
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def _digest(text: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8, key=purpose).digest()


def _to_column(parts: Sequence[Any], names: Sequence[str] | None) -> Column:
    """Concatenates the parts of a column.

    Args:
        parts: The parts of the column, Arrow arrays.
        names: The class names; None for a column without classes.
    """
    arrow = import_package("pyarrow")
    column = arrow.chunked_array(parts)
    if arrow.types.is_list(column.type):
        lengths = [np.diff(part.offsets.to_numpy()) for part in parts]
        return TextLists(np.concatenate(lengths).astype(np.int64), _to_column([part.flatten() for part in parts], names))
    if arrow.types.is_integer(column.type) and not column.null_count:
        return column.to_numpy().astype(np.int64)
    if arrow.types.is_float32(column.type):
        return column.to_numpy()  # missing values become NaN
    if arrow.types.is_integer(column.type) or arrow.types.is_floating(column.type):
        return column.cast(arrow.float64(), safe=False).to_numpy()
    if arrow.types.is_boolean(column.type):
        return column.to_numpy()
    unified = column.dictionary_encode().unify_dictionaries()
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in unified.chunks]
    values = unified.chunk(0).dictionary.to_pylist() if unified.num_chunks else []
    return BinaryColumn(np.concatenate([np.zeros(0, np.int64), *codes]), values, names)
