"""Facts about the inputs that are collected during listing. The facts about all parts of a source are merged, and
determine the schema, the splits and the warnings of the dataset."""

import dataclasses
from typing import Collection, Iterable, Mapping

from beam_pipelines.config.prepare_options import MAX_SPLITS
from beam_pipelines.elements.class_tables import OBJECT_LABEL
from beam_pipelines.elements.dead_letters import BAD_LABEL, NO_GROUP, NO_SPLIT, DeadLetter, DeadLetterCount
from beam_pipelines.elements.first_keys import FirstKeys
from beam_pipelines.elements.merging import Mergeable
from beam_pipelines.errors import UserError
from beam_pipelines.features.feature_kind import PositionFacts
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.cells.box_forms import BoxForms
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.other_files import UnexpectedFiles
from beam_pipelines.sources.listing.group_counts import GroupCounts
from beam_pipelines.storage.versions import add_version
from tf_input.dataset_format import Feature

_MAX_FIRST_ARRAYS = 8  # paths to keep; at least one of these files must be valid
_REASONS = (NO_SPLIT, NO_GROUP, BAD_LABEL)


@dataclasses.dataclass
class ListedCounts(Mergeable):
    """The number and the size of the inputs.

    Attributes:
        num_images: The number of listed inputs, without dead letters.
        num_bytes: The total size of the images whose size is known, in bytes.
        num_unsized: The number of inputs of unknown size.
        reference_bytes: The memory for the references to all inputs, in bytes.
        num_ignored: The number of ignored files.
    """

    num_images: int = 0
    num_bytes: int = 0
    num_unsized: int = 0
    reference_bytes: int = 0
    num_ignored: int = 0


@dataclasses.dataclass
class SchemaEvidence(Mergeable):
    """The facts that determine the schema of the dataset.

    Attributes:
        labels: Feature -> class names that occur.
        several_labels: The features that have more than one class in an input.
        known_labels: Feature -> class names that the source specifies, even if no input has them.
        known_orders: Feature -> the ordered class names that the parts of the source specify.
        group_names: Names of categories that group other categories. They are classes only if an object has them.
        long_texts: The features with a string that is too long for the catalog.
        raws: The layouts of raw images. Two layouts of each kind are enough to see that sizes differ. None stands for
            images in an image format such as JPEG.
        arrays: The first few paths of images in `.npy` and TIFF files, from which the image layout is read later.
        unused_fields: The columns and fields that are not kept.
        point_labels: The labels of points in annotations. Empty if no points are stored.
        found_features: Name -> the different features of this name that were found during listing.
    """

    labels: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    several_labels: set[str] = dataclasses.field(default_factory=set)
    known_labels: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    known_orders: dict[str, set[tuple[str, ...]]] = dataclasses.field(default_factory=dict)
    group_names: set[str] = dataclasses.field(default_factory=set)
    long_texts: set[str] = dataclasses.field(default_factory=set)
    raws: set[RawImage | None] = dataclasses.field(default_factory=set)
    arrays: set[str] = dataclasses.field(default_factory=set)
    unused_fields: UnusedFields = dataclasses.field(default_factory=UnusedFields)
    point_labels: set[str] = dataclasses.field(default_factory=set)
    found_features: dict[str, set[Feature]] = dataclasses.field(default_factory=dict)

    def merge(self, other: "SchemaEvidence") -> None:
        super().merge(other)
        self.add_raws(set())
        self.add_arrays(())

    def add_raws(self, raws: set[RawImage | None]) -> None:
        """Adds layouts. Keeps only the first two of each kind in sorted order, so that the result is reproducible."""
        kinds: dict[tuple, list[RawImage]] = {}
        for raw in sorted((self.raws | raws) - {None}):
            kinds.setdefault(raw.kind, []).append(raw)
        self.raws = {raw for others in kinds.values() for raw in others[:2]} | ({None} & (self.raws | raws))

    def add_arrays(self, paths: Iterable[str]) -> None:
        """Adds paths. Keeps only the first few paths in sorted order, so that the result is reproducible."""
        self.arrays = set(sorted(self.arrays.union(paths))[:_MAX_FIRST_ARRAYS])

    def add_known(self, names: Mapping[str, Collection[str]]) -> None:
        """Adds the class names that the source specifies for each feature."""
        for feature, known in names.items():
            self.known_labels.setdefault(feature, set()).update(known)
            if isinstance(known, tuple):
                self.known_orders.setdefault(feature, set()).add(known)

    def known_names(self, feature: str) -> tuple[str, ...] | frozenset[str]:
        """Returns the class names that the source specifies for a feature, as a tuple if all parts specify the same
        order."""
        names, orders = self.known_labels.get(feature, ()), self.known_orders.get(feature, ())
        return next((order for order in orders if len(orders) == 1 and len(order) == len(names)), frozenset(names))

    def empty_groups(self) -> set[str]:
        """Returns the names in `group_names` that are not the class of any object."""
        return self.group_names - self.labels.get(OBJECT_LABEL, set())


@dataclasses.dataclass
class SplitEvidence(Mergeable):
    """The splits and groups of the inputs.

    Attributes:
        names: The splits that the source assigns; None stands for inputs without a split.
        groups: The counts of groups; empty if groups are counted when splits are assigned.
        ungrouped: The inputs without a group, in sources with columns.
        unmatched: The inputs whose keys do not match `--group_pattern`.
        without_stratum: The inputs without a value for a feature of `--stratify`.
    """

    names: set[str | None] = dataclasses.field(default_factory=set)
    groups: GroupCounts = dataclasses.field(default_factory=GroupCounts)
    ungrouped: FirstKeys = dataclasses.field(default_factory=FirstKeys)
    unmatched: FirstKeys = dataclasses.field(default_factory=FirstKeys)
    without_stratum: FirstKeys = dataclasses.field(default_factory=FirstKeys)

    def merge(self, other: "SplitEvidence") -> None:
        super().merge(other)
        self.add(())

    def add(self, splits: Iterable[str | None]) -> None:
        """Adds splits. Raises `UserError` as soon as there are too many, because a complete listing might take
        hours."""
        self.names.update(splits)
        if len(self.names) > MAX_SPLITS:
            some = ", ".join(sorted(self.names - {None})[:3])
            raise UserError(
                f"The inputs name at least {len(self.names):,} splits ({some}, …), and {MAX_SPLITS} is the limit. "
                "Use --split_column='' to ignore the column. If its values are groups, pass it as --group."
            )


@dataclasses.dataclass
class Problems(Mergeable):
    """The inputs and files that were rejected, and facts that may show that the options are wrong.

    Attributes:
        dead_letters: The inputs that were rejected.
        missing_values: The reasons for a missing split, group or valid class -> the inputs that were rejected for it.
        boxes: Counts of boxes in tables and tar files, which do not declare the format of boxes.
        positions: Feature with positions in the image, such as keypoints -> facts about its values.
        noted: Warnings that begin with a number: the text after the number -> the number.
        unexpected_files: The unexpected files in class folders; None for other sources.
    """

    dead_letters: DeadLetterCount = dataclasses.field(default_factory=DeadLetterCount)
    missing_values: dict[str, DeadLetterCount] = dataclasses.field(
        default_factory=lambda: {reason: DeadLetterCount() for reason in _REASONS}
    )
    boxes: BoxForms = dataclasses.field(default_factory=BoxForms)
    positions: dict[str, PositionFacts] = dataclasses.field(default_factory=dict)
    noted: dict[str, int] = dataclasses.field(default_factory=dict)
    unexpected_files: UnexpectedFiles | None = None

    def add(self, rejected: list[DeadLetter]) -> None:
        """Adds dead letters."""
        self.dead_letters.add(rejected)
        for reason, missing in self.missing_values.items():
            missing.add([letter for letter in rejected if letter.reason == reason])


class Versions(dict[str, str]):
    """A mapping from the path of each opened file to its version."""

    def merge(self, other: "Versions") -> None:
        """Adds the versions from another part. Raises `DataError` if the two parts read different versions of a file."""
        for path, version in other.items():
            add_version(self, path, version)


@dataclasses.dataclass
class ListedFacts(Mergeable):
    """The facts about the inputs in one or more parts of a source."""

    counts: ListedCounts = dataclasses.field(default_factory=ListedCounts)
    schema: SchemaEvidence = dataclasses.field(default_factory=SchemaEvidence)
    splits: SplitEvidence = dataclasses.field(default_factory=SplitEvidence)
    problems: Problems = dataclasses.field(default_factory=Problems)
    versions: Versions = dataclasses.field(default_factory=Versions)

    @property
    def num_inputs(self) -> int:
        """The number of inputs, including dead letters."""
        return self.counts.num_images + self.problems.dead_letters.num
