"""What is known once every input is listed."""

import dataclasses
from fractions import Fraction
from typing import Iterable, Mapping

from beam_pipelines.config.prepare_config import PrepareConfig, SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.division import Division
from beam_pipelines.elements.twins import Twins
from beam_pipelines.errors import UserError, printable
from tf_input.dataset_format import IMAGE, LABEL, Feature


@dataclasses.dataclass(frozen=True)
class Listing:
    """What is known once every input is listed.

    Attributes:
        source: The kind of the source, one of `source_kinds.SOURCES`.
        root: The folder that paths are relative to.
        schema: The features of an example, by name in ascending order, with their class names.
        targets: Names of the features that a model is to predict, as `Manifest.targets` has them.
        listed_labels: Feature -> class names that an input has: without an example, each of them is warned of.
        splits: Names of the splits, in the order in which they are shown.
        fractions: Split name -> its share of the examples, where an example's group decides; None where the source does.
        num_inputs: The number of examples, dead letters, and duplicates that are left out.
        num_bytes: The size in bytes of all images, as they lie at the source; 0 where the listing did not say of each.
        reference_bytes: The size in bytes of all references in memory.
        num_ignored: The number of files that are no inputs.
        dead_letters: The count of inputs that were refused when they were listed.
        division: How inputs were divided among splits, where more than a hash of the group decided.
        twins: The images that are alike, where that was asked for.
        left_out: The names of columns, and of fields of samples and objects, that are not kept.
        warnings: What may not be what the user expects, a line each.
        versions: The path of each file that was opened to list its inputs -> its version, as `storage.versions` has it.
    """

    source: str
    root: str
    schema: tuple[Feature, ...]
    targets: tuple[str, ...]
    listed_labels: Mapping[str, frozenset[str]]
    splits: tuple[str, ...]
    fractions: Mapping[str, Fraction] | None
    num_inputs: int
    num_bytes: int
    reference_bytes: int
    num_ignored: int
    dead_letters: DeadLetterCount
    division: Division | None = None
    twins: Twins | None = None
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def image_root(self, source: SourceConfig) -> str:
        """Returns the folder that paths are relative to, if `--image_root` may name another one; else an empty text."""
        return self.root if source.can.has_image_root else ""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Class names of `label`; empty where an example has not one class."""
        return next((f.label_names for f in self.schema if f.name == LABEL and f.kind == "class_label" and not f.shape), ())

    @property
    def has_images(self) -> bool:
        """Whether each example has an image; else it has values alone."""
        return any(feature.name == IMAGE for feature in self.schema)

    @property
    def makes_example(self) -> str:
        """What can be said of an input that is fit, for messages."""
        return "has a readable image" if self.has_images else "makes an example"

    @property
    def num_listed(self) -> int:
        """The number of inputs that were no dead letters when they were listed, nor left out as duplicates."""
        return self.num_inputs - self.dead_letters.num - self.num_dropped

    @property
    def num_dropped(self) -> int:
        """The number of duplicates that are left out."""
        return self.twins.num_dropped if self.twins else 0

    @property
    def num_moved(self) -> int:
        """Images that came into another split, since they are alike to some there, or in a group with such."""
        return self.twins.num_moved if self.twins else 0

    @property
    def has_sizes(self) -> bool:
        """Whether the size of all images is known."""
        return self.num_bytes > 0


_USUAL = ("train", "validation", "test")


def order_splits(*names: Iterable[str]) -> tuple[str, ...]:
    """Puts names of splits into the order in which they are shown: the usual ones first, then others, a set of them by their names."""
    others = [name for some in names for name in (sorted(some) if isinstance(some, (set, frozenset)) else some)]
    return tuple(dict.fromkeys(sorted(others, key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))))


def empty_split(split: str, num_examples: int, config: PrepareConfig, num_moved: int = 0) -> UserError:
    """The error to raise where no example falls into a split.

    Args:
        split: The name of the split.
        num_examples: The number of examples of all splits.
        config: The configuration of the run.
        num_moved: The number of images that `--move_to` has brought into another split.
    """
    is_empty = f"split {split!r} would come out empty"
    are_new_placed = config.asks_for_shares or config.splits_from or config.source.divide
    if num_moved and not (are_new_placed and split in config.shares):
        why = f"all of its images have twins in other splits, or groups in which one has, and --move_to={config.move_to} took them away"
        return UserError(f"{is_empty}: {why}; expected --move_to={split}, or --duplicates=keep")
    expected = f"fewer folds than --folds={config.folds}" if config.folds else "a larger share for it, or none (--splits train=1)"
    reasons = [f"--splits_from={printable(config.splits_from)} may have placed them"] if config.splits_from else []
    if num_moved:
        reasons.append(f"--move_to={config.move_to} took {num_moved:,} away from their splits")
        expected = f"--move_to={split}, or {expected}"
    placed = "".join(f", and {reason}" for reason in reasons)
    return UserError(f"{is_empty}: none of the {num_examples} examples falls into it{placed}; expected {expected}")


def torn_groups(config: PrepareConfig, num_groups: int, first: str, splits: set[str]) -> UserError:
    """The error to raise where inputs of one group are in several splits that nobody divides.

    Args:
        config: The configuration of the run.
        num_groups: The number of such groups.
        first: The name of the first of them.
        splits: The splits in which that one is.
    """
    option, path = ("--splits_from", config.splits_from) if config.splits_from and not config.source.divide else ("--input", config.input)
    groups = "1 group is" if num_groups == 1 else f"{num_groups:,} groups are"
    without = ", or --duplicates=drop or keep, which make no groups" if config.duplicates == "group" else ""
    shown = f"{printable(first)!r} in {' and '.join(order_splits(splits))}"
    return UserError(
        f"{option}={printable(path)}: {groups} in several splits already, such as {shown}; expected each in one: "
        f"other groups, or other splits{without}"
    )
