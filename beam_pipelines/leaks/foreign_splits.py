"""Groups TFRecord files from other tools into splits by file name.

Files whose names differ only in the shard number belong to the same split.
"""

import re
from typing import Iterable

# Matches `train-00000-of-00002`, `train.tfrecord-00000-of-00002` and `train-00000-of-00002.tfrecord.gz` in any folder.
_SHARD = re.compile(r"(?P<before>.+)-\d+-of-(?P<num>\d+)(?P<after>[^/]*)", re.DOTALL)
_ENDING = re.compile(r"\.((tf|array_?)records?|tfrec|record)$", re.IGNORECASE)


def name_splits(files: Iterable[str]) -> dict[str, str]:
    """Maps each file to its split. A split is named after the common file name without the shard number.

    If two splits would otherwise have the same name, they are named after the patterns of their file names.
    """
    patterns, names = {}, {}
    for file in files:
        match = _SHARD.fullmatch(file)
        patterns[file] = f"{match['before']}-*-of-{match['num']}{match['after']}" if match else file
        names[patterns[file]] = _ENDING.sub("", match["before"]) if match else file
    given = list(names.values())
    return {file: names[pattern] if given.count(names[pattern]) == 1 else pattern for file, pattern in patterns.items()}
