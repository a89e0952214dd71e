"""Defines the result of the listing stage: properties of the whole input, such as its features and splits."""

import dataclasses
from fractions import Fraction
from typing import Iterable, Mapping

from beam_pipelines.elements.dead_letters import DeadLetterCount, max_dead_letters, sufficient_fraction
from beam_pipelines.elements.division import Division
from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.errors import DataError, UserError, printable
from tf_input.dataset_format import IMAGE, LABEL, Feature


@dataclasses.dataclass(frozen=True)
class Listing:
    """Properties of the whole input.

    Attributes:
        source: The name of the source format.
        root: The base folder of relative paths.
        schema: The features of an example, sorted by name, with their class names.
        targets: The names of the features that a model predicts, as in `Manifest.targets`.
        listed_labels: A mapping from feature to the class names that occur in the inputs.
        splits: The names of the splits, in display order.
        fractions: A mapping from split name to its share of the groups. None if the source assigns the splits.
        num_inputs: The number of inputs, including dead letters and dropped duplicates.
        num_bytes: The size of all source images in bytes, or 0 if a size is unknown.
        reference_bytes: The size of all references in memory, in bytes.
        num_ignored: The number of files that are not inputs.
        dead_letters: The inputs that the listing stage rejected.
        division: How the inputs were divided among splits. None if only a hash of the group decides.
        near_duplicates: The near-duplicates that were found. None if the run does not search for them.
        unused_fields: The names of columns, and of fields of samples and objects, that are not stored.
        unused_categories: The names of COCO categories that are not classes, because they only group other categories.
        warnings: One-line warnings about results that the user may not expect.
        versions: A mapping from each file that the listing stage read to its version, as in `storage.versions`.
        image_root: The base folder of image paths, or "" if `--image_root` cannot change it.
        columns: The features of verbatim records that have a catalog column, as in `Manifest.columns`.
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
    near_duplicates: NearDuplicates | None = None
    unused_fields: tuple[str, ...] = ()
    unused_categories: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    image_root: str = ""
    columns: tuple[Feature, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """The class names of `label`. Empty unless `label` contains exactly one class per example."""
        return next((f.label_names for f in self.schema if f.name == LABEL and f.is_categorical and not f.shape), ())

    @property
    def has_images(self) -> bool:
        """Whether examples have an image."""
        return any(feature.name == IMAGE for feature in self.schema)

    @property
    def num_listed(self) -> int:
        """The number of inputs, excluding dead letters and dropped duplicates."""
        return self.num_inputs - self.dead_letters.num - self.num_dropped

    @property
    def num_dropped(self) -> int:
        """The number of dropped duplicates."""
        return self.near_duplicates.num_dropped if self.near_duplicates else 0

    @property
    def num_groups(self) -> int:
        """The number of groups that were divided among splits."""
        return self.division.num_groups if self.division else 0

    @property
    def has_sizes(self) -> bool:
        """Whether the sizes of all images are known."""
        return self.num_bytes > 0

    def reject_all(self, dead_letters: DeadLetterCount, inputs: str = "no input") -> UserError:
        """Returns the error for a run without a valid input."""
        valid = "has a readable image" if self.has_images else "makes an example"
        return UserError(f"{inputs} {valid}. The dead letters include:{dead_letters.describe(self.image_root)}")

    def check_dead_letters(self, dead_letters: DeadLetterCount, max_bad_fraction: float, rerun: str) -> None:
        """Checks the number of dead letters.

        Args:
            dead_letters: The dead letters of all stages so far.
            max_bad_fraction: The largest allowed fraction of dead letters.
            rerun: A phrase for the message that describes how to run the command again.

        Raises:
            UserError: All inputs are dead letters.
            DataError: Too many inputs are dead letters.
        """
        num = dead_letters.num
        if num + self.num_dropped == self.num_inputs:
            raise self.reject_all(dead_letters)
        if num > max_dead_letters(max_bad_fraction, self.num_inputs):
            raise DataError(
                f"{num} of {self.num_inputs} inputs are dead letters, more than --max_bad_fraction={max_bad_fraction:g} allows. "
                f"Correct the inputs{rerun} --max_bad_fraction={sufficient_fraction(num, self.num_inputs)} or more."
                f"{dead_letters.describe(self.image_root)}"
            )


_USUAL = ("train", "validation", "test")


def order_splits(*names: Iterable[str]) -> tuple[str, ...]:
    """Sorts split names for display: train, validation, test, then all others. Names in sets are sorted by name."""
    others = [name for some in names for name in (sorted(some) if isinstance(some, (set, frozenset)) else some)]
    return tuple(dict.fromkeys(sorted(others, key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))))


SPLIT_ADVICE = "Change --splits: for example, --splits train=1 writes a single split. Or choose fewer --folds, or omit --splits_from."


def empty_split(split: str, num_examples: int, num_groups: int = 0) -> UserError:
    """Returns the error for a split without examples.

    Args:
        split: The name of the split.
        num_examples: The number of examples in all splits.
        num_groups: The number of groups, or 0 if no groups are used.
    """
    groups = f" (groups: {num_groups:,})" if num_groups else ""
    return UserError(f"split {split!r} would be empty: none of {num_examples} examples is in it{groups}. {SPLIT_ADVICE}")


def spanning_groups(num_groups: int, first: str, splits: set[str]) -> UserError:
    """Returns the error for predefined splits that separate inputs of a group.

    Args:
        num_groups: The number of groups with inputs in several splits.
        first: The name of the first such group.
        splits: The splits that contain inputs of that group.
    """
    shown = f"{printable(first)!r} in {' and '.join(order_splits(splits))}"
    return UserError(
        f"groups in several splits: {num_groups:,}, for example {shown}. Each group must be in one split: change the "
        "groups (--group, --group_pattern, --duplicates=group) or the splits (--input, --splits_from)."
    )
