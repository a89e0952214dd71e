"""Source `arrays`: images, labels and other values in one array file, or in a folder of array files."""

import dataclasses
import os
from typing import Iterator, Sequence

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.formats.arrays import cifar
from beam_pipelines.sources.arrays.array_columns import ArrayColumns, find_name
from beam_pipelines.sources.arrays.array_images import (
    ImageSet,
    check_inside,
    find_array_files,
    list_images,
    pointed_at,
    ranges,
    spool_packed,
)
from beam_pipelines.sources.formats.arrays.idx import check_one_dataset, idx_arrays, is_idx
from beam_pipelines.sources.formats.arrays.named_arrays import (
    LABEL_NAMES,
    NamedArray,
    find_features,
    make_sets,
    make_sets_without_images,
    no_images,
)
from beam_pipelines.sources.formats.arrays.numpy_files import npy_array, npz_arrays
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.sources.rows.field_names import describe_names
from beam_pipelines.sources.source import Source

_READ = "Name .npz, .npy, IDX files (train-images-idx3-ubyte), or CIFAR's binary version (data_batch_1.bin)."

_SHARED_PATTERNS = ("*.npz", "*-ubyte", "*-ubyte.gz", "data_batch_*.bin")
_FILE_PATTERNS = (*_SHARED_PATTERNS, "*.npy", "test_batch.bin")
_FOLDER_PATTERNS = (*_SHARED_PATTERNS, "images.npy", "x.npy", "x_train.npy")
_CIFAR_100 = {"train.bin", "test.bin", "fine_label_names.txt"}


class Arrays(Source):
    """Lists the images in arrays."""

    kind = SourceKind(
        name="arrays",
        summary="NumPy arrays",
        options=(
            "labels", "label_names", "features", "has_images", "image_column", "key_column", "split_column", "group",
            "weight_column",
        ),
        synonyms=("numpy", "npy", "npz"),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config)
        self.unused_fields = UnusedFields()
        self._config = config
        self._spool_directory = spool_directory
        self._files = find_array_files(config.input, config.ignore, config.follow_links)
        self._root, self._only = self._files.root, self._files.only
        self.root = self._root.path
        self._containers = _find_containers(self._files.paths, self._only)
        if not self._containers:
            names = [self._only] if self._only else self._files.paths
            raise UserError(f"--input={config.input}: contains no arrays: {_explain_missing(names)}")
        self.has_images: bool | None = None if config.source.has_images else False  # None until the first set is known
        first, default_features, names = self._find_sets(self._containers[0])[0], (), {}
        self.has_images = first.raw is not None  # either all sets have images, or no set
        if cifar.is_cifar(first.name):
            default_features = cifar.coarse_column(first)
            names = {column: cifar.read_names(self._root, path) for column, path in cifar.name_files(first).items()}
        default = find_name(first.columns, LABEL_NAMES)
        known = {column: result for column, result in names.items() if result}
        self._columns = ArrayColumns(self._config.source, first.columns, default, default_features, known)
        self.features, self.targets = self._columns.mapper.features, self._columns.mapper.targets

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        patterns = _FOLDER_PATTERNS if names.is_folder else _FILE_PATTERNS
        if name := names.find(*patterns):
            return Recognition(name)
        return Recognition("train.bin, test.bin") if _CIFAR_100 <= {*names.files} else None

    def parts(self) -> list[str]:
        """Returns `CONTAINER:SET:START:STOP` strings. A set of compressed images is a single part."""
        parts = []
        for container, paths in enumerate(self._containers):
            for position, images in enumerate(self._find_sets(paths)):
                records = images.images.records
                is_packed = any(field.records.stream.packing for field in pointed_at(images, self._columns))
                bounds = [(0, records.num)] if is_packed else ranges(records.num, records.dtype.itemsize)
                parts += [f"{container}:{position}:{start}:{stop}" for start, stop in bounds]
        return parts

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        container, position, start, stop = map(int, part.split(":"))
        images = self._find_sets(self._containers[container])[position]
        if container == position == start == 0:
            self.num_ignored = 0 if self._only else self._files.num_ignored + self._count_unused()
            yield from self._files.dead_letters
        self.unused_fields.add(images.columns.keys() - {*self._columns.names, *self._columns.part_names})
        spools = spool_packed(self._root, pointed_at(images, self._columns), self._spool_directory)
        yield from list_images(self._root, images, self._columns, range(start, stop), spools)

    def label_names(self) -> dict[str, tuple[str, ...]]:
        return self._columns.mapper.label_names

    def _find_sets(self, paths: Sequence[str]) -> Sequence[ImageSet]:
        paths = [check_inside(self._root, path) for path in paths]
        sets = [cifar.cifar_set(self._root, path) for path in paths if cifar.is_cifar(path)]
        arrays = self._find_arrays(paths)
        image_column = self._config.source.image_column
        if self._only.endswith(".npy") and self.has_images is not False:
            image_column = os.path.basename(self._only).removesuffix(".npy")
        if image_column not in (None, "image") and any(map(cifar.is_cifar, paths)):
            raise UserError(
                f"--image_column={image_column}: the images in CIFAR's records are called image. Omit --image_column."
            )
        source = self._config.source
        features = [name for column in source.features for name in column.names]
        if self.has_images is not False:
            sets += make_sets(arrays, image_column, [*features, *(name for column in source.labels or () for name in column.names)])
        if not sets and not features and image_column is None and (values := find_features(arrays)):
            features = [*values.names]
            self._config = dataclasses.replace(self._config, source=dataclasses.replace(source, features=(values,)))
            self.has_images = False
            self.detected = f"--feature={printable(values.name)}:{values.kind} (no array has images)"
        if self.has_images is False and not features:
            array_names = describe_names([array.name for array in arrays])
            raise UserError(f"--image=none: pass --feature for each array to keep. The arrays are {array_names}.")
        if not sets and features and not self.has_images and image_column is None:
            sets = make_sets_without_images(arrays, features[0])
        if self._only:
            sets = [images for images in sets if images.images.records.stream.path == self._only]
        if not sets:
            raise no_images(self._only or paths[0], arrays, image_column)
        return [self._with_split(images) for images in sets]

    def _find_arrays(self, paths: Sequence[str]) -> Sequence[NamedArray]:
        arrays = idx_arrays(self._root, [path for path in paths if is_idx(path)])
        if not self._only:
            check_one_dataset(arrays)
        for path in paths:
            if path.endswith(".npy"):
                arrays.append(npy_array(self._root, path))
            elif path.endswith(".npz"):
                arrays += npz_arrays(self._root, path)
        return sorted(arrays, key=lambda array: array.path != self._only)  # the first of equal names is used

    def _with_split(self, images: ImageSet) -> ImageSet:
        if self._config.split_folders and images.split is None:
            name = printable(images.name)
            raise UserError(
                f"--split_folders=yes: {name} is not named like a split. Its name must contain train, validation or test."
            )
        return images._replace(split=None) if self._config.split_folders is False else images

    def _count_unused(self) -> int:
        """Returns the number of files from which nothing is read."""
        unused = set(self._files.paths)
        for paths in self._containers:
            for images in self._find_sets(paths):
                names = (*self._columns.names, *self._columns.part_names)
                columns = [images.columns[name]() for name in names if name in images.columns]
                unused -= {field.records.stream.path for field in (images.images, *columns)}
                if cifar.is_cifar(images.name):
                    unused -= set(cifar.name_files(images).values())
        return len(unused)


def _find_containers(names: list[str], only: str) -> list[list[str]]:
    """Divides array files into groups that are read together. Each archive is a group. All other array files in a folder
    form one group."""
    folders: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(".npz") and only in ("", name):
            folders[name] = [name]
        elif (name.endswith(".npy") or is_idx(name) or cifar.is_cifar(name)) and not only.endswith(".npz"):
            folders.setdefault(os.path.dirname(name), []).append(name)
    return [paths for _, paths in sorted(folders.items())]


def _explain_missing(names: list[str]) -> str:
    pickles = [name for name in names if cifar.PYTHON_VERSION.fullmatch(name)]
    if pickles:
        name = printable(pickles[0])
        return f"{name} is a pickle, and pickles are never opened. Use CIFAR's binary version, or an .npz file."
    return f"found {printable(names[0])}. {_READ}"
