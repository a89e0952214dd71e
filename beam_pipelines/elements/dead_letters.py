"""Dead letters: the inputs that were refused, and why. Nothing is dropped without one (promise 3)."""

import dataclasses
import errno
import heapq
import itertools
import json
import os
from typing import Callable, Iterable, Iterator, NamedTuple

from beam_pipelines.errors import Refusal, RunError, printable

NUM_SHOWN = 5
NUM_THUMBNAILS = 8  # of one stage and reason
MAX_LINE_BYTES = 1 << 20  # of a line of JSON: keys and classes may be cells of text

# The reasons where the column of the split, or of the group, has nothing for an input, or that of a class no class.
NO_SPLIT = "no_split"
NO_GROUP = "no_group"
BAD_LABEL = "bad_label"


class DeadLetter(NamedTuple):
    """An input that was refused, with where and why.

    Attributes:
        path: The path of the input, relative to the source's root; undecodable bytes of a file name as `\\xNN`.
        stage: The stage where it was refused: `list`, `read` or `check`.
        reason: A short code, the same for like cases: `symlink`, `not_utf8`, `unreadable`, `bad_image`, …
        message: What was found against what was expected.
        thumbnail: A small JPEG in base64, for the first few of a reason whose image can be seen; else empty.
    """

    path: str
    stage: str
    reason: str
    message: str
    thumbnail: str = ""

    @classmethod
    def of(cls, path: str, refusal: Refusal, stage: str = "list") -> "DeadLetter":
        """Makes the dead letter of an input that was refused."""
        return cls(path, stage, refusal.reason, printable(str(refusal)))


@dataclasses.dataclass
class DeadLetterCount:
    """How many dead letters there are, and the first few in order, to show.

    Attributes:
        num: The number of dead letters.
        first: The `NUM_SHOWN` dead letters that sort first, without thumbnails.
        seen: For each stage and reason the `NUM_THUMBNAILS` dead letters that sort first among those with a thumbnail.
    """

    num: int = 0
    first: list[DeadLetter] = dataclasses.field(default_factory=list)
    seen: list[DeadLetter] = dataclasses.field(default_factory=list)

    def add(self, dead_letters: list[DeadLetter]) -> None:
        """Counts more dead letters."""
        first = [letter._replace(thumbnail="") for letter in heapq.nsmallest(NUM_SHOWN, dead_letters)]
        self.merge(DeadLetterCount(len(dead_letters), first, [letter for letter in dead_letters if letter.thumbnail]))

    def merge(self, other: "DeadLetterCount") -> None:
        """Adds the count of another part."""
        self.num += other.num
        self.first = sorted([*self.first, *other.first])[:NUM_SHOWN]
        by_reason = itertools.groupby(sorted([*self.seen, *other.seen], key=_by_reason), lambda letter: letter[1:3])
        self.seen = [letter for _, letters in by_reason for letter in itertools.islice(letters, NUM_THUMBNAILS)]

    def describe(self, image_root: str = "") -> str:
        """Returns a line for each of the first few dead letters, and how many more there are.

        Args:
            image_root: The folder that the paths of images are relative to, if `--image_root` may name another one; it is shown if a file
                is missing.
        """
        lines = [f"\n  - {printable(letter.path)}: {letter.message} ({letter.stage})" for letter in self.first]
        more = self.num - len(self.first)
        is_missing = any(letter.stage == "read" and os.strerror(errno.ENOENT) in letter.message for letter in self.first)
        hint = f"\n  Paths are relative to {printable(image_root)}. Pass --image_root if the images are in another folder."
        return "".join(lines) + (f"\n  - and {more} more" if more else "") + (hint if image_root and is_missing else "")


def _by_reason(letter: DeadLetter) -> tuple[str, ...]:
    return (letter.stage, letter.reason, letter.path, letter.message, letter.thumbnail)


def to_json_lines(dead_letters: Iterable[DeadLetter], *, with_thumbnails: bool = False) -> str:
    """Dead letters as one JSON object a line, sorted, so that the file does not depend on the order of arrival."""
    names = DeadLetter._fields if with_thumbnails else DeadLetter._fields[:-1]
    return "".join(json.dumps(dict(zip(names, letter)), ensure_ascii=False) + "\n" for letter in sorted(dead_letters))


def merge_json_lines(runs: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Merges sorted runs of lines into one. No more than a line of each run is held."""
    return heapq.merge(*runs, key=lambda line: tuple(json.loads(line).values()))


def read_lines(read: Callable[[int, int], bytes], num_bytes: int, block_bytes: int) -> Iterator[bytes]:
    """Reads the lines of a file, of which a block is held at a time.

    Args:
        read: Reads a part of the file: takes an offset and a number of bytes, and returns bytes.
        num_bytes: The size of the file in bytes.
        block_bytes: The number of bytes that are read at once.

    Raises:
        RunError: The file is shorter: what is missing would be left out without a word.
    """
    rest = b""
    for offset in range(0, num_bytes, block_bytes):
        wanted = min(block_bytes, num_bytes - offset)
        block = read(offset, wanted)
        if len(block) != wanted:
            raise RunError(f"a file of lines has {len(block)} bytes at {offset}; expected {wanted}")
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line + b"\n"
