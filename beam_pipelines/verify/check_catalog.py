"""Compares the catalog of a shard with its records."""

from typing import TYPE_CHECKING, Any, Collection, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.elements.catalog_files import parse_catalog
from beam_pipelines.images.images import StoredImage
from beam_pipelines.tfrecord.example_encoder import is_core
from beam_pipelines.verify.corruption import Corruption
from beam_pipelines.verify.valid_records import ValidRecords
from tf_input.dataset_format import IMAGE, Feature, ShardInfo, catalog_features

if TYPE_CHECKING:
    import pyarrow as pa

# The catalog columns that describe how an image was stored.
FORMATS = ("format", "reencoded")


def open_catalog(data: bytes, info: ShardInfo) -> tuple["pa.Table | None", list[Corruption]]:
    """Parses a catalog. The table is None if the catalog is invalid or has the wrong number of rows."""
    try:
        return parse_catalog(data, info.num_examples), []
    except ValueError as error:
        return None, [Corruption(info.catalog, str(error), can_repair=True)]


def keys_of(table: "pa.Table") -> list[bytes]:
    """Returns the keys of the examples."""
    return [(key or "").encode() for key in table.column("key").to_pylist()] if "key" in table.column_names else []


def groups_of(table: "pa.Table") -> list[str]:
    """Returns the distinct groups in a catalog, in ascending order."""
    groups = table.column("group").to_pylist() if "group" in table.column_names else []
    return sorted({group for group in groups if group})


def check_formats(
    columns: Mapping[str, Sequence[str | None]], records: ValidRecords, images: Sequence[StoredImage], info: ShardInfo
) -> Iterator[Corruption]:
    """Checks that images have the format in the catalog, unless they were re-encoded."""
    formats, reencoded = (columns.get(name, ()) for name in FORMATS)
    for index, image in zip(records.indices, images):
        is_kept = index < len(reencoded) and not reencoded[index]
        if is_kept and index < len(formats) and formats[index] and image.format not in ("", "raw", formats[index]):
            reason = f"format is {formats[index]!r}, but the image in the record is {image.format!r}"
            yield Corruption(info.catalog, reason, index, can_repair=True)


def check_catalog(table: "pa.Table", records: ValidRecords, info: ShardInfo, schema: Sequence[Feature]) -> Iterator[Corruption]:
    """Compares the rows of a catalog with the records of its shard."""
    for name, expected in _catalog_columns(records, info, schema, table.column_names):
        if name not in table.column_names:
            yield Corruption(info.catalog, f"column {name!r} is missing", can_repair=True)
            continue
        column = table.column(name).to_pylist()
        for index, other in zip(records.indices, expected):
            if index < len(column) and column[index] != other:  # A shard can have too many records.
                yield Corruption(info.catalog, f"{name} is {column[index]!r}, but the record has {other!r}", index, can_repair=True)


def stored_sides(schema: Sequence[Feature]) -> list[str]:
    """Returns the names of the features for the image height and width that are also catalog columns."""
    has_image = any(feature.name == IMAGE for feature in schema)
    sides = [feature for feature in schema if feature.name in ("height", "width")]
    return [side.name for side in sides if has_image and is_core(side)]


def _catalog_columns(
    records: ValidRecords, info: ShardInfo, schema: Sequence[Feature], present: Collection[str]
) -> Iterator[tuple[str, Iterable[Any]]]:
    yield "key", (key.decode() for key in records.keys)
    yield "record", records.indices
    yield "shard", [info.name] * len(records.indices)
    yield "num_bytes", (row[2] for row in records.rows)
    yield "crc32c", records.image_crcs
    for side in stored_sides(schema):
        yield side, (example[side][0] or None for example in records.examples)  # 0 for images that were not checked.
    for column, feature in catalog_features(schema).items():
        lists = (example[feature.name] for example in records.examples)
        if feature.is_categorical:
            names, is_list = feature.label_names, bool(feature.shape)
            yield column, ([names[label] for label in labels] if is_list else names[labels[0]] for labels in lists)
        elif column in present:  # Older catalogs have no columns for numbers and strings.
            yield column, (value.decode() if isinstance(value, bytes) else value for (value,) in lists)
