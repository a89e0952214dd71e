"""Describes the formats of sources, and the options that apply to each format."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SourceKind:
    """Describes a source format for the command line and for the stages after the listing.

    Attributes:
        name: The value of `--source`.
        summary: A noun phrase for the help text of `--source`.
        options: The fields of `SourceConfig` that apply to the format, besides those that apply to all formats.
        synonyms: Names of file formats and of other tools, in lower case, for which the source is suggested.
        is_of_values: Whether examples never have images.
        rows_name_images: Whether each input contains the path of its image, so that several inputs may share an image.
        has_named_samples: Whether each input has a name in its file. The name is the key unless a column contains keys.
        has_image_classes: Whether `--label` may name classes of entire images, although the format has no columns.
        label_fields: The values of `--label` besides `none` in a format without columns.
    """

    name: str
    summary: str
    options: tuple[str, ...]
    synonyms: tuple[str, ...] = ()
    is_of_values: bool = False
    rows_name_images: bool = False
    has_named_samples: bool = False
    has_image_classes: bool = False
    label_fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def has_columns(self) -> bool:
        """Whether each input is a row or record with columns or fields, one of which may contain the split."""
        return "split_column" in self.options

    @property
    def has_key_column(self) -> bool:
        """Whether a column or field may contain the key."""
        return "key_column" in self.options

    @property
    def has_label_columns(self) -> bool:
        """Whether `--label` names columns. In other formats, the only valid value of `--label` is `none`."""
        return "features" in self.options or self.has_image_classes

    @property
    def may_omit_images(self) -> bool:
        """Whether examples may have no images."""
        return "has_images" in self.options

    @property
    def has_box_forms(self) -> bool:
        """Whether boxes can have different formats, which the input does not specify."""
        return "box_format" in self.options

    @property
    def has_image_root(self) -> bool:
        """Whether `--image_root` names the folder to which paths are relative."""
        return "image_root" in self.options

    @property
    def has_class_folders(self) -> bool:
        """Whether each folder is a class, even if the folder is empty or its name looks like a number or a list."""
        return "class_folder_depth" in self.options
