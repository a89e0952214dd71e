"""Decides whether a file that is not an input is ignored or reported."""

import dataclasses
import glob
import re

from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.files.label_files import recognise

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
class UnexpectedFiles:
    """Collects the unexpected files in a folder of images and reports them together.

    Attributes:
        layout: The expected layout of image paths; empty if images may be in any folder.
        num_unknown: The number of files with unknown extensions.
        unknown: The pattern of each unknown extension -> the first path that matches it.
        has_more_kinds: Whether some patterns were dropped.
        arrays: The path of the first `.npy` file.
        pictures: The path of the first image that is not a `.npy` file.
        num_masks: The number of images that are named like masks.
        masks: The path of the first image that is named like a mask.
        num_loose: The number of images beside the class folders.
        loose_images: The first few paths of images beside the class folders.
        loose_folder: The top folder that contains all images beside the class folders; empty if there is none.
        labels: Classes whose folders contain files.
        without_files: Class without files -> the last of its folders.
        rejection: The first folder that makes the listing fail, and its message.
    """

    layout: str = ""
    num_unknown: int = 0
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)
    has_more_kinds: bool = False
    arrays: str = ""
    pictures: str = ""
    num_masks: int = 0
    masks: str = ""
    num_loose: int = 0
    loose_images: list[str] = dataclasses.field(default_factory=list)
    loose_folder: str = ""
    labels: set[str] = dataclasses.field(default_factory=set)
    without_files: dict[str, str] = dataclasses.field(default_factory=dict)
    rejection: tuple[str, str] | None = None

    def is_image(self, path: str) -> bool:
        """Returns whether a file has the extension of an image format. Other files are recorded as unexpected."""
        if path.endswith(_IMAGE_ENDS) or path.lower().endswith(_IMAGE_ENDS):  # fast path for lower case
            if path.endswith(_ARRAY_ENDS):
                self.arrays = min(path, self.arrays or path)
            elif path < self.pictures or not self.pictures:
                self.pictures = path
            if path.rpartition(".")[0].endswith(_MASK_ENDS):
                self.num_masks += 1
                self.masks = min(path, self.masks or path)
            return True
        self.num_unknown += 1
        name = path.rpartition("/")[2]
        extension = _extension(name)
        self._add_unknown(f"*{extension}" if len(extension) > 1 else glob.escape(name), path)
        return False

    def add_loose_image(self, path: str) -> None:
        """Records an image that is not in a class folder."""
        self._add_loose_folder(path.split("/")[0] if "/" in path else "")
        self.num_loose += 1
        self.loose_images = sorted([*self.loose_images, path])[:_NUM_SHOWN]

    def _add_loose_folder(self, folder: str) -> None:
        self.loose_folder = folder if self.loose_folder == folder or not self.num_loose else ""

    def add_rejection(self, folder: str, message: str) -> None:
        """Records a problem with a folder that will make the listing fail. For reproducible messages, only the problem
        of the first folder in sorted order is kept."""
        self.rejection = min((folder, message), self.rejection or (folder, message))

    def merge(self, other: "UnexpectedFiles") -> None:
        """Adds the unexpected files of another part."""
        self.layout = other.layout or self.layout
        self.num_unknown += other.num_unknown
        self.has_more_kinds |= other.has_more_kinds
        for pattern, path in other.unknown.items():
            self._add_unknown(pattern, path)
        self.arrays = min(self.arrays or other.arrays, other.arrays or self.arrays)
        self.pictures = min(self.pictures or other.pictures, other.pictures or self.pictures)
        self.num_masks += other.num_masks
        self.masks = min(self.masks or other.masks, other.masks or self.masks)
        if other.num_loose:
            self._add_loose_folder(other.loose_folder)
        self.num_loose += other.num_loose
        self.loose_images = sorted([*self.loose_images, *other.loose_images])[:_NUM_SHOWN]
        self.labels |= other.labels
        for label, folder in other.without_files.items():
            self.without_files[label] = max(folder, self.without_files.get(label, folder))
        if other.rejection:
            self.add_rejection(*other.rejection)

    def _add_unknown(self, pattern: str, path: str) -> None:
        self.unknown[pattern] = min(path, self.unknown.get(pattern, path))
        if len(self.unknown) > _MAX_KINDS:
            del self.unknown[max(self.unknown)]
            self.has_more_kinds = True

    def reject(self, root: str) -> None:
        """Raises `UserError` with advice if there is a rejection, an unexpected file, a class without images, or no image
        at all. Call this method after all parts have been merged."""
        if self.rejection:
            raise UserError(self.rejection[1])
        problems = []
        if self.num_loose:
            shown = _shown([repr(printable(path)) for path in self.loose_images], self.num_loose)
            problem = f"images beside the class folders ({self.num_loose:,}): {shown}. Move each"
            if not (self.labels or self.without_files):
                problem = (
                    f"contains images ({self.num_loose:,}), but no class folders: {shown}. For images without labels, "
                    "pass --label none. If the names of the files contain the classes, pass --label_pattern REGEX. For classes, "
                    "move each image"
                )
            leave = f" To leave them out, pass --ignore='{printable(self.loose_folder)}'." if self.loose_folder else ""
            problems.append(f"{problem} to a path of the form {self.layout}.{leave}")
        if self.arrays and self.pictures:  # the arrays are usually masks, which would become examples
            both = f"{printable(self.pictures)} and {printable(self.arrays)}"
            problems.append(
                f"contains both images and arrays, such as {both}. If the arrays are masks, use --source=masks. If "
                "they are neither examples nor labels, exclude them with --ignore='*.npy'."
            )
        if self.num_unknown:
            problems.append(self._describe_unknown(root))
        without_images = sorted(self.without_files.keys() - self.labels) if self.layout and self.labels else []
        if without_images:
            folders = [f"class {printable(label)!r} in {printable(self.without_files[label] + '/')!r}" for label in without_images]
            shown = _shown(folders[:_NUM_SHOWN], len(folders))
            problems.append(f"no image of {shown}. Add images, or exclude the folder with --ignore='FOLDER'.")
        if problems:
            raise UserError(f"--input={printable(root)}: {' Also, '.join(problems)}")
        if not self.labels:
            where = " in class folders" if self.layout else ""
            raise UserError(f"--input={root}: contains no image. Images are files named {', '.join(IMAGE_EXTENSIONS)}{where}.")

    def _describe_unknown(self, root: str) -> str:
        patterns = sorted(self.unknown)
        kinds = [printable(pattern.removeprefix("*")) for pattern in patterns]
        paths = sorted(printable(path) for path in self.unknown.values())
        more = " and others" if self.has_more_kinds else ""
        advice = self._advise(root, patterns[:_NUM_SHOWN], has_more=len(patterns) > _NUM_SHOWN)
        return (
            f"files with unknown extensions ({_shown(kinds[:_NUM_SHOWN], len(kinds))}{more}): "
            f"{_shown(paths[:_NUM_SHOWN], self.num_unknown)}. {advice}"
        )

    def _advise(self, root: str, patterns: list[str], has_more: bool) -> str:
        """Returns advice on how to handle the files that match the given patterns of extensions."""
        formats = {pattern: recognise(f"{root}/{self.unknown[pattern]}") for pattern in patterns}
        first = {known.name: pattern for pattern, known in reversed(formats.items()) if known}
        advice = [
            f"{printable(self.unknown[pattern])} looks like {name}. {formats[pattern].advice}"
            for name, pattern in sorted(first.items())
        ]
        others = [printable(pattern) for pattern, known in formats.items() if not known]
        if others:
            advice.append(f"Images end in {', '.join(IMAGE_EXTENSIONS)}.")
            data = [pattern for pattern in others if pattern.lower().endswith(_MAY_BE_LABELS)]
            if data:
                advice.append(
                    f"Files such as {', '.join(data)} may contain labels. If they do, pass their format with --source or "
                    "their path with --input. Otherwise, move them out of the folder."
                )
            options = " ".join(f"--ignore='{pattern}'" for pattern in others if pattern not in data)
            if options:
                advice.append(f"Exclude other files with {options}{' and so on' if has_more else ''} if they are not labels.")
        return " ".join(advice)


def _shown(first: list[str], num: int) -> str:
    return ", ".join(first) + (f" and {num - len(first):,} more" if num > len(first) else "")


def _extension(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""
