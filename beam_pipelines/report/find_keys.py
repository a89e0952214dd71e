"""Locates examples by their keys.

Few catalogs have to be read, because the examples of a split are sorted by a hash of the key.
"""

import bisect
import itertools
from typing import Iterable, Iterator, Sequence

from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.report.sample import ExampleLocation, read_keys
from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import Manifest, ShardInfo


def find_keys(directory: str, manifest: Manifest, keys: Iterable[str]) -> dict[str, ExampleLocation]:
    """Returns the locations of the examples with the given keys. Keys that do not exist are omitted.

    Raises:
        UserError: A catalog is corrupt.
        OSError: A catalog cannot be read.
    """
    locations: dict[str, ExampleLocation] = {}
    for split, infos in enumerate(manifest.splits.values()):
        missing = sorted(set(keys) - locations.keys())
        if missing and infos and all(info.catalog for info in infos):
            locations |= _find_in_split(directory, split, infos, manifest.seed, missing)
    return locations


def _orders(seed: int, keys: Sequence[str]) -> list[float]:
    """Returns the estimated relative position of each key in its split, from 0 (first example) to 1 (last example)."""
    return (shuffle_orders(seed, [key.encode(errors="replace") for key in keys]) / 2.0**64).tolist()


def _find_in_split(
    directory: str, split: int, infos: Sequence[ShardInfo], seed: int, keys: Sequence[str]
) -> Iterator[tuple[str, ExampleLocation]]:
    """Finds keys in a split, and yields their locations. Moves from the shard in which a key is expected to its
    neighbors, until the first and the last key of a shard enclose the key."""
    shards = [shard for shard, info in enumerate(infos) if info.num_examples]
    starts = list(itertools.accumulate((infos[shard].num_examples for shard in shards), initial=0))
    orders = dict(zip(keys, _orders(seed, keys)))
    guesses = {key: _at(starts, order * starts[-1]) for key, order in orders.items()} if shards else {}
    tried: set[tuple[str, int]] = set()
    while guesses:
        wanted, guesses = guesses, {}
        tried |= wanted.items()
        for guess, stored in _read_all(directory, [infos[shard] for shard in shards], sorted(set(wanted.values()))):
            missing = {key for key, at in wanted.items() if at == guess}
            records = {key: record for record, key in enumerate(stored) if key in missing}
            yield from ((key, ExampleLocation(split, shards[guess], record)) for key, record in records.items())
            first, last = _orders(seed, [stored[0], stored[-1]])
            for key in missing - records.keys():
                near = guess + (orders[key] > last) - (orders[key] < first)
                if 0 <= near < len(shards) and (key, near) not in tried:
                    guesses[key] = near


def _at(starts: Sequence[int], rank: float) -> int:
    """Returns the index of the shard that contains a rank. `starts` ends with the number of examples."""
    return min(max(bisect.bisect_right(starts, rank) - 1, 0), len(starts) - 2)


def _read_all(directory: str, infos: Sequence[ShardInfo], shards: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Reads the catalogs of the given shards and yields the index of each shard and the keys of its examples."""
    read = lambda shard: (shard, read_keys(directory, infos[shard]))
    return read_ahead(read, [(shard, infos[shard].catalog_bytes) for shard in shards]) if is_remote(directory) else map(read, shards)
