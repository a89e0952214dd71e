"""Finds the files of an input that contain many examples each, and their splits.

    input                        files
    a file                       that file
    data/train-*.tfrecord        the files that match the pattern; `**/` matches any folders
    data/shard-{000..010}.tar    the eleven files from 000 to 010; `{a,b}` matches a or b
    a folder                     the files with a suitable extension, in the folder and its subfolders

A file belongs to a split if its name, or the name of its folder, contains `train`, `val`, `test` or a similar word. With
`--split_folders=yes`, shards such as `fold0-000000.tar` belong to the split `fold0`.
"""

import abc
import contextlib
import re
from typing import BinaryIO, Callable, Collection, Iterator, Mapping, NamedTuple

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.values import NAME_PATTERN
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import FileListing, name_first
from beam_pipelines.sources.files.patterns import split_input
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, open_file
from beam_pipelines.storage.input_errors import listing_error
from beam_pipelines.storage.near_paths import did_you_mean_path

_WORD = re.compile(r"[A-Za-z]+")
_SHARD = re.compile(rf"({NAME_PATTERN.pattern})-\d+(?:-of-\d+)?(?:\..*)?")  # dev-000000.tar, dev-00000-of-00002.record


class Containers(NamedTuple):
    """The files of an input.

    Attributes:
        root: The root folder of the files.
        names: The paths of the files relative to the root, in ascending order; at least one.
        splits: File -> its split. Empty if the names contain no splits.
        dead_letters: The files and folders that cannot be read.
        num_ignored: The number of files that were ignored.
    """

    root: Root
    names: list[str]
    splits: Mapping[str, str]
    dead_letters: list[DeadLetter] = []
    num_ignored: int = 0


def find_containers(options: PrepareOptions, is_container: Callable[[str], bool], expected: str) -> Containers:
    """Finds the files of an input and derives their splits from their names.

    Args:
        options: The options of the source.
        is_container: Returns whether a file name has a suitable extension.
        expected: The expected file names, for a message.

    Raises:
        UserError: There are no files; or splits are requested or probable, but a file is not named like a split.
    """
    wanted = split_input(options.input)
    root = Root(wanted.folder, options.follow_links)
    listing, dead_letters, num_ignored = FileListing(root, options.ignore), [], 0
    if wanted.patterns:
        found, dead_letters = listing.fitting(wanted)
        names = wanted.literal.union(found)
    elif wanted.literal:
        names = wanted.literal
        _check_exists(options.input, root, names)
    else:
        names = set()
        for file in listing.walk():
            if isinstance(file, DeadLetter):
                dead_letters.append(file)
            elif is_container(file.path.rpartition("/")[2]):
                names.add(file.path)
            else:
                num_ignored += 1
        num_ignored += listing.num_ignored
    if not names:
        raise UserError(
            f"--input={options.input}: contains no file to read{name_first(dead_letters)}. Name a folder that contains "
            f"{expected}, or name the files."
        )
    names = sorted(names)
    return Containers(root, names, _name_splits(options, names), dead_letters, num_ignored)


def _check_exists(path: str, root: Root, names: set[str]) -> None:
    for name in names if len(names) == 1 else ():  # if there are many files, a missing file is reported when it is opened
        if not files_at(root.path).exists(f"{root.path}/{name}"):
            near = did_you_mean_path(path) or "."
            raise UserError(f"--input={path}: no such file or folder{near} Name a file, a folder, or a pattern of names.")


def _name_splits(options: PrepareOptions, names: list[str]) -> dict[str, str]:
    if options.split_folders is False:
        return {}
    splits = {name: split for name in names if (split := split_in_name(name))}
    others = [name for name in names if name not in splits]
    shards = {name: match[1] for name in names if (match := _SHARD.fullmatch(name))}
    if options.split_folders:
        for name in others:
            if name not in shards:
                raise UserError(
                    f"--split_folders=yes: {printable(name)!r} is not named like a split. Rename it, for example to train-00000."
                )
            splits[name] = shards[name]
    elif others:
        if splits and len(shards) == len(names):
            raise UserError(
                f"--input={options.input}: {printable(others[0])!r} is not named like a split, but other files are. Use "
                "--split_folders=yes if all files are splits, or --split_folders=no if no file is a split."
            )
        return {}
    if options.asks_for_shares and not options.source.divide and len(set(splits.values())) == 1:
        return {}  # `--splits` or `--folds` divides the only split
    return splits


class ContainerSource(Source):
    """The base class of sources whose files contain many examples each. Each file is a part."""

    _files: Containers
    _mapper: RowMapper | None = None

    def parts(self) -> list[str]:
        return [*self._files.names]

    def label_names(self) -> Mapping[str, Collection[str]]:
        return self._mapper.label_names if self._mapper else {}

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        is_first = part == self._files.names[0]
        self.num_ignored = self._files.num_ignored if is_first else 0
        yield from self._files.dead_letters if is_first else ()
        try:
            self._files.root.relative(part)
        except OutsideError as error:
            yield DeadLetter(printable(part), "list", "outside", str(error))
            return
        yield from self._list_file(part)

    @abc.abstractmethod
    def _list_file(self, name: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs of one file."""

    @contextlib.contextmanager
    def _open_file(self, name: str) -> Iterator[BinaryIO]:
        """Context manager that opens a file. Failures to open or read the file raise `UserError`."""
        path = f"{self.root}/{self._files.root.relative(name)}"
        try:
            with open_file(path) as file:
                yield file
        except OSError as error:
            raise listing_error(error, path, f"{printable(path)} cannot be read: {error.strerror or error}") from error


def split_in_name(path: str) -> str | None:
    """Returns the split in a path such as `flowers-train.tfrecord-00000-of-00016` or `val/7.tar`, or None. The file name
    takes precedence over folder names."""
    for part in reversed(path.split("/")):
        named = [SPLIT_FOLDERS[word.lower()] for word in _WORD.findall(part) if word.lower() in SPLIT_FOLDERS]
        if named:
            return named[-1]
    return None
