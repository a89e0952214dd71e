"""Source `yolo`: boxes, keypoints and, optionally, masks from YOLO's label files, with one text file per image.

Images are in folders, or their paths are in list files. The name of an image determines the name of its label file.
Images without a label file have no objects.
"""

import json
from typing import Any, Iterator, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_config import OBJECT_LABEL
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.image_places import is_folder
from beam_pipelines.sources.annotations.paired_files import Pair, PairedFolders
from beam_pipelines.sources.annotations.paired_source import PairedSource, decode_lines
from beam_pipelines.sources.annotations.shapes import Shape
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.paths import join
from beam_pipelines.sources.files.label_files import YOLO_LABELS, recognise
from beam_pipelines.sources.files.layouts import IMAGE_FOLDERS
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.files.settings_files import read_class_list
from beam_pipelines.sources.formats.yolo.dataset_file import DATASET_ENDS
from beam_pipelines.sources.formats.yolo.find_dataset import NAMES_FILES, find_dataset, find_names_file, is_dataset_head
from beam_pipelines.sources.formats.yolo.label_lines import LineFormat, read_line
from beam_pipelines.sources.formats.yolo.list_files import label_folder, read_list
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.storage.files import is_remote

# The split for each list file in the root of a dataset without a dataset file.
_LISTS = {"train.txt": "train", "val.txt": "validation", "valid.txt": "validation", "test.txt": "test"}
_NUM_PROBED = 20  # number of label files to read, because label files of images without objects are empty
_NO_LABELS = "images have no label file, and are read as images without objects."
_NO_NAMES = (
    "images have objects, but the dataset has no class names, so the class names are the ids. To give the names, pass the "
    "dataset file with --input=FILE.yaml, add `names:` to that file, or pass --label_names."
)
_DUPLICATES = "lines of label files repeat an earlier line of the same file, and are left out."


class Yolo(PairedSource):
    """Lists the images of a YOLO dataset with their objects."""

    kind = SourceKind(
        name="yolo",
        summary="YOLO",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "has_corners", "image_root"),
        synonyms=("ultralytics", "darknet", "yolov5", "yolov8", "yolo11"),
    )
    extensions, folders, file_kind = (".txt",), ("labels", "label"), "label file"
    other_files = frozenset((*NAMES_FILES, *_LISTS, "predefined_classes.txt"))
    is_optional, is_relative = True, True

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Detects dataset files, and label files in folders with the usual names or beside images."""
        if not names.is_folder:
            is_dataset = names.name.lower().endswith(DATASET_ENDS) and is_dataset_head(names.name, names.head())
            return Recognition(names.name, Certainty.MARKER) if is_dataset else None
        for name in names.files:
            is_dataset = name.lower().endswith(DATASET_ENDS) and is_dataset_head(name, names.head(name))
            if is_dataset and not _has_class_folders(names):
                return Recognition(name, Certainty.MARKER)
        for folder in (names, *names.below):
            for labels in _label_folders(folder):
                for name in [name for name in labels.files if name.lower().endswith(cls.extensions)][:_NUM_PROBED]:
                    known = recognise(f"{labels.path}/{name}")
                    if known and known.name == YOLO_LABELS:
                        return Recognition(f"{labels.name}/{name}", Certainty.MARKER)
        return None

    def _find_root(self) -> Root:
        self._dataset = find_dataset(self._options)
        self.detected = "; ".join(f"{printable(self._dataset.file.name)}: {message}" for message in self._dataset.messages)
        self._names: dict[str, tuple[str, ...]] = {}  # names file -> class names
        self._form = LineFormat(())
        self._has_names = True
        return self._dataset.root

    def _set_targets(self, labels: Sequence[Column] | None) -> None:
        super()._set_targets(labels)
        keypoints = self._dataset.file.keypoints
        if self._options.source.has_masks and keypoints:
            raise UserError(f"--masks: needs polygons, but {printable(self._dataset.file.name)} has kpt_shape. Omit one of them.")
        if self._has_objects and keypoints:
            self.features = (*self.features, keypoints)

    def label_names(self) -> dict[str, tuple[str, ...]]:
        """Returns the class names of `objects/label` in the order of the class ids, or {} if they are unknown."""
        return {OBJECT_LABEL: tuple(self._form.names)} if self._has_objects and self._form.names else {}

    def parts(self) -> list[str]:
        """Returns listing tasks as JSON strings. Each task contains the path of the file with the class names. Raises
        `UserError` if there are no label files, or a folder or list file does not exist."""
        tasks = self._tasks()
        names_file = find_names_file(self._dataset, self._searched) if self._has_objects else ""
        self._class_names(names_file)
        return [json.dumps({"names": names_file, **task}) for task in tasks]

    def _find_groups(self, files: FileListing) -> tuple[list[PairedFolders], list[str]]:
        images = self._dataset.images
        if not images:
            folders, names = files.top_level()
            if self._find_group(files, "", folders) is None:
                images = {name: split for name, split in _LISTS.items() if name in names and self._is_list(name)}
        self._lists = [(path, split) for path, split in images.items() if path.lower().endswith(self.extensions)]
        groups, left_out = [self._make_group(files, path, split) for path, split in images.items() if (path, split) not in self._lists], []
        if not images:
            groups, left_out = super()._find_groups(files)
        self._searched = [group.annotations for group in groups]
        if self._options.split_folders is False:
            groups = [group._replace(split=None) for group in groups]
        return groups, left_out

    def _is_list(self, name: str) -> bool:
        known = recognise(f"{self.root}/{name}")
        return known is not None and known.name == "a list of images"

    def _make_group(self, files: FileListing, path: str, split: str) -> PairedFolders:
        """Returns an image folder that a dataset file names, and its folder of label files."""
        files.take_folder(path)
        labels = label_folder(f"/{path}/").strip("/")
        if labels == path:
            group = self._find_group(files, path, files.top_level(path)[0])
            return (group or PairedFolders(path, path))._replace(split=split)
        return PairedFolders(files.take_folder(labels) if is_folder(join(self.root, labels)) else path, path, split)

    def _more_pairs(self) -> Iterator[Pair | DeadLetter]:
        for path, split in self._lists:
            split = None if self._options.split_folders is False else split
            yield from read_list(self._root, path, self._dataset.folder, split)

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs of one listing task from `parts`."""
        names_file = json.loads(part)["names"]
        keypoints, source = self._dataset.file.keypoints, self._options.source
        points = keypoints.shape[1:] if keypoints else None
        self._form = LineFormat(self._class_names(names_file), points, source.has_masks, source.bad_boxes == "clip")
        self._has_names = bool(names_file or self._dataset.file.names or self._label_names)
        return super().list(part)

    def _read(self, path: str) -> bytes | None | InvalidInput:
        """Returns the content of a label file, or None if it does not exist."""
        try:
            return super()._read(self._root.relative(path)) if path else None
        except OutsideError as error:
            return InvalidInput("outside", str(error))

    def _parse(self, data: bytes | None | InvalidInput) -> Annotation:
        if data is None:
            self._note(_NO_LABELS)
        return super()._parse(b"" if data is None else data)

    def parse(self, data: bytes) -> Annotation:
        """Parses a label file. Raises `InvalidInput` if a line is invalid."""
        shapes = self._read_shapes(decode_lines(data), lambda line: read_line(line, self._form), "line")
        distinct: dict[tuple[Any, ...], Shape] = {}
        for shape in shapes:
            distinct.setdefault(_identity(shape), shape)
        if len(distinct) < len(shapes):
            self._note(_DUPLICATES, len(shapes) - len(distinct))
        if shapes and not self._has_names:
            self._note(_NO_NAMES)
        return self._make_annotation("", list(distinct.values()), None)

    def _class_names(self, names_file: str) -> tuple[str, ...]:
        """Returns the class names in the order of the class ids, or an empty tuple if the class names are unknown.

        Raises:
            UserError: `--label_names` contradicts the names in the dataset, or the number of classes differs.
        """
        if names_file not in self._names:
            file = self._dataset.file
            names = file.names or (read_class_list(f"{self.root}/{names_file}") if names_file else ())
            if file.num_classes is not None and names and file.num_classes != len(names):
                raise UserError(
                    f"{printable(file.name)} has {file.num_classes} classes, but {printable(names_file)} has {len(names)} names. "
                    "Correct one of them."
                )
            names = names or tuple(map(str, range(file.num_classes or 0)))
            if self._label_names and names:
                _check_given(self._label_names, names)
            self._names[names_file] = tuple(self._label_names) or names
        return self._names[names_file]


def _identity(shape: Shape) -> tuple[Any, ...]:
    return shape.label, shape.outline.box, *map(tuple, shape.outline.region), shape.points


def _check_given(given: Sequence[str], names: Sequence[str]) -> None:
    """Raises `UserError` if `--label_names` and the dataset differ in the number or in the order of the classes."""
    if len(given) != len(names):
        raise UserError(f"--label_names has {len(given)} names, but the dataset has {len(names)} classes. Give one name for each class id.")
    for number, name in enumerate(given):
        if name in names and names[number] != name:
            raise UserError(
                f"--label_names: class {number} is {printable(name)!r}, but the dataset calls it {printable(names[number])!r}, and class "
                f"{names.index(name)} {printable(name)!r}. Give the names in the order of the class ids, or omit --label_names."
            )


def _has_class_folders(names: InputNames) -> bool:
    """Returns whether a split folder contains only class folders, as in Ultralytics' classification datasets."""
    split = names.folder("train", "val", "valid", "test")
    return bool(split and split.folders and not split.has_images and not split.folder(*IMAGE_FOLDERS, *Yolo.folders))


def _label_folders(folder: InputNames) -> Iterator[InputNames]:
    """Yields the folders that may contain label files: `labels`, the first folder in `labels`, and folders with images."""
    labels = folder.folder(*Yolo.folders)
    if labels and (folder.folder(*IMAGE_FOLDERS) or folder.has_images):
        yield labels
        if labels.folders:
            yield labels.folder(labels.folders[0].lower())
    if folder.has_images:
        yield folder
    elif folder.folders and not is_remote(folder.path):  # In an object store, listing a large folder takes minutes.
        yield folder.folder(folder.folders[0].lower())
