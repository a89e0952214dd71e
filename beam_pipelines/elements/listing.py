"""What is known once every input is listed."""

import dataclasses
from fractions import Fraction
from typing import Iterable, Mapping

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
        left_out: Names of fields of objects that are not kept.
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
    def has_sizes(self) -> bool:
        """Whether the size of all images is known."""
        return self.num_bytes > 0


_USUAL = ("train", "validation", "test")


def order_splits(*names: Iterable[str]) -> tuple[str, ...]:
    """Puts names of splits into the order in which they are shown: the usual ones first, then others, a set of them by their names."""
    others = [name for some in names for name in (sorted(some) if isinstance(some, (set, frozenset)) else some)]
    return tuple(dict.fromkeys(sorted(others, key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))))


def empty_split(split: str, num_examples: int, folds: int | None, splits_from: str | None) -> UserError:
    """The error to raise where no example falls into a split.

    Args:
        split: The name of the split.
        num_examples: The number of examples of all splits.
        folds: The value of `--folds`; None: it is not given.
        splits_from: The value of `--splits_from`; None: it is not given.
    """
    expected = f"fewer folds than --folds={folds}" if folds else "a larger share for it, or none (--splits train=1)"
    placed = f", and --splits_from={printable(splits_from)} may have placed them" if splits_from else ""
    return UserError(
        f"split {split!r} would come out empty: none of the {num_examples} examples falls into it{placed}; expected {expected}"
    )
