"""Opens the metadata of a dataset and determines the properties of features without reading records."""

import functools
import json
import os
import pathlib
from typing import Any, Mapping

import numpy as np

from tf_input.dataset_format import IMAGE, STATISTICS, Feature, Manifest, default_channels
from tf_input.decoding.schema import SIDES
from tf_input.features.roles import is_dense_target
from tf_input.folds import choose_statistics
from tf_input.choices import Fold
from tf_input.pipeline.memory import MemoryCache
from tf_input.selection.catalog import Catalog
from tf_input.storage.cache import CachedFiles, kept_bytes
from tf_input.storage.files import Files
from tf_input.storage.paths import is_url, join
from tf_input.storage.store import Store
from tf_input.transform.transforms import Transform


class DatasetFiles:
    """The files of a dataset. Each file is read on first access.

    Attributes:
        directory: The directory of the dataset, a pathlib.Path; a string if it is a URL.
        manifest: The contents of `manifest.json`.
        source: The reader of the files.
        fold: The pair (number of folds, index of the validation fold); None if the dataset was opened without a fold.
        store: The store, which opens the shards and their indexes.
        memory_cache: The decoded splits that are cached in memory.
    """

    def __init__(self, directory: str | os.PathLike[str], manifest: Manifest, source: Files, fold: Fold | None) -> None:
        self.directory = os.fspath(directory) if is_url(directory) else pathlib.Path(directory)
        self.manifest = manifest
        self.source = source
        self.fold = fold
        self.store = Store(directory, source, manifest)
        self.memory_cache = MemoryCache()
        self._catalogs: dict[str, Catalog] = {}

    @property
    def cache(self) -> pathlib.Path | None:
        """The local folder that caches blocks of remote files; None if no cache is used."""
        return self.source.folder if isinstance(self.source, CachedFiles) else None

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features of each example, by name."""
        return self.manifest.features

    @functools.cached_property
    def _statistics_file(self) -> bytes:
        data = self.source.read(join(self.directory, STATISTICS))
        try:
            self.manifest.check_file(STATISTICS, data)
        except ValueError as error:
            raise ValueError(join(self.directory, str(error))) from None
        return data

    @functools.cached_property
    def statistics(self) -> dict[str, Any]:
        """The contents of `statistics.json`, as a dictionary.

        Raises:
            OSError, ValueError: The file can't be read, or differs from the file that was written with the dataset.
        """
        path = join(self.directory, STATISTICS)
        data = self._statistics_file
        try:
            statistics = json.loads(data)
            return statistics if self.fold is None else choose_statistics(statistics, self.fold)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @functools.cached_property
    def transform(self) -> Transform:
        """The results of `recordmill analyze`, including the preprocessing graph.

        Raises:
            FileNotFoundError: `recordmill analyze` has not been run.
            OSError: The results can't be read.
            ValueError: The results are corrupt, or belong to another version of the dataset, or the dataset is read
                with a fold.
        """
        if self.fold is not None:
            raise ValueError(
                f"transform=True: {self.directory} was analyzed as a whole, but is opened as fold {self.fold[1]} of "
                f"{self.fold[0]}. Open it without fold=..."
            )
        # The transform may be replaced while the dataset stays the same, so it is not read through the cache.
        source = self.source.source if isinstance(self.source, CachedFiles) else self.source
        return Transform(self.directory, source, self.cache, self.manifest)

    def check_cache_space(self, split: str, has_catalog: bool) -> None:
        """Checks that the files of a split are on a local disk or fit into the cache, so that random access is fast.

        Args:
            split: The name of the split.
            has_catalog: Whether the catalog of the split is read too.

        Raises:
            ValueError: The dataset is remote, and there is no cache or not enough space.
        """
        shards = self.manifest.splits[split]
        file_sizes = {shard.name: shard.num_bytes for shard in shards} | {shard.index: shard.index_bytes for shard in shards}
        file_sizes |= {shard.catalog: shard.catalog_bytes for shard in shards if has_catalog and shard.catalog}
        sizes = {
            join(self.directory, name): num_bytes
            for name, num_bytes in {**file_sizes, STATISTICS: len(self._statistics_file)}.items()
        }
        if self.source.fits_in_cache(sizes):
            return
        if isinstance(self.source, CachedFiles):
            cache, space = f"more cache_bytes, or free space, for {self.cache}", self.source.required_cache_bytes(sizes)
        else:
            cache, space = "tf_input.open(..., cache_directory=...)", sum(map(kept_bytes, sizes.values()))
        raise ValueError(
            f"shuffle='exact' needs local files, and {self.directory} is remote. Use shuffle='window', or "
            f"{cache} with {space:,} bytes, enough for all open splits and their indexes."
        )

    def catalog(self, split: str) -> Catalog:
        """Returns the catalog of a split."""
        if split not in self._catalogs:
            self._catalogs[split] = Catalog(self.directory, split, self.manifest.splits[split], self.features, self.store)
        return self._catalogs[split]

    def image_size(self, name: str = IMAGE) -> tuple[int, int] | None:
        """Returns the (height, width) of all images of a feature; None if sizes differ or are unknown."""
        image = self.features.get(name)
        if image is None or (image.shape and None not in image.shape and (image.is_image or is_dense_target(image))):
            return image and image.shape[:2]
        if not image.may_be_image:
            return None
        ranges = list(self.side_ranges(name).values())
        if not all(values and values["min"] == values["max"] for values in ranges):
            return None
        return ranges[0]["min"], ranges[1]["min"]

    def largest_size(self, name: str = IMAGE) -> tuple[int, int] | None:
        """Returns the largest height and width among the images of a feature; None if they are unknown."""
        largest = [(values or {}).get("max") for values in self.side_ranges(name).values()]
        return None if None in largest else tuple(largest)

    def side_ranges(self, name: str = IMAGE) -> dict[str, dict[str, Any] | None]:
        """Returns the smallest and largest `height` and `width` of a feature's images; None if sizes are unknown."""
        image_statistics = self.statistics.get("images", {}) if name == IMAGE else self.statistics.get("other_images", {}).get(name, {})
        return {side: image_statistics.get(side) for side in SIDES}

    def has_jpegs_only(self, name: str = IMAGE) -> bool:
        """Returns whether all images of a feature are JPEGs, or were re-encoded in one format."""
        image_statistics = self.statistics.get("images", {}) if name == IMAGE else self.statistics.get("other_images", {}).get(name, {})
        is_given = "format" in (image_statistics.get("reencoded") or {})
        return self.features[name].is_image_file and (is_given or set(image_statistics.get("formats") or {}) <= {"jpeg"})

    def mean_size(self, name: str = IMAGE) -> tuple[float, float] | None:
        """Returns the mean (height, width) of the images of a feature; None if it is unknown."""
        means = [(values or {}).get("mean") for values in self.side_ranges(name).values()]
        return self.image_size(name) or (None if None in means else tuple(means))

    @property
    def channels(self) -> int | None:
        """The default number of image channels: 1 if all are grayscale, otherwise 3. None if there are no images."""
        image = self.features.get(IMAGE)
        if image is None or not image.is_image_file:
            return image and image.shape[-1]
        return default_channels(self.statistics)

    @property
    def mask_dtype(self) -> np.dtype:
        """The dtype of masks in batches: uint8, or int32 if a class number exceeds 255."""
        masks = self.statistics.get("mask") or {"max": 0}
        return np.dtype("uint8" if masks["max"] <= np.iinfo(np.uint8).max else "int32")
