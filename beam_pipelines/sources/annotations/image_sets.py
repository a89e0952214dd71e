"""Reads Pascal VOC's `ImageSets` lists, which assign images to splits.

Each line of a list contains the name of an image without its extension. The lists `train.txt`, `val.txt` and `test.txt`
define splits. If there is no `train.txt`, `trainval.txt` defines the training split. Images that are not in any list
are ignored, because VOC 2012 contains images for several tasks, and each task has lists of its own images.
"""

from typing import Container, Iterator, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.paths import join, nfc
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.input_errors import read_errors

_LISTS = {"train.txt": "train", "trainval.txt": "train", "val.txt": "validation", "test.txt": "test"}
FOLDER = "ImageSets"


class ListedImage(NamedTuple):
    """An entry of an `ImageSets` list.

    Attributes:
        split: The split of the image.
        line: The path of the list and the line number, such as `ImageSets/Main/train.txt:17`.
    """

    split: str
    line: str


class ImageSets(NamedTuple):
    """The lists of one task, such as classification or segmentation.

    Attributes:
        members: A mapping from the name of an image, without its extension, to its entry.
        dead_letters: Images that are listed twice.
    """

    members: dict[str, ListedImage]
    dead_letters: list[DeadLetter]

    def missing(self, found_names: Container[str], expected: str) -> Iterator[DeadLetter]:
        """Yields a dead letter for each listed image whose file was not found."""
        for name, member in self.members.items():
            if name not in found_names:
                yield DeadLetter(member.line, "list", "missing", f"no {expected} has the name {printable(name[:200])!r}")


def find_image_sets(files: FileListing, folder: str, task: str) -> str | None:
    """Returns the folder with the lists of a task, or None if there is no such folder. See `read_image_sets`."""
    if FOLDER not in files.top_level(folder)[0]:
        return None
    lists = join(folder, FOLDER)
    return join(lists, task) if not task or task in files.top_level(lists)[0] else None


def read_image_sets(root: Root, files: FileListing, folder: str, task: str, has_test: bool = True) -> ImageSets | None:
    """Reads the `ImageSets` lists of a task into memory. Returns None if there are no lists, or if all lists are empty.

    Args:
        root: The root of the source.
        files: The listing of the source's files.
        folder: The folder that contains `ImageSets`.
        task: The name of the task's folder in `ImageSets`, such as `Main`. Empty if the lists are directly in `ImageSets`.
        has_test: Whether to read the list of the test images.

    Raises:
        UserError: A list cannot be read, or its path contains a link that is not followed.
    """
    lists = find_image_sets(files, folder, task)
    if lists is None:
        return None
    names = files.take_files(files.take_folder(lists), _LISTS.__contains__)
    sets = ImageSets({}, [])
    for name, split in _LISTS.items():
        if name in names and not (name == "trainval.txt" and "train.txt" in names) and (has_test or split != "test"):
            _read_list(root, f"{lists}/{name}", split, sets)
    return sets if sets.members else None


def _read_list(root: Root, path: str, split: str, sets: ImageSets) -> None:
    try:
        with read_errors(f"{root.path}/{path}", path):
            text = files_at(root.path).read(f"{root.path}/{root.relative(path)}").decode()
    except ValueError as error:
        raise UserError(f"{printable(path)} cannot be read: {error}. Each line must be the name of an image.") from None
    for number, row in enumerate(text.splitlines(), 1):
        name = nfc(row.strip())
        line = f"{printable(path)}:{number}"
        if name and name in sets.members:
            message = f"{printable(name)!r} is already listed in {sets.members[name].line}"
            sets.dead_letters.append(DeadLetter(line, "list", "duplicate", message))
        elif name:
            sets.members[name] = ListedImage(split, line)
