"""Reads the earlier split of each key from a dataset or a table (`--splits_from`)."""

import hashlib
from typing import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from beam_pipelines.config.values import NAME_PATTERN
from beam_pipelines.elements.binary_column import BinaryColumn, digests
from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import MANIFEST, decode_manifest

_DIGEST_BYTES = 16
_COLUMNS = ("key", "split")
_FORMATS = (".csv", ".parquet")


def check_earlier_splits(path: str, shares: Collection[str], divide: Sequence[str], folds: int | None) -> None:
    """Checks the file or dataset of `--splits_from` before any work starts.

    Raises:
        UserError: The file or dataset does not exist, or its splits do not match the requested splits.
    """
    names: set[str] = set()
    for _, splits in read_earlier_splits(path, with_keys=False):
        names.update(splits.unique().to_pylist())
    shown = f"--splits_from={printable(path)}"
    for name in names:
        if name is None or not NAME_PATTERN.fullmatch(name):
            raise UserError(
                f"{shown}: invalid split name {name!r}. Names consist of letters, digits and '_', and start with a "
                "letter."
            )
    others = sorted(names.difference(shares))
    # If `--divide` is given, inputs can have further splits. They are checked later.
    if others and not divide:
        wanted = ", ".join(shares)
        if folds is not None:
            advice = f"Omit --folds, or give a dataset or file with the splits {wanted}."
            raise UserError(f"{shown}: has splits that --folds={folds} does not create: {', '.join(others)}. {advice}")
        raise UserError(
            f"{shown}: has splits without a share in --splits: {', '.join(others)}. The shares are for {wanted}. "
            f"Add a share for each split of the file, such as {others[0]}=…"
        )


def read_earlier_splits(path: str, with_keys: bool = True) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yields batches of keys (large_binary) and their splits (strings).

    Args:
        path: A prepared dataset, or a CSV or Parquet file with the columns `key` and `split`.
        with_keys: Whether to read the keys. If False, keys are omitted if this is faster.

    Raises:
        UserError: The path is neither a dataset nor a suitable table.
        StorageError: The disk or store failed.
    """
    try:
        if files_at(path).exists(f"{path}/{MANIFEST}"):
            yield from _read_dataset(path, with_keys)
        else:
            yield from _read_table(path)
    except (OSError, ValueError, UserError, pa.ArrowException) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        advice = "Give a prepared dataset, or a CSV or Parquet file with the columns key and split."
        raise listing_error(error, path, f"--splits_from={printable(path)}: {printable(reason)}. {advice}") from None


def load_earlier_splits(path: str | None) -> list[tuple[pa.Array, pa.Array]]:
    """Loads the digest and the earlier split of each key into memory, which takes 20 bytes per key.

    If `path` is None, returns an empty list.

    Raises:
        UserError: See `read_earlier_splits`.
    """
    parts = () if path is None else read_earlier_splits(path)
    return [(digest_keys(keys), splits.dictionary_encode()) for keys, splits in parts]


def find_earlier_splits(path: str | None, keys: BinaryColumn) -> list[str]:
    """Returns the earlier split of each key, or an empty string for an unknown key.

    The required memory does not depend on the size of the earlier dataset.

    Raises:
        UserError: See `read_earlier_splits`.
    """
    found_splits = [""] * len(keys)
    for of_keys, splits in () if path is None or not found_splits else read_earlier_splits(path):
        indices = pc.index_in(of_keys, value_set=keys.to_arrow())
        for index, split in zip(indices.drop_null().to_pylist(), splits.filter(indices.is_valid()).to_pylist()):
            found_splits[index] = split
    return found_splits


def digest_keys(keys: pa.Array) -> pa.Array:
    """Returns the BLAKE2b-128 digest of each key, fixed_size_binary(16). Collisions are negligible."""
    all_digests = digests(hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"recordmill split"), keys.to_pylist())
    return pa.Array.from_buffers(pa.binary(_DIGEST_BYTES), len(keys), [None, pa.py_buffer(all_digests)])


def _read_dataset(path: str, with_keys: bool) -> Iterator[tuple[pa.Array, pa.Array]]:
    manifest = decode_manifest(files_at(path).read(f"{path}/{MANIFEST}"), path)
    for split, shards in manifest.splits.items():
        if not with_keys:
            yield pa.array([], pa.large_binary()), pa.array([split])
            continue
        for shard in shards:
            if not shard.catalog:
                raise ValueError("datasets of `recordmill transform` have no catalog")
            keys = _read_parquet(f"{path}/{shard.catalog}", _COLUMNS[:1]).column("key").combine_chunks().cast(pa.large_binary())
            yield keys, pa.repeat(split, len(keys))


def _read_table(path: str) -> Iterator[tuple[pa.Array, pa.Array]]:
    if path.lower().endswith(".parquet"):
        batches = [_read_parquet(path, _COLUMNS)]
    elif path.lower().endswith(".csv"):
        source = pa.BufferReader(files_at(path).read(path))
        strings = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(_COLUMNS, pa.string()), include_columns=_COLUMNS, strings_can_be_null=True, null_values=[""]
        )
        batches = pa_csv.open_csv(source, convert_options=strings)
    else:
        raise ValueError(f"it is neither a dataset nor a {' or '.join(_FORMATS)} file")
    for batch in batches:
        keys, splits = (batch.column(name).cast(pa.string()) for name in _COLUMNS)
        if isinstance(keys, pa.ChunkedArray):
            keys, splits = keys.combine_chunks(), splits.combine_chunks()
        if keys.null_count or splits.null_count:
            raise ValueError(f"number of rows without a key or a split: {max(keys.null_count, splits.null_count):,}")
        yield pc.utf8_normalize(keys, "NFC").cast(pa.large_binary()), splits


def _read_parquet(path: str, columns: tuple[str, ...]) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(files_at(path).read(path)))
    names = file.schema_arrow.names
    for column in columns:
        if column not in names:
            raise ValueError(
                f"no column {column!r}; the columns are "
                f"{', '.join(map(printable, names[:10]))}"
            )
    return file.read(columns=list(columns), use_threads=False)
