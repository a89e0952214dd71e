"""Source `image_folder` in an object store: the same layouts and rules, from one flat listing, page by page.

There are no folders and no links in an object store, only names with `/` in them. A name with an empty part, `.` or `..` in
it is a dead letter: on the way to the store such a name may turn into another one.
"""

from typing import Iterator

from beam_pipelines.config import PrepareConfig
from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.errors import UserError, printable
from beam_pipelines.files import files_at, is_remote
from beam_pipelines.references import LabeledImage
from beam_pipelines.sources.image_folder import ImageFolder, check_extension, check_label, nfc


def open_folder(config: PrepareConfig, *, with_sizes: bool) -> ImageFolder:
    """The source for a folder of images, wherever it lies. A listing of objects has their sizes in any case."""
    return ImageObjects(config) if is_remote(config.input) else ImageFolder(config, with_sizes)


class ImageObjects(ImageFolder):
    """The inputs below one prefix."""

    def __init__(self, config: PrepareConfig) -> None:
        super().__init__(config)
        self.root = config.input.rstrip("/")

    def _list_all(self) -> Iterator[LabeledImage | DeadLetter]:
        store = files_at(self.root)
        folders, _ = store.top_level(self.root)
        has_splits = self._uses_split_folders([name for name in folders if not self._is_ignored(name, name)])
        for path, num_bytes in store.list(self.root):
            *parents, name = path.split("/")
            if not all(part not in ("", ".", "..") for part in (*parents, name)):
                yield DeadLetter(printable(path), "list", "odd_name", "a name with an empty part, '.' or '..' in it")
            elif self._is_ignored_below(parents, name, path):
                self.num_ignored += 1
                self._note_empty(parents[has_splits:], parents)
            else:
                yield self._list_object(path, parents, has_splits, num_bytes)

    def _is_ignored_below(self, parents: list[str], name: str, path: str) -> bool:
        if self._is_ignored(name, path):
            return True
        return any(self._is_ignored(part, "/".join(parents[: index + 1])) for index, part in enumerate(parents))

    def _note_empty(self, label_parts: list[str], parents: list[str]) -> None:
        """A class whose objects are all ignored is a class without an image."""
        if label_parts and not any(self._is_ignored(part, part) for part in parents):
            self._empty.setdefault(nfc("/".join(label_parts)), "/".join(parents))

    def _list_object(self, path: str, parents: list[str], has_splits: bool, num_bytes: int) -> LabeledImage:
        check_extension(path.rpartition("/")[2], path)
        if len(parents) <= has_splits:
            expected = "SPLIT/CLASS/IMAGE" if has_splits else "CLASS/IMAGE"
            raise UserError(
                f"--input={self.root}: image {printable(path)!r} lies beside the class folders; expected {expected}"
            )
        split = self._split_name(parents[0]) if has_splits else None
        label = nfc("/".join(parents[has_splits:]))
        check_label(label, "/".join(parents))
        self.labels.add(label)
        return LabeledImage(nfc(path), path, label, split, num_bytes)
