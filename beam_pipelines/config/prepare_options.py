"""The options of `recordmill prepare`."""

import dataclasses
from decimal import Decimal
from fractions import Fraction
from typing import Any, Mapping

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.key_pattern import KeyPattern
from beam_pipelines.config.option import Options, option
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.shared_options import MAX_DUPLICATE_DISTANCE, duplicate_distance, follow_links, path, yes_or_no
from beam_pipelines.config.values import (
    NAME,
    check_name,
    default_name,
    parse_about,
    parse_descriptions,
    parse_integer,
    parse_name,
    parse_names,
    parse_num_shards,
    parse_patterns,
    parse_size,
    parse_splits,
)
from beam_pipelines.errors import UserError, require
from tf_input.dataset_format import ABOUT, LABEL

CHECKS = ("strict", "decode", "header", "none")

MAX_SPLITS = 256  # A reference stores the index of the split in 8 bits.
DEFAULT_SPLITS: Mapping[str, Fraction] = {"train": Fraction("0.9"), "validation": Fraction("0.1")}

DUPLICATES = ("keep", "group", "drop")
_shares = ",".join(f"{split}={float(fraction):g}" for split, fraction in DEFAULT_SPLITS.items())


def _counts(num_shards: int | Mapping[str, int]) -> list[int]:
    return [num_shards] if isinstance(num_shards, int) else list(num_shards.values())


@dataclasses.dataclass(frozen=True)
class PrepareOptions(Options):
    """Lists images and labels, shuffles them globally, checks each image, and writes a dataset of TFRecord shards."""

    summary = "Convert images and labels to a globally shuffled dataset."
    examples = """\
examples:
  recordmill prepare --input flowers/ --output out/flowers --splits train=0.9,validation=0.1
  recordmill prepare --input photos.csv --output out/weather --label weather --label ground --feature city
  recordmill prepare --input coco/annotations/instances_train2017.json --image_root coco/train2017 --output out/coco
  recordmill prepare --input VOC2012/ --output out/voc --image_size short=512 --image_format jpeg:90

In the first example, flowers/ has one folder per class (flowers/rose/1.jpg), or one folder per split with class folders
in it (flowers/train/rose/1.jpg). To read the dataset in Python:
  import tf_input
  train = tf_input.open("out/flowers").batches("train", batch_size=128, image_size=224)
"""

    input: str = option(
        metavar="IN", is_location=True,
        help="Path or URL (gs://, s3://) of the input: a folder of class folders, a folder of split folders with class "
        "folders, or the input of another source, such as a CSV file.",
    )
    output: str = path(metavar="OUT", may_change=True, help="Path or URL of the directory for the dataset.")
    name: str = option(
        "", parse=parse_name, expected=NAME,
        help="Name of the dataset, which is also the prefix of the shard names. Default: derived from the last part of "
        "OUT.",
    )
    seed: int = option(
        0, parse=parse_integer, check=lambda seed: 0 <= seed < 2**64, expected="an integer from 0 to 2**64 - 1",
        help="Seed of the shuffle. A different seed gives a different order. Default: 0.",
    )
    source: SourceConfig = dataclasses.field(default_factory=SourceConfig)
    label_pattern: str | None = option(
        None, group="source", metavar="REGEX",
        help="Read the label from the key, for example from the file name, by a regular expression. The label is the "
        "text in the first parentheses. For several labels, use named groups such as (?P<age>[0-9]+), and optionally "
        "--label age:integer.",
    )
    check: str = option(
        "strict", group="checks", choices=CHECKS, needs_images=True,
        help="How images are checked. strict: decode each image, and reject it if the decoder reports an error or a "
        "warning. decode: decode each image, and reject it only if the decoder reports an error. header: read only the "
        "format and the size. none: store images without a check.",
    )
    max_bad_fraction: float = option(
        0.01, group="checks", metavar="F", may_change=True, parse=float, check=lambda fraction: 0 <= fraction <= 1,
        expected="a fraction from 0 to 1",
        help="Largest fraction of inputs that can be rejected, from 0 to 1. The run fails if more inputs are rejected.",
    )
    follow_links: bool = follow_links("IN", "become dead letters", group="checks")
    ignore: tuple[str, ...] = option(
        (), group="checks", metavar="GLOB", repeats=True, parse=parse_patterns,
        help="Ignore files whose name or path matches GLOB, such as '*.txt'. Repeat the option for several patterns.",
    )
    splits: Mapping[str, Fraction] | None = option(
        None, group="splits", metavar="NAME=SHARE,...", parse=parse_splits,
        expected="NAME=FRACTION[,NAME=FRACTION…], such as train=0.9,validation=0.1",
        help="Names of the splits and their shares, which add up to 1. Default: the splits of the source; if it has "
        f"none, {_shares}.",
    )
    folds: int | None = option(
        None, group="splits", metavar="N", excludes="splits", parse=parse_integer,
        check=lambda number: 2 <= number <= MAX_SPLITS, expected=f"a number from 2 to {MAX_SPLITS}",
        help="Number of splits of equal size, called fold0, fold1, ..., for cross-validation. Replaces --splits.",
    )
    stratify: tuple[str, ...] = option(
        (), group="splits", metavar="FEATURE,...", bare=LABEL, parse=parse_names,
        check=lambda names: all(names) and len(set(names)) == len(names),
        expected="names of features, each only once, separated by commas",
        help="Give each split the same proportion of each class, to within one example. If names of labels or features "
        "are given, use their values instead of the class.",
    )
    group_pattern: str | None = option(
        None, group="splits", metavar="REGEX", excludes="group",
        help="Regular expression that finds the group in the key. The group is the text in the first parentheses, or "
        "the whole match.",
    )
    splits_from: str | None = path(
        None, group="splits", metavar="OLD",
        help="Earlier dataset, or CSV or Parquet file with the columns key and split. Inputs that it contains keep "
        "their splits. --splits applies to all other inputs. Useful with --stratify, and with --duplicates group or "
        "drop.",
    )
    split_folders: bool | None = yes_or_no(
        group="splits",
        help="Whether the top folders of IN are splits. Default: yes if all have names of splits, such as train and "
        "test.",
    )
    duplicates: str | None = option(
        None, group="near-duplicate images", choices=DUPLICATES, needs_images=True,
        help="Find identical and near-duplicate images, including recompressed, resized, recolored and flipped copies. "
        "keep: keep and count all copies. group: put all copies in the same split. drop: keep only the copy with the "
        "smallest key. Each image is read twice and decoded once. If the dataset grows, new near-duplicates can change "
        "the result of group and drop, unless --splits_from names the earlier dataset. Default: near-duplicates are "
        "not searched for.",
    )
    duplicate_distance: int | None = duplicate_distance(None, group="near-duplicate images", needs="duplicates", excludes="exact_only")
    exact_only: bool = option(
        False, group="near-duplicate images", needs="duplicates",
        help="Find only copies with identical bytes. Needs --duplicates.",
    )
    images: ImageConfig = dataclasses.field(default_factory=ImageConfig)
    num_shards: int | Mapping[str, int] | None = option(
        None, group="output", metavar="N", parse=parse_num_shards,
        check=lambda num_shards: all(number > 0 for number in _counts(num_shards)),
        expected="a number, or NAME=NUMBER[,NAME=NUMBER…], with 1 or more shards",
        help="Total number of shards, such as 16, or number per split, such as train=16,validation=2. Default: chosen "
        "from the size of the dataset.",
    )
    shard_bytes: int | None = option(
        None, "--shard_size", group="output", metavar="SIZE", excludes="num_shards", parse=parse_size,
        check=lambda size: size > 0, expected="a size above 0, such as 128MiB (units: KB, MB, GB, KiB, MiB, GiB)",
        help="Approximate size of a shard, such as 128MiB, instead of --num_shards. Default: chosen from the size of "
        "the dataset.",
    )
    descriptions: Mapping[str, str] = option(
        {}, "--describe", group="output", metavar="FEATURE=TEXT", repeats=True, parse=parse_descriptions,
        help="Description of a feature, which is stored in the dataset's metadata. Repeat the option for several "
        "features.",
    )
    has_report: bool = option(
        True, "--no_report", group="output", may_change=True,
        help="Do not write report.html, the page that shows the contents of the dataset.",
    )
    about: Mapping[str, str] = option(
        {}, group="output", metavar="WHAT=TEXT", repeats=True, parse=parse_about,
        help=f"Text for the card of the dataset (README.md). WHAT is one of {', '.join(ABOUT)}. Repeat the option for "
        "several texts.",
    )

    def derive(self, *, source: Mapping[str, Any] = {}, **changes: Any) -> "PrepareOptions":
        """Returns a copy with other values of some fields. `source` contains the changed fields of `SourceConfig`."""
        return dataclasses.replace(self, source=dataclasses.replace(self.source, **source), **changes)

    def check_combination(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", default_name(self.output))
        check_name("--name", self.name, NAME)
        if self.splits is not None:
            _check_splits(self.splits)
        for name, pattern in (("group_pattern", self.group_pattern), ("label_pattern", self.label_pattern)):
            if pattern is not None:
                KeyPattern(pattern, f"--{name}")
        for name in ("stratify", "descriptions", "label_pattern") if self.source.is_verbatim else ():
            if getattr(self, name):
                name = name.replace("descriptions", "describe")
                raise UserError(f"--{name}: the features of records are unknown with --records=verbatim. Omit --{name}.")
        if self.hashes_images and self.check in ("header", "none"):
            raise UserError(
                f"--duplicates={self.duplicates} decodes each image to find near-duplicates, but --check={self.check} decodes none. "
                "Use --check=strict or decode, or --exact_only."
            )
        if not self.source.has_images:
            self._reject_image_options()

    def _reject_image_options(self) -> None:
        """Raises `UserError` if an image option is given but the examples have no images."""
        why, omit = "the examples have no images (--image=none)", ", or --image=none"
        if self.source.is_verbatim:
            why, omit = "--records=verbatim stores records unchanged", ""
        for declared, _ in self.given():
            if declared.needs_images:
                raise UserError(f"--{declared.name}: {why}. Omit --{declared.name}{omit}.")

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

    @property
    def divide(self) -> tuple[str, ...]:
        """The splits of the source that are divided among the splits of the dataset."""
        return self.source.divide

    @property
    def resolves_splits(self) -> bool:
        """Whether splits can be assigned only after all inputs have been listed."""
        return bool(self.stratify or self.splits_from or self.divide or self.duplicates == "group")

    @property
    def max_distance(self) -> int:
        """The maximum number of differing bits between the perceptual hashes of near-duplicates."""
        return MAX_DUPLICATE_DISTANCE if self.duplicate_distance is None else self.duplicate_distance

    @property
    def hashes_images(self) -> bool:
        """Whether images are decoded and hashed before shards are planned."""
        return self.duplicates is not None and not self.exact_only


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
