"""Properties of the whole input, such as its features and splits, which are known after the listing stage."""

import dataclasses
from fractions import Fraction
from typing import Iterable, Mapping

from beam_pipelines.config.prepare_config import PrepareConfig, SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.division import Division
from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.errors import UserError, printable
from tf_input.dataset_format import IMAGE, LABEL, Feature


@dataclasses.dataclass(frozen=True)
class Listing:
    """Properties of the whole input, such as its features and splits, which are known after the listing stage.

    Attributes:
        source: The kind of the source, one of `source_kinds.SOURCES`.
        root: The folder that paths are relative to.
        schema: The features of an example in ascending order of their names, with class names.
        targets: The names of the features that a model predicts, as in `Manifest.targets`.
        listed_labels: A mapping from feature to the class names of its inputs. Classes without examples cause warnings.
        splits: The names of the splits, in display order.
        fractions: A mapping from split name to its share if the group decides the split. None if the source decides.
        num_inputs: The number of inputs, including dead letters and dropped duplicates.
        num_bytes: The size of all source images in bytes, or 0 if a size is unknown.
        reference_bytes: The size of all references in memory, in bytes.
        num_ignored: The number of files that are not inputs.
        dead_letters: The count of inputs that were rejected by the listing.
        division: The division among splits, if more than a hash of the group decided.
        near_duplicates: The near-duplicates, if the run searched for them.
        unused_fields: The names of columns, and of fields of samples and objects, that are not stored.
        unused_categories: The names of COCO categories that only group other categories and are no classes.
        warnings: One-line warnings about results that the user may not expect.
        versions: A mapping from each file that the listing read to its version, as in `storage.versions`.
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

    def image_root(self, source: SourceConfig) -> str:
        """Returns the base folder of relative image paths if `--image_root` can change it. Otherwise, returns ""."""
        return self.root if source.can.has_image_root else ""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The class names of `label`. If examples do not have exactly one class, the tuple is empty."""
        return next((f.label_names for f in self.schema if f.name == LABEL and f.kind == "class_label" and not f.shape), ())

    @property
    def has_images(self) -> bool:
        """Whether examples have an image. Examples without images have only values."""
        return any(feature.name == IMAGE for feature in self.schema)

    @property
    def makes_example(self) -> str:
        """A description of valid inputs for messages."""
        return "has a readable image" if self.has_images else "makes an example"

    @property
    def num_listed(self) -> int:
        """The number of inputs, excluding dead letters and dropped duplicates."""
        return self.num_inputs - self.dead_letters.num - self.num_dropped

    @property
    def num_dropped(self) -> int:
        """The number of dropped duplicates."""
        return self.near_duplicates.num_dropped if self.near_duplicates else 0

    @property
    def num_moved(self) -> int:
        """The number of images that were moved to keep groups and clusters of near-duplicates in one split."""
        return self.near_duplicates.num_moved if self.near_duplicates else 0

    @property
    def num_groups(self) -> int:
        """The number of groups that were divided among splits."""
        return self.division.num_groups if self.division else 0

    @property
    def has_sizes(self) -> bool:
        """Whether the sizes of all images are known."""
        return self.num_bytes > 0


_USUAL = ("train", "validation", "test")


def order_splits(*names: Iterable[str]) -> tuple[str, ...]:
    """Sorts split names for display: first train, validation and test, then all other names. Sets are sorted by
    name."""
    others = [name for some in names for name in (sorted(some) if isinstance(some, (set, frozenset)) else some)]
    return tuple(dict.fromkeys(sorted(others, key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))))


def empty_split(split: str, num_examples: int, config: PrepareConfig, num_moved: int = 0, num_groups: int = 0) -> UserError:
    """Returns the error to raise if a split has no examples.

    Args:
        split: The name of the split.
        num_examples: The number of examples of all splits.
        config: The configuration of the run.
        num_moved: The number of images that `--move_to` moved to another split.
        num_groups: The number of groups. 0 if no groups are used.
    """
    is_empty = f"split {split!r} would be empty"
    are_new_placed = config.asks_for_shares or config.splits_from or config.source.divide
    if num_moved and not (are_new_placed and split in config.shares):
        why = (
            f"--move_to={config.move_to} moved all of its images, because they or their groups have near-duplicates in "
            "other splits"
        )
        return UserError(f"{is_empty}: {why}. Pass --move_to={split} or --duplicates=keep.")
    advice = "give it a larger share or none (--splits train=1)"
    if config.folds:
        advice = f"choose fewer folds than --folds={config.folds}"
    causes = [f"few groups ({num_groups:,})" if num_groups else "few examples"]
    causes += [f"--splits_from={printable(config.splits_from)}"] if config.splits_from else []
    if num_moved:
        causes.append(f"--move_to={config.move_to}, which moved {num_moved:,} images")
        advice = f"pass --move_to={split}, or {advice}"
    return UserError(
        f"{is_empty}: none of {num_examples} examples is in it. Possible causes: {', '.join(causes)}. To fix "
        f"this, {advice}."
    )


def spanning_groups(config: PrepareConfig, num_groups: int, first: str, splits: set[str]) -> UserError:
    """Returns the error to raise if predefined splits separate inputs of the same group.

    Args:
        config: The configuration of the run.
        num_groups: The number of these groups.
        first: The name of the first group.
        splits: The splits of the first group.
    """
    option, path = ("--splits_from", config.splits_from) if config.splits_from and not config.source.divide else ("--input", config.input)
    without = " Or pass --duplicates=drop or keep, which do not form groups." if config.duplicates == "group" else ""
    shown = f"{printable(first)!r} in {' and '.join(order_splits(splits))}"
    return UserError(
        f"{option}={printable(path)}: groups in several splits: {num_groups:,}, for example {shown}. Each group must "
        "be in one "
        f"split: change the groups or the splits.{without}"
    )
