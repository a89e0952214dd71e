"""PrepareConfig and its parts: frozen, checked on construction, no I/O."""

import dataclasses
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, Mapping

from beam_pipelines.config.columns import Column
from beam_pipelines.config.group_pattern import GroupPattern
from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.label_lists import DEFAULT_SEPARATOR
from beam_pipelines.config.source_kinds import SOURCES, SourceKind
from beam_pipelines.errors import UserError, require
from tf_input.dataset_format import LABEL, LAYOUTS, OBJECTS

CHECKS = ("strict", "decode", "header", "none")

MAX_NAME_LENGTH = 80  # a shard has two of them in its name, and file systems take 255 characters
MAX_SPLITS = 256  # as many as a reference has room for
DEFAULT_SPLITS: Mapping[str, Fraction] = {"train": Fraction("0.9"), "validation": Fraction("0.1")}

# In `divide`, the inputs without a split of their own.
REST = "rest"

BAD_BOXES = ("refuse", "clip")
DRAWN_ON = ("file", "upright")
BOX_FORMATS = ("xywh", "xyxy", "cxcywh")
BOX_UNITS = ("pixels", "relative")

DUPLICATES = ("keep", "group", "drop")
MAX_DUPLICATE_DISTANCE = 8  # of 64 bits: what is further apart is often another picture

NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
DEPTH_PATTERN = re.compile("[1-9]|last|all")
COLUMN_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
OBJECT_LABEL = f"{OBJECTS}/{LABEL}"
_OWN_FEATURES = ("image", "key", "weight", "objects")
_IMAGE_SIDES = ("height", "width")  # of which one with an image has its own, too


def check_own_names(name: str, has_images: bool) -> None:
    """Checks that a feature is not called what every example has anyway.

    Args:
        name: The name of the feature.
        has_images: Whether examples have images, whose sides have names too.

    Raises:
        UserError: The name is one of these.
    """
    own = (*_OWN_FEATURES, *(_IMAGE_SIDES if has_images else ()))
    require(name not in own, "--label or --feature", name, f"another name than {', '.join(own)}, such as my_{name}={name}")


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """Where images and labels come from, beyond the input, and which columns or fields they are.

    Attributes:
        kind: The kind of the source, one of `SOURCES`; None: guessed from the input.
        has_images: Whether each example has an image. Before a run is settled, a source whose kind `may_lack_images` may find out that
            there are none.
        column_names: The names of the columns of a table without a header; empty: the table has one.
        image_root: The folder that paths are relative to; None: the one where the table or the annotations lie.
        image_suffix: What the names of images in a list or a table end with, where they stand there without it; empty: the names are whole.
        image_column: The column of a table, or field of a record, with the image; None: by the usual names.
        key_column: The column or field with the key, or, of a table, columns that are the key together, with commas between their names.
            None: `key`, if there is one, else the image's path, or a sample's name. Empty: none, so that the key is the path, or the
            container's path with the place in it.
        split_column: The column or field with the split; None: `split`, if there is one; empty: none.
        divide: Names of splits that the source says and that are divided; `REST`: the inputs that it says no split of.
        group: The column or field with the group; None: `group`, if there is one; empty: none.
        weight_column: The column or field with the weight; None: `weight`, if there is one; empty: none.
        labels: The columns that a model is to predict; None: what a source of this kind usually has; empty: nothing.
        features: The columns that are kept of each row beside the labels.
        label_names: All class names of the only label, or of objects, in order; empty: the names that are found.
        label_names_of: Feature -> all its class names, in order.
        first_label_names: Feature -> class names that come first, in this order; others that are found follow.
        label_separator: The text that stands between the class names in one cell; None: "|".
        defaults: Column or field -> the value that stands in place of a missing cell.
        bad_boxes: What becomes of an image with a box that is not inside it: one of `BAD_BOXES`.
        drawn_on: The image that boxes and masks were drawn on, one of `DRAWN_ON`: as its file stores it, or upright by
            its EXIF orientation. None: the size that annotations state decides; if that does not prove upright, as the
            file stores it.
        box_format: What the four numbers of a box in a table or a sample are: one of `BOX_FORMATS`; None: xywh, unless that is unlikely.
        box_unit: The unit of these numbers: one of `BOX_UNITS`; None: pixels, unless they cannot be pixels.
        has_masks: Whether to draw a mask from a source's outlines.
        layout: How records lie: for foreign records the name of a layout or a mapping, for fixed-length records their fields.
        header_bytes: The number of bytes before the first of fixed-length records.
        footer_bytes: The number of bytes behind the last of fixed-length records.
        skip_lines: The number of lines to skip at the top of a text file, or above the header of a CSV file.
        comment: The text with which a line begins that is a comment; empty: no line is one.
        class_folder_depth: Which of nested class folders names a class: a number from 1 to 9, `last`, or `all` for the whole path; None: it
            is chosen by the names of the folders.
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
    bad_boxes: str = "refuse"
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
            check_name("--divide", split, f"splits that the inputs name, or {REST}: those without one")
        if len(set(self.divide)) < len(self.divide):
            raise UserError(f"--divide={','.join(self.divide)}: expected each split once")
        require(self.image_column != "", "--image_column", "''", "the name of a column")
        require(self.label_separator != "", "--label_separator", "''", "what stands between class names, such as ';' or ' '")
        for option in ("header_bytes", "footer_bytes", "skip_lines"):
            require(getattr(self, option) >= 0, f"--{option}", getattr(self, option), "0 or more")
        columns = [*(self.labels or ()), *self.features]
        names = [column.name for column in columns if column.names != (OBJECTS,)]
        for name in names:
            require(COLUMN_PATTERN.fullmatch(name), "--label or --feature", name, "a name of letters, digits, '_', '.', '-'")
            check_own_names(name, has_images=False)
            require(names.count(name) == 1, "--label or --feature", name, f"each name once (a single label is called {LABEL!r})")
        if len(set(self.column_names)) < len(self.column_names) or "" in self.column_names:
            raise UserError(f"--column_names={','.join(self.column_names)}: expected each column's name once, with commas between them")
        for given in (self.label_names, *self.label_names_of.values()):
            if len(set(given)) < len(given):
                raise UserError("--label_names: expected each class name once")

    def names_of(self, feature: str) -> tuple[str, ...]:
        """The class names of a label, where an option says all of them; else empty."""
        return self.label_names_of.get(feature, self.label_names if feature in (LABEL, OBJECT_LABEL) else ())

    @property
    def can(self) -> SourceKind:
        """What a source of this kind can do, once the kind is settled."""
        return SOURCES[self.kind]

    @property
    def separator(self) -> str:
        """What stands between the class names in one text."""
        return DEFAULT_SEPARATOR if self.label_separator is None else self.label_separator


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """What `recordmill prepare` is to do, as the user says it.

    Attributes:
        input: The folder of images, a path or a `gs://` or `s3://` URL.
        output: The directory that the data set becomes, a path or a `gs://` or `s3://` URL.
        name: The name of the data set; its shards begin with it.
        seed: The key of the global shuffle; another seed, another permutation.
        splits: Split name -> its share of the examples; the shares sum to 1. None: as `DEFAULT_SPLITS` says, unless the input has split
            folders.
        folds: The number of splits of equal shares that are made instead, `fold0`, `fold1` and so on; None: no folds.
        stratify: Names of features of whose values, taken together, each split gets its share; empty: splits are by a hash alone.
        group_pattern: A regular expression for what is a key's group; None: keys are not searched.
        splits_from: The data set, or the table of keys and splits, that says the splits of inputs that were placed earlier; None: nothing
            does.
        split_folders: Whether the input's top folders are splits; None: they are if they are all named like splits.
        num_shards: The number of shards of the whole data set, or of each split by name; None: by size.
        shard_bytes: The number of image bytes of a shard, about: shards have equal counts, not sizes; None: see `ranks.choose_num_shards`.
        check: How far an image is checked before it is taken: one of `CHECKS`.
        max_bad_fraction: The largest share of the inputs that may be dead letters; the run fails where more are.
        ignore: Glob patterns of file names that are not inputs.
        follow_links: Whether links on a disk are followed that lead out of the input, or to folders.
        output_layout: How shards lie in the output: one of `LAYOUTS`.
        descriptions: Feature -> what it is, in words, for whoever reads the data set.
        duplicates: What becomes of images that are alike: one of `DUPLICATES`; None: they are not looked for.
        duplicate_distance: The number of bits, of the 64 lowest of a perceptual hash, in which images may differ that are alike; of the 192
            others a third may.
        exact_only: Whether images are alike only if their bytes are the same; then none is decoded to find out.
        move_to: The split that images come to which are alike and in different splits, as the source says; None: such images are refused.
        about: What is told of the data set on its card, by names of `dataset_format.ABOUT`.
        has_report: Whether to write `report.html`.
        source: The configuration of the source: where images and labels come from, beyond the input.
        images: The configuration of how images are stored.
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
        check_name("--name", self.name, "letters, digits and '_', a letter first")
        require(0 <= self.seed < 2**64, "--seed", self.seed, "an integer from 0 to 2**64 - 1")
        require(self.check in CHECKS, "--check", self.check, f"one of {', '.join(CHECKS)}")
        require(self.output_layout in LAYOUTS, "--output_layout", self.output_layout, f"one of {', '.join(LAYOUTS)}")
        require(0 <= self.max_bad_fraction <= 1, "--max_bad_fraction", self.max_bad_fraction, "a fraction from 0 to 1")
        if self.shard_bytes is not None:
            require(self.shard_bytes > 0, "--shard_size", self.shard_bytes, "a size above 0, such as 128MiB")
            if self.num_shards is not None:
                raise UserError("--num_shards and --shard_size exclude each other; expected one of them")
        if self.splits is not None:
            _check_splits(self.splits)
            if self.folds is not None:
                raise UserError("--splits and --folds exclude each other; expected one of them")
        if self.folds is not None:
            require(2 <= self.folds <= MAX_SPLITS, "--folds", self.folds, f"a number from 2 to {MAX_SPLITS}")
        if len(set(self.stratify)) < len(self.stratify) or "" in self.stratify:
            raise UserError(f"--stratify={','.join(self.stratify)}: expected names of features, each once")
        if self.group_pattern is not None:
            GroupPattern(self.group_pattern)
            if self.source.group:
                raise UserError("--group and --group_pattern exclude each other; expected one of them")
        self._check_duplicates()
        if not self.source.has_images:
            self._refuse_image_options()
        for count in _counts(self.num_shards):
            require(count > 0, "--num_shards", count, "1 or more")

    @property
    def asks_for_shares(self) -> bool:
        """Whether the user said which splits there are to be, and of what shares."""
        return self.splits is not None or self.folds is not None

    @property
    def shares(self) -> Mapping[str, Fraction]:
        """Split name -> its share of the examples whose split the source does not say, or that are divided."""
        if self.folds is not None:
            return {f"fold{fold}": Fraction(1, self.folds) for fold in range(self.folds)}
        return self.splits or DEFAULT_SPLITS

    @property
    def settles_splits(self) -> bool:
        """Whether a split depends on more than the group: then it is settled once all is listed."""
        return bool(self.stratify or self.splits_from or self.source.divide or self.duplicates == "group")

    @property
    def hashes_looks(self) -> bool:
        """Whether each image is decoded, and so checked, before the plan is made: for its perceptual hash."""
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
                f"--move_to={self.move_to}: is of --duplicates=group, which brings duplicates into one split; "
                f"found --duplicates={self.duplicates}"
            )
        if self.hashes_looks and self.check in ("header", "none"):
            raise UserError(
                f"--duplicates={self.duplicates}: each image is decoded to find those that look alike, and --check={self.check} "
                "decodes none; expected --check=strict or decode, or --exact_only"
            )

    def _refuse_image_options(self) -> None:
        """Fails where an option speaks of images and examples have none."""
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
                    raise UserError(f"--{option}: examples have no image (--image=none); expected no --{option}, or images")


def check_of_duplicates(duplicates: str | None, given: Mapping[str, Any]) -> None:
    """Fails for an option that is given and needs `--duplicates`, where that is not given."""
    for option, value in given.items():
        if duplicates is None and value is not None and value is not False:
            expected = f"--duplicates {', '.join(DUPLICATES[:-1])} or {DUPLICATES[-1]}"
            raise UserError(f"--{option}: nothing is done about duplicates; expected {expected}")


def check_name(option: str, name: str, expected: str) -> None:
    """Checks that a name can begin the name of a shard.

    Args:
        option: The name of the option, for messages.
        name: The name that is checked.
        expected: What a name may be, for messages.

    Raises:
        UserError: The name cannot begin one, or is too long.
    """
    require(NAME_PATTERN.fullmatch(name), option, name, expected)
    if len(name) > MAX_NAME_LENGTH:
        raise UserError(f"{option}={name[:20]}…: {len(name)} characters; expected at most {MAX_NAME_LENGTH}")


def _counts(num_shards: int | Mapping[str, int] | None) -> list[int]:
    if num_shards is None:
        return []
    return [num_shards] if isinstance(num_shards, int) else list(num_shards.values())


def _check_splits(splits: Mapping[str, Fraction]) -> None:
    if len(splits) > MAX_SPLITS:
        raise UserError(f"--splits: {len(splits)} splits; expected at most {MAX_SPLITS}")
    for split, fraction in splits.items():
        check_name("--splits", split, "split names of letters, digits and '_', a letter first")
        require(fraction > 0, "--splits", f"{split}={_decimal(fraction)}", "fractions above 0")
    if len({split.casefold() for split in splits}) < len(splits):
        raise UserError(f"--splits: {', '.join(splits)}: some differ in case alone, and so would files; expected other names")
    total = sum(splits.values())
    if total != 1:
        text = ",".join(f"{split}={_decimal(fraction)}" for split, fraction in splits.items())
        raise UserError(f"--splits={text}: the fractions add up to {_decimal(Fraction(total))}; expected 1")


def _decimal(fraction: Fraction) -> str:
    """Writes a fraction exactly enough to show, and of any size, which a float is not."""
    return f"{Decimal(fraction.numerator) / Decimal(fraction.denominator):.6g}"
