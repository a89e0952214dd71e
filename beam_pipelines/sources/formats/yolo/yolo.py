"""Source `yolo`: boxes, keypoints and, optionally, masks from YOLO's label files, with one text file per image.

Images are in folders, or their paths are in list files. The name of an image determines the name of its label file.
Each listing task has up to 500 images, because the label file of each image has to be opened. From an object store, 32
label files are read concurrently. Dividing an image folder into tasks keeps the file names of the image and label
folders in memory, about 600 bytes per image. List files are not read into memory as a whole.
"""

import itertools
import json
from typing import Any, Iterator, Sequence

from beam_pipelines.config.prepare_config import OBJECT_LABEL, PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.sources.annotations.object_features import object_features
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.roots import OutsideError
from beam_pipelines.sources.files.sizes import find_sizes
from beam_pipelines.sources.formats.yolo.dataset_file import read_names_file
from beam_pipelines.sources.formats.yolo.find_dataset import find_dataset, find_names_file
from beam_pipelines.sources.formats.yolo.image_groups import find_groups
from beam_pipelines.sources.formats.yolo.label_lines import MAX_LABEL_BYTES, LineFormat, parse_labels
from beam_pipelines.sources.formats.yolo.list_files import ListChunk, divide_list, read_chunk
from beam_pipelines.sources.formats.yolo.match_labels import LabeledImage, match_labels
from beam_pipelines.sources.formats.yolo.recognise import recognise_yolo
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import describe_fact
from tf_input.dataset_format import MASK, OBJECTS

PART_FILES = 500
_NO_LABELS = "images have no label file, and are read as images without objects."
_NO_NAMES = (
    "images have objects, but the dataset has no class names, so the class names are the ids. To give the names, pass the "
    "dataset file with --input=FILE.yaml, or pass --label_names."
)
_DUPLICATES = "lines of label files repeat an earlier line of the same file, and are left out."


class Yolo(Source):
    """Lists the images of a YOLO dataset with their objects.

    Args:
        config: The options of the source.
        with_sizes: Whether to find each image's size in bytes. On a local disk, this requires a system call per image.
        spool_directory: Not used, because this source writes no temporary files.
    """

    kind = SourceKind(
        name="yolo",
        summary="YOLO",
        options=("labels", "label_names", "bad_boxes", "drawn_on", "has_masks", "image_root"),
        synonyms=("ultralytics", "darknet", "yolov5", "yolov8", "yolo11"),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config)
        source = config.source
        self._has_objects = source.labels is None
        if source.has_masks and not self._has_objects:
            raise UserError("--masks and --label=none exclude each other. Omit one of them.")
        self._dataset = find_dataset(config)
        keypoints = self._dataset.file.keypoints
        if source.has_masks and keypoints:
            raise UserError(f"--masks: needs polygons, but {printable(self._dataset.file.name)} has kpt_shape. Omit one of them.")
        if self._has_objects:
            self.features = (*object_features({}, source.has_masks), *((keypoints,) if keypoints else ()))
            self.targets = (OBJECTS, MASK) if source.has_masks else (OBJECTS,)
        self._root = self._dataset.root
        self.root = self._root.path
        self.detected = "; ".join(f"{printable(self._dataset.file.name)}: {message}" for message in self._dataset.messages)
        self._files = files_at(self.root)
        self._config = config
        self._with_sizes = with_sizes
        self._names: dict[str, tuple[str, ...]] = {}  # names file -> class names
        self._known_names: tuple[str, ...] = ()
        self._has_names = True

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises dataset files, and label files in folders with the usual names or beside images."""
        return recognise_yolo(names)

    def label_names(self) -> dict[str, tuple[str, ...]]:
        """Returns the class names in the order of the class ids, or an empty dict if they are unknown."""
        return {OBJECT_LABEL: self._known_names} if self._has_objects and self._known_names else {}

    def parts(self) -> list[str]:
        """Returns listing tasks as JSON strings. A task contains images with their label files, or a chunk of a list
        file.

        Raises:
            UserError: There are no images or no label files, or a folder or list file does not exist.
        """
        files = FileListing(self._root, self._config.ignore, self._with_sizes)
        groups = self._dataset.groups
        if groups is None:
            groups = find_groups(self._root, files, self._config.split_folders)
        names_file = find_names_file(self._dataset, groups) if self._has_objects else ""
        self._class_names(names_file)
        tasks: list[dict[str, Any]] = []
        has_labels = not self._has_objects or any(group.is_list for group in groups)
        for group in groups:
            split = None if self._config.split_folders is False else group.split
            if group.is_list:
                tasks += ({"chunk": chunk, "split": split} for chunk in divide_list(self._root, group, PART_FILES))
                continue
            num_ignored = files.num_ignored
            matched = match_labels(files, group)
            has_labels = has_labels or matched.num_labels > 0
            images = iter(matched.images)
            tasks += ({"images": batch, "split": split} for batch in iter(lambda: list(itertools.islice(images, PART_FILES)), []))
            rejected = iter(matched.dead_letters)
            tasks += ({"rejected": batch} for batch in iter(lambda: list(itertools.islice(rejected, PART_FILES)), []))
            tasks.append({"num_ignored": files.num_ignored - num_ignored + matched.num_ignored})
        if not any("images" in task or "chunk" in task for task in tasks):
            raise UserError(f"--input={self._config.input}: contains no image. Put images in images/ and label files in labels/.")
        if not has_labels:
            raise UserError(
                f"--input={self._config.input}: contains no label file. Put the label file of images/1.jpg in labels/1.txt, or pass "
                "--label=none to read only the images. For class folders, use --source=image_folder."
            )
        return [json.dumps({"names": names_file, **task}) for task in tasks]

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs of one listing task from `parts`."""
        task = json.loads(part)
        self.num_ignored += task.get("num_ignored", 0)
        self._known_names = self._class_names(task["names"])
        self._has_names = bool(task["names"] or self._dataset.file.names or self._config.source.names_of(OBJECT_LABEL))
        yield from (DeadLetter(*letter) for letter in task.get("rejected", ()))
        images = [LabeledImage(*row) for row in task.get("images", ())]
        for listed in read_chunk(self._root, self._config.ignore, ListChunk(*task["chunk"])) if "chunk" in task else ():
            if isinstance(listed, LabeledImage):
                images.append(listed)
            elif isinstance(listed, DeadLetter):
                yield listed
            else:
                self.num_ignored += 1
        yield from self._list_images(images, task.get("split"))

    def _list_images(self, images: Sequence[LabeledImage], split: str | None) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs for images with their label files."""
        sizes = self._find_sizes(images)
        labels = self._read_all([image.label for image in images]) if self._has_objects else itertools.repeat(None)
        for image, data in zip(images, labels):
            try:
                values = self._values(data) if self._has_objects else None
            except InvalidInput as error:
                yield DeadLetter.of(image.path, InvalidInput(error.reason, f"{printable(image.label)}: {error}"))
                continue
            yield InputRecord(nfc(image.path), image.path, "", split, sizes.get(image.path, image.num_bytes), values=values)

    def _find_sizes(self, images: Sequence[LabeledImage]) -> dict[str, int]:
        """Returns the sizes of the images that were listed without a size, in bytes."""
        return find_sizes(self.root, [image.path for image in images if not image.num_bytes]) if self._with_sizes else {}

    def _values(self, data: bytes | None | InvalidInput) -> dict[str, Any]:
        if isinstance(data, InvalidInput):
            raise data
        if data is None:
            self._note(_NO_LABELS)
        source, keypoints = self._config.source, self._dataset.file.keypoints
        points = keypoints.shape[1:] if keypoints else None
        labels = parse_labels(data or b"", LineFormat(self._known_names, points, source.has_masks, source.bad_boxes == "clip"))
        if labels.objects.labels and not self._has_names:
            self._note(_NO_NAMES)
        if labels.num_duplicates:
            self._note(_DUPLICATES, labels.num_duplicates)
        return {OBJECTS: labels.objects, **({MASK: labels.regions} if source.has_masks else {})}

    def _note(self, fact: str, num: int = 1) -> None:
        self.noted[fact] = self.noted.get(fact, 0) + num

    def _read_all(self, paths: Sequence[str]) -> Iterator[bytes | None | InvalidInput]:
        """Yields the contents of label files in order. Files in an object store are read concurrently."""
        if is_remote(self.root):
            return read_ahead(
                self._read, ((path, 0) for path in paths), lambda data: len(data) if isinstance(data, bytes) else 0
            )
        return map(self._read, paths)

    def _read(self, path: str) -> bytes | None | InvalidInput:
        """Returns the content of a label file, or None if it does not exist."""
        if not path:
            return None
        try:
            path = f"{self.root}/{self._root.relative(path)}"
            return self._files.read_range(path, 0, MAX_LABEL_BYTES + 1)
        except OutsideError as error:
            return InvalidInput("outside", str(error))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return InvalidInput("unreadable", f"cannot be read: {describe_fact(error, path)}")

    def _class_names(self, names_file: str) -> tuple[str, ...]:
        """Returns the class names in the order of the class ids, or an empty tuple if the class names are unknown.

        Raises:
            UserError: `--label_names` contradicts the names in the dataset, or the number of classes differs.
        """
        if names_file not in self._names:
            file = self._dataset.file
            names = file.names or (read_names_file(f"{self.root}/{names_file}") if names_file else ())
            if file.num_classes is not None and names and file.num_classes != len(names):
                raise UserError(
                    f"{printable(file.name)} has {file.num_classes} classes, but {printable(names_file)} has {len(names)} names. "
                    "Correct one of them."
                )
            names = names or tuple(map(str, range(file.num_classes or 0)))
            given = self._config.source.names_of(OBJECT_LABEL)
            if given and names:
                _check_given(given, names)
            self._names[names_file] = given or names
        return self._names[names_file]


def _check_given(given: Sequence[str], names: Sequence[str]) -> None:
    """Raises `UserError` if the number of names in `--label_names` differs, or if a name belongs to another class."""
    if len(given) != len(names):
        raise UserError(f"--label_names has {len(given)} names, but the dataset has {len(names)} classes. Give one name for each class id.")
    for number, name in enumerate(given):
        if name in names and names[number] != name:
            raise UserError(
                f"--label_names: class {number} is {printable(name)!r}, but the dataset calls it {printable(names[number])!r}, and class "
                f"{names.index(name)} {printable(name)!r}. Give the names in the order of the class ids, or omit --label_names."
            )
