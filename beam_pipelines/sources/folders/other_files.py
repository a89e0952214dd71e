"""Files that are no inputs: those that are left out without asking, and those that a user has to say something about."""

import glob
import re

from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS

_SYSTEM_FILES = {"Thumbs.db", "desktop.ini", "__MACOSX"}
# What people lay beside data: notes about it, and checksums.
_NOTES = re.compile(
    r"(?:README|LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|AUTHORS|CONTRIBUTORS|CHANGE(?:LOG|S)|CITATION)(?:[-_.][\w-]+)?(?:\.(?:txt|md|rst|html?|pdf|bib|cff))?"
    r"|(?:MD5|SHA(?:1|224|256|384|512))?(?:SUMS?|CHECKSUMS?)(?:\.txt)?|.*\.(?:md5|sha1|sha224|sha256|sha384|sha512)",
    re.IGNORECASE,
)
# Extensions that are data somewhere, whatever the name before them.
_DATA = re.compile(r".*\.(?:csv|tsv|json|jsonl|ndjson|parquet|xml|npy|npz|bin|tar|gz|tgz|tfrecords?|tfrec|record)", re.IGNORECASE)

_IMAGE_ENDS = tuple(IMAGE_EXTENSIONS)
_ARRAY_ENDS = (".npy", ".NPY")

_NUM_SHOWN = 5
# Different extensions that are told apart; of more, those that sort first.
_MAX_KINDS = 1000


def is_left_out(name: str) -> bool:
    """Whether a file or folder of this name is no input of any source: hidden, of the system, notes about the data, checksums."""
    if name[0] == "." or name in _SYSTEM_FILES:
        return True
    if name.endswith(_IMAGE_ENDS) or name.lower().endswith(_IMAGE_ENDS):
        return False
    return bool(_NOTES.fullmatch(name)) and not _DATA.fullmatch(name)


class Strays:
    """What lies in a folder of images and fits nowhere, told at once when all has been seen.

    Args:
        root: The source's, for messages.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._num_unknown = 0
        self._unknown: dict[str, str] = {}  # pattern -> the first path
        self._has_more_kinds = False
        self._arrays, self._pictures = "", ""  # the first .npy file, and the first other image
        self._num_beside = 0
        self._beside: list[str] = []

    def is_image(self, path: str) -> bool:
        """Whether a file is called like an image; if not, it is a stray."""
        if path.endswith(_IMAGE_ENDS) or path.lower().endswith(_IMAGE_ENDS):  # most are in lower case already
            if path.endswith(_ARRAY_ENDS):
                self._arrays = min(path, self._arrays or path)
            elif not self._pictures:
                self._pictures = path
            return True
        self._num_unknown += 1
        name = path.rpartition("/")[2]
        extension = _extension(name)
        pattern = f"*{extension}" if len(extension) > 1 else glob.escape(name)
        self._unknown[pattern] = min(path, self._unknown.get(pattern, path))
        if len(self._unknown) > _MAX_KINDS:
            del self._unknown[max(self._unknown)]
            self._has_more_kinds = True
        return False

    def add_beside(self, path: str) -> None:
        """An image that lies where class folders are expected."""
        self._num_beside += 1
        self._beside = sorted([*self._beside, path])[:_NUM_SHOWN]

    def refuse(self, without_images: dict[str, str], expected: str) -> None:
        """Says what would do.

        Args:
            without_images: Class -> its folder, which holds no image.
            expected: How paths of images look.

        Raises:
            UserError: There is a stray, or a class without an image.
        """
        problems = []
        if self._num_beside:
            are = "1 image lies" if self._num_beside == 1 else f"{self._num_beside:,} images lie"
            shown = _shown([repr(printable(path)) for path in self._beside], self._num_beside)
            problems.append(f"{are} beside the class folders: {shown}; expected {expected}")
        if self._arrays and self._pictures:  # masks, mostly, which would be examples too
            both = f"{printable(self._pictures)} and {printable(self._arrays)}"
            problems.append(f"images and arrays, as {both}; expected one of the two; --ignore='*.npy' leaves the arrays out")
        if self._num_unknown:
            problems.append(self._describe_unknown())
        if without_images:
            folders = [f"class {printable(label)!r} in {printable(without_images[label])!r}" for label in sorted(without_images)]
            shown = _shown(folders[:_NUM_SHOWN], len(folders))
            problems.append(f"no image of {shown}; expected one of each class, or --ignore='FOLDER' to leave it out")
        if problems:
            raise UserError(f"--input={printable(self._root)}: {'; '.join(problems)}")

    def _describe_unknown(self) -> str:
        patterns = sorted(self._unknown)
        kinds = [printable(pattern.removeprefix("*")) for pattern in patterns]
        paths = sorted(printable(path) for path in self._unknown.values())
        files = "1 file" if self._num_unknown == 1 else f"{self._num_unknown:,} files"
        several = "1 unknown extension" if len(kinds) == 1 else f"{len(kinds):,} unknown extensions"
        several = f"more than {several}" if self._has_more_kinds else several
        options = " ".join(f"--ignore='{printable(pattern)}'" for pattern in patterns[:_NUM_SHOWN])
        leave = "leaves them out" if len(kinds) <= _NUM_SHOWN else "and the like leave them out"
        return (
            f"{files} of {several} ({_shown(kinds[:_NUM_SHOWN], len(kinds))}): {_shown(paths[:_NUM_SHOWN], self._num_unknown)}; "
            f"expected {', '.join(IMAGE_EXTENSIONS)}; {options} {leave}"
        )


def _shown(first: list[str], num: int) -> str:
    return ", ".join(first) + (f" and {num - len(first):,} more" if num > len(first) else "")


def _extension(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""
