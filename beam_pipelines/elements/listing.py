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
        source: Its kind: one of `source_kinds.SOURCES`.
        root: What paths are relative to.
        schema: The features of an example, by name in ascending order, with their class names.
        targets: See `Manifest.targets`.
        listed_labels: Feature -> class names that an input has: without an example, each of them is warned of.
        splits: Split names, in the order in which they are shown.
        fractions: Their shares, where an example's group decides; None where the source does.
        num_inputs: Examples, dead letters, and duplicates that are left out.
        num_bytes: Of all images, as they lie at the source; 0 where the listing did not say of each.
        reference_bytes: Of all references, in memory.
        num_ignored: Files that are no inputs.
        dead_letters: Inputs that were refused when they were listed.
        division: How they were divided, where more than a hash of the group decided.
        twins: Which of them are alike, where that was asked for.
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
        """Inputs that were no dead letters when they were listed, nor left out as duplicates."""
        return self.num_inputs - self.dead_letters.num - self.num_dropped

    @property
    def num_dropped(self) -> int:
        """Duplicates that are left out."""
        return self.twins.num_dropped if self.twins else 0

    @property
    def has_sizes(self) -> bool:
        return self.num_bytes > 0


_USUAL = ("train", "validation", "test")


def order_splits(*names: Iterable[str]) -> tuple[str, ...]:
    """The order in which splits are shown: the usual ones first, then others, a set of them by their names."""
    others = [name for some in names for name in (sorted(some) if isinstance(some, (set, frozenset)) else some)]
    return tuple(dict.fromkeys(sorted(others, key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))))


def empty_split(split: str, num_examples: int, folds: int | None, splits_from: str | None) -> UserError:
    """What to raise where no example falls into a split.

    Args:
        split: Its name.
        num_examples: Of all splits.
        folds: As `--folds` says.
        splits_from: As `--splits_from` says.
    """
    expected = f"fewer folds than --folds={folds}" if folds else "a larger share for it, or none (--splits train=1)"
    placed = f", and --splits_from={printable(splits_from)} may have placed them" if splits_from else ""
    return UserError(f"split {split!r} would come out empty: none of the {num_examples} examples falls into it{placed}; expected {expected}")
