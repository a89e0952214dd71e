"""Source `image_folder`: class folders (`class/image.jpg`) or split folders (`train/class/image.jpg`)."""

import dataclasses
import functools
import itertools
import json
import os
from typing import Iterable, Iterator

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import CONTROL, UserError, printable
from beam_pipelines.sources.formats.image_folder.class_folders import (
    ALL,
    Reading,
    find_class_folders,
    label_of,
    names_labels,
    read_class_folders,
    reject_mask_folders,
    words_of,
)
from beam_pipelines.sources.files.file_listing import LINK_TO_FOLDER, FileListing, FolderPart, ListedFile, Level
from beam_pipelines.sources.files.paths import is_utf8, join, nfc
from beam_pipelines.sources.files.label_files import recognise, reject_other_format
from beam_pipelines.sources.files.layouts import given_already, name_splits, split_of
from beam_pipelines.sources.files.other_files import UnexpectedFiles
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import LABEL, Feature

_WITHOUT_LABELS = {"sample", "submission", "test"}  # words in the names of tables
_MAX_LABEL_FOLDERS, _MAX_LABEL_FILES = 5, 20  # limits for the search for label files


class ImageFolder(Source):
    """Lists the images below a folder."""

    kind = SourceKind(
        name="image_folder",
        summary="class folders",
        options=("labels", "label_names", "class_folder_depth"),
        synonyms=("folder", "folders", "directory", "images", "imagenet", "jpg", "png"),
    )

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory)
        self.has_labels = options.source.labels is None
        if options.source.class_folder_depth and not self.has_labels:
            raise UserError("--class_folder_depth: --label=none reads no classes. Use one of the two options.")
        self.features = (Feature(LABEL, "class_label"),) if self.has_labels else ()
        self.targets = (LABEL,) if self.has_labels else ()
        if not is_remote(options.input) and not os.path.isdir(options.input):
            reject_other_format(options.input)
            raise UserError(f"--input={options.input}: is not a folder. Name a folder that contains class folders with images.")
        self._root = Root(options.input, options.follow_links)
        self.root = self._root.path
        self.unexpected_files = UnexpectedFiles()

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Detects any folder, if it shows no other format."""
        if not names.is_folder:
            return None
        evidence = f"the folder {names.folders[0]}/" if names.folders else "the images" if names.has_images else "the folder"
        return Recognition(evidence, Certainty.FOLDER)

    def parts(self) -> list[str]:
        """Returns a JSON string for each group of class folders. Without labels, the groups consist of top-level
        folders. Raises `UserError` if only some of the top-level folders are splits."""
        listing = FileListing(self._root, self._options.ignore)
        try:
            top, has_splits = self._list_top_folders(listing)
            above, folders = [""], top.folders
            if has_splits and self.has_labels:
                above, folders = ["", *folders], [join(split, name) for split in folders for name in listing.level(split).folders]
        except OSError as error:
            message = f"{printable(self.root)}/ could not be listed: {error.strerror or error}"
            raise listing_error(error, f"{self.root}/", message) from error
        return [json.dumps([has_splits, part]) for part in listing.cut(folders, above)]

    @functools.cached_property
    def _reading(self) -> Reading | None:
        return self.choose_class_folders() if self.has_labels and self._options.source.class_folder_depth is None else None

    @property
    def detected(self) -> str:
        return f"--class_folder_depth={self._reading.depth}, because {self._reading.why}" if self._reading else ""

    @property
    def resolved(self) -> SourceConfig | None:
        return dataclasses.replace(self._options.source, class_folder_depth=self._reading.depth) if self._reading else None

    def choose_class_folders(self) -> Reading | None:
        """Determines with `read_class_folders` which level of nested folders corresponds to classes. Raises `UserError` if
        the folders do not seem to be classes, or contain label files."""
        listing = FileListing(self._root, self._options.ignore)
        top, has_splits = self._list_top_folders(listing)
        class_folders = find_class_folders(listing, top.folders if has_splits else ())
        paths = sorted(join(split, folder) for split, some in class_folders.items() for folder in some)
        for folder in [*[""] * top.has_files, *list(filter(names_labels, paths))[:_MAX_LABEL_FOLDERS]]:
            self._reject_label_files(folder, listing.top_level(folder, is_short=True)[1])
        reading = read_class_folders(self.root, class_folders, self._options.split_folders)
        for split, folders in class_folders.items() if reading is None else ():
            reject_mask_folders(listing, self.root, [join(split, folder) for folder in sorted(folders)])
        return reading

    def check(self, unexpected_files: UnexpectedFiles | None) -> None:
        """Raises `UserError` if files are in unexpected places, or it is unclear which of the nested folders are classes."""
        unexpected_files.reject(self.root)
        if not unexpected_files.layout or self._options.source.class_folder_depth is not None:
            return
        reading = read_class_folders(self.root, {"": unexpected_files.labels}, self._options.split_folders)
        if reading and reading.depth != ALL:
            raise UserError(
                f"--input={printable(self.root)}: {reading.why}. Use --class_folder_depth={reading.depth} if the folder at that depth "
                "is the class, or --class_folder_depth=all to read each folder as a class."
            )

    def _reject_label_files(self, folder: str, names: list[str]) -> None:
        """Raises `UserError` if one of the first files in a folder is a label file in a known format."""
        others = [name for name in names if not self.unexpected_files.is_image(name)][:_MAX_LABEL_FILES]
        # Tables of training images are checked first, because tables of test images and sample submissions lack labels.
        for name in sorted(others, key=lambda name: (not words_of(name) & {"train", "training"}, bool(words_of(name) & _WITHOUT_LABELS))):
            path = join(folder, name)
            if known := recognise(f"{self.root}/{path}"):
                raise UserError(f"--input={printable(self.root)}: {printable(path)!r} looks like {known.name}. {known.advice}")

    def _list_top_folders(self, listing: FileListing) -> tuple[Level, bool]:
        """Returns the top-level folders, and whether these folders are splits."""
        top = listing.level()
        return top, any(self._find_splits(listing, top).values()) or bool(self._options.split_folders and self.has_labels)

    def label_names(self) -> dict[str, set[str]]:
        """Returns the names of all class folders with files, even if all images of a class were rejected."""
        return {LABEL: self.unexpected_files.labels} if self.has_labels else {}

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the images of one part. Problems with the layout of folders are collected in `unexpected_files`, and
        reported together after all parts have been listed."""
        has_splits, where = json.loads(part)
        listing = FileListing(self._root, self._options.ignore)
        depth = self._options.source.class_folder_depth
        above = "FOLDER/" * (int(depth) - 1) if depth and depth.isdecimal() else ""
        self.unexpected_files = unexpected_files = UnexpectedFiles(f"{'SPLIT/' * has_splits}{above}CLASS/IMAGE" if self.has_labels else "")
        empty: dict[str, str] = {}  # folder -> class
        holders: set[str] = set()  # folders that contain folders
        for folder, files in listing.walk_part(FolderPart(*where)):
            parents = folder.split("/") if folder else []
            unexpected_files.split_folders.update(parents[:has_splits])
            file = None
            try:
                label = label_of(parents[has_splits:], depth) if self.has_labels else ""
                if label is None or len(parents) < has_splits:
                    yield from self._list_loose_files(files)
                    continue
                label = nfc(label)
                if not is_utf8(label) or CONTROL.search(label):
                    raise UserError(
                        f"Class folder {printable(f'{folder}/')!r}: the name is not valid UTF-8, or contains control "
                        "characters. Rename the folder."
                    )
                holders.update(itertools.accumulate(parents[:-1], join))
                split = split_of(parents[0]) if has_splits and parents else None
                for file in files:
                    if isinstance(file, DeadLetter):
                        yield file._replace(reason="symlink") if file.reason == "outside" else file
                        continue
                    path, num_bytes = file
                    if unexpected_files.is_image(path):
                        yield InputRecord(nfc(path), path, label, split, num_bytes)
            except UserError as error:
                unexpected_files.rejections.add((folder, str(error)))
                continue
            if file:
                unexpected_files.labels.add(label)
            else:
                empty[folder] = label
        self.num_ignored = listing.num_ignored
        for folder in sorted(empty.keys() - holders):
            unexpected_files.without_files.setdefault(empty[folder], set()).add(folder)

    def _find_splits(self, listing: FileListing, top: Level) -> dict[str, str | None]:
        """Returns a mapping from top-level folders to splits or None. Raises `UserError` if the splits are ambiguous."""
        folders = sorted([*top.folders, *top.links])
        if top.has_files and not self.has_labels:
            if self._options.split_folders:
                raise UserError(
                    f"--split_folders=yes: {self.root} has files beside its split folders. Move them into a split "
                    "folder, or exclude them with --ignore."
                )
            return {}
        named = [name for name in folders if name.lower() in SPLIT_FOLDERS]
        is_open = self._options.split_folders is None
        if is_open and named and named == folders and self._options.asks_for_shares and not self._options.source.divide:
            names = [SPLIT_FOLDERS[name.lower()] for name in named]
            meaning = " (they become classes)" if self.has_labels else ""
            raise given_already(self._options, self.root, f"--split_folders=no{meaning}", names)
        for name in top.folders if is_open and len(named) > 1 else ():
            if name not in named and {*named} <= {*listing.level(name, is_short=True).folders}:
                raise UserError(
                    f"--input={printable(self.root)}: pass --ignore={printable(name)!r} if {printable(name)!r} is a copy of the "
                    f"dataset: it contains the same folders {', '.join(named)} again. Otherwise, move its images to them."
                )
        splits = name_splits(self.root, folders, self._options.split_folders)
        if top.links and self.has_labels and splits[top.links[0]]:
            raise UserError(
                f"--input={self.root}: split folder {top.links[0]!r} is a link. Use --follow_links to follow it, or "
                "replace it with a folder."
            )
        return splits

    def _list_loose_files(self, files: Iterable[ListedFile | DeadLetter]) -> Iterator[DeadLetter]:
        """Yields dead letters for links and invalid names beside the class folders, and adds images beside the class
        folders to `unexpected_files`."""
        for file in files:
            if isinstance(file, DeadLetter) and file.reason == "odd_name":
                yield file
            elif isinstance(file, DeadLetter) and os.path.isdir(f"{self.root}/{file.path}"):
                yield DeadLetter(f"{file.path}/", "list", "symlink", LINK_TO_FOLDER)
            elif self.unexpected_files.is_image(file.path):
                self.unexpected_files.add_loose_image(file.path)
