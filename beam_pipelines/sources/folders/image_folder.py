"""Source `image_folder`: class folders (`class/image.jpg`) or split folders (`train/class/image.jpg`).

| what is found | what becomes of it |
| --- | --- |
| `cat/1.jpg` | key `cat/1.jpg`, class `cat` |
| `animals/cat/1.jpg` | class `animals/cat`: the folder's path is the class name |
| `train/cat/1.jpg` | split `train`, class `cat`; `val` and `valid` mean `validation`, `testing` means `test` |
| names in another Unicode form | key and class name are in NFC, the same on every system |
| a file whose name is not UTF-8 | dead letter |
| a folder whose name is not UTF-8, or not on one line | the run is refused |
| a link to a file in the folder | like the file; it keeps its own key |
| a link out of the folder, a link to a folder, a broken link, a device | dead letter; never opened |
| with `--label=none`: an image anywhere | key alone: its folder means nothing, but for a split folder |
| hidden files and folders, `Thumbs.db`, `desktop.ini`, `__MACOSX`, `--ignore` patterns | ignored, and counted |
| README, LICENSE and the like, checksums | ignored, and counted |
| any other extension, an image beside the class folders, a class without an image | the run is refused, all of them told at once |
"""

import os
import unicodedata
from typing import Any, Iterator, NamedTuple, Sequence

from beam_pipelines.config.prepare_config import NAME_PATTERN, PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.labeled_image import LabeledImage
from beam_pipelines.errors import CONTROL, UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.folders.file_listing import is_utf8, matches
from beam_pipelines.sources.folders.layouts import refuse_options
from beam_pipelines.sources.folders.other_files import Strays, is_left_out
from beam_pipelines.sources.splits import SPLIT_FOLDERS
from beam_pipelines.storage.input_errors import kind_of, listing_error
from tf_input.dataset_format import LABEL, Feature

_MIXED_AND_SHARES = "to divide them, --split_folders=no; to take them as splits, --split_folders=yes without --splits"


class _Folder(NamedTuple):
    path: str  # on disk
    relative: str  # below the root, "" or with a "/" at its end
    split: str | None
    label: str


class ImageFolder:
    """The inputs below one folder.

    Args:
        config: Where it lies, and what is in it.
        with_sizes: Each file's size is wanted too, at the cost of a look at it.
        spool_directory: Not needed: files are read where they lie.
    """

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        refuse_options(config.source, ("labels", "label_names"))
        if config.source.labels:
            raise UserError("--label: class folders have no columns; expected --label=none, or no --label")
        self.has_labels = config.source.labels is None
        self.features = (Feature(LABEL, "class_label"),) if self.has_labels else ()
        self.targets = (LABEL,) if self.has_labels else ()
        self.labels: set[str] = set()
        self.num_ignored = 0
        self.root = self._find_root(config.input)
        self._ignore = config.ignore
        self._split_folders = config.split_folders
        self._has_splits = config.splits is not None
        self._with_sizes = with_sizes
        self._empty: dict[str, str] = {}
        self._strays = Strays(self.root)
        self._expected = "CLASS/IMAGE"

    def _find_root(self, path: str) -> str:
        if not os.path.isdir(path):
            raise UserError(f"--input={path}: is not a folder; expected class folders with images")
        return os.path.realpath(path)

    def parts(self) -> Sequence[str]:
        return [""]

    def label_names(self) -> dict[str, set[str]]:
        """Those of classes too of which no image can be listed."""
        return {LABEL: self.labels} if self.has_labels else {}

    def list(self, part: str) -> Iterator[LabeledImage | DeadLetter]:
        """Lists the inputs, in whatever order the file system has them.

        Raises:
            UserError: The folder is not one of class folders.
        """
        yield from self._list_all()
        without_images = {label: folder for label, folder in self._empty.items() if label not in self.labels}
        self._strays.refuse(without_images if self.has_labels and self.labels else {}, self._expected)
        if not self.labels:
            extensions = ", ".join(IMAGE_EXTENSIONS)
            where = " in class folders" if self.has_labels else ""
            raise UserError(f"--input={self.root}: no image in it; expected files named {extensions}{where}")

    def _list_all(self) -> Iterator[LabeledImage | DeadLetter]:
        for folder in self._top_folders():
            yield from self._list(folder)

    def _top_folders(self) -> Sequence[_Folder]:
        """The class folders, or those within the split folders."""
        top = _Folder(self.root, "", None, "")
        if not self.has_labels:
            return self._folders_without_labels(top)
        names = self._folders_only(top)
        if not self._uses_split_folders(names):
            return [self._below(_Folder(self.root, "", None, ""), name) for name in names]
        self._expected = "SPLIT/CLASS/IMAGE"
        folders = []
        for name in names:
            parent = _Folder(os.path.join(self.root, name), f"{name}/", self._split_name(name), "")
            if os.path.islink(parent.path):
                raise UserError(f"--input={self.root}: split folder {name!r} is a link, which is not followed")
            folders += [self._below(parent, child) for child in self._folders_only(parent)]
        return folders

    def _folders_without_labels(self, top: _Folder) -> Sequence[_Folder]:
        with self._scan(top) as entries:
            kept = [entry for entry in entries if not self._is_ignored(entry.name, entry.name)]
        names = sorted(entry.name for entry in kept if entry.is_dir())
        if len(names) < len(kept) or not self._uses_split_folders(names):
            return [top]
        return [_Folder(os.path.join(self.root, name), f"{name}/", self._split_name(name), "") for name in names]

    def _split_name(self, folder: str) -> str:
        split = SPLIT_FOLDERS.get(folder.lower(), folder)
        if not NAME_PATTERN.fullmatch(split):
            raise UserError(
                f"--input={self.root}: split folder {printable(folder)!r}: expected letters, digits and '_', a letter first"
            )
        return split

    def _uses_split_folders(self, names: Sequence[str]) -> bool:
        if self._split_folders is not None:
            return self._split_folders
        splits = [name for name in names if name.lower() in SPLIT_FOLDERS]
        if splits and len(splits) < len(names):
            other = next(name for name in names if name not in splits)
            raise UserError(
                f"--input={self.root}: {splits[0]!r} is named like a split and {other!r} is not; "
                + (_MIXED_AND_SHARES if self._has_splits else "say which they are: --split_folders=yes or --split_folders=no")
            )
        if splits and self._has_splits:
            raise UserError(
                f"--splits: {self.root} has split folders ({', '.join(splits)}) already; drop --splits to keep them, or divide one "
                f"alone: --input={self.root}/{splits[0]}; or say --split_folders=no"
                + (": they are classes then, or parts of their names" if self.has_labels else "")
            )
        return bool(splits)

    def _folders_only(self, parent: _Folder) -> Sequence[str]:
        """Names of the folders in a folder that should hold nothing else."""
        names = []
        with self._scan(parent) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = parent.relative + entry.name
                if self._is_ignored(entry.name, path):
                    self.num_ignored += 1
                elif os.path.isdir(entry.path):
                    names.append(entry.name)
                elif self._strays.is_image(entry.name, path):
                    self._strays.add_beside(path)
        return names

    def _below(self, parent: _Folder, name: str) -> _Folder:
        label = f"{parent.label}/{name}" if parent.label else name
        return _Folder(os.path.join(parent.path, name), f"{parent.relative}{name}/", parent.split, label)

    def _list(self, folder: _Folder) -> Iterator[LabeledImage | DeadLetter]:
        if os.path.islink(folder.path):
            yield DeadLetter(printable(folder.relative), "list", "symlink", "a link to a folder, which is not followed")
            return
        if self.has_labels:
            check_label(folder.label, folder.relative)
        label = nfc(folder.label) if self.has_labels else ""
        num_files, has_folders = 0, False
        with self._scan(folder) as entries:
            for entry in entries:
                path = folder.relative + entry.name
                if self._is_ignored(entry.name, path):
                    self.num_ignored += 1
                elif entry.is_dir(follow_symlinks=False):
                    has_folders = True
                    yield from self._list(self._below(folder, entry.name))
                else:
                    num_files += 1
                    listed = self._list_file(entry, path, label, folder.split)
                    if listed is not None:
                        yield listed
        if num_files:
            self.labels.add(label)
        elif not has_folders:
            self._empty[label] = printable(folder.relative)

    def _list_file(self, entry: os.DirEntry, path: str, label: str, split: str | None) -> LabeledImage | DeadLetter | None:
        if not is_utf8(path):
            return DeadLetter(printable(path), "list", "not_utf8", "the file's name is not UTF-8")
        if not entry.is_file(follow_symlinks=False):
            refusal = self._refuse_special(entry)
            if refusal:
                return DeadLetter(path, "list", *refusal)
        if not self._strays.is_image(entry.name, path):
            return None
        num_bytes = entry.stat().st_size if self._with_sizes else 0
        return LabeledImage(nfc(path), path, label, split, num_bytes)

    def _refuse_special(self, entry: os.DirEntry) -> tuple[str, str] | None:
        """Reason and message for what is not a plain file; None for a link to one in the folder."""
        if not entry.is_symlink():
            return "not_a_file", "neither a file nor a folder"
        target = os.path.realpath(entry.path)
        if os.path.commonpath([target, self.root]) != self.root:
            return "symlink", "a link out of the input folder, which is not followed"
        kind = kind_of(target)
        if kind == "folder":
            return "symlink", "a link to a folder, which is not followed"
        return None if kind == "file" else ("symlink", "a broken link")

    def _scan(self, folder: _Folder) -> Any:
        try:
            return os.scandir(folder.path)
        except OSError as error:
            name = printable(folder.relative) or self.root
            told = f"--input={self.root}: folder {name!r} cannot be read: {error.strerror}"
            raise listing_error(error, folder.path, told) from error

    def _is_ignored(self, name: str, path: str) -> bool:
        return is_left_out(name) or (bool(self._ignore) and matches(path, self._ignore))


def check_label(label: str, folder: str) -> None:
    """Raises UserError for a class folder whose name can't be a class name."""
    if not is_utf8(label) or CONTROL.search(label):
        raise UserError(f"class folder {printable(folder)!r}: expected a name in UTF-8, on one line")


def nfc(text: str) -> str:
    """A text in Unicode's normal form C, the same on every system."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)
