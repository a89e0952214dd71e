"""Reads list files, which contain one image path per line.

A path is relative to the folder of the dataset or to the folder of the list file. Paths may start with a folder on
another machine, or with the folder in which Darknet runs. The first lines determine this prefix, which is then removed
from all lines.
"""

import itertools
import posixpath
from typing import BinaryIO, Iterator

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.annotations.image_places import ImagePlace, find_place
from beam_pipelines.sources.annotations.paired_files import Pair
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import read_errors

_MAX_LINE_BYTES = 1 << 14
_NUM_PROBED = 5
_BOM = "\ufeff"


def read_list(root: Root, path: str, folder: str, split: str | None) -> Iterator[Pair | DeadLetter]:
    """Yields the images in the lines of a list file with their label files, and dead letters for invalid lines.

    Args:
        root: The root of the source.
        path: The path of the list file, relative to the root.
        folder: The folder that most paths in the file are relative to.
        split: The split of the images.

    Raises:
        UserError: The file cannot be read, or has a very long line.
    """
    with read_errors(f"{root.path}/{path}"), open_file(f"{root.path}/{path}") as file:
        lines = _read_lines(file, path)
        first = list(itertools.islice(lines, _NUM_PROBED))
        places = (find_place(root, dict.fromkeys((folder, posixpath.dirname(path))), [line]) for _, line in first)
        place = next(filter(None, places), ImagePlace(folder))
        for number, line in itertools.chain(first, lines):
            try:
                image = read_path(place.path(line), root)
                yield Pair(label_path(image), image, split=split)
            except InvalidInput as error:
                yield DeadLetter.of(printable(f"{path}:{number}"), error)


def _read_lines(file: BinaryIO, path: str) -> Iterator[tuple[int, str]]:
    """Yields the number and the path of each line that is not blank. Bytes that are not UTF-8 become lone surrogates, as in
    file names."""
    for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 1):
        if len(line) == _MAX_LINE_BYTES:
            raise UserError(f"{printable(path)}: line {number} has {_MAX_LINE_BYTES} bytes or more, so it is not the path of an image.")
        if text := line.decode("utf-8", "surrogateescape").removeprefix(_BOM).strip().replace("\\", "/"):
            yield number, text


def label_path(image: str) -> str:
    """Returns the path of the label file of an image. As in Ultralytics, the last folder `images` in the path is
    replaced by `labels`. Without such a folder, the label file is beside the image."""
    return posixpath.splitext(label_folder(f"/{image}"))[0][1:] + ".txt"


def label_folder(images: str) -> str:
    """Returns a path in which the last folder `images` is replaced by `labels`."""
    before, folder, after = images.rpartition("/images/")
    return f"{before}/labels/{after}" if folder else images
