"""Source `arrays`: images, labels and other values in one array file, or in a folder of array files."""

import os
from typing import Sequence

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.formats.arrays import cifar
from beam_pipelines.sources.arrays.array_columns import ArrayColumns
from beam_pipelines.sources.arrays.array_source import ArraySource, ImageSet
from beam_pipelines.sources.files.paths import find_usual
from beam_pipelines.sources.formats.arrays.idx import check_one_dataset, idx_arrays, is_idx
from beam_pipelines.sources.formats.arrays.named_arrays import LABEL_NAMES, NamedArray, find_features, find_image, make_sets, no_images
from beam_pipelines.sources.formats.arrays.numpy_files import npy_array, npz_arrays
from beam_pipelines.sources.files.settings_files import read_class_list
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.sources.rows.field_names import describe_names
from beam_pipelines.storage.files import files_at

_READ = "Name .npz, .npy, IDX files (train-images-idx3-ubyte), or CIFAR's binary version (data_batch_1.bin)."

_SHARED_PATTERNS = ("*.npz", "*-ubyte", "*-ubyte.gz", "data_batch_*.bin")
_FILE_PATTERNS = (*_SHARED_PATTERNS, "*.npy", "test_batch.bin")
_FOLDER_PATTERNS = (*_SHARED_PATTERNS, "images.npy", "x.npy", "x_train.npy")
_CIFAR_100 = {"train.bin", "test.bin", "fine_label_names.txt"}


class Arrays(ArraySource):
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

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory)
        self._containers = _find_containers(self._paths, self._only)
        if not self._containers:
            names = [self._only] if self._only else self._paths
            raise UserError(f"--input={options.input}: contains no arrays: {_explain_missing(names)}")
        self.has_images: bool | None = None if options.source.has_images else False  # None until the first set is known
        first, default_features, names = self._find_sets(self._containers[0])[0], (), {}
        self.has_images = first.raw is not None  # either all sets have images, or no set
        if cifar.is_cifar(first.name):
            default_features = cifar.coarse_column(first)
            for column, path in cifar.name_files(first).items():
                if files_at(self.root).exists(names_file := f"{self.root}/{self._check_inside(path)}"):
                    names[column] = read_class_list(names_file)
        default = find_usual(first.columns, LABEL_NAMES)
        self._columns = ArrayColumns(self._options.source, first.columns, default, default_features, names)
        self.features, self.targets = self._columns.mapper.features, self._columns.mapper.targets

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        patterns = _FOLDER_PATTERNS if names.is_folder else _FILE_PATTERNS
        if name := names.find(*patterns):
            return Recognition(name)
        return Recognition("train.bin, test.bin") if _CIFAR_100 <= {*names.files} else None

    def _find_sets(self, paths: Sequence[str]) -> Sequence[ImageSet]:
        paths = [self._check_inside(path) for path in paths]
        sets = [cifar.cifar_set(self.root, path) for path in paths if cifar.is_cifar(path)]
        arrays, source = self._find_arrays(paths), self._options.source
        image_column = source.image_column
        if self._only.endswith(".npy") and self.has_images is not False:
            image_column = os.path.basename(self._only).removesuffix(".npy")
        if sets and image_column not in (None, "image"):
            raise UserError(
                f"--image_column={image_column}: the images in CIFAR's records are called image. Omit --image_column."
            )
        if self.has_images is not False:
            taken = [name for column in (*source.features, *(source.labels or ())) for name in column.names]
            sets += make_sets(arrays, lambda group: find_image(group, image_column, taken), True)
        if not sets and not self.has_images and image_column is None and (feature := self._first_feature(arrays)):
            sets = make_sets(arrays, lambda group: feature if feature in group else None, False)
        if self._only:
            sets = [images for images in sets if images.images.records.stream.path == self._only]
        if not sets:
            is_in_subfolder = "/" in paths[0] and "/" not in self._containers[0][0]
            raise no_images(self._only or paths[0], arrays, image_column, is_in_subfolder)
        return [images._replace(split=self._choose_split(images.name, images.split)) for images in sets]

    def _first_feature(self, arrays: Sequence[NamedArray]) -> str | None:
        """Returns the name of the first array to keep if examples have no images, or None if there is no such array."""
        source = self._options.source
        if not source.features and (values := find_features(arrays)):
            self._options = self._options.derive(source={"features": (values,)})
            source = self._options.source
            self.has_images = False
            self.detected = f"--feature={printable(values.name)}:{values.kind} (no array has images)"
        if self.has_images is False and not source.features:
            array_names = describe_names([array.name for array in arrays])
            raise UserError(f"--image=none: pass --feature for each array to keep. The arrays are {array_names}.")
        return source.features[0].names[0] if source.features else None

    def _find_arrays(self, paths: Sequence[str]) -> Sequence[NamedArray]:
        arrays = idx_arrays(self.root, [path for path in paths if is_idx(path)])
        if not self._only:
            check_one_dataset(arrays)
        arrays += [npy_array(self.root, path) for path in paths if path.endswith(".npy")]
        arrays += [array for path in paths if path.endswith(".npz") for array in npz_arrays(self.root, path)]
        return sorted(arrays, key=lambda array: array.path != self._only)  # the first of equal names is used

    def _count_ignored(self) -> int:
        unused = set() if self._only else set(self._paths)
        for images in (images for paths in self._containers if unused for images in self._find_sets(paths)):
            names = (*self._columns.mapper.value_names, *self._columns.mapper.part_names)
            columns = [images.columns[name]() for name in names if name in images.columns]
            unused -= {field.records.stream.path for field in (images.images, *columns)}
            if cifar.is_cifar(images.name):
                unused -= set(cifar.name_files(images).values())
        return self._num_ignored + len(unused)


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
    name = next(filter(cifar.PYTHON_VERSION.fullmatch, names), None)
    if name:
        return f"{printable(name)} is a pickle, and pickles are never opened. Use CIFAR's binary version, or an .npz file."
    return f"found {printable(names[0])}. {_READ}"
