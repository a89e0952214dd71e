"""The configuration of `recordmill prepare`."""

import dataclasses
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, Mapping

from beam_pipelines.config.columns import Column
from beam_pipelines.config.key_pattern import KeyPattern
from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.label_lists import DEFAULT_SEPARATOR
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import UserError, reject_repeated_names, require
from tf_input.dataset_format import LABEL, OBJECTS

CHECKS = ("strict", "decode", "header", "none")

MAX_NAME_LENGTH = 80  # The name of a shard contains two names, and file systems allow 255 characters.
MAX_SPLITS = 256  # A reference stores the index of the split in 8 bits.
DEFAULT_SPLITS: Mapping[str, Fraction] = {"train": Fraction("0.9"), "validation": Fraction("0.1")}

# The name in `divide` for inputs to which the source assigns no split.
REST = "rest"

VERBATIM = "verbatim"
BAD_BOXES = ("reject", "clip")
DRAWN_ON = ("file", "upright")
BOX_FORMATS = ("xywh", "xyxy", "cxcywh")
BOX_UNITS = ("pixels", "relative")
ROWS = ("images", "boxes", "values")
DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "space": " "}

DUPLICATES = ("keep", "group", "drop")
MAX_DUPLICATE_DISTANCE = 8  # Of 64 bits. Images with a greater distance are often different pictures.

NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
DEPTH_PATTERN = re.compile("[1-9]|last|all")
COLUMN_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
OBJECT_LABEL = f"{OBJECTS}/{LABEL}"
_OWN_FEATURES = ("image", "key", "weight", "objects")
_IMAGE_SIDES = ("height", "width")  # Features of all examples with an image.


def check_reserved_names(name: str, has_images: bool) -> None:
    """Checks that a feature does not have the name of a built-in feature.

    Args:
        name: The name of the feature.
        has_images: Whether examples have images, so that `height` and `width` are also built-in features.

    Raises:
        UserError: The name belongs to a built-in feature.
    """
    own = (*_OWN_FEATURES, *(_IMAGE_SIDES if has_images else ()))
    require(name not in own, "--label or --feature", name, f"a name other than {', '.join(own)}, such as my_{name}={name}")


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """The configuration of a source: its kind, and the columns or fields with images, labels and other values.

    For a column or field that can be None, an empty string means that the source has no such column.

    Attributes:
        kind: The format of the source. None detects the format.
        has_images: Whether each example has an image. Opening the source can change True to False.
        rows: What a row of a table is, one of `ROWS`: an image, a box of an image, or one of several values of an image.
            Rows of boxes and values are grouped by image. None detects the value.
        column_names: The names of the columns of a table without a header. Empty if the table has a header.
        image_root: The base folder of relative paths. None selects the folder of the table or the annotations.
        image_folders: The folders below `image_root` in which images are searched, if there are several.
        search_images: Whether images are searched by their names in all folders below `image_root`.
        image_suffix: The suffix to append to image names in a list or a table. Empty if names are complete.
        image_column: The column or field with the image. None selects a column with a usual name.
        pixel_shape: The height, the width and optionally the number of channels of images whose pixels are numbers in
            a table. Empty if there are no such images, or if they are gray squares.
        key_column: The column or field with the key. In a table, several columns, separated by commas, can form the
            key. None selects `key` if it exists, and otherwise the path of the image or the name of the sample. If it
            is empty, the key is the path of the image, or the path of the container and the index in it.
        split_column: The column or field with the split. None selects `split` if it exists.
        divide: The names of splits in the source whose inputs are divided among new splits. `REST` stands for inputs
            without a split.
        group: The column or field with the group. None selects `group` if it exists.
        weight_column: The column or field with the weight. None selects `weight` if it exists.
        labels: The columns of the labels. None selects the usual labels of the kind. An empty tuple means no labels.
        features: The columns to store in addition to the labels.
        label_names: All class names of the only label, or of objects, in order. Empty selects the names in the data.
        label_names_of: A mapping from feature to all its class names, in order.
        first_label_names: A mapping from feature to its first class names, in order. New names in the data are
            appended.
        label_separator: The separator between class names in a cell. None selects "|".
        defaults: A mapping from column or field to the value that replaces missing cells.
        bad_boxes: What happens to a box that is not inside its image, one of `BAD_BOXES`.
        drawn_on: The image orientation that boxes and masks refer to, one of `DRAWN_ON`: `file` is the stored
            orientation, `upright` applies EXIF. None selects `upright` if only the upright image has the size in the
            annotations, and `file` otherwise.
        box_format: The meaning of the four numbers of a box in a table or a sample, one of `BOX_FORMATS`. None selects
            the format that the names of columns state, and otherwise `xywh` unless the numbers make it unlikely.
        box_unit: The unit of boxes and keypoints, one of `BOX_UNITS`. None selects pixels, unless the numbers cannot be
            pixels.
        has_masks: Whether to draw masks from the outlines in the source.
        mask_suffix: The suffix of mask names, before the extension. Empty selects the usual suffixes.
        mask_colors: A mapping from the colors of masks, such as `64,128,64`, or from their values, such as `0`, to class
            names. None looks for a file with the mapping. An empty mapping means that values are class numbers.
        mask_values: A mapping from the values of masks to class numbers. Empty keeps the values.
        records: `verbatim` stores records unchanged. None converts records to examples.
        layout: The layout of TFRecords of other programs, as the name of a layout or as a mapping.
        record_layout: The fields of fixed-length records.
        header_bytes: The number of bytes before the first fixed-length record of a file.
        footer_bytes: The number of bytes after the last fixed-length record of a file.
        skip_lines: The number of lines to skip at the start of a text file, or above the header of a CSV file.
        comment: The prefix of comment lines. Empty if there are no comments.
        delimiter: The character between the cells of a CSV file. Empty detects the character.
        class_folder_depth: The level of nested class folders that names the class: a number from 1 to 9, `last`, or
            `all` for the whole path. None decides by the names of the folders.
    """

    kind: SourceKind | None = None
    has_images: bool = True
    rows: str | None = None
    column_names: tuple[str, ...] = ()
    image_root: str | None = None
    image_folders: tuple[str, ...] = ()
    search_images: bool = False
    image_suffix: str = ""
    image_column: str | None = None
    pixel_shape: tuple[int, ...] = ()
    key_column: str | None = None
    split_column: str | None = None
    divide: tuple[str, ...] = ()
    group: str | None = None
    weight_column: str | None = None
    labels: tuple[Column, ...] | None = None
    features: tuple[Column, ...] = ()
    label_names: tuple[str, ...] = ()
    label_names_of: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    first_label_names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    label_separator: str | None = None
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    bad_boxes: str = "reject"
    drawn_on: str | None = None
    box_format: str | None = None
    box_unit: str | None = None
    has_masks: bool = False
    mask_suffix: str = ""
    mask_colors: Mapping[str, str] | None = None
    mask_values: Mapping[int, int] = dataclasses.field(default_factory=dict)
    records: str | None = None
    layout: str | None = None
    record_layout: str | None = None
    header_bytes: int = 0
    footer_bytes: int = 0
    skip_lines: int = 0
    comment: str = ""
    delimiter: str = ""
    class_folder_depth: str | None = None

    def __post_init__(self) -> None:
        depth = self.class_folder_depth
        require(depth is None or DEPTH_PATTERN.fullmatch(depth), "--class_folder_depth", depth, "a number from 1 to 9, last, or all")
        require(self.records in (None, VERBATIM), "--records", self.records, VERBATIM)
        require(self.bad_boxes in BAD_BOXES, "--bad_boxes", self.bad_boxes, f"one of {', '.join(BAD_BOXES)}")
        require(self.drawn_on is None or self.drawn_on in DRAWN_ON, "--drawn_on", self.drawn_on, f"one of {', '.join(DRAWN_ON)}")
        for option, values in (("box_format", BOX_FORMATS), ("box_unit", BOX_UNITS), ("rows", ROWS)):
            value = getattr(self, option)
            require(value is None or value in values, f"--{option}", value, f"one of {', '.join(values)}")
        is_mark = len(self.delimiter) == 1 and not self.delimiter.isalnum() and self.delimiter not in "\"\r\n\0"
        require(not self.delimiter or is_mark, "--delimiter", self.delimiter, f"one character, or one of {', '.join(DELIMITERS)}")
        shape = self.pixel_shape
        is_shape = not shape or (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))) and 0 < min(shape) <= max(shape) < 1 << 16
        require(is_shape, "--pixel_shape", ",".join(map(str, shape)), "HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS with 1, 3 or 4 channels")
        for split in self.divide:
            check_name("--divide", split, f"names of splits of the source, or {REST} for the inputs without a split")
        if len(set(self.divide)) < len(self.divide):
            raise UserError(f"--divide={','.join(self.divide)}: a split is named twice. Name each split once.")
        require(self.image_column != "", "--image_column", "''", "the name of a column")
        require(self.label_separator != "", "--label_separator", "''", "the text between class names, such as ';' or ' '")
        require(not set(self.mask_suffix) & set("./"), "--mask_suffix", self.mask_suffix, "the end of the names without the extension, such as _mask")
        for value, number in self.mask_values.items():
            require(0 <= min(value, number) <= max(value, number) < 1 << 16, "--mask_values", f"{value}={number}", "numbers from 0 to 65535")
        for option in ("header_bytes", "footer_bytes", "skip_lines"):
            require(getattr(self, option) >= 0, f"--{option}", getattr(self, option), "0 or more")
        columns = [*(self.labels or ()), *self.features]
        names = [column.name for column in columns if OBJECTS not in (column.name, *column.names)]
        for name in names:
            require(COLUMN_PATTERN.fullmatch(name), "--label or --feature", name, "a name of letters, digits, '_', '.', '-'")
            check_reserved_names(name, has_images=False)
            require(names.count(name) == 1, "--label or --feature", name, f"each name only once (a single label is called {LABEL!r})")
        if len(set(self.column_names)) < len(self.column_names) or "" in self.column_names:
            raise UserError(
                f"--column_names={','.join(self.column_names)}: invalid value. Give unique column names, separated by "
                "commas."
            )
        for given in (self.label_names, *self.label_names_of.values()):
            reject_repeated_names("--label_names", given)

    def names_of(self, feature: str) -> tuple[str, ...]:
        """Returns the class names of a label if an option gives all of them. Otherwise, returns an empty tuple."""
        return self.label_names_of.get(feature, self.label_names if feature in (LABEL, OBJECT_LABEL) else ())

    @property
    def is_verbatim(self) -> bool:
        """Whether records of any kind are stored unchanged."""
        return self.records == VERBATIM

    @property
    def separator(self) -> str:
        """The separator between class names in a value."""
        return DEFAULT_SEPARATOR if self.label_separator is None else self.label_separator


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """The user's configuration of `recordmill prepare`.

    Attributes:
        input: The folder or file with the inputs, as a path or a `gs://` or `s3://` URL.
        output: The output directory of the dataset, as a path or a `gs://` or `s3://` URL.
        name: The name of the dataset, with which the names of its shards begin.
        seed: The seed of the global shuffle.
        splits: A mapping from split name to its share of the examples. Shares sum to 1. None selects `DEFAULT_SPLITS`,
            unless the input has split folders.
        folds: The number of equal splits, named `fold0`, `fold1` and so on, to create instead of `splits`. None means
            no folds.
        stratify: The names of features by which splits are stratified: each split gets its share of every combination
            of their values. If empty, splits depend on a hash only.
        group_pattern: A regular expression that extracts parts of keys, or None.
        label_pattern: A regular expression whose groups are labels in the key. None means no labels in keys.
        splits_from: An earlier dataset, or a table of keys and splits, whose inputs keep their splits. None keeps no
            splits.
        split_folders: Whether the top folders of the input are splits. None detects split names.
        num_shards: The number of shards of the dataset, or a mapping from split to its number of shards. None computes
            the number from sizes.
        shard_bytes: The approximate size of the images in a shard, in bytes. Shards have equal numbers of records, so
            their sizes differ. None selects the default of `ranks.choose_num_shards`.
        check: The level of the image checks, one of `CHECKS`.
        max_bad_fraction: The maximum share of inputs that may be dead letters. The run fails if there are more.
        ignore: Glob patterns of file names that are not inputs.
        follow_links: Whether to follow symbolic links to folders or to files outside the input.
        descriptions: A mapping from feature to its description for users of the dataset.
        duplicates: What happens to near-duplicates, one of `DUPLICATES`. None disables the search.
        duplicate_distance: The maximum number of differing bits between near-duplicates, among the 64 lowest-frequency
            bits of their perceptual hashes. A third of the other 192 bits may also differ.
        exact_only: Whether only images with equal bytes are duplicates. If so, the search decodes no images.
        about: Texts for the dataset card, by topic in `dataset_format.ABOUT`.
        has_report: Whether to write `report.html`.
        source: The configuration of the source.
        images: The configuration of stored images.
    """

    input: str
    output: str
    name: str
    seed: int = 0
    splits: Mapping[str, Fraction] | None = None
    folds: int | None = None
    stratify: tuple[str, ...] = ()
    group_pattern: str | None = None
    label_pattern: str | None = None
    splits_from: str | None = None
    split_folders: bool | None = None
    num_shards: int | Mapping[str, int] | None = None
    shard_bytes: int | None = None
    check: str = "strict"
    max_bad_fraction: float = 0.01
    ignore: tuple[str, ...] = ()
    follow_links: bool = False
    descriptions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    duplicates: str | None = None
    duplicate_distance: int = MAX_DUPLICATE_DISTANCE
    exact_only: bool = False
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_report: bool = True
    source: SourceConfig = dataclasses.field(default_factory=SourceConfig)
    images: ImageConfig = dataclasses.field(default_factory=ImageConfig)

    def __post_init__(self) -> None:
        check_name("--name", self.name, "letters, digits and '_', with a letter first")
        require(0 <= self.seed < 2**64, "--seed", self.seed, "an integer from 0 to 2**64 - 1")
        require(self.check in CHECKS, "--check", self.check, f"one of {', '.join(CHECKS)}")
        require(0 <= self.max_bad_fraction <= 1, "--max_bad_fraction", self.max_bad_fraction, "a fraction from 0 to 1")
        if self.shard_bytes is not None:
            require(self.shard_bytes > 0, "--shard_size", self.shard_bytes, "a size above 0, such as 128MiB")
            if self.num_shards is not None:
                raise UserError("--num_shards and --shard_size cannot be used together. Give only one of them.")
        if self.splits is not None:
            _check_splits(self.splits)
            if self.folds is not None:
                raise UserError("--splits and --folds cannot be used together. Give only one of them.")
        if self.folds is not None:
            require(2 <= self.folds <= MAX_SPLITS, "--folds", self.folds, f"a number from 2 to {MAX_SPLITS}")
        if len(set(self.stratify)) < len(self.stratify) or "" in self.stratify:
            raise UserError(f"--stratify={','.join(self.stratify)}: invalid value. Give names of features, each only once.")
        if self.group_pattern is not None:
            KeyPattern(self.group_pattern)
            if self.source.group:
                raise UserError("--group and --group_pattern cannot be used together. Give only one of them.")
        of_features = (("stratify", self.stratify), ("describe", self.descriptions), ("label_pattern", self.label_pattern))
        for option, value in of_features if self.source.is_verbatim else ():
            if value:
                raise UserError(f"--{option}: the features of records are unknown with --records=verbatim. Omit --{option}.")
        if self.label_pattern is not None:
            KeyPattern(self.label_pattern, "--label_pattern")
        self._check_duplicates()
        if not self.source.has_images:
            self._reject_image_options()
        for count in _counts(self.num_shards):
            require(count > 0, "--num_shards", count, "1 or more")

    @property
    def asks_for_shares(self) -> bool:
        """Whether the user chose the splits and their shares."""
        return self.splits is not None or self.folds is not None

    @property
    def shares(self) -> Mapping[str, Fraction]:
        """A mapping from split name to its share of the examples."""
        if self.folds is not None:
            return {f"fold{fold}": Fraction(1, self.folds) for fold in range(self.folds)}
        return self.splits or DEFAULT_SPLITS

    def max_dead_letters(self, num_inputs: int) -> int:
        """Returns the maximum number of dead letters for a number of inputs."""
        # As a float, 0.29 * 100 is less than 29.
        return math.floor(Fraction(str(self.max_bad_fraction)) * num_inputs)

    @property
    def resolves_splits(self) -> bool:
        """Whether splits can be assigned only after all inputs have been listed."""
        return bool(self.stratify or self.splits_from or self.source.divide or self.duplicates == "group")

    @property
    def hashes_images(self) -> bool:
        """Whether images are decoded and hashed before shards are planned."""
        return self.duplicates is not None and not self.exact_only

    def _check_duplicates(self) -> None:
        require(
            self.duplicates is None or self.duplicates in DUPLICATES, "--duplicates", self.duplicates, f"one of {', '.join(DUPLICATES)}"
        )
        limit = MAX_DUPLICATE_DISTANCE
        require(
            0 <= self.duplicate_distance <= limit, "--duplicate_distance", self.duplicate_distance, f"a number of bits from 0 to {limit}"
        )
        check_of_duplicates(self.duplicates, {"exact_only": self.exact_only})
        if self.hashes_images and self.check in ("header", "none"):
            raise UserError(
                f"--duplicates={self.duplicates} decodes each image to find near-duplicates, but --check={self.check} decodes none. "
                "Use --check=strict or decode, or --exact_only."
            )

    def _reject_image_options(self) -> None:
        """Raises `UserError` if an image option is given although the examples have no images."""
        of_images = ((name, f"image_{name}") for name in ("size", "format", "quality", "encoding"))
        depth = [("keep_depth", "keep_depth")]
        of_source = ((name, name.removeprefix("has_")) for name in ("image_column", "image_suffix", "bad_boxes", "drawn_on", "has_masks"))
        why, omit = (
            ("--records=verbatim stores records unchanged", "") if self.source.is_verbatim else ("the examples have no images (--image=none)", ", or --image=none")
        )
        options = (
            (self.images, of_images),
            (self.images, depth),
            (self.source, of_source),
            (self, [("check", "check"), ("duplicates", "duplicates")]),
        )
        for config, names in options:
            for name, option in names:
                if getattr(config, name) != getattr(type(config), name):
                    raise UserError(f"--{option}: {why}. Omit --{option}{omit}.")


def check_of_duplicates(duplicates: str | None, given: Mapping[str, Any]) -> None:
    """Raises `UserError` if an option that requires `--duplicates` is given without `--duplicates`.

    Args:
        duplicates: The value of `--duplicates`, or None.
        given: A mapping from option to its value. None and False mean that an option is not given.
    """
    for option, value in given.items():
        if duplicates is None and value is not None and value is not False:
            raise UserError(f"--{option} needs --duplicates. Give --duplicates {', '.join(DUPLICATES[:-1])} or {DUPLICATES[-1]}.")


def check_name(option: str, name: str, expected: str) -> None:
    """Checks that the name of a dataset or a split can be part of a shard's file name.

    Args:
        option: The name of the option, for messages.
        name: The name to check.
        expected: A description of valid names, for messages.

    Raises:
        UserError: The name is invalid or too long.
    """
    require(NAME_PATTERN.fullmatch(name), option, name, expected)
    if len(name) > MAX_NAME_LENGTH:
        raise UserError(f"{option}={name[:20]}… has {len(name)} characters. Give a name of at most {MAX_NAME_LENGTH}.")


def _counts(num_shards: int | Mapping[str, int] | None) -> list[int]:
    if num_shards is None:
        return []
    return [num_shards] if isinstance(num_shards, int) else list(num_shards.values())


def _check_splits(splits: Mapping[str, Fraction]) -> None:
    if len(splits) > MAX_SPLITS:
        raise UserError(f"--splits: {len(splits)} splits, but at most {MAX_SPLITS} are allowed.")
    for split, fraction in splits.items():
        check_name("--splits", split, "split names of letters, digits and '_', with a letter first")
        require(fraction > 0, "--splits", f"{split}={_decimal(fraction)}", "fractions above 0")
    if len({split.casefold() for split in splits}) < len(splits):
        raise UserError(
            f"--splits: some of the names {', '.join(splits)} differ only in case, so their file names could be the "
            "same. Choose other names."
        )
    total = sum(splits.values())
    if total != 1:
        text = ",".join(f"{split}={_decimal(fraction)}" for split, fraction in splits.items())
        raise UserError(f"--splits={text}: the fractions add up to {_decimal(Fraction(total))}. They must add up to 1.")


def _decimal(fraction: Fraction) -> str:
    """Formats a fraction with 6 significant digits."""
    return f"{Decimal(fraction.numerator) / Decimal(fraction.denominator):.6g}"
