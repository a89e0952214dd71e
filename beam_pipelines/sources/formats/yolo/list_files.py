"""Reads list files, which contain one image path per line.

A path is relative to the folder of the dataset or, if it begins with `./`, to the folder of the list file. Paths may
have a prefix from another machine, or the folder in which Darknet runs as a prefix. The first lines determine this
prefix, which is then removed from all lines.
"""

import itertools
import posixpath
from typing import BinaryIO, Iterator, NamedTuple, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.files.file_listing import join, matches
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.formats.yolo.image_groups import ImageGroup, candidates, label_path
from beam_pipelines.sources.formats.yolo.match_labels import LabeledImage
from beam_pipelines.storage.files import files_at, open_file
from beam_pipelines.storage.input_errors import describe_fact, listing_error

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
        left_out: The prefix that is removed from paths, such as `/content/data/`.
        folder: The folder, relative to the root, in which the paths start.
    """

    path: str
    offset: int
    num_bytes: int
    first_line: int
    left_out: str
    folder: str


def divide_list(root: Root, group: ImageGroup, num_lines: int) -> Iterator[ListChunk]:
    """Divides a list file into chunks of `num_lines` lines. The file is not read into memory as a whole.

    Raises:
        UserError: The file cannot be read, or has a very long line.
    """
    path = f"{root.path}/{group.images}"
    try:
        with open_file(path) as file:
            offset = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
            file.seek(offset)
            lines, number, start = _read_lines(file, path), 1, None
            while chunk := list(itertools.islice(lines, num_lines)):
                start = start or _find_start(root, group, chunk)
                num_bytes = sum(map(len, chunk))
                yield ListChunk(group.images, offset, num_bytes, number, *start)
                offset, number = offset + num_bytes, number + len(chunk)
    except OSError as error:
        raise listing_error(error, path, f"{printable(path)} cannot be read: {error.strerror or error}.") from error


def _read_lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 1):
        if len(line) == _MAX_LINE_BYTES:
            raise UserError(f"{printable(path)}: line {number} has {_MAX_LINE_BYTES} bytes or more, so it is not the path of an image.")
        yield line


def _find_start(root: Root, group: ImageGroup, lines: Sequence[bytes]) -> tuple[str, str]:
    """Returns the prefix to remove and the folder to prepend, so that one of the first paths exists. The prefix is
    empty if none of the first paths exists."""
    own = posixpath.dirname(group.images)
    for line in itertools.islice(filter(None, map(_decode, lines)), _NUM_PROBED):
        folders = [own] if line.startswith("./") else dict.fromkeys((group.folder, own))
        for folder in folders:
            for candidate in candidates(line, folder, may_shorten=True):
                rest = candidate.removeprefix(f"{folder}/") if folder else candidate
                if line.endswith(rest) and _exists(root, candidate):
                    return line.removesuffix(rest), folder
    return "", group.folder


def _exists(root: Root, path: str) -> bool:
    try:
        return files_at(root.path).exists(f"{root.path}/{read_path(path, root)}")
    except InvalidInput:
        return False


def _decode(line: bytes) -> str:
    """Returns the path in a line. Bytes that are not UTF-8 become lone surrogates, as in file names."""
    return line.decode("utf-8", "surrogateescape").strip().replace("\\", "/")


def read_chunk(root: Root, ignore: tuple[str, ...], chunk: ListChunk) -> Iterator[LabeledImage | DeadLetter | None]:
    """Yields the images in the lines of a chunk, dead letters for invalid lines, and None for each ignored image.

    Raises:
        UserError: The list file cannot be read.
    """
    path = f"{root.path}/{chunk.path}"
    try:
        data = files_at(path).read_range(path, chunk.offset, chunk.num_bytes)
    except OSError as error:
        raise listing_error(error, path, f"{printable(path)} cannot be read: {describe_fact(error, path)}.") from error
    for number, line in enumerate(map(_decode, data.split(b"\n")), chunk.first_line):
        if not line:
            continue
        name = line.removeprefix(chunk.left_out)
        try:
            image = read_path(name if name.startswith("/") or "://" in name else join(chunk.folder, name), root)
        except InvalidInput as error:
            yield DeadLetter.of(printable(f"{chunk.path}:{number}"), error)
            continue
        yield None if matches(image, ignore) else LabeledImage(image, label_path(image))
