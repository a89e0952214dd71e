"""The kinds of sources, and what each can do: what other rooms need to know of one."""

import dataclasses
from typing import Mapping


@dataclasses.dataclass(frozen=True)
class SourceKind:
    """What the sources of a kind can do.

    Attributes:
        has_columns: Whether inputs are rows with columns or fields, of which one may say the split.
        has_key_column: Whether one of the columns or fields may be the key.
        may_lack_images: Whether examples may be of values alone.
        is_of_values: Whether examples always are of values, so that nobody would look for images there.
        rows_name_images: Whether an input says where its image lies, so that several may share one, each with other images.
        has_named_samples: Whether an input has a name in its file, which is its key unless a column is.
        has_box_forms: Whether nothing in the input tells what the four numbers of a box are.
        has_image_root: Whether `--image_root` names the folder that paths are relative to.
        has_class_folders: Whether classes are folders, which are known without an image in them, and are names whatever they look like.
    """

    has_columns: bool = False
    has_key_column: bool = False
    may_lack_images: bool = False
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
        has_columns=True, has_key_column=True, may_lack_images=True, rows_name_images=True, has_box_forms=True, has_image_root=True
    ),
    "voc": SourceKind(),
    "coco": SourceKind(has_image_root=True),
    "masks": SourceKind(),
    "arrays": SourceKind(has_columns=True, has_key_column=True, may_lack_images=True),
    "fixed_length": SourceKind(has_columns=True, may_lack_images=True),
    "text": SourceKind(rows_name_images=True, has_image_root=True),
    "text_lines": SourceKind(may_lack_images=True, is_of_values=True),
    "tfrecord": SourceKind(has_columns=True, has_key_column=True, may_lack_images=True),
    "webdataset": SourceKind(has_columns=True, has_key_column=True, may_lack_images=True, has_named_samples=True, has_box_forms=True),
}
