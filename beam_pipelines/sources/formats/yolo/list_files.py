"""Reads list files, which contain one image path per line.

A path is relative to the folder of the dataset or to the folder of the list file. Paths may have a prefix from another
machine, or the folder in which Darknet runs as a prefix. The first lines determine this prefix, which is then removed
from all lines.
"""

import itertools
import posixpath
from typing import BinaryIO, Iterable, Iterator, NamedTuple, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.annotations import paired_source
from beam_pipelines.sources.annotations.image_places import ImagePlace, find_place
from beam_pipelines.sources.annotations.paired_files import Pair
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import files_at, open_file
from beam_pipelines.storage.input_errors import read_errors

_MAX_LINE_BYTES = 1 << 14
_NUM_PROBED = 5
_BOM = b"\xef\xbb\xbf"


class ListChunk(NamedTuple):
    """Consecutive lines of a list file.

    Attributes:
        path: The path of the list file, relative to the root.
        offset: The offset of the first line in the file, in bytes.
        num_bytes: The total size of the lines, in bytes.
        first_line: The line number of the first line, starting at 1.
        place: The fields of the place of the images.
    """

    path: str
    offset: int
    num_bytes: int
    first_line: int
    place: Sequence[str]


def divide_list(root: Root, path: str, folder: str) -> Iterator[ListChunk]:
    """Divides a list file into chunks of `PART_FILES` lines. The file is not read into memory as a whole.

    Args:
        root: The root of the source.
        path: The path of the list file, relative to the root.
        folder: The folder that most paths in the file are relative to.

    Raises:
        UserError: The file cannot be read, or has a very long line.
    """
    with read_errors(f"{root.path}/{path}"), open_file(f"{root.path}/{path}") as file:
        offset = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(offset)
        lines, number, place = _read_lines(file, path), 1, None
        while chunk := list(itertools.islice(lines, paired_source.PART_FILES)):
            place = place or _find_place(root, (folder, posixpath.dirname(path)), filter(None, map(_decode, chunk)))
            num_bytes = sum(map(len, chunk))
            yield ListChunk(path, offset, num_bytes, number, place)
            offset, number = offset + num_bytes, number + len(chunk)


def _find_place(root: Root, folders: tuple[str, str], paths: Iterable[str]) -> ImagePlace:
    """Returns the place of the first of the first paths that exists."""
    places = (find_place(root, dict.fromkeys(folders), [path]) for path in itertools.islice(paths, _NUM_PROBED))
    return next(filter(None, places), ImagePlace(folders[0]))


def _read_lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 1):
        if len(line) == _MAX_LINE_BYTES:
            raise UserError(f"{printable(path)}: line {number} has {_MAX_LINE_BYTES} bytes or more, so it is not the path of an image.")
        yield line


def _decode(line: bytes) -> str:
    """Returns the path in a line. Bytes that are not UTF-8 become lone surrogates, as in file names."""
    return line.decode("utf-8", "surrogateescape").strip().replace("\\", "/")


def read_chunk(root: Root, chunk: ListChunk, split: str | None) -> Iterator[Pair | DeadLetter]:
    """Yields the images in the lines of a chunk with their label files, and dead letters for invalid lines.

    Raises:
        UserError: The list file cannot be read.
    """
    path, place = f"{root.path}/{chunk.path}", ImagePlace(*chunk.place)
    with read_errors(path):
        data = files_at(path).read_range(path, chunk.offset, chunk.num_bytes)
    for number, line in enumerate(map(_decode, data.split(b"\n")), chunk.first_line):
        if line:
            try:
                image = read_path(place.path(line), root)
                yield Pair(label_path(image), image, split=split)
            except InvalidInput as error:
                yield DeadLetter.of(printable(f"{chunk.path}:{number}"), error)


def label_path(image: str) -> str:
    """Returns the path of the label file of an image. As in Ultralytics, the last folder `images` in the path is
    replaced by `labels`. Without such a folder, the label file is beside the image."""
    return posixpath.splitext(label_folder(f"/{image}"))[0][1:] + ".txt"


def label_folder(images: str) -> str:
    """Returns a path in which the last folder `images` is replaced by `labels`."""
    before, folder, after = images.rpartition("/images/")
    return f"{before}/labels/{after}" if folder else images
