"""Defines the kinds of sources and their capabilities."""

import dataclasses
from typing import Mapping


@dataclasses.dataclass(frozen=True)
class SourceKind:
    """The options and kinds of columns that a kind of source supports.

    Attributes:
        has_columns: Whether inputs are rows with columns or fields, one of which may contain the split.
        has_key_column: Whether a column or field can contain the key.
        may_omit_images: Whether examples can have no images.
        is_of_values: Whether examples never have images.
        rows_name_images: Whether each input contains the path of its image, so that inputs can share an image.
        has_named_samples: Whether each input has a name in its file, which is the key unless a column contains keys.
        has_box_forms: Whether boxes can have different formats that the input does not state.
        has_image_root: Whether `--image_root` sets the base folder of relative paths.
        has_class_folders: Whether classes are folders. If so, empty folders are classes, and all folder names are valid
            class names, even if they look like numbers or lists.
    """

    has_columns: bool = False
    has_key_column: bool = False
    may_omit_images: bool = False
    is_of_values: bool = False
    rows_name_images: bool = False
    has_named_samples: bool = False
    has_box_forms: bool = False
    has_image_root: bool = False
    has_class_folders: bool = False


DEFAULT_SOURCE = "image_folder"

SOURCES: Mapping[str, SourceKind] = {
    DEFAULT_SOURCE: SourceKind(has_class_folders=True),
    "table": SourceKind(
        has_columns=True, has_key_column=True, may_omit_images=True, rows_name_images=True, has_box_forms=True, has_image_root=True
    ),
    "voc": SourceKind(),
    "coco": SourceKind(has_image_root=True),
    "masks": SourceKind(),
    "arrays": SourceKind(has_columns=True, has_key_column=True, may_omit_images=True),
    "fixed_length": SourceKind(has_columns=True, may_omit_images=True),
    "text": SourceKind(rows_name_images=True, has_image_root=True),
    "text_lines": SourceKind(may_omit_images=True, is_of_values=True),
    "tfrecord": SourceKind(has_columns=True, has_key_column=True, may_omit_images=True),
    "webdataset": SourceKind(has_columns=True, has_key_column=True, may_omit_images=True, has_named_samples=True, has_box_forms=True),
}

# Names of formats and of other tools, in lower case, and the corresponding kind of source.
SOURCE_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("csv", "tsv", "json", "jsonl", "ndjson", "parquet", "pandas", "dataframe"), "table"),
    **dict.fromkeys(("folder", "folders", "directory", "images", "imagenet", "jpg", "png"), DEFAULT_SOURCE),
    **dict.fromkeys(("numpy", "npy", "npz"), "arrays"),
    **dict.fromkeys(("pascal", "pascal_voc", "xml"), "voc"),
    **dict.fromkeys(("segmentation", "mask"), "masks"),
    **dict.fromkeys(("array_record", "arrayrecord", "tfds"), "tfrecord"),
    **dict.fromkeys(("tar", "wds"), "webdataset"),
    **dict.fromkeys(("txt", "list"), "text"),
}
