"""Finds the files of an input that contain many examples each, and their splits.

    input                        files
    a file                       that file
    data/train-*.tfrecord        the files that match the pattern; `**/` matches any folders
    data/shard-{000..010}.tar    eleven names; {a,b} is a choice
    a folder                     the files with a suitable extension, in the folder and below

A file has the name of a split if `train`, `val`, `test` or a similar word is in its name, or in its folder's name. With
`--split_folders=yes`, shards such as `fold0-000000.tar` belong to the split `fold0`.
"""

import re
from typing import Callable, Iterator

from beam_pipelines.config.prepare_config import NAME_PATTERN, PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import FileListing, name_first
from beam_pipelines.sources.files.patterns import InputNames, split_input
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.near_paths import did_you_mean_path

_WORD = re.compile(r"[A-Za-z]+")
_SHARD = re.compile(rf"({NAME_PATTERN.pattern})-\d+(?:-of-\d+)?(?:\..*)?")  # dev-000000.tar, dev-00000-of-00002.record


class Containers:
    """The files of an input.

    Args:
        config: The options of the source.
        is_container: A function that returns whether a name in an input folder has a suitable extension.
        expected: The expected names, for a message.

    Attributes:
        root: The root folder of the files.
        names: The paths of the files relative to the root, in ascending order; never empty.
        dead_letters: The files and folders that cannot be read.

    Raises:
        UserError: There are no files.
    """

    def __init__(self, config: PrepareConfig, is_container: Callable[[str], bool], expected: str) -> None:
        self._config = config
        self._num_ignored = 0
        self.dead_letters: list[DeadLetter] = []
        wanted = split_input(config.input)
        self.root = Root(wanted.folder, config.follow_links)
        if not wanted.literal and not wanted.patterns:
            self.names = sorted(self._all_files(is_container))
        else:
            self.names = sorted(self._fitting(wanted))
        if not self.names:
            raise UserError(
                f"--input={config.input}: contains no file to read{name_first(self.dead_letters)}. Name a folder "
                f"that contains {expected}, or name the files."
            )

    def describe_ignored(self, part: str) -> tuple[int, list[DeadLetter]]:
        """Returns the number of ignored files and the dead letters for the first file. For later files, returns zero
        and an empty list."""
        return (self._num_ignored, self.dead_letters) if part == self.names[0] else (0, [])

    def splits(self) -> dict[str, str]:
        """Returns the split of each file according to the file names, or an empty mapping if no name contains a split.

        Raises:
            UserError: With `--split_folders=yes`, a file is not named like a split; without the option, only some
                shards are.
        """
        if self._config.split_folders is False:
            return {}
        splits = {name: split for name in self.names if (split := split_in_name(name))}
        others = [name for name in self.names if name not in splits]
        shards = {name: match[1] for name in self.names if (match := _SHARD.fullmatch(name))}
        if self._config.split_folders:
            for name in others:
                if name not in shards:
                    raise UserError(
                        f"--split_folders=yes: {printable(name)!r} is not named like a split. Rename it, for example "
                        "to train-00000."
                    )
                splits[name] = shards[name]
        elif others:
            if splits and len(shards) == len(self.names):
                raise UserError(
                    f"--input={self._config.input}: {printable(others[0])!r} is not named like a split, and others "
                    "beside it are. Use --split_folders=yes if all of them are splits, or --split_folders=no if none "
                    "is."
                )
            return {}
        if self._config.asks_for_shares and not self._config.source.divide and len(set(splits.values())) == 1:
            return {}  # the option divides the only split
        return splits

    def _all_files(self, is_container: Callable[[str], bool]) -> Iterator[str]:
        listing = FileListing(self.root, self._config.ignore)
        for listed_file in listing.walk():
            if isinstance(listed_file, DeadLetter):
                self.dead_letters.append(listed_file)
            elif is_container(listed_file.path.rpartition("/")[2]):
                yield listed_file.path
            else:
                self._num_ignored += 1
        self._num_ignored += listing.num_ignored

    def _fitting(self, wanted: InputNames) -> set[str]:
        for name in wanted.literal if len(wanted.literal) == 1 else ():  # with many names, opening a missing file fails
            if not files_at(self.root.path).exists(f"{self.root.path}/{name}"):
                near = did_you_mean_path(self._config.input) or "."
                raise UserError(
                    f"--input={self._config.input}: no such file or folder{near} Name a file, a folder, or a pattern of "
                    "names."
                )
        if not wanted.patterns:
            return wanted.literal
        names, self.dead_letters = FileListing(self.root, self._config.ignore).fitting(wanted)
        return wanted.literal.union(names)


def reject_outside(root: Root, name: str) -> DeadLetter | None:
    """Returns a dead letter if a file has an invalid name or is a link to a file outside the root. Otherwise, returns
    None."""
    try:
        root.relative(name)
    except OutsideError as error:
        return DeadLetter(printable(name), "list", "outside", str(error))
    return None


def split_in_name(path: str) -> str | None:
    """Returns the split in a path such as `flowers-train.tfrecord-00000-of-00016` or `val/7.tar`. Otherwise None.

    The split in a file name takes precedence over the split in a folder name.
    """
    for part in reversed(path.split("/")):
        named = [SPLIT_FOLDERS[word.lower()] for word in _WORD.findall(part) if word.lower() in SPLIT_FOLDERS]
        if named:
            return named[-1]
    return None
