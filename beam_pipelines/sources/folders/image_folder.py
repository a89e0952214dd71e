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
| in an object store, a name with an empty part, `.` or `..` in it | dead letter |
| with `--label=none`: an image anywhere | key alone: its folder means nothing, but for a split folder |
| hidden files and folders, `Thumbs.db`, `desktop.ini`, `__MACOSX`, `--ignore` patterns | ignored, and counted |
| README, LICENSE and the like, checksums | ignored, and counted |
| any other extension, an image beside the class folders, a class without an image | the run is refused, all of them told at once |
"""

import itertools
import os
import unicodedata
from typing import Iterable, Iterator, Sequence

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.labeled_image import LabeledImage
from beam_pipelines.errors import CONTROL, UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.folders.file_listing import FileListing, FoundFile, is_utf8, join
from beam_pipelines.sources.folders.layouts import SAY_WHICH, given_already, name_splits, refuse_options
from beam_pipelines.sources.folders.other_files import Strays
from beam_pipelines.sources.folders.roots import Root
from beam_pipelines.sources.splits import SPLIT_FOLDERS
from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import LABEL, Feature

_MIXED_AND_SHARES = "to divide all of them, --split_folders=no; to take them as splits, --split_folders=yes without --splits, or with --divide"


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
        if not is_remote(config.input) and not os.path.isdir(config.input):
            raise UserError(f"--input={config.input}: is not a folder; expected class folders with images")
        self.num_ignored = 0
        self._root = Root(config.input)
        self.root = self._root.path
        self._config = config
        self._with_sizes = with_sizes
        self._strays = Strays(self.root)

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
        listing = FileListing(self._root, self._config.ignore, self._with_sizes)
        splits = self._find_splits(*listing.top_level(with_all=True))
        has_splits = any(splits.values()) or bool(self._config.split_folders and self.has_labels)
        empty: dict[str, str] = {}  # folder -> class
        holders: set[str] = set()  # folders with folders in them
        for folder, files in listing.walk_folders():
            parents = folder.split("/") if folder else []
            if len(parents) < has_splits + self.has_labels:
                yield from self._list_beside(files)
                continue
            label = nfc("/".join(parents[has_splits:])) if self.has_labels else ""
            if not is_utf8(label) or CONTROL.search(label):
                raise UserError(f"class folder {printable(f'{folder}/')!r}: expected a name in UTF-8, on one line")
            holders.update(itertools.accumulate(parents[:-1], join))
            split = splits.get(parents[0]) if parents else None
            file = None
            for file in files:
                if isinstance(file, DeadLetter):
                    yield file._replace(reason="symlink") if file.reason == "outside" else file
                    continue
                path, num_bytes = file
                if self._strays.is_image(path):
                    yield LabeledImage(nfc(path), path, label, split, num_bytes)
            if file:
                self.labels.add(label)
            else:
                empty[folder] = label
        self.num_ignored = listing.num_ignored
        without_images = {
            label: f"{folder}/" for folder, label in sorted(empty.items()) if label not in self.labels and folder not in holders
        }
        self._strays.refuse(without_images if self.has_labels and self.labels else {}, f"{'SPLIT/' * has_splits}CLASS/IMAGE")
        if not self.labels:
            extensions = ", ".join(IMAGE_EXTENSIONS)
            where = " in class folders" if self.has_labels else ""
            raise UserError(f"--input={self.root}: no image in it; expected files named {extensions}{where}")

    def _find_splits(self, folders: Sequence[str], files: Sequence[str]) -> dict[str, str | None]:
        """Folder -> the split that it is. Without labels, split folders have no file beside them."""
        if files and not self.has_labels:
            return {}
        named = [name for name in folders if name.lower() in SPLIT_FOLDERS]
        shared = self._config.asks_for_shares and not self._config.source.divide and self._config.split_folders is None
        if shared and named and len(named) == len(folders):
            names = [SPLIT_FOLDERS[name.lower()] for name in named]
            raise given_already(self._config, self.root, "--split_folders=no" + (" (they are classes then)" if self.has_labels else ""), names)
        splits = name_splits(self.root, folders, self._config.split_folders, _MIXED_AND_SHARES if shared else SAY_WHICH)
        link = next((name for name in splits if splits[name] and os.path.islink(f"{self.root}/{name}")), None)
        if link and self.has_labels:
            raise UserError(f"--input={self.root}: split folder {link!r} is a link, which is not followed")
        return splits

    def _list_beside(self, files: Iterable[FoundFile | DeadLetter]) -> Iterator[DeadLetter]:
        """What lies where only folders should."""
        for file in files:
            if isinstance(file, DeadLetter) and file.reason == "odd_name":
                yield file
            elif isinstance(file, DeadLetter) and os.path.isdir(f"{self.root}/{file.path}"):
                yield DeadLetter(f"{file.path}/", "list", "symlink", "a link to a folder, which is not followed")
            elif self._strays.is_image(file.path):
                self._strays.add_beside(file.path)


def nfc(text: str) -> str:
    """A text in Unicode's normal form C, the same on every system."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)
