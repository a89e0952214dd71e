"""The configuration of `recordmill prepare`."""

import dataclasses
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, Mapping

from beam_pipelines.config.columns import Column
from beam_pipelines.config.group_pattern import GroupPattern
from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.label_lists import DEFAULT_SEPARATOR
from beam_pipelines.config.source_kinds import SOURCES, SourceKind
from beam_pipelines.errors import UserError, reject_repeated_names, require
from tf_input.dataset_format import LABEL, LAYOUTS, OBJECTS

CHECKS = ("strict", "decode", "header", "none")

MAX_NAME_LENGTH = 80  # a shard's name contains two names, and file systems allow 255 characters
MAX_SPLITS = 256  # a reference stores the split's number in 8 bits
DEFAULT_SPLITS: Mapping[str, Fraction] = {"train": Fraction("0.9"), "validation": Fraction("0.1")}

# The name in `divide` for inputs to which the source assigns no split.
REST = "rest"

BAD_BOXES = ("reject", "clip")
DRAWN_ON = ("file", "upright")
BOX_FORMATS = ("xywh", "xyxy", "cxcywh")
BOX_UNITS = ("pixels", "relative")

DUPLICATES = ("keep", "group", "drop")
MAX_DUPLICATE_DISTANCE = 8  # of 64 bits: images with a greater distance are often different pictures

NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
DEPTH_PATTERN = re.compile("[1-9]|last|all")
COLUMN_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
OBJECT_LABEL = f"{OBJECTS}/{LABEL}"
_OWN_FEATURES = ("image", "key", "weight", "objects")
_IMAGE_SIDES = ("height", "width")  # features of every example with an image


def check_reserved_names(name: str, has_images: bool) -> None:
    """Checks that a feature name is not the name of a built-in feature.

    Args:
        name: The name of the feature.
        has_images: Whether examples have images. If so, `height` and `width` are built-in features too.

    Raises:
        UserError: The name is the name of a built-in feature.
    """
    own = (*_OWN_FEATURES, *(_IMAGE_SIDES if has_images else ()))
    require(name not in own, "--label or --feature", name, f"a name other than {', '.join(own)}, such as my_{name}={name}")


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """The configuration of the input source: its kind, and the columns or fields with images, labels and other values.

    Attributes:
        kind: The kind of the source, one of `SOURCES`. None means that it is guessed from the input.
        has_images: Whether each example has an image. If the source's kind `may_omit_images`, the value may change from
            True to False when the source is opened.
        column_names: The names of the columns of a table without a header. Empty means that the table has a header.
        image_root: The folder to which paths are relative. None means the folder of the table or the annotations.
        image_suffix: The suffix to append to names of images in a list or a table. Empty means that names are complete.
        image_column: The column of a table or the field of a record with the image. None means that it is found by the
            usual names.
        key_column: The column or field with the key. For a table, it may be several names, separated by commas, of
            columns that form the key together. None means the column `key`, if it exists, and otherwise the image's
            path or a sample's name. Empty means no column: the key is the path, or the container's path and the index.
        split_column: The column or field with the split. None means `split`, if it exists. Empty means no column.
        divide: The names of splits in the source whose inputs are divided into new splits. `REST` stands for the inputs
            without a split.
        group: The column or field with the group. None means `group`, if it exists. Empty means no column.
        weight_column: The column or field with the weight. None means `weight`, if it exists. Empty means no column.
        labels: The columns of the labels. None means the usual labels of the source's kind. Empty means no labels.
        features: The columns to store in addition to the labels.
        label_names: All class names of the only label, or of objects, in order. Empty means the names in the data.
        label_names_of: A mapping from features to all their class names, in order.
        first_label_names: A mapping from features to their first class names, in order. New names in the data follow.
        label_separator: The separator between the class names in a cell. None means "|".
        defaults: A mapping from columns or fields to the values that replace missing cells.
        bad_boxes: The action for a box that is not inside its image, one of `BAD_BOXES`.
        drawn_on: The orientation of images when their boxes and masks were drawn, one of `DRAWN_ON`: `file` as stored,
            or `upright` by the EXIF orientation. None means `upright` if the image size in the annotations proves it,
            and `file` otherwise.
        box_format: The meaning of the four numbers of a box in a table or a sample, one of `BOX_FORMATS`. None means
            `xywh`, unless the numbers make it unlikely.
        box_unit: The unit of these numbers, one of `BOX_UNITS`. None means pixels, unless the numbers cannot be pixels.
        has_masks: Whether to draw masks from the outlines in the source.
        layout: The layout of records. For TFRecords of other programs, it is the name of a layout or a mapping. For
            fixed-length records, it lists their fields.
        header_bytes: The number of bytes before the first fixed-length record of a file.
        footer_bytes: The number of bytes after the last fixed-length record of a file.
        skip_lines: The number of lines to skip at the top of a text file, or above the header of a CSV file.
        comment: The prefix of comment lines. Empty means that there are no comments.
        class_folder_depth: The level of nested class folders that names the class: a number from 1 to 9, `last`, or
            `all` for the whole path. None means that the names of the folders decide.
    """

    kind: str | None = None
    has_images: bool = True
    column_names: tuple[str, ...] = ()
    image_root: str | None = None
    image_suffix: str = ""
    image_column: str | None = None
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
    layout: str | None = None
    header_bytes: int = 0
    footer_bytes: int = 0
    skip_lines: int = 0
    comment: str = ""
    class_folder_depth: str | None = None

    def __post_init__(self) -> None:
        require(self.kind is None or self.kind in SOURCES, "--source", self.kind, f"one of {', '.join(SOURCES)}")
        depth = self.class_folder_depth
        require(depth is None or DEPTH_PATTERN.fullmatch(depth), "--class_folder_depth", depth, "a number from 1 to 9, last, or all")
        require(self.bad_boxes in BAD_BOXES, "--bad_boxes", self.bad_boxes, f"one of {', '.join(BAD_BOXES)}")
        require(self.drawn_on is None or self.drawn_on in DRAWN_ON, "--drawn_on", self.drawn_on, f"one of {', '.join(DRAWN_ON)}")
        for option, values in (("box_format", BOX_FORMATS), ("box_unit", BOX_UNITS)):
            value = getattr(self, option)
            require(value is None or value in values, f"--{option}", value, f"one of {', '.join(values)}")
        for split in self.divide:
            check_name("--divide", split, f"names of splits of the source, or {REST} for the inputs without a split")
        if len(set(self.divide)) < len(self.divide):
            raise UserError(f"--divide={','.join(self.divide)}: a split is named twice. Name each split once.")
        require(self.image_column != "", "--image_column", "''", "the name of a column")
        require(self.label_separator != "", "--label_separator", "''", "the text between class names, such as ';' or ' '")
        for option in ("header_bytes", "footer_bytes", "skip_lines"):
            require(getattr(self, option) >= 0, f"--{option}", getattr(self, option), "0 or more")
        columns = [*(self.labels or ()), *self.features]
        names = [column.name for column in columns if column.names != (OBJECTS,)]
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
        """Returns the class names of a label if an option specifies all of its classes, or an empty tuple."""
        return self.label_names_of.get(feature, self.label_names if feature in (LABEL, OBJECT_LABEL) else ())

    @property
    def can(self) -> SourceKind:
        """The capabilities of the source's kind. The kind must be known."""
        return SOURCES[self.kind]

    @property
    def separator(self) -> str:
        """The character that separates the class names in values with several class names."""
        return DEFAULT_SEPARATOR if self.label_separator is None else self.label_separator


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """The configuration of `recordmill prepare`, as given by the user.

    Attributes:
        input: The folder of images, as a path or a `gs://` or `s3://` URL.
        output: The output directory of the dataset, as a path or a `gs://` or `s3://` URL.
        name: The name of the dataset, with which the names of its shards begin.
        seed: The seed of the global shuffle.
        splits: A mapping from split names to shares of the examples, which sum to 1. None means `DEFAULT_SPLITS`,
            unless the input has split folders.
        folds: The number of splits of equal size, named `fold0`, `fold1` and so on, to create instead of `splits`. None
            means no folds.
        stratify: The names of features by which splits are stratified. Each split gets its share of every combination
            of their values. Empty means that splits depend only on a hash.
        group_pattern: A regular expression that extracts the group from a key. None means no pattern.
        splits_from: An earlier dataset, or a table of keys and splits, whose inputs keep their splits. None means that
            no splits are kept.
        split_folders: Whether the top folders of the input are splits. None means that they are if all have split
            names.
        num_shards: The number of shards of the dataset, or a mapping from splits to numbers of shards. None means that
            the sizes decide.
        shard_bytes: The approximate number of image bytes in a shard. All shards have equal numbers of records, so
            their sizes differ. None means the default of `ranks.choose_num_shards`.
        check: The level of the image checks, one of `CHECKS`.
        max_bad_fraction: The maximum share of inputs that may be dead letters. The run fails if there are more.
        ignore: Glob patterns of file names that are not inputs.
        follow_links: Whether to follow symbolic links to folders or to files outside the input.
        output_layout: The layout of the shards in the output directory, one of `LAYOUTS`.
        descriptions: A mapping from features to their descriptions for readers of the dataset.
        duplicates: The action for near-duplicates, one of `DUPLICATES`. None means no search for near-duplicates.
        duplicate_distance: The maximum number of different bits between near-duplicates, among the 64 lowest-frequency
            bits of their perceptual hashes. A third of the 192 other bits may differ too.
        exact_only: Whether only images with identical bytes count as duplicates. Then no image is decoded for the
            search.
        move_to: The split to which near-duplicates are moved if the source puts them into different splits. None means
            that the run fails in this case.
        about: Texts for the dataset card, by names in `dataset_format.ABOUT`.
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
    splits_from: str | None = None
    split_folders: bool | None = None
    num_shards: int | Mapping[str, int] | None = None
    shard_bytes: int | None = None
    check: str = "strict"
    max_bad_fraction: float = 0.01
    ignore: tuple[str, ...] = ()
    follow_links: bool = False
    output_layout: str = "flat"
    descriptions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    duplicates: str | None = None
    duplicate_distance: int = MAX_DUPLICATE_DISTANCE
    exact_only: bool = False
    move_to: str | None = None
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_report: bool = True
    source: SourceConfig = dataclasses.field(default_factory=SourceConfig)
    images: ImageConfig = dataclasses.field(default_factory=ImageConfig)

    def __post_init__(self) -> None:
        check_name("--name", self.name, "letters, digits and '_', with a letter first")
        require(0 <= self.seed < 2**64, "--seed", self.seed, "an integer from 0 to 2**64 - 1")
        require(self.check in CHECKS, "--check", self.check, f"one of {', '.join(CHECKS)}")
        require(self.output_layout in LAYOUTS, "--output_layout", self.output_layout, f"one of {', '.join(LAYOUTS)}")
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
            GroupPattern(self.group_pattern)
            if self.source.group:
                raise UserError("--group and --group_pattern cannot be used together. Give only one of them.")
        self._check_duplicates()
        if not self.source.has_images:
            self._reject_image_options()
        for count in _counts(self.num_shards):
            require(count > 0, "--num_shards", count, "1 or more")

    @property
    def asks_for_shares(self) -> bool:
        """Whether the user specified the splits and the fraction of the examples in each split."""
        return self.splits is not None or self.folds is not None

    @property
    def shares(self) -> Mapping[str, Fraction]:
        """A mapping from split names to the fractions of the examples to assign to the splits."""
        if self.folds is not None:
            return {f"fold{fold}": Fraction(1, self.folds) for fold in range(self.folds)}
        return self.splits or DEFAULT_SPLITS

    def max_dead_letters(self, num_inputs: int) -> int:
        """Returns the maximum number of dead letters for a number of inputs."""
        # In floats, 0.29 * 100 is less than 29.
        return math.floor(Fraction(str(self.max_bad_fraction)) * num_inputs)

    @property
    def resolves_splits(self) -> bool:
        """Whether the split of each input can be determined only after all inputs have been listed."""
        return bool(self.stratify or self.splits_from or self.source.divide or self.duplicates == "group")

    @property
    def hashes_images(self) -> bool:
        """Whether images are decoded and hashed before the examples are assigned to shards."""
        return self.duplicates is not None and not self.exact_only

    def _check_duplicates(self) -> None:
        require(
            self.duplicates is None or self.duplicates in DUPLICATES, "--duplicates", self.duplicates, f"one of {', '.join(DUPLICATES)}"
        )
        limit = MAX_DUPLICATE_DISTANCE
        require(
            0 <= self.duplicate_distance <= limit, "--duplicate_distance", self.duplicate_distance, f"a number of bits from 0 to {limit}"
        )
        check_of_duplicates(self.duplicates, {"exact_only": self.exact_only, "move_to": self.move_to})
        if self.move_to is not None and self.duplicates != "group":
            raise UserError(
                f"--move_to={self.move_to}: this option needs --duplicates=group, but --duplicates={self.duplicates} is given."
            )
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
        options = (
            (self.images, of_images),
            (self.images, depth),
            (self.source, of_source),
            (self, [("check", "check"), ("duplicates", "duplicates")]),
        )
        for config, names in options:
            for name, option in names:
                if getattr(config, name) != getattr(type(config), name):
                    raise UserError(f"--{option}: the examples have no images (--image=none). Omit --{option}, or --image=none.")


def check_of_duplicates(duplicates: str | None, given: Mapping[str, Any]) -> None:
    """Raises `UserError` if an option that needs `--duplicates` is given without `--duplicates`.

    Args:
        duplicates: The value of `--duplicates`, or None.
        given: The values of the options that need `--duplicates`. None and False mean that an option is not given.
    """
    for option, value in given.items():
        if duplicates is None and value is not None and value is not False:
            raise UserError(f"--{option} needs --duplicates. Give --duplicates {', '.join(DUPLICATES[:-1])} or {DUPLICATES[-1]}.")


def check_name(option: str, name: str, expected: str) -> None:
    """Checks that the name of a dataset or a split is valid in the file name of a shard.

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
