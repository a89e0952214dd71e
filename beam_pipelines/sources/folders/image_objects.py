"""Source `image_folder` in an object store: the same layouts and rules, from one flat listing, page by page.

There are no folders and no links in an object store, only names with `/` in them. A name with an empty part, `.` or `..` in
it is a dead letter: on the way to the store such a name may turn into another one.
"""

from typing import Iterator, Sequence

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.labeled_image import LabeledImage
from beam_pipelines.errors import printable
from beam_pipelines.sources.folders.image_folder import ImageFolder, check_label, nfc
from beam_pipelines.storage.files import files_at


class ImageObjects(ImageFolder):
    """The inputs below one prefix."""

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = True, spool_directory: str | None = None) -> None:
        super().__init__(config)  # a listing of objects has their sizes in any case

    def _find_root(self, path: str) -> str:
        return path.rstrip("/")

    def _list_all(self) -> Iterator[LabeledImage | DeadLetter]:
        store = files_at(self.root)
        folders, objects = store.top_level(self.root)
        folders = [name for name in folders if not self._is_ignored(name, name)]
        beside = not self.has_labels and any(not self._is_ignored(name, name) for name in objects)
        has_splits = not beside and self._uses_split_folders(folders)
        self._expected = "SPLIT/CLASS/IMAGE" if has_splits else self._expected
        for path, num_bytes in store.list(self.root):
            *parents, name = path.split("/")
            if not all(part not in ("", ".", "..") for part in (*parents, name)):
                yield DeadLetter(printable(path), "list", "odd_name", "a name with an empty part, '.' or '..' in it")
            elif self._is_ignored_below(parents, name, path):
                self.num_ignored += 1
                self._note_empty(parents[has_splits:], parents)
            elif self._strays.is_image(name, path):
                if self.has_labels and len(parents) <= has_splits:
                    self._strays.add_beside(path)
                else:
                    yield self._list_object(path, parents, has_splits, num_bytes)
            else:
                self.labels.add(nfc("/".join(parents[has_splits:])))

    def _is_ignored_below(self, parents: Sequence[str], name: str, path: str) -> bool:
        if self._is_ignored(name, path):
            return True
        return any(self._is_ignored(part, "/".join(parents[: index + 1])) for index, part in enumerate(parents))

    def _note_empty(self, label_parts: Sequence[str], parents: Sequence[str]) -> None:
        """A class whose objects are all ignored is a class without an image."""
        if label_parts and not any(self._is_ignored(part, part) for part in parents):
            self._empty.setdefault(nfc("/".join(label_parts)), "/".join(parents))

    def _list_object(self, path: str, parents: Sequence[str], has_splits: bool, num_bytes: int) -> LabeledImage:
        split = self._split_name(parents[0]) if has_splits else None
        label = nfc("/".join(parents[has_splits:])) if self.has_labels else ""
        if self.has_labels:
            check_label(label, "/".join(parents))
        self.labels.add(label)
        return LabeledImage(nfc(path), path, label, split, num_bytes)
