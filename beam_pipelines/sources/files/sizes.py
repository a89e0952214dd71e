"""Finds the sizes of the files that a table or an annotation names.

On a disk, each file size takes one system call. An object store returns a thousand names and sizes per request, sorted
by name. The wanted names are therefore sorted, and each request starts at the next wanted name. There is at most one
request per wanted name. Several ranges of names are listed in parallel. If the rows of a table are in random order, the
same names are listed again for each batch of rows.
"""

import bisect
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Iterable, Iterator, Mapping, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import ENTIRE_FILE, FilePart, InputRecord
from beam_pipelines.errors import printable
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import listing_error, size_on_disk

_NUM_THREADS = 32
_RANGE_NAMES = 1000  # the number of names in a response of an object store
# Limits memory: each waiting image takes about 500 bytes, plus its boxes and features.
_BATCH = 16_384


def find_sizes(root: str, paths: Iterable[str]) -> dict[str, int]:
    """Returns a mapping from the path of each existing file to the size of the file in bytes. For files in an object
    store, each path takes about 200 bytes of memory.

    Args:
        root: The root that the paths are relative to.
        paths: The paths to look up, in any order.

    Raises:
        RunError: The store could not be listed.
    """
    if not is_remote(root):
        sizes = ((path, size_on_disk(f"{root}/{path}")) for path in paths)
        return {path: size for path, size in sizes if size is not None}
    wanted = sorted(set(paths))
    ranges = [wanted[start : start + _RANGE_NAMES] for start in range(0, len(wanted), _RANGE_NAMES)]
    all_sizes: dict[str, int] = {}
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for sizes in pool.map(lambda names: _sizes_of_range(root, names), ranges):
            all_sizes.update(sizes)
    return all_sizes


def add_sizes(
    listed: Iterable[InputRecord | DeadLetter], root: str, others: Sequence[str] = ()
) -> Iterator[InputRecord | DeadLetter]:
    """Adds the unknown sizes of image files to listed inputs. If a file is missing, its size is 0, and the input becomes a
    dead letter when the file is read.

    Args:
        listed: The inputs, and dead letters.
        root: The root that the paths are relative to.
        others: The names of the image features besides `image`.
    """
    listed = iter(listed)
    while batch := list(itertools.islice(listed, _BATCH)):
        images = [item for item in batch if isinstance(item, InputRecord)]
        parts = (part for image in images for part in (image, *(image.values[name] for name in others)))
        sizes = find_sizes(root, (part.path for part in parts if _is_unsized(part)))
        yield from (item if isinstance(item, DeadLetter) else _with_sizes(item, sizes, others) for item in batch)


def _is_unsized(part: InputRecord | FilePart) -> bool:
    return part.offset == ENTIRE_FILE and not part.num_bytes


def _with_sizes(image: InputRecord, sizes: Mapping[str, int], others: Sequence[str]) -> InputRecord:
    image, *parts = (
        part._replace(num_bytes=sizes.get(part.path, 0)) if _is_unsized(part) else part
        for part in (image, *(image.values[name] for name in others))
    )
    return image._replace(values={**image.values, **dict(zip(others, parts))}) if others else image


def _sizes_of_range(root: str, wanted: Sequence[str]) -> dict[str, int]:
    """Returns a mapping from paths to file sizes. Files that do not exist are omitted. `wanted` must be sorted."""
    store, names = files_at(root), frozenset(wanted)
    found_sizes: dict[str, int] = {}
    position = 0
    try:
        while position < len(wanted):
            for page in store.pages_from(root, wanted[position]):
                found_sizes.update(item for item in page if item[0] in names)
                if page and page[-1][0] >= wanted[position]:
                    break
            else:  # there are no more pages
                break
            position = bisect.bisect_right(wanted, page[-1][0])
    except OSError as error:
        raise listing_error(error, root, f"{printable(root)} could not be listed: {error.strerror or error}") from error
    return found_sizes
