"""Defines the file format of datasets, for the writer (`beam_pipelines`) and the reader (`tf_input`).

This module uses only the standard library, so that both packages can import it without Beam, TensorFlow or NumPy. A
dataset is a directory with a `manifest.json`. The manifest is written last, so a directory without a manifest is not a
complete dataset.

Shards are TFRecord files (https://www.tensorflow.org/tutorials/load_data/tfrecord) of serialized `tf.train.Example`s.
Each shard has an index file, which consists of a header and one fixed-size row for each record.
"""

import dataclasses
import json
import os
import pathlib
import re
import struct
import typing
import zlib
from typing import Any, BinaryIO, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple, TypeVar

from tf_input.regular_files import read_regular
from tf_input.stored_kinds import FEATURE_KINDS

_T = TypeVar("_T")

FORMAT_VERSION = 4

MANIFEST = "manifest.json"
DATASET_INFO = "dataset_info.json"
FEATURES = "features.json"
SCHEMA = "schema.pbtxt"
STATISTICS = "statistics.json"
RUN = "run.json"
REPORT = "report.html"
CARD = "README.md"
CROISSANT = "croissant.json"
DEAD_LETTERS = "dead_letters.jsonl"
DEAD_LETTER_THUMBNAILS = "dead_letter_thumbnails.jsonl"  # small images of some dead letters, if they can be decoded
NEAR_DUPLICATES = "near_duplicates.jsonl"  # near-duplicates, if requested
LEAKS = "leaks.json"

IMAGE = "image"
KEY = "key"
LABEL = "label"

NO_LABEL = -1
WEIGHT = "weight"
MASK = "mask"
OBJECTS = "objects"  # prefix of features that have one value per object in an image

# Words in the names of training splits and of other splits.
_TRAINING = {"train", "training", "trn", "trainval"}
_OTHERS = {"validation", "valid", "val", "dev", "development", "test", "testing", "tst", "eval", "evaluation", "holdout", "hold"}
_WORDS = re.compile("[A-Z]?[a-z]+|[A-Z]+")

# Facts about a dataset that its user provides.
ABOUT = ("description", "license", "source", "citation")

# Matches relative paths that can't leave their directory, on any file system.
_PART = r"(?!\.{1,2}(?:/|$))[^/\\:\x00-\x1f\x7f-\x9f]+"
_INSIDE = re.compile(rf"{_PART}(?:/{_PART})*")


def shard_suffix(shard_index: int, num_shards: int) -> str:
    """Returns the number of a shard as a string, such as `00007-of-00016`.

    Shard numbers have as many digits as `num_shards`, and at least five, as TensorFlow Datasets expects.
    """
    digits = max(5, len(str(num_shards)))
    return f"{shard_index:0{digits}d}-of-{num_shards:0{digits}d}"


def shard_name(name: str, split: str, shard_index: int, num_shards: int) -> str:
    """Returns the path of a shard within the dataset."""
    return f"{name}-{split}.tfrecord-{shard_suffix(shard_index, num_shards)}"


def index_name(name: str, split: str, shard_index: int, num_shards: int) -> str:
    """Returns the path of a shard's index file within the dataset."""
    return f"index/{name}-{split}-{shard_suffix(shard_index, num_shards)}.idx"


def catalog_name(name: str, split: str, shard_index: int, num_shards: int) -> str:
    """Returns the path of a shard's catalog within the dataset."""
    return f"catalog/{name}-{split}-{shard_suffix(shard_index, num_shards)}.parquet"


# Columns of every catalog, and the kinds of their values. Some of them are empty without images.
CATALOG_COLUMNS: Mapping[str, str] = {
    KEY: "text",
    "path": "text",
    "offset": "integer",
    "num_bytes": "integer",
    "crc32c": "integer",
    "height": "integer",
    "width": "integer",
    "format": "text",
    "reencoded": "text",
    "group": "text",
    WEIGHT: "float",
    "shard": "text",
    "record": "integer",
}
# Columns with `--duplicates`: a hash of the source's bytes, and a perceptual hash of the image. Other hash functions
# need other column names, so that only comparable hashes are compared. A dataset without these columns is hashed again.
HASH_COLUMNS = ("content_hash", "perceptual_hash")
MAX_CATALOG_TEXT_BYTES = 1024  # in UTF-8; text features with longer values have no column
_COLUMNS_OF_IMAGES = frozenset(("height", "width", "format", "reencoded", *HASH_COLUMNS))


def label_file_name(feature: str) -> str:
    """Returns the name of the label file, which has one class name per line, as in TensorFlow Datasets."""
    return f"{feature.replace('/', '-')}.labels.txt"


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of the examples in a dataset.

    Attributes:
        name: The key of the feature in a `tf.train.Example`.
        kind: The kind of the feature, one of `FEATURE_KINDS`.
        shape: The shape of one example's values; () for a single value. The first dimension is None if its size varies.
            Tensors may have several dimensions of varying size.
        label_names: The class names of a class label. A label is an index into them.
        description: The description of the feature; empty if there is none.
        dtype: The dtype of a tensor, one of `TENSOR_DTYPES`; `uint16` for images that keep 16 bits; otherwise empty.
        is_long: Whether the feature has a string longer than `MAX_CATALOG_TEXT_BYTES`. If so, it has no catalog column.
        point_names: The names of the keypoints, in order; empty if they are unknown.
        skeleton: The pairs of keypoints that a line connects in drawings, as indices from 0.
    """

    name: str
    kind: str
    shape: tuple[int | None, ...] = ()
    label_names: tuple[str, ...] = ()
    description: str = ""
    dtype: str = ""
    is_long: bool = False
    point_names: tuple[str, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in FEATURE_KINDS:
            raise ValueError(
                f"feature {self.name!r} has kind {self.kind!r}, which does not exist. Use one of "
                f"{', '.join(FEATURE_KINDS)}."
            )
        dtypes = FEATURE_KINDS[self.kind].dtypes
        if self.dtype not in dtypes:
            allowed = f"Use one of {', '.join(filter(None, dtypes))}." if any(dtypes) else "Leave it empty."
            raise ValueError(f"feature {self.name!r} of kind {self.kind} has dtype {self.dtype!r}. {allowed}")
        if None in self.shape[1:] and not self.is_tensor:
            raise ValueError(f"feature {self.name!r} has shape {self.shape}. Only the first dimension may be unknown.")
        _check_points(self)

    @property
    def is_ragged(self) -> bool:
        """Whether the number of values differs between examples. An encoded tensor is a single value."""
        return self.shape[:1] == (None,) and not self.is_packed

    @property
    def stored_shape(self) -> tuple[int | None, ...]:
        """The shape of the stored values. Encoded images, masks and tensors have the shape `()`."""
        return () if self.is_packed else self.shape

    @property
    def storage(self) -> str:
        """The type of the list in a `tf.train.Example`: `bytes`, `int64` or `float`."""
        return FEATURE_KINDS[self.kind].storage

    @property
    def value_dtype(self) -> str:
        """The dtype of the values; empty for text and masks."""
        return self.dtype or FEATURE_KINDS[self.kind].dtype

    @property
    def is_file(self) -> bool:
        """Whether the value is the contents of an image file, as for images and masks."""
        return FEATURE_KINDS[self.kind].is_file

    @property
    def is_packed(self) -> bool:
        """Whether the value is stored as a single byte string: an image file, or the raw bytes of an array."""
        return self.is_file or FEATURE_KINDS[self.kind].is_raw

    @property
    def is_image(self) -> bool:
        """Whether the value is an image, stored as a file or as pixels. A mask is not an image."""
        return FEATURE_KINDS[self.kind].is_image

    @property
    def is_image_file(self) -> bool:
        """Whether the value is the contents of an image file that is not a mask."""
        return self.is_image and self.is_file

    @property
    def may_be_image(self) -> bool:
        """Whether the feature `image` may have this kind. Images and tensors are allowed."""
        return self.is_packed and not self.is_spatial

    @property
    def is_picture(self) -> bool:
        """Whether the value is an image or a mask."""
        return self.is_image or self.is_file

    @property
    def is_mask(self) -> bool:
        """Whether the value is an image file that contains the class of each pixel of `image`."""
        return self.is_file and self.is_spatial

    @property
    def is_tensor(self) -> bool:
        """Whether the value is an array that is stored as raw bytes, but not an image."""
        return FEATURE_KINDS[self.kind].is_raw and not self.is_image

    @property
    def is_spatial(self) -> bool:
        """Whether the value describes pixels or positions in `image`, as masks, boxes and points do."""
        return FEATURE_KINDS[self.kind].is_spatial

    @property
    def has_positions(self) -> bool:
        """Whether values are positions in `image`, such as boxes or points."""
        return self.is_spatial and not self.is_file

    @property
    def is_categorical(self) -> bool:
        """Whether values are class indices, which refer to `label_names`."""
        return FEATURE_KINDS[self.kind].is_categorical

    @property
    def is_plain(self) -> bool:
        """Whether values are lists of numbers or strings that are neither class indices nor positions."""
        return not (self.is_packed or self.is_categorical or self.is_spatial)

    @property
    def is_text(self) -> bool:
        """Whether values are strings."""
        return self.is_plain and self.storage == "bytes"

    @property
    def is_numeric(self) -> bool:
        """Whether values are numbers, but not pixels, class indices or positions."""
        return self.is_tensor or (self.is_plain and self.storage != "bytes")

    @property
    def is_integer(self) -> bool:
        """Whether values are integers that are stored as a list, but not class indices."""
        return self.is_plain and self.storage == "int64"

    @property
    def may_be_dense(self) -> bool:
        """Whether values with three dimensions are dense targets: one value or vector per pixel of `image`."""
        return self.is_numeric and self.storage != "int64"

    @property
    def is_of_objects(self) -> bool:
        """Whether the feature has one value per object in the image."""
        return self.name.startswith(f"{OBJECTS}/")

    @property
    def is_only_in_objects(self) -> bool:
        """Whether the reader returns the values only within `objects`, as for boxes."""
        return FEATURE_KINDS[self.kind].is_only_in_objects

    def to_json(self) -> dict[str, Any]:
        """Returns the non-empty JSON fields of the feature. The class names of `label` are omitted, because the
        manifest contains them already."""
        fields: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.shape:
            fields["shape"] = list(self.shape)
        if self.label_names and self.name != LABEL:
            fields["label_names"] = list(self.label_names)
        if self.description:
            fields["description"] = self.description
        if self.dtype:
            fields["dtype"] = self.dtype
        if self.is_long:
            fields["is_long"] = True
        if self.point_names:
            fields["point_names"] = list(self.point_names)
        if self.skeleton:
            fields["skeleton"] = [list(pair) for pair in self.skeleton]
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], label_names: tuple[str, ...]) -> "Feature":
        """Reads a feature from the manifest's JSON.

        Args:
            fields: The JSON fields of the feature.
            label_names: The class names of the feature `label`.
        """
        _check_types(cls, fields, "schema")
        names = label_names if fields["name"] == LABEL else fields.get("label_names", ())
        tuples = {"shape": tuple(fields.get("shape", ())), "label_names": tuple(names)}
        tuples |= {"point_names": tuple(fields.get("point_names", ())), "skeleton": tuple(map(tuple, fields.get("skeleton", ())))}
        return _construct(cls, {**fields, **tuples}, "schema")


def _check_points(feature: Feature) -> None:
    """Checks that a feature has one name per keypoint, and that its skeleton refers to existing keypoints.

    Raises:
        ValueError: The number of names differs from the number of points, or the skeleton has an invalid pair.
    """
    num_points = feature.shape[-2] or 0 if len(feature.shape) > 1 else 0
    if feature.point_names and len(feature.point_names) != num_points:
        raise ValueError(f"feature {feature.name!r} has {len(feature.point_names)} point names for {num_points} points")
    for pair in feature.skeleton:
        if len(pair) != 2 or not all(type(index) is int and 0 <= index < num_points for index in pair):
            raise ValueError(f"feature {feature.name!r}: the skeleton has {pair!r:.80}; it must be two indices below {num_points}")


def stored_features(schema: Iterable[Feature]) -> tuple[Feature, ...]:
    """Returns the features that a `tf.train.Example` stores, by stored name.

    A tensor with two or more unknown dimensions is stored as `NAME/shape` and `NAME/value`, like `Tensor(shape=(None,
    None, 3), encoding="bytes")` in TensorFlow Datasets. Every other feature is stored as one.
    """
    stored: list[Feature] = []
    for feature in schema:
        if feature.shape.count(None) < 2:
            stored.append(feature)
        else:
            stored.append(Feature(f"{feature.name}/shape", "integer", (len(feature.shape),)))
            stored.append(dataclasses.replace(feature, name=f"{feature.name}/value"))
    return tuple(stored)


def catalog_features(schema: Collection[Feature]) -> dict[str, Feature]:
    """Returns the features that have a column in the catalog, by column name.

    Features with class names, single numbers and single short strings have a column in the catalog. The column has the
    name of the feature. If another column has this name, the column is named `label_NAME` for class labels, and
    `feature_NAME` for numbers and text. In datasets without images, features may use the names of the image columns,
    such as `width`.
    """
    has_image = any(feature.name == IMAGE for feature in schema)
    taken = {*CATALOG_COLUMNS, *HASH_COLUMNS} - (frozenset() if has_image else _COLUMNS_OF_IMAGES)
    own = {KEY, WEIGHT, *(("height", "width") if has_image else ())}  # features with fixed columns
    labels = [feature for feature in schema if feature.is_categorical]
    values = [
        item for item in schema if item.is_plain and not item.shape and not item.is_long and item.name not in own
    ]
    columns = {feature.name: feature for feature in (*labels, *values) if feature.name not in taken}
    for feature in (*labels, *values):
        if (name := feature.name) in taken:
            prefix = LABEL if feature.is_categorical else "feature"
            while name in taken or name in columns:
                name = f"{prefix}_{name}"
            columns[name] = feature
    return columns


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """One TFRecord file of a split, with its index and its catalog.

    Attributes:
        name: The path of the file within the dataset.
        num_examples: The number of records in the file.
        num_bytes: The size of the file, in bytes.
        crc32c: The CRC-32C of the file.
        index: The path of its index within the dataset.
        index_bytes, index_crc32c: The size of the index in bytes, and its CRC-32C.
        catalog: The path of its catalog within the dataset; empty if there is none, as after `recordmill transform`.
        catalog_bytes, catalog_crc32c: The size of the catalog in bytes, and its CRC-32C.
        first_crc32c, last_crc32c: The data checksums of the first and the last record, as the shard stores them; 0
            without records.
    """

    name: str
    num_examples: int
    num_bytes: int
    crc32c: int
    index: str
    index_bytes: int
    index_crc32c: int
    catalog: str = ""
    catalog_bytes: int = 0
    catalog_crc32c: int = 0
    first_crc32c: int = 0
    last_crc32c: int = 0

    @property
    def fingerprint(self) -> "Fingerprint":
        """The checksums that tell a reader whether a file is the expected shard. The index file of the shard
        contains the same checksums."""
        return self.first_crc32c, self.last_crc32c

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ShardInfo":
        """Reads an entry of a manifest's shards.

        Raises:
            ValueError: A path leads outside the dataset, or a size is impossible.
        """
        _check_types(cls, fields, "shards")
        for name, value in fields.items():
            if isinstance(value, int) and not 0 <= value < 1 << 63:
                raise ValueError(f"shards: {name} is {value!r:.80}; it must be from 0 to {(1 << 63) - 1}")
            if isinstance(value, str) and not _INSIDE.fullmatch(value) and (value or name != "catalog"):
                raise ValueError(f"shards: {name} is {value!r:.80}; it must be a path inside the dataset")
        return _construct(cls, fields, "shards")

    def files(self) -> tuple[tuple[str, int, int], ...]:
        """Returns (path within the dataset, size in bytes, CRC-32C) of each file of the shard."""
        files = (
            (self.name, self.num_bytes, self.crc32c),
            (self.index, self.index_bytes, self.index_crc32c),
            (self.catalog, self.catalog_bytes, self.catalog_crc32c),
        )
        return tuple(file for file in files if file[0])


@dataclasses.dataclass(frozen=True)
class FileSum:
    """The size and the zlib CRC-32 that the manifest stores for a metadata file."""

    num_bytes: int = 0
    crc32: int = 0

    def extended(self, data: bytes) -> "FileSum":
        """Returns the size and checksum of the file after appending `data`."""
        return FileSum(self.num_bytes + len(data), zlib.crc32(data, self.crc32))


def sum_of(file: BinaryIO) -> FileSum:
    """Computes the size and the checksum of an open metadata file. The file is read in small blocks."""
    file_sum = FileSum()
    while data := file.read(1 << 20):
        file_sum = file_sum.extended(data)
    return file_sum


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`.

    Attributes:
        name: The name of the dataset, which is also the prefix of shard names.
        seed: The seed of the global shuffle.
        schema: The features of an example, sorted by name.
        targets: The names of the target features. `objects` stands for all features whose names begin with `objects/`.
        about: The strings for the dataset card, by the names in `ABOUT`.
        splits: The shards of each split in order, by split name.
        num_inputs: The number of inputs that the source listed.
        num_dead_letters: The number of rejected inputs.
        num_dropped: The number of inputs that were left out as near-duplicates. All other inputs became examples or
            dead letters.
        files: The sizes and checksums of the metadata files, by name. Shards with their indexes and catalogs, the
            manifest and `run.json` are not included.
        is_verbatim: Whether records are stored unchanged and may have any contents. If so, the schema is empty, and only
            the catalog has the keys.
        columns: The features of verbatim records that have a catalog column, sorted by name. Their kinds are `integer`,
            `float` and `text`. A record without exactly one such value has null in the catalog.
    """

    name: str
    seed: int
    schema: tuple[Feature, ...]
    splits: Mapping[str, tuple[ShardInfo, ...]] = dataclasses.field(hash=False)
    num_inputs: int
    num_dead_letters: int
    targets: tuple[str, ...] = (LABEL,)
    num_dropped: int = 0
    about: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    files: Mapping[str, FileSum] = dataclasses.field(default_factory=dict, hash=False)
    is_verbatim: bool = False
    columns: tuple[Feature, ...] = ()

    @property
    def features(self) -> dict[str, Feature]:
        """The features of an example, by name."""
        return {feature.name: feature for feature in self.schema}

    @property
    def label_names(self) -> tuple[str, ...]:
        """The class names of the feature `label`. Without `label`, the class names of `objects`."""
        features = self.features
        label = features.get(LABEL) or features.get(f"{OBJECTS}/{LABEL}")
        return label.label_names if label else ()

    def num_examples(self, split: str) -> int:
        """Returns the number of examples in a split."""
        return sum(shard.num_examples for shard in self.splits[split])

    @property
    def main_split(self) -> str:
        """The split for code examples in summaries and reports; see the function `main_split`."""
        return main_split({split: self.num_examples(split) for split in self.splits})

    def check_file(self, name: str, data: bytes) -> None:
        """Checks the contents of a metadata file against the manifest. Files that the manifest does not list are not
        checked.

        Raises:
            ValueError: The contents differ from the file that was written with the dataset.
        """
        self.check_sum(name, FileSum().extended(data))

    def check_sum(self, name: str, actual: FileSum) -> None:
        """Checks the size and checksum of a metadata file, like `check_file`."""
        expected = self.files.get(name)
        if expected not in (None, actual):
            raise ValueError(
                f"{name} has {actual.num_bytes} bytes with CRC-32 {actual.crc32:08x}; {MANIFEST} says {expected.num_bytes} with "
                f"{expected.crc32:08x}. Restore the file, or prepare the dataset again: the same command writes the same bytes."
            )

    def to_json(self) -> str:
        """Returns the manifest as the text of `manifest.json`."""
        fields: dict[str, Any] = {"name": self.name, "seed": self.seed, "schema": [item.to_json() for item in self.schema]}
        if self.targets != (LABEL,):
            fields["targets"] = list(self.targets)
        if self.about:
            fields["about"] = dict(self.about)
        fields["label_names"] = list(self.features[LABEL].label_names) if LABEL in self.features else []
        fields["splits"] = {
            split: {"num_examples": self.num_examples(split), "shards": [dataclasses.asdict(s) for s in shards]}
            for split, shards in self.splits.items()
        }
        fields |= {"num_inputs": self.num_inputs, "num_dead_letters": self.num_dead_letters}
        if self.is_verbatim:
            fields["is_verbatim"] = True
        if self.columns:
            fields["columns"] = [column.to_json() for column in self.columns]
        if self.num_dropped:
            fields["num_dropped"] = self.num_dropped
        if self.files:
            fields["files"] = {name: dataclasses.asdict(entry) for name, entry in sorted(self.files.items())}
        checksum = _checksum(fields)  # lets `recordmill verify` detect a changed digit
        return to_json({"format": "recordmill", "format_version": FORMAT_VERSION, **fields, "checksum": checksum})

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Reads a manifest from the text of `manifest.json`.

        Raises:
            ValueError: The text is not a manifest, or has another format version.
        """
        fields: dict[str, Any] = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("format", None) != "recordmill":
            raise ValueError("not a manifest of a Recordmill dataset")
        version = fields.pop("format_version")
        fields.pop("checksum", None)
        if version != FORMAT_VERSION:
            raise ValueError(
                f"format version {version} is not supported: this reader knows version {FORMAT_VERSION}. Install the "
                "version "
                "of Recordmill that wrote the dataset, or prepare the dataset again."
            )
        _check_types(cls, fields, "manifest")
        _check_types(Feature, {"label_names": fields["label_names"]}, "manifest")
        _check_type(fields.get("about", {}), dict, "manifest: about")
        for name, text in fields.get("about", {}).items():
            _check_type(text, str, f"manifest: about {name!r:.80}")
        _check_type(fields.get("files", {}), dict, "manifest: files")
        fields["files"] = {name: _file_sum(name, item) for name, item in fields.get("files", {}).items()}
        label_names = tuple(fields.pop("label_names"))
        fields["schema"] = tuple(Feature.from_json(feature, label_names) for feature in fields["schema"])
        fields["columns"] = tuple(Feature.from_json(column, ()) for column in fields.get("columns", ()))
        if not all(column.is_plain and not column.shape for column in fields["columns"]):
            raise ValueError("manifest: columns: each column must be a single integer, float or text")
        fields["targets"] = tuple(fields.get("targets", (LABEL,)))
        _check_type(fields["splits"], dict, "manifest: splits")
        for split, value in fields["splits"].items():
            _check_type(value, dict, f"splits: {split!r:.80}")
            _check_type(value["shards"], list, f"splits: {split!r:.80}: shards")
            fields["splits"][split] = tuple(map(ShardInfo.from_json, value["shards"]))
        return _construct(cls, fields, "manifest")


def _file_sum(name: str, fields: Any) -> FileSum:
    """Reads an entry of a manifest's `files`.

    Raises:
        ValueError: The entry is invalid.
    """
    if not _INSIDE.fullmatch(name):
        raise ValueError(f"files: {name!r:.80} is not a path within the dataset")
    _check_types(FileSum, fields, f"files: {name}")
    return _construct(FileSum, fields, f"files: {name}")


_TYPES = {bool: "true or false", str: "a string", int: "an integer", int | None: "an integer or null", dict: "an object", list: "a list"}


def _check_types(cls: type, fields: Any, location: str) -> None:
    """Checks that JSON values have the types of the fields of a dataclass.

    Raises:
        ValueError: A value has another type; the message names it.
    """
    _check_type(fields, dict, location)
    for field in dataclasses.fields(cls):
        if field.name not in fields:
            continue
        value, field_location = fields[field.name], f"{location}: {field.name}"
        if field.type in _TYPES:
            _check_type(value, field.type, field_location)
        elif typing.get_origin(field.type) is tuple:
            _check_type(value, list, field_location)
            of_values = typing.get_args(field.type)[0]
            for member in value if of_values in _TYPES else ():
                _check_type(member, of_values, f"a value of {field_location}")


def _construct(cls: type[_T], fields: Mapping[str, Any], location: str) -> _T:
    """Returns an object of a dataclass.

    Raises:
        ValueError: A field is missing or unknown; the message names it.
    """
    known = {field.name: field for field in dataclasses.fields(cls)}
    if unknown := sorted(fields.keys() - known):
        raise ValueError(f"{location}: unknown field {unknown[0]!r:.80}")
    for name, field in known.items():
        if name not in fields and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{location}: the field {name!r} is missing")
    return cls(**fields)


def _check_type(value: Any, expected: Any, location: str) -> None:
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise ValueError(f"{location} is {value!r:.80}; it must be {_TYPES[expected]}")


def default_channels(statistics: Mapping[str, Any]) -> int:
    """Returns the default number of channels of encoded images: 1 if all images are grayscale, otherwise 3.

    Args:
        statistics: The contents of `statistics.json`.
    """
    images = (statistics.get("images") or {}, *statistics.get("other_images", {}).values())
    stored_channels = {channels for facts in images for channels in facts.get("channels") or ()}
    return 1 if stored_channels and stored_channels <= {"1", "2"} else 3


def input_names(features: Mapping[str, Feature], targets: Collection[str]) -> tuple[str, ...]:
    """Returns the default inputs of a model: the image, or all suitable features if the dataset has no image.

    Targets, keys, example weights and image sizes are not used as inputs.
    """
    if IMAGE in features:
        return (IMAGE,)
    objects = [OBJECTS] * (f"{OBJECTS}/bbox" in features)
    others = [name for name, item in features.items() if not item.is_of_objects and not item.is_only_in_objects]
    sides = {f"{name}/{side}" for name, entry in features.items() if entry.is_image for side in ("height", "width")}
    return tuple(name for name in (*objects, *others) if name not in (*targets, KEY, WEIGHT, *sides))


def is_training_split(name: str) -> bool | None:
    """Returns whether a split is for training, judging by its name; None if the name is ambiguous.

    Args:
        name: The name of the split. Each word in the name is considered, in upper or lower case. For example, `val2017`
            is for validation, and `train_val` is ambiguous.
    """
    words = {word.lower() for word in _WORDS.findall(name)}
    is_training, is_other = bool(words & _TRAINING), bool(words & _OTHERS)
    return None if is_training == is_other else is_training


def training_split(splits: Collection[str]) -> str:
    """Returns the name of the default training split: `train`, or the only split whose name indicates training.

    Raises:
        ValueError: No split or more than one split is for training.
    """
    candidates = [name for name in splits if is_training_split(name)]
    if "train" in candidates:
        return "train"
    if len(candidates) != 1:
        raise ValueError(f"It is unclear which split is for training. Pass one of {', '.join(splits)}.")
    return candidates[0]


def main_split(num_examples: Mapping[str, int]) -> str:
    """Returns the split for code examples in summaries and reports: the training split, or else the largest split whose
    name does not indicate validation or testing.

    Args:
        num_examples: The number of examples of each split. For equal numbers, the first split is chosen.
    """
    try:
        return training_split(num_examples)
    except ValueError:  # for example, the splits are folds
        return max(num_examples, key=lambda split: (_training_rank(split), num_examples[split]))


def _training_rank(split: str) -> int:
    """Returns a number that states how clearly the name of a split indicates training, such as 2 for `segtrain`."""
    is_training, name = is_training_split(split), split.lower()
    if is_training is not None:
        return 3 * is_training
    return 2 if "train" in name else 0 if "test" in name or "val" in name else 1


def to_json(fields: Mapping[str, Any]) -> str:
    """Returns the text of a metadata file. Equal fields give equal bytes."""
    return json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_checked_json(fields: Mapping[str, Any]) -> str:
    """Returns the JSON text of a metadata file, with a checksum of its fields as the last field."""
    return to_json({**fields, "checksum": _checksum(fields)})


def has_own_checksum(fields: Mapping[str, Any]) -> bool:
    """Returns whether the fields of a metadata file match the checksum that `to_checked_json` added."""
    others = {name: value for name, value in fields.items() if name != "checksum"}
    try:
        return fields.get("checksum") == _checksum(others)
    except ValueError:  # NaN and lone surrogates are never written
        return False


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(to_json(fields).encode())


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Reads the manifest of a dataset.

    Raises:
        FileNotFoundError: The directory does not contain a finished dataset.
        ValueError: The manifest is corrupt or has another format version.
    """
    path = pathlib.Path(directory) / MANIFEST
    try:
        data = read_regular(str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise not_a_dataset(directory) from None
    return decode_manifest(data, path)


def not_a_dataset(directory: str | os.PathLike[str]) -> FileNotFoundError:
    """Returns the error for a directory without a manifest, or for a path that does not exist."""
    folder, _, name = os.fspath(directory).rpartition("/")
    if name == MANIFEST:
        return FileNotFoundError(f"{directory} is a file of a dataset. Pass the folder of the dataset: {folder or '.'}")
    needed = "the --output of `recordmill prepare`"
    if "://" not in os.fspath(directory) and not os.path.exists(directory):
        return FileNotFoundError(f"{directory} is not a dataset: the path does not exist. Pass {needed}.")
    return FileNotFoundError(
        f"{directory} is not a dataset: it has no {MANIFEST}. Pass {needed}, which writes this file last: wait until "
        "the run ends, or repeat a run that failed."
    )


def decode_manifest(data: bytes, path: str | os.PathLike[str]) -> Manifest:
    """Decodes a manifest from the bytes of its file.

    Raises:
        ValueError: The manifest is corrupt or has another format version; the message names the path.
    """
    try:
        return Manifest.from_json(data.decode())
    except KeyError as error:
        raise ValueError(f"{path}: the field {error} is missing") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


class IndexRow(NamedTuple):
    """The location of one record in its shard.

    Attributes:
        record_offset: The offset of the record's length field in the shard, in bytes.
        image_offset: The offset of the encoded image in the shard, or of the serialized example if it has no image.
        image_length: The length of the image or the example, in bytes.
        label: The label of the example; `NO_LABEL` if it does not have exactly one class.
    """

    record_offset: int
    image_offset: int
    image_length: int
    label: int


INDEX_MAGIC = b"RMILLIDX"
# magic, format version, bytes per row, number of rows, fingerprint of the shard
INDEX_HEADER = struct.Struct("<8sIIQII")
INDEX_ROW = struct.Struct("<QQIi")  # the fields of IndexRow

# The data checksums of a shard's first and last record, masked as TFRecord files store them; (0, 0) without records.
Fingerprint = tuple[int, int]


def read_fingerprint(read: Callable[[int, int], bytes], num_bytes: int) -> Fingerprint | None:
    """Reads the fingerprint of a shard.

    Args:
        read: A function that reads a number of bytes at an offset.
        num_bytes: The size of the shard, in bytes.

    Returns:
        The fingerprint; None if the file is truncated, or the length of the first record is corrupt.
    """
    if not num_bytes:
        return 0, 0
    header, checksum = struct.Struct("<QI"), struct.Struct("<I")
    data = read(0, header.size)
    length = header.unpack(data)[0] if len(data) == header.size else num_bytes
    if length > num_bytes - header.size - checksum.size:
        return None
    ends = [read(offset, checksum.size) for offset in (header.size + length, num_bytes - checksum.size)]
    return tuple(checksum.unpack(end)[0] for end in ends) if all(len(end) == checksum.size for end in ends) else None


class IndexHeader(NamedTuple):
    """The header of an index file: the number of rows, and the fingerprint of the shard."""

    num_rows: int
    fingerprint: Fingerprint


def encode_index(rows: Iterable[tuple[int, int, int, int]], fingerprint: Fingerprint) -> bytes:
    """Returns the bytes of an index file."""
    return wrap_index(b"".join(INDEX_ROW.pack(*row) for row in rows), fingerprint)


def wrap_index(body: bytes, fingerprint: Fingerprint) -> bytes:
    """Returns the bytes of an index file with the given rows, which are packed as `INDEX_ROW`."""
    return INDEX_HEADER.pack(INDEX_MAGIC, FORMAT_VERSION, INDEX_ROW.size, len(body) // INDEX_ROW.size, *fingerprint) + body


def decode_index(data: bytes) -> Iterator[IndexRow]:
    """Returns the rows of an index file.

    Raises:
        ValueError: The index is corrupt or has another format version.
    """
    read_index_header(data[: INDEX_HEADER.size], len(data))
    body = memoryview(data)[INDEX_HEADER.size :]
    return (IndexRow(*row) for row in INDEX_ROW.iter_unpack(body))


def read_index_header(header: bytes, num_bytes: int) -> IndexHeader:
    """Reads and checks the header of an index file of `num_bytes` bytes.

    Raises:
        ValueError: The index is corrupt or has another format version.
    """
    if num_bytes < INDEX_HEADER.size:
        raise ValueError(f"the index has {num_bytes} bytes, fewer than the {INDEX_HEADER.size} bytes of its header")
    magic, version, row_bytes, num_rows, *fingerprint = INDEX_HEADER.unpack(header)
    if (magic, version, row_bytes) != (INDEX_MAGIC, FORMAT_VERSION, INDEX_ROW.size):
        raise ValueError(
            f"the index header is {magic!r}, version {version}, {row_bytes} bytes per row; "
            f"it must be {INDEX_MAGIC!r}, version {FORMAT_VERSION}, {INDEX_ROW.size} bytes per row"
        )
    if num_bytes != INDEX_HEADER.size + num_rows * INDEX_ROW.size:
        body = num_bytes - INDEX_HEADER.size
        raise ValueError(
            f"the {num_rows} rows of the index have {body} bytes; they must have {num_rows * INDEX_ROW.size} bytes"
        )
    return IndexHeader(num_rows, tuple(fingerprint))
