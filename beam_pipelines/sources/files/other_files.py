"""Decides whether a file that is not an input is ignored or reported."""

import dataclasses
import glob
import re

from beam_pipelines.elements.first_keys import FirstKeys
from beam_pipelines.elements.merging import Mergeable
from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.files.label_files import recognise
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS

# Files and folders of operating systems and of network storage, in lower case: thumbnails, recycle bins, snapshots.
_SYSTEM_FILES = {
    *("thumbs.db", "ehthumbs.db", "desktop.ini", "picasa.ini", "icon\r"),
    *("__macosx", "$recycle.bin", "system volume information"),
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp", "lost+found", "__pycache__"),
}
_SYSTEM_END = "zone.identifier"  # Windows marks `1.png` as downloaded in `1.png:Zone.Identifier`
# Notes about the data, and checksums.
_NOTES = re.compile(
    r"(?:README|LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|AUTHORS|CONTRIBUTORS|CHANGE(?:LOG|S)|CITATION)(?:[-_.][\w-]+)?"
    r"(?:\.(?:txt|md|rst|html?|pdf|bib|cff))?"
    r"|(?:MD5|SHA(?:1|224|256|384|512))?(?:SUMS?|CHECKSUMS?)(?:\.txt)?|.*\.(?:md5|sha1|sha224|sha256|sha384|sha512)",
    re.IGNORECASE,
)
# Extensions of data files, which are never notes.
_DATA = re.compile(
    r".*(?:\.(?:csv|tsv|json|jsonl|ndjson|parquet|xml|npy|npz|bin|tar|gz|tgz|tfrecords?|tfrec|record)|-\d+-of-\d+)", re.IGNORECASE
)

# Extensions of files that often contain labels. The advice is never to ignore such files.
_MAY_BE_LABELS = (".txt", ".json", ".jsonl", ".xml", ".csv", ".tsv", ".parquet", ".tfrecord", ".tfrecords", ".tif", ".tiff", ".tar")

_IMAGE_ENDS = tuple(IMAGE_EXTENSIONS)
_ARRAY_ENDS = (".npy", ".NPY")
# Suffixes of the names of masks that are stored beside their images.
_MASK_ENDS = tuple(f"{mark}{word}" for mark in "_- " for word in ("mask", "Mask", "masks", "gt", "segmentation", "seg"))

_NUM_SHOWN = 5
# The maximum number of extensions to keep. If there are more, the first in sorted order are kept.
_MAX_KINDS = 1000


def is_ignored(name: str, is_folder: bool = False) -> bool:
    """Returns whether all sources ignore a file or folder of this name, such as a hidden file or a README.

    A folder with a name such as "notice" is not ignored, because it may be a class.
    """
    if name[0] == "." or name.lower() in _SYSTEM_FILES or name.lower().endswith(_SYSTEM_END):
        return True
    if is_folder or name.endswith(_IMAGE_ENDS) or name.lower().endswith(_IMAGE_ENDS):
        return False
    return bool(_NOTES.fullmatch(name)) and not _DATA.fullmatch(name)


@dataclasses.dataclass
class UnexpectedFiles(Mergeable):
    """Collects the unexpected files in a folder of images and reports them together.

    Attributes:
        layout: The expected layout of image paths; empty if images may be in any folder.
        num_pictures: The number of images that are not `.npy` files.
        arrays: The `.npy` files.
        masks: The images that are named like masks.
        num_unknown: The number of files with unknown extensions.
        unknown: The pattern of each unknown extension -> the files that match it.
        loose: The images beside the class folders.
        loose_folders: The top folders that contain images beside the class folders.
        labels: Classes whose folders contain files.
        split_folders: The folders that are splits.
        without_files: Class -> its folders that contain no files.
        rejections: Folders that make the listing fail, and their messages.
    """

    layout: str = ""
    num_pictures: int = 0
    arrays: FirstKeys = dataclasses.field(default_factory=FirstKeys)
    masks: FirstKeys = dataclasses.field(default_factory=FirstKeys)
    num_unknown: int = 0
    unknown: dict[str, FirstKeys] = dataclasses.field(default_factory=dict)
    loose: FirstKeys = dataclasses.field(default_factory=FirstKeys)
    loose_folders: set[str] = dataclasses.field(default_factory=set)
    labels: set[str] = dataclasses.field(default_factory=set)
    split_folders: set[str] = dataclasses.field(default_factory=set)
    without_files: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    rejections: set[tuple[str, str]] = dataclasses.field(default_factory=set)

    def is_image(self, path: str) -> bool:
        """Returns whether a file has the extension of an image format. Other files are recorded as unexpected."""
        if path.endswith(_IMAGE_ENDS) or path.lower().endswith(_IMAGE_ENDS):  # fast path for lower case
            if path.endswith(_ARRAY_ENDS):
                self.arrays.add([path])
            else:
                self.num_pictures += 1
            if path.rpartition(".")[0].endswith(_MASK_ENDS):
                self.masks.add([path])
            return True
        self.num_unknown += 1
        name = path.rpartition("/")[2]
        extension = _extension(name)
        self.unknown.setdefault(f"*{extension}" if len(extension) > 1 else glob.escape(name), FirstKeys()).add([path])
        self._drop_kinds()
        return False

    def add_loose_image(self, path: str) -> None:
        """Records an image that is not in a class folder."""
        self.loose.add([path])
        self.loose_folders.add(path.split("/")[0] if "/" in path else "")

    def merge(self, other: "UnexpectedFiles") -> None:
        super().merge(other)
        self._drop_kinds()

    def _drop_kinds(self) -> None:
        while len(self.unknown) > _MAX_KINDS:
            del self.unknown[max(self.unknown)]

    def reject(self, root: str) -> None:
        """Raises `UserError` with advice if there is a rejection, an unexpected file, a class without images, or no image
        at all. Call this method after all parts have been merged."""
        if self.rejections:
            raise UserError(min(self.rejections)[1])
        problems = []
        if self.loose.num:
            problems.append(self._describe_loose())
        if self.arrays.num and self.num_pictures:  # the arrays are usually masks, which would become examples
            problems.append(
                f"contains both images and arrays, such as {self.arrays.describe()}. If the arrays are masks, use --source=masks. If "
                "they are neither examples nor labels, exclude them with --ignore='*.npy'."
            )
        if self.num_unknown:
            problems.append(self._describe_unknown(root))
        if self.layout and self.labels and (empty := sorted(self.without_files.keys() - self.labels)):
            folders = [f"class {printable(label)!r} in {printable(max(self.without_files[label]) + '/')!r}" for label in empty]
            problems.append(f"no image of {_shown(folders, len(folders))}. Add images, or exclude the folder with --ignore='FOLDER'.")
        if problems:
            raise UserError(f"--input={printable(root)}: {' Also, '.join(problems)}")
        if not self.labels:
            where = " in class folders" if self.layout else ""
            raise UserError(f"--input={root}: contains no image. Images are files named {', '.join(IMAGE_EXTENSIONS)}{where}.")

    def _describe_loose(self) -> str:
        shown = f"({self.loose.num:,}): {self.loose.describe()}"
        problem = f"images beside the class folders {shown}. Move each"
        if not (self.labels or self.without_files):
            problem = (
                f"contains images, but no class folders {shown}. For images without labels, pass --label none. If the names "
                "of the files contain the classes, pass --label_pattern REGEX. For classes, move each image"
            )
        others = sorted(name for name in self.loose_folders if name.lower() not in SPLIT_FOLDERS)
        if others and self.layout.startswith("SPLIT/"):
            named = _shown([repr(printable(name)) for name in others], len(others))
            problem = f"{named} are read as splits. Omit --split_folders=yes if they are classes. Otherwise: {problem}"
        folder = min(self.loose_folders) if len(self.loose_folders) == 1 else ""
        # A split folder also contains class folders, which must not be left out.
        path = self.loose.first[0] if folder.lower() in SPLIT_FOLDERS and self.loose.num == 1 else folder
        leave = f" To leave them out, pass --ignore='{printable(path)}'." if path and path.lower() not in SPLIT_FOLDERS else ""
        return f"{problem} to a path of the form {self.layout}.{leave}"

    def _describe_unknown(self, root: str) -> str:
        """Returns a message about the files with unknown extensions, with advice on how to handle them."""
        patterns = sorted(self.unknown)
        kinds = [printable(pattern.removeprefix("*")) for pattern in patterns]
        paths = sorted(printable(files.first[0]) for files in self.unknown.values())
        more = " and others" if len(patterns) == _MAX_KINDS else ""
        formats = {
            pattern: recognise(f"{root}/{self.unknown[pattern].first[0]}", _path_pattern(root, pattern, self.unknown[pattern]))
            for pattern in patterns[:_NUM_SHOWN]
        }
        first = {known.name: pattern for pattern, known in reversed(formats.items()) if known}
        advice = [
            f"{printable(self.unknown[pattern].first[0])} looks like {name}. {formats[pattern].advice}"
            for name, pattern in sorted(first.items())
        ]
        if others := [printable(pattern) for pattern, known in formats.items() if not known]:
            advice.append(f"Images end in {', '.join(IMAGE_EXTENSIONS)}.")
            data = [pattern for pattern in others if pattern.lower().endswith(_MAY_BE_LABELS)]
            if data:
                advice.append(
                    f"Files such as {', '.join(data)} may contain labels. If they do, pass their format with --source or "
                    "their path with --input. Otherwise, move them out of the folder."
                )
            if options := " ".join(f"--ignore='{pattern}'" for pattern in others if pattern not in data):
                so_on = " and so on" if len(patterns) > _NUM_SHOWN else ""
                advice.append(f"Exclude other files with {options}{so_on} if they are not labels.")
        return (
            f"files with unknown extensions ({_shown(kinds, len(kinds))}{more}): {_shown(paths, self.num_unknown)}. {' '.join(advice)}"
        )


def _path_pattern(root: str, pattern: str, files: FirstKeys) -> str:
    """Returns a glob pattern that matches several files, or "" if there is only one file."""
    names = {path.rpartition("/")[2] for path in files.first}
    return f"{root}/**/{names.pop() if len(names) == 1 else pattern}" if files.num > 1 else ""


def _shown(texts: list[str], num: int) -> str:
    first = texts[:_NUM_SHOWN]
    return ", ".join(first) + (f" and {num - len(first):,} more" if num > len(first) else "")


def _extension(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""
