"""What a data set has beside its shards, and what holds for all of them together."""

import itertools
import json
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.publish.leaks_file import is_as_written
from beam_pipelines.publish.metadata import derived_files
from beam_pipelines.publish.written_data_set import open_data_set
from beam_pipelines.storage.files import files_at, open_file
from beam_pipelines.verify.check_lines import check_dead_letters, check_twins
from beam_pipelines.verify.damage import MAX_DAMAGES, Damage, says_nothing
from tf_input.dataset_format import CROISSANT, DEAD_LETTER_THUMBNAILS, DEAD_LETTERS, LEAKS, MANIFEST, RUN, STATISTICS, TWINS, Manifest


def read_manifest(directory: str) -> tuple[Manifest, list[Damage]]:
    """A data set's manifest, and what is wrong with it.

    Raises:
        UserError: There is none, or it can't be read as one.
        OSError: A store does not give it.
    """
    manifest, is_unchanged = open_data_set(directory)
    damages = []
    if not is_unchanged:
        damages.append(Damage(MANIFEST, "its text is not what was written: its checksum is of another one, or it was edited"))
    return manifest, damages


def check_sizes(directory: str, manifest: Manifest) -> Iterator[Damage]:
    """Whether each file of the shards is there, and as long as the manifest says."""
    for info in (info for infos in manifest.splits.values() for info in infos):
        for name, num_bytes, _ in info.files():
            path, can_repair = f"{directory}/{name}", bool(info.catalog)
            try:
                if not files_at(path).exists(path):
                    yield Damage(name, "it is gone", can_repair=can_repair)
                elif (size := files_at(path).size(path)) != num_bytes:
                    yield Damage(name, f"{size} bytes; expected {num_bytes}", can_repair=can_repair)
            except OSError as error:
                if says_nothing(error, path):
                    raise
                yield Damage(name, f"it cannot be read: {error.strerror or error}", can_repair=can_repair)


def check_metadata(directory: str, manifest: Manifest) -> Iterator[Damage]:
    """Whether the other metadata files are there, and say what the manifest says."""
    statistics: Mapping[str, Any] | None = None
    for name in (STATISTICS, RUN):
        fields = _read_object(directory, name)
        if isinstance(fields, Damage):
            yield fields
        elif name == STATISTICS:
            statistics = fields
    if statistics is not None:
        try:
            damages = [*_check_counts(statistics, manifest), *_check_derived(directory, manifest, statistics)]
        except (TypeError, AttributeError, KeyError, ValueError, IndexError, RecursionError) as error:
            damages = [Damage(STATISTICS, f"its fields are not such as are written ({type(error).__name__}: {error})")]
        yield from damages
    yield from _check_dead_letters(directory, manifest)
    if statistics is not None and "duplicates" in statistics:
        yield from _check_twins(directory, manifest, statistics)


def _check_counts(statistics: Mapping[str, Any], manifest: Manifest) -> Iterator[Damage]:
    splits = statistics.get("splits")
    found = {name: one.get("num_examples") for name, one in splits.items()} if isinstance(splits, dict) else None
    expected = {split: manifest.num_examples(split) for split in manifest.splits}
    if found != expected:
        yield Damage(STATISTICS, f"splits of {found} examples; expected {expected}, as {MANIFEST} has it")


def _check_derived(directory: str, manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[Damage]:
    """What other programs read is written from the manifest alone. The card is for people, who may go on writing in it."""
    for name, text in derived_files(manifest, statistics).items():
        if name == CROISSANT and not files_at(directory).exists(f"{directory}/{name}"):  # older data sets have none
            continue
        data = _read(directory, name)
        if isinstance(data, Damage):
            yield data
        elif data != text.encode():
            yield Damage(name, f"not what follows from {MANIFEST}")


def _check_dead_letters(directory: str, manifest: Manifest) -> Iterator[Damage]:
    thumbnails: bytes | Damage = b""
    if files_at(directory).exists(f"{directory}/{DEAD_LETTER_THUMBNAILS}"):  # only where anything can be seen
        thumbnails = _read(directory, DEAD_LETTER_THUMBNAILS)
    if isinstance(thumbnails, Damage):
        yield thumbnails
        thumbnails = b""
    yield from _check_lines(directory, DEAD_LETTERS, lambda file: check_dead_letters(file, thumbnails, manifest.num_dead_letters))


def _check_twins(directory: str, manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[Damage]:
    leaks = _read_object(directory, LEAKS)
    if isinstance(leaks, Damage):
        yield leaks
    elif leaks.get("found") != statistics["duplicates"]:
        yield Damage(LEAKS, f"not what {STATISTICS} has of duplicates")
    elif not is_as_written(leaks):
        yield Damage(LEAKS, "its text is not what was written: its checksum is of another one, or it was edited")
    yield from _check_lines(directory, TWINS, lambda file: check_twins(file, manifest.num_dropped))


def _check_lines(directory: str, name: str, check: Callable[[BinaryIO], Iterator[Damage]]) -> Iterator[Damage]:
    """What is wrong with a file that may be longer than memory."""
    path = f"{directory}/{name}"
    try:
        with open_file(path) as file:
            yield from itertools.islice(check(file), MAX_DAMAGES)
    except OSError as error:
        yield _unread(path, name, error)


def _read_object(directory: str, name: str) -> dict[str, Any] | Damage:
    """The fields of a JSON file."""
    data = _read(directory, name)
    if isinstance(data, Damage):
        return data
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:  # of UTF-8, too
        return Damage(name, f"no JSON: {error}")
    return fields if isinstance(fields, dict) else Damage(name, f"no JSON: a {type(fields).__name__}; expected an object")


def _read(directory: str, name: str) -> bytes | Damage:
    path = f"{directory}/{name}"
    try:
        return files_at(path).read(path)
    except OSError as error:
        return _unread(path, name, error)


def _unread(path: str, name: str, error: OSError) -> Damage:
    """Raises the error where it says nothing about the file."""
    if isinstance(error, FileNotFoundError):
        return Damage(name, "it is gone")
    if says_nothing(error, path):
        raise error
    return Damage(name, f"it cannot be read: {error.strerror or error}")


class Hashes(NamedTuple):
    """The hashes of the keys, or of the groups, of one shard.

    Attributes:
        shard: The place of the shard among all shards of the data set.
        split: The place of its split.
        hashes: The hashes as bytes of uint64; of keys in the order of the records that are well.
    """

    shard: int
    split: int
    hashes: bytes


def repeated(parts: Iterable[Hashes]) -> Iterator[tuple[int, int]]:
    """Pairs of shards in which one key is, or of one shard and itself."""
    hashes, shards = _join(list(parts), "shard")
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    yield from sorted({(int(shards[one]), int(shards[one + 1])) for one in same})


def straddling(parts: Iterable[Hashes]) -> Iterator[tuple[int, int]]:
    """Pairs of splits in which one group is."""
    hashes, splits = _join(list(parts), "split")
    differ = np.flatnonzero((hashes[1:] == hashes[:-1]) & (splits[1:] != splits[:-1]))
    yield from sorted({(int(splits[one]), int(splits[one + 1])) for one in differ})


def _join(parts: Sequence[Hashes], attribute: str) -> tuple[np.ndarray, np.ndarray]:
    """Sorted by hash, with the place of each one's shard or split."""
    found = [np.frombuffer(part.hashes, np.uint64) for part in parts]
    hashes = np.concatenate([*found, np.zeros(0, np.uint64)])
    places = np.repeat(np.array([getattr(part, attribute) for part in parts], np.int64), list(map(len, found)))
    order = np.lexsort((places, hashes))
    return hashes[order], places[order]
