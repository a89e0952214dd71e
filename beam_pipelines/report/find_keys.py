"""Where examples are, by their keys: a split is in the order of hashes of its keys, so that the catalogs of one or two shards tell it."""

from typing import Iterable, Iterator, Sequence

from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.report.sample import Place, read_keys
from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import Manifest, ShardInfo

_MAX_STEPS = 8  # one or two, unless there are many shards of a few examples


def find_keys(directory: str, manifest: Manifest, keys: Iterable[str]) -> dict[str, Place]:
    """The places of those of some keys that are there.

    Raises:
        UserError: A catalog is damaged.
        OSError: One can't be read.
    """
    found: dict[str, Place] = {}
    for split, infos in enumerate(manifest.splits.values()):
        missing = sorted(set(keys) - found.keys())
        if missing and infos and all(info.catalog for info in infos):
            found |= _find_in_split(directory, split, infos, manifest.seed, missing)
    return found


def _orders(seed: int, keys: Sequence[str]) -> list[float]:
    """Where in the order of its split each key would be, 0 to 1."""
    return (shuffle_orders(seed, [key.encode(errors="replace") for key in keys]) / 2.0**64).tolist()


def _find_in_split(
    directory: str, split: int, infos: Sequence[ShardInfo], seed: int, keys: Sequence[str]
) -> Iterator[tuple[str, Place]]:
    """From the shard where a key would be if shards were cut at equal hashes, on to the one where it is."""
    orders, num = dict(zip(keys, _orders(seed, keys))), len(infos)
    shards, bounds = {key: min(int(order * num), num - 1) for key, order in orders.items()}, dict.fromkeys(keys, (0, num - 1))
    for _ in range(_MAX_STEPS):
        wanted, shards = shards, {}
        for shard, stored in _read_all(directory, infos, sorted(set(wanted.values()))):
            missing = {key for key, at in wanted.items() if at == shard}
            records = {key: record for record, key in enumerate(stored) if key in missing}
            yield from ((key, Place(split, shard, record)) for key, record in records.items())
            first, last = _orders(seed, [stored[0], stored[-1]]) if stored else [0.0, 1.0]
            for key in missing - records.keys():
                low, high = bounds[key]
                away = min(orders[key] - first, 0) + max(orders[key] - last, 0)
                low, high = (low, shard - 1) if away < 0 else (shard + 1, high)
                if away and low <= high:
                    bounds[key] = low, high
                    shards[key] = min(max(shard + round(away * num), low), high)


def _read_all(directory: str, infos: Sequence[ShardInfo], shards: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Some shards with their keys."""
    read = lambda shard: (shard, read_keys(directory, infos[shard]))
    return read_ahead(read, [(shard, infos[shard].catalog_bytes) for shard in shards]) if is_remote(directory) else map(read, shards)
