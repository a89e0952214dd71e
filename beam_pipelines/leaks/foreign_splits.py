"""Which files of TFRecords that others wrote are one split: those whose names differ in the number of the shard alone."""

import re
from typing import Iterable

# `train-00000-of-00002`, `train.tfrecord-00000-of-00002`, `train-00000-of-00002.tfrecord.gz`, in whatever folder.
_SHARD = re.compile(r"(?P<before>.+)-\d+-of-(?P<num>\d+)(?P<after>[^/]*)", re.DOTALL)
_ENDING = re.compile(r"\.((tf|array_?)records?|tfrec|record)$", re.IGNORECASE)


def name_splits(files: Iterable[str]) -> dict[str, str]:
    """Each file -> its split, whose name is the file's without the number, or the file's.

    Of two sets of shards that would have one name each is a split, with a pattern for its name.
    """
    patterns, names = {}, {}
    for file in files:
        match = _SHARD.fullmatch(file)
        patterns[file] = f"{match['before']}-*-of-{match['num']}{match['after']}" if match else file
        names[patterns[file]] = _ENDING.sub("", match["before"]) if match else file
    given = list(names.values())
    return {file: names[pattern] if given.count(names[pattern]) == 1 else pattern for file, pattern in patterns.items()}
