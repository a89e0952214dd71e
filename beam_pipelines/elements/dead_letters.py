"""Dead letters. A dead letter records that an input was rejected, and why. Every rejected input has one."""

import dataclasses
import decimal
import errno
import heapq
import itertools
import json
import math
import os
from fractions import Fraction
from typing import Callable, Iterable, Iterator, NamedTuple

from beam_pipelines.errors import InvalidInput, RunError, printable

NUM_SHOWN = 5
NUM_THUMBNAILS = 8  # Maximum number of thumbnails for each stage and reason.
MAX_LINE_BYTES = 1 << 20  # Maximum size of a line of JSON. Keys and classes can be cells with long text.

# Reasons for dead letters: an empty cell in the split column or in the group column.
NO_SPLIT = "no_split"
NO_GROUP = "no_group"
BAD_LABEL = "bad_label"


class DeadLetter(NamedTuple):
    """A record of a rejected input.

    Attributes:
        path: The path of the input, relative to the source's root. Undecodable bytes of a file name are written as
            `\\xNN`.
        stage: The stage that rejected the input: `list`, `read` or `check`.
        reason: A short code for the kind of error, such as `symlink`, `not_utf8`, `unreadable` or `bad_image`.
        message: The value that was found, and the expected value.
        thumbnail: A small JPEG in base64, if the image can be decoded and is among the first few with this reason.
            Otherwise empty.
    """

    path: str
    stage: str
    reason: str
    message: str
    thumbnail: str = ""

    @classmethod
    def of(cls, path: str, rejection: InvalidInput, stage: str = "list") -> "DeadLetter":
        """Creates the dead letter of a rejected input from the error."""
        return cls(path, stage, rejection.reason, printable(str(rejection)))


@dataclasses.dataclass
class DeadLetterCount:
    """The number of dead letters, and examples of them.

    Attributes:
        num: The number of dead letters.
        first: The first `NUM_SHOWN` dead letters in sorted order, without thumbnails.
        seen: The first `NUM_THUMBNAILS` dead letters that have a thumbnail, for each stage and reason.
    """

    num: int = 0
    first: list[DeadLetter] = dataclasses.field(default_factory=list)
    seen: list[DeadLetter] = dataclasses.field(default_factory=list)

    def add(self, dead_letters: list[DeadLetter]) -> None:
        """Adds dead letters."""
        first = [letter._replace(thumbnail="") for letter in heapq.nsmallest(NUM_SHOWN, dead_letters)]
        self.merge(DeadLetterCount(len(dead_letters), first, [letter for letter in dead_letters if letter.thumbnail]))

    def merge(self, other: "DeadLetterCount") -> None:
        """Adds the counts of `other`."""
        self.num += other.num
        self.first = sorted([*self.first, *other.first])[:NUM_SHOWN]
        by_reason = itertools.groupby(sorted([*self.seen, *other.seen], key=_by_reason), lambda letter: letter[1:3])
        self.seen = [letter for _, letters in by_reason for letter in itertools.islice(letters, NUM_THUMBNAILS)]

    def __add__(self, other: "DeadLetterCount") -> "DeadLetterCount":
        total = DeadLetterCount()
        total.merge(self)
        total.merge(other)
        return total

    def describe(self, image_root: str = "") -> str:
        """Returns a message that lists the first dead letters and the number of further dead letters.

        Args:
            image_root: The folder of the images, if `--image_root` can change it. The message names it if a file is
                missing.
        """
        lines = [f"\n  - {printable(letter.path)}: {letter.message} ({letter.stage})" for letter in self.first]
        more = self.num - len(self.first)
        is_missing = any(letter.stage == "read" and os.strerror(errno.ENOENT) in letter.message for letter in self.first)
        hint = f"\n  Paths are relative to {printable(image_root)}. Pass --image_root if the images are in another folder."
        return "".join(lines) + (f"\n  - and {more} more" if more else "") + (hint if image_root and is_missing else "")


def max_dead_letters(max_bad_fraction: float, num_inputs: int) -> int:
    """Returns the number of dead letters that `--max_bad_fraction` allows."""
    return math.floor(Fraction(str(max_bad_fraction)) * num_inputs)  # As a float, 0.29 * 100 is less than 29.


def sufficient_fraction(num_dead_letters: int, num_inputs: int) -> str:
    """Returns the smallest `--max_bad_fraction` with two significant digits that allows this number of dead letters."""
    return f"{decimal.Context(prec=2, rounding=decimal.ROUND_UP).divide(num_dead_letters, num_inputs):f}"


def _by_reason(letter: DeadLetter) -> tuple[str, ...]:
    return (letter.stage, letter.reason, letter.path, letter.message, letter.thumbnail)


def to_json_lines(dead_letters: Iterable[DeadLetter], *, with_thumbnails: bool = False) -> str:
    """Returns dead letters as JSON lines. The lines are sorted, so that they do not depend on the processing order."""
    names = DeadLetter._fields if with_thumbnails else DeadLetter._fields[:-1]
    return "".join(json.dumps(dict(zip(names, letter)), ensure_ascii=False) + "\n" for letter in sorted(dead_letters))


def merge_json_lines(runs: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Merges several sorted iterables of JSON lines into one without loading them into memory."""
    return heapq.merge(*runs, key=lambda line: tuple(json.loads(line).values()))


def read_lines(read: Callable[[int, int], bytes], num_bytes: int, block_bytes: int) -> Iterator[bytes]:
    """Yields the lines of a file.

    Args:
        read: A function that reads a byte range of the file, given an offset and a number of bytes.
        num_bytes: The size of the file, in bytes.
        block_bytes: The number of bytes to read at a time.

    Raises:
        RunError: The file is shorter than `num_bytes`.
    """
    rest = b""
    for offset in range(0, num_bytes, block_bytes):
        wanted = min(block_bytes, num_bytes - offset)
        block = read(offset, wanted)
        if len(block) != wanted:
            raise RunError(f"a file of JSON lines has {len(block)} instead of {wanted} bytes at offset {offset}")
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line + b"\n"
