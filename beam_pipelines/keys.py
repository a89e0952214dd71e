"""Each key belongs to one input of the data set, in whatever split it is: what the listing alone can tell. Plain.

Two looks: the first compares hashes, 16 bytes an input; the second finds the names behind those that came more than once.
"""

import dataclasses
import unicodedata
from collections import defaultdict
from typing import Iterable, Iterator, NamedTuple

import numpy as np

from beam_pipelines.config import PrepareConfig
from beam_pipelines.errors import UserError, printable
from beam_pipelines.ranks import shuffle_keys
from beam_pipelines.references import unpack_images
from beam_pipelines.sources import Listing

# Keys of a bucket, about: each bucket is compared at once, by one worker.
BUCKET_KEYS = 1 << 18
MAX_BUCKETS = 1 << 12

# What is shown, and what is looked for by name to choose it from.
NUM_SHOWN = 10
MAX_NAMED = 1 << 16

_NUM_INPUTS_SHOWN = 2
# Sources whose keys can be chosen.
_WITH_KEY_COLUMN = ("table", "arrays", "tfrecord", "webdataset")


def choose_num_buckets(num_inputs: int) -> int:
    return min(max(1, -(-num_inputs // BUCKET_KEYS)), MAX_BUCKETS)


def hash_batch(packed: bytes, seed: int) -> np.ndarray:
    """The shuffle keys of a packed batch of images, uint64 [num_images, 2]."""
    return shuffle_keys(seed, [key.encode() for key in unpack_images(packed).keys])


def route_keys(keys: np.ndarray, num_buckets: int) -> Iterator[tuple[int, bytes]]:
    """(bucket, the shuffle keys that belong to it)."""
    buckets = ((keys[:, 0] >> np.uint64(32)) * np.uint64(num_buckets)) >> np.uint64(32)
    order = np.argsort(buckets, kind="stable")
    found, begins = np.unique(buckets[order], return_index=True)
    for bucket, members in zip(found.tolist(), np.split(keys[order], begins[1:])):
        yield bucket, members.tobytes()


class Repeated(NamedTuple):
    """Shuffle keys that came more than once.

    Attributes:
        num: All of them.
        first: Those that sort first, uint64 [at most MAX_NAMED, 2], as bytes.
    """

    num: int = 0
    first: bytes = b""


def find_repeated(pieces: Iterable[bytes]) -> Repeated:
    """Of one bucket."""
    keys = _as_keys(b"".join(pieces))
    firsts = np.sort(keys[:, 0])
    doubtful = firsts[1:][firsts[1:] == firsts[:-1]]
    if not len(doubtful):
        return Repeated()
    found, counts = np.unique(keys[np.isin(keys[:, 0], doubtful)], axis=0, return_counts=True)
    found = found[counts > 1]
    return Repeated(len(found), found[:MAX_NAMED].tobytes())


def merge_repeated(parts: Iterable[Repeated]) -> Repeated:
    parts = list(parts)
    found = np.unique(_as_keys(b"".join(part.first for part in parts)), axis=0)
    return Repeated(sum(part.num for part in parts), found[:MAX_NAMED].tobytes())


def _as_keys(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint64).reshape(-1, 2)


class NamedInput(NamedTuple):
    """An input whose key is another's too.

    Attributes:
        path: The file where it lies.
        split: The one that its source puts it in, or nothing.
    """

    path: str
    split: str


@dataclasses.dataclass
class Collisions:
    """Keys that several inputs have: the first `NUM_SHOWN` of them, in order.

    Attributes:
        counts: Key -> inputs that have it.
        inputs: Key -> the first few of them, in order.
    """

    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    inputs: dict[str, list[NamedInput]] = dataclasses.field(default_factory=dict)

    @classmethod
    def merge(cls, parts: Iterable["Collisions"]) -> "Collisions":
        counts: dict[str, int] = defaultdict(int)
        inputs: dict[str, list[NamedInput]] = defaultdict(list)
        for part in parts:
            for key, count in part.counts.items():
                counts[key] += count
                inputs[key] = _first_inputs([*inputs[key], *part.inputs[key]])
        first = sorted(counts)[:NUM_SHOWN]
        return cls({key: counts[key] for key in first}, {key: inputs[key] for key in first})


def _first_inputs(inputs: Iterable[NamedInput]) -> list[NamedInput]:
    """Of two splits, if there are inputs of two: that is what is worst of a key."""
    ordered = sorted(inputs)
    others = [one for one in ordered if one.split != ordered[0].split]
    return sorted([ordered[0], *(others or ordered[1:])[: _NUM_INPUTS_SHOWN - 1]])


def name_repeated(packed: bytes, repeated: Repeated, seed: int) -> Collisions:
    """The inputs of a batch whose keys came more than once."""
    images = unpack_images(packed)
    keys, wanted = hash_batch(packed, seed), _as_keys(repeated.first)
    wanted_keys = set(map(bytes, wanted))
    parts = []
    for index in np.flatnonzero(np.isin(keys[:, 0], wanted[:, 0])).tolist():
        if bytes(keys[index]) in wanted_keys:
            named = NamedInput(images.paths[index], images.splits[index] or "")
            parts.append(Collisions({images.keys[index]: 1}, {images.keys[index]: [named]}))
    return Collisions.merge(parts)


def refuse_collisions(collisions: Collisions, repeated: Repeated, config: PrepareConfig, listing: Listing) -> None:
    """Says which inputs have one key.

    Raises:
        UserError: Always.
    """
    are_of = "1 key is" if repeated.num == 1 else f"{repeated.num:,} keys are each"
    start = " " if repeated.num == 1 else "\n  - "
    lines = [f"{start}{_describe(key, collisions)}" for key in collisions.counts]
    more = repeated.num - len(lines)
    raise UserError(
        f"--input={printable(config.input)}: {are_of} of more than one input; {_advice(listing.source, config.source.key_column)}:"
        + "".join(lines)
        + (f"\n  - and {more:,} more" if more > 0 else "")
    )


def _advice(kind: str, key_column: str | None) -> str:
    if kind not in _WITH_KEY_COLUMN:
        return "expected each input once, and so each file under one name"
    if key_column:
        return f"expected --key_column to name a column of unique keys, which {printable(key_column)!r} is not, or none (--key_column='')"
    if key_column is None:
        return "expected each input once, or --key_column: a column of unique keys, or '' for each input's own place as its key"
    return "expected each input once, or --key_column: a column of unique keys"


def _describe(key: str, collisions: Collisions) -> str:
    inputs = collisions.inputs[key]
    more = collisions.counts[key] - len(inputs)
    paths = {one.path for one in inputs}
    is_one_name = len(paths) > 1 and len({unicodedata.normalize("NFC", path) for path in paths}) == 1
    show = ascii if is_one_name else repr  # else they would look alike
    if inputs[0] == inputs[1]:
        places = f"{show(inputs[0].path)} is listed {collisions.counts[key]:,} times"
    else:
        places = " and ".join(show(one.path) + (f" in split {one.split!r}" if one.split else "") for one in inputs)
        places += f", and {more:,} more" if more else ""
    note = " (one name in Unicode's normal form)" if is_one_name else ""
    return f"{key!r}: {places}{note}"
