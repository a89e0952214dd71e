"""Sizes of the files that a table or an annotation names: a look at each on a disk, pages of a listing in a store.

A store gives a thousand names and sizes for one request, in the order of the names. So the names that are wanted are sorted,
and each page is asked for from the next of them on: there are no more requests than names, and no more than the prefix has pages
(but for one more a thousand names, because several ranges are listed at a time). What else lies below the prefix is passed over,
a page at a time; only names that are wanted are kept. A table in a random order asks for the same pages again, once for each
batch of its rows.
"""

import bisect
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.labeled_image import LabeledImage
from beam_pipelines.errors import printable
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import listing_error, size_on_disk

_NUM_THREADS = 32
_RANGE_NAMES = 1000  # as many as a page has
# A table may be longer than memory: as many of its images wait at a time, about 500 bytes each, and their boxes and features.
_BATCH = 16_384


def find_sizes(root: str, paths: Iterable[str]) -> dict[str, int]:
    """Path -> bytes, of those paths that are files. In a store this takes about 200 bytes of memory a path.

    Args:
        root: The root that the paths are relative to.
        paths: The paths whose sizes are wanted, in any order.

    Raises:
        RunError: It could not be found out.
    """
    if not is_remote(root):
        sizes = ((path, size_on_disk(f"{root}/{path}")) for path in paths)
        return {path: size for path, size in sizes if size is not None}
    wanted = sorted(set(paths))
    ranges = [wanted[start : start + _RANGE_NAMES] for start in range(0, len(wanted), _RANGE_NAMES)]
    found: dict[str, int] = {}
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for sizes in pool.map(lambda names: _sizes_of_range(root, names), ranges):
            found.update(sizes)
    return found


def add_sizes(
    listed: Iterable[LabeledImage | DeadLetter], root: str, others: Sequence[str] = ()
) -> Iterator[LabeledImage | DeadLetter]:
    """Yields what is listed with each file's size; one that is not there keeps 0, until it cannot be read either.

    Args:
        listed: The images that are files, and dead letters.
        root: The root that the paths are relative to.
        others: The names of the features that are other images.
    """
    listed = iter(listed)
    while batch := list(itertools.islice(listed, _BATCH)):
        images = [one for one in batch if isinstance(one, LabeledImage)]
        sizes = find_sizes(root, (path for one in images for path in (one.path, *(one.values[name].path for name in others))))
        for one in batch:
            yield one if isinstance(one, DeadLetter) else _with_sizes(one, sizes, others)


def _with_sizes(image: LabeledImage, sizes: Mapping[str, int], others: Sequence[str]) -> LabeledImage:
    image = image._replace(num_bytes=sizes.get(image.path, 0))
    if not others:
        return image
    parts: dict[str, Any] = {name: image.values[name] for name in others}
    return image._replace(
        values={**image.values, **{name: part._replace(num_bytes=sizes.get(part.path, 0)) for name, part in parts.items()}}
    )


def _sizes_of_range(root: str, wanted: Sequence[str]) -> dict[str, int]:
    """The sizes of the files at sorted paths that stand near each other."""
    store, names = files_at(root), frozenset(wanted)
    found: dict[str, int] = {}
    position = 0
    try:
        while position < len(wanted):
            for page in store.pages_from(root, wanted[position]):
                found.update(item for item in page if item[0] in names)
                if page and page[-1][0] >= wanted[position]:
                    break
            else:  # nothing comes behind it
                break
            position = bisect.bisect_right(wanted, page[-1][0])
    except OSError as error:
        raise listing_error(error, root, f"{printable(root)} could not be listed: {error.strerror or error}") from error
    return found
