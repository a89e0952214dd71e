"""Checks the metadata files, and properties that depend on all shards of a dataset."""

import functools
import itertools
import json
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.publish.metadata import derived_files
from beam_pipelines.publish.written_dataset import open_dataset
from beam_pipelines.storage.files import files_at
from beam_pipelines.verify.check_lines import check_dead_letters, check_near_duplicates
from beam_pipelines.verify.corruption import MAX_PROBLEMS, CorruptFileError, Corruption, open_corruptible, read_corruptible, reading
from tf_input.dataset_format import (
    DEAD_LETTER_THUMBNAILS,
    DEAD_LETTERS,
    LEAKS,
    MANIFEST,
    RUN,
    STATISTICS,
    NEAR_DUPLICATES,
    INDEX_HEADER,
    Manifest,
    ShardInfo,
    has_own_checksum,
    read_fingerprint,
    read_index_header,
    sum_of,
)

_EDITED = "the contents do not match their checksum: the file is corrupt or was edited"


def read_manifest(directory: str) -> tuple[Manifest, list[Corruption]]:
    """Returns the manifest of a dataset, and an error if the manifest file has been changed.

    Raises:
        UserError: There is no manifest, or it is invalid.
        OSError: A store does not return the manifest.
    """
    manifest, is_unchanged = open_dataset(directory)
    problems = []
    if not is_unchanged:
        problems.append(Corruption(MANIFEST, _EDITED))
    return manifest, problems


def check_sizes(directory: str, manifest: Manifest) -> Iterator[Corruption]:
    """Yields an error for each shard file that is missing, or whose size or fingerprint differs from the manifest.

    The fingerprint detects swapped shards.
    """
    for info in (info for infos in manifest.splits.values() for info in infos):
        for name, num_bytes, _ in info.files():
            path, can_repair = f"{directory}/{name}", bool(info.catalog)
            try:
                with reading(path, name, can_repair):
                    size = files_at(path).size(path)
                    problem = _find_other(path, name, info) if size == num_bytes else f"{size} bytes instead of {num_bytes}"
                if problem:
                    yield Corruption(name, problem, can_repair=can_repair)
            except CorruptFileError as error:
                yield error.corruption


def _find_other(path: str, name: str, info: ShardInfo) -> str:
    """Describes how a shard or index file differs from its entry in the manifest."""
    read = functools.partial(files_at(path).read_range, path)
    if name == info.name:
        actual = read_fingerprint(read, info.num_bytes)
    elif name == info.index:
        try:
            actual = read_index_header(read(0, INDEX_HEADER.size), info.index_bytes).fingerprint
        except ValueError as error:
            return str(error)
    else:
        return ""
    if actual == info.fingerprint:
        return ""
    shown = "no complete record" if actual is None else "checksums {:08x} and {:08x}".format(*actual)
    wanted = f"{info.first_crc32c:08x} and {info.last_crc32c:08x}"
    return f"{shown} at the ends instead of {wanted}: the file is corrupt, or belongs to another dataset or shard"


def check_metadata(directory: str, manifest: Manifest) -> Iterator[Corruption]:
    """Checks that metadata files match their checksums, the manifest and each other."""
    changed = {corruption.file: corruption for corruption in _check_sums(directory, manifest)}
    yield from changed.values()
    try:
        if not has_own_checksum(_read_object(directory, RUN)):
            yield Corruption(RUN, _EDITED)
    except CorruptFileError as error:
        yield error.corruption
    yield from (corruption for corruption in _check_contents(directory, manifest) if corruption.file not in changed or corruption.offset >= 0)


def _check_sums(directory: str, manifest: Manifest) -> Iterator[Corruption]:
    """Yields an error for each metadata file that is missing or has changed."""
    for name in (STATISTICS, DEAD_LETTERS):
        if name not in manifest.files:
            yield Corruption(MANIFEST, f"the checksum of {name} is missing")
    for name in manifest.files:
        path = f"{directory}/{name}"
        try:
            with open_corruptible(path, name) as file:
                manifest.check_sum(name, sum_of(file))
        except CorruptFileError as error:
            yield error.corruption
        except ValueError as error:
            yield Corruption(name, str(error).removeprefix(f"{name} ").partition(". ")[0])


def read_statistics(directory: str) -> dict[str, Any] | None:
    """Returns the contents of `statistics.json`, or None if the file is missing or invalid."""
    try:
        return _read_object(directory, STATISTICS)
    except CorruptFileError:
        return None


def _check_contents(directory: str, manifest: Manifest) -> Iterator[Corruption]:
    """Yields an error for each metadata file that contradicts the manifest or another metadata file."""
    yield from _check_inputs(manifest)
    statistics: dict[str, Any] = {}
    try:
        statistics = _read_object(directory, STATISTICS)
        yield from [*_check_counts(statistics, manifest), *_check_derived(directory, manifest, statistics)]
    except CorruptFileError as error:
        yield error.corruption
    except (TypeError, AttributeError, KeyError, ValueError, IndexError, RecursionError) as error:
        yield Corruption(STATISTICS, f"fields are missing or invalid ({type(error).__name__}: {error})")
    yield from _check_dead_letters(directory, manifest)
    if "duplicates" in statistics:
        yield from _check_near_duplicates(directory, manifest, statistics)


def _check_inputs(manifest: Manifest) -> Iterator[Corruption]:
    """Checks that each input is an example, a dead letter or a dropped near-duplicate."""
    num_examples = sum(map(manifest.num_examples, manifest.splits))
    total = num_examples + manifest.num_dead_letters + manifest.num_dropped
    if total != manifest.num_inputs:
        rejected = f"{manifest.num_dead_letters} dead letters and {manifest.num_dropped} dropped near-duplicates"
        reason = f"num_inputs is {manifest.num_inputs} instead of {total}: {num_examples} examples, {rejected}"
        yield Corruption(MANIFEST, reason)


def _check_counts(statistics: Mapping[str, Any], manifest: Manifest) -> Iterator[Corruption]:
    splits = statistics.get("splits")
    actual = {name: item.get("num_examples") for name, item in splits.items()} if isinstance(splits, dict) else None
    expected = {split: manifest.num_examples(split) for split in manifest.splits}
    if actual != expected:
        yield Corruption(STATISTICS, f"splits with {actual} examples, but {MANIFEST} has {expected}")


def _check_derived(directory: str, manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[Corruption]:
    """Checks the metadata files for other programs. Yields an error for each file that contradicts the manifest."""
    for name, text in derived_files(manifest, statistics).items():
        try:
            if read_corruptible(f"{directory}/{name}", name) != text.encode():
                yield Corruption(name, f"the contents do not match {MANIFEST}")
        except CorruptFileError as error:
            yield error.corruption


def _check_dead_letters(directory: str, manifest: Manifest) -> Iterator[Corruption]:
    thumbnails, path = b"", f"{directory}/{DEAD_LETTER_THUMBNAILS}"
    try:
        if files_at(path).exists(path):  # The file exists only if dead letters have thumbnails.
            thumbnails = read_corruptible(path, DEAD_LETTER_THUMBNAILS)
    except CorruptFileError as error:
        yield error.corruption
    yield from _check_lines(directory, DEAD_LETTERS, lambda file: check_dead_letters(file, thumbnails, manifest.num_dead_letters))


def _check_near_duplicates(directory: str, manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[Corruption]:
    try:
        leaks = _read_object(directory, LEAKS)
        if leaks.get("detected") != statistics["duplicates"]:
            yield Corruption(LEAKS, f"the duplicates do not match {STATISTICS}")
        elif not has_own_checksum(leaks):
            yield Corruption(LEAKS, _EDITED)
    except CorruptFileError as error:
        yield error.corruption
    yield from _check_lines(directory, NEAR_DUPLICATES, lambda file: check_near_duplicates(file, manifest.num_dropped))


def _check_lines(directory: str, name: str, check: Callable[[BinaryIO], Iterator[Corruption]]) -> Iterator[Corruption]:
    """Checks a JSON lines file without loading it into memory."""
    try:
        with open_corruptible(f"{directory}/{name}", name) as file:
            yield from itertools.islice(check(file), MAX_PROBLEMS)
    except CorruptFileError as error:
        yield error.corruption


def _read_object(directory: str, name: str) -> dict[str, Any]:
    """Returns the fields of a JSON file. Raises `CorruptFileError` if the file is invalid."""
    try:
        fields = json.loads(read_corruptible(f"{directory}/{name}", name))
    except (ValueError, RecursionError) as error:  # Includes UTF-8 errors.
        raise CorruptFileError(Corruption(name, f"not valid JSON: {error}")) from None
    if not isinstance(fields, dict):
        raise CorruptFileError(Corruption(name, f"a JSON {type(fields).__name__} instead of an object"))
    return fields


class Hashes(NamedTuple):
    """The hashes of all keys, or of all groups, in a shard.

    Attributes:
        shard: The index of the shard among all shards of the dataset.
        split: The index of the shard's split.
        hashes: The hashes, as bytes of uint64. Hashes of keys are in record order.
    """

    shard: int
    split: int
    hashes: bytes


def repeated(parts: Iterable[Hashes]) -> Iterator[tuple[int, int]]:
    """Yields pairs of shards that contain the same key. A pair can name one shard twice."""
    hashes, shards = _join(list(parts), "shard")
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    yield from sorted({(int(shards[item]), int(shards[item + 1])) for item in same})


def find_spanning(parts: Iterable[Hashes]) -> Iterator[tuple[int, int]]:
    """Yields pairs of splits that contain the same group."""
    hashes, splits = _join(list(parts), "split")
    differ = np.flatnonzero((hashes[1:] == hashes[:-1]) & (splits[1:] != splits[:-1]))
    yield from sorted({(int(splits[item]), int(splits[item + 1])) for item in differ})


def _join(parts: Sequence[Hashes], attribute: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns all hashes in ascending order, and the shard or split of each hash."""
    hash_arrays = [np.frombuffer(part.hashes, np.uint64) for part in parts]
    hashes = np.concatenate([*hash_arrays, np.zeros(0, np.uint64)])
    numbers = np.repeat(np.array([getattr(part, attribute) for part in parts], np.int64), list(map(len, hash_arrays)))
    order = np.lexsort((numbers, hashes))
    return hashes[order], numbers[order]
