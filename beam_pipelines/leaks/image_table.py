"""What is known of the images of some data sets, as columns: where each is, what it is called, and its hashes."""

import dataclasses
from typing import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipelines.images.look_alikes import HASH_ROW
from beam_pipelines.images.perceptual_hash import HASH_WORDS
from beam_pipelines.shards.catalog import read_catalog
from tf_input.dataset_format import HASH_COLUMNS, LABEL, Manifest


@dataclasses.dataclass(frozen=True)
class ImageTable:
    """The images of one split of one data set, or of several.

    Attributes:
        parts: Names of splits, with that of their data set where there are several.
        of_images: The part of each image, int64 [num_images].
        keys: The key of each image, string [num_images].
        labels: The label of each image, string [num_images]; null where an example has not one class.
        groups: The group of each image, string [num_images]; null where there is none.
        hashes: The hashes of each image, `HASH_ROW` [num_images].
        are_as_stored: Whether the contents of all that have no look are those of their bytes as stored. A catalog has those at the source.
    """

    parts: tuple[str, ...]
    of_images: np.ndarray
    keys: pa.ChunkedArray
    labels: pa.ChunkedArray
    groups: pa.ChunkedArray
    hashes: np.ndarray
    are_as_stored: bool = True

    @property
    def sizes(self) -> np.ndarray:
        """The number of images of each part, int64 [num_parts]."""
        return np.bincount(self.of_images, minlength=len(self.parts))


def join_tables(tables: Sequence[ImageTable]) -> ImageTable:
    """Joins several tables into one, with the parts of all of them."""
    firsts = np.cumsum([0, *(len(table.parts) for table in tables)])
    columns = ([getattr(table, name) for table in tables] for name in ("keys", "labels", "groups"))
    joined = (pa.chunked_array([chunk for column in of_tables for chunk in column.chunks], pa.string()) for of_tables in columns)
    return ImageTable(
        tuple(part for table in tables for part in table.parts),
        np.concatenate([np.zeros(0, np.int64), *(table.of_images + first for table, first in zip(tables, firsts))]),
        *joined,
        np.concatenate([np.zeros(0, HASH_ROW), *(table.hashes for table in tables)]),
        all(table.are_as_stored for table in tables),
    )


def make_table(part: str, columns: Mapping[str, Iterable[str | None]], hashes: np.ndarray) -> ImageTable:
    """Makes a table of one part, from its `keys`, `labels` and `groups`, and its hashes, `HASH_ROW` [num_images]."""
    texts = (pa.chunked_array([pa.array(columns[name], pa.string())]) for name in ("keys", "labels", "groups"))
    return ImageTable((part,), np.zeros(len(hashes), np.int64), *texts, hashes)


def read_table(directory: str, manifest: Manifest) -> ImageTable | None:
    """Reads the table of a data set from its catalogs; None where these have no hashes.

    Raises:
        OSError: A catalog can't be read.
        ValueError: A catalog is damaged.
    """
    tables = []
    for split, shards in manifest.splits.items():
        for shard in shards:
            catalog = read_catalog(f"{directory}/{shard.catalog}") if shard.catalog else None
            if catalog is None or not set(HASH_COLUMNS) <= set(catalog.column_names):
                return None
            rows, is_other = _hash_rows(catalog), catalog.column("reencoded").is_valid().to_numpy()
            are_as_stored = not (is_other & ~rows["has_look"]).any()
            tables.append(ImageTable((split,), np.zeros(catalog.num_rows, np.int64), *catalog_names(catalog), rows, are_as_stored))
    return join_parts(tables)


def join_parts(tables: Sequence[ImageTable]) -> ImageTable:
    """Joins several tables into one, in which parts of the same name are one part."""
    joined = join_tables(tables)
    names = tuple(dict.fromkeys(joined.parts))
    places = np.array([names.index(part) for part in joined.parts] or [0], np.int64)
    return dataclasses.replace(joined, parts=names, of_images=places[joined.of_images])


def catalog_names(catalog: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
    """The keys, labels and groups of a catalog."""
    nothing = pa.chunked_array([pa.nulls(catalog.num_rows, pa.string())])
    label = catalog.column(LABEL) if LABEL in catalog.column_names else nothing
    if pa.types.is_list(label.type):  # several classes, which disagree as a whole
        label = pc.binary_join(label, "|")
    return catalog.column("key").cast(pa.string()), label.cast(pa.string()), catalog.column("group").cast(pa.string())


def _hash_rows(catalog: pa.Table) -> np.ndarray:
    content, look = (catalog.column(name) for name in HASH_COLUMNS)
    rows = np.zeros(catalog.num_rows, HASH_ROW)
    rows["content"][:, 0] = content.to_numpy()
    rows["has_look"] = has_look = look.is_valid().to_numpy()
    known = look.drop_null().combine_chunks().cast(pa.binary(8 * HASH_WORDS))
    rows["look"][has_look] = np.frombuffer(
        known.buffers()[1], "<u8", len(known) * HASH_WORDS, known.offset * 8 * HASH_WORDS
    ).reshape(-1, HASH_WORDS)
    return rows
