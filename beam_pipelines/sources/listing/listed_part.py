"""Collects facts about the inputs during listing and derives the dataset's schema from these facts."""

import collections
import dataclasses
import itertools
from typing import Callable, Collection, Iterable, Iterator

import numpy as np

from beam_pipelines.config.prepare_config import MAX_SPLITS, REST
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.class_tables import OBJECT_LABEL, make_class_table
from beam_pipelines.elements.dead_letters import BAD_LABEL, NO_GROUP, NO_SPLIT, DeadLetter, DeadLetterCount, sufficient_fraction
from beam_pipelines.elements.division import Division, largest_groups
from beam_pipelines.elements.first_keys import FirstKeys
from beam_pipelines.elements.input_record import InputRecord, image_bytes
from beam_pipelines.elements.listing import Listing, order_splits, spanning_groups
from beam_pipelines.elements.split_hashes import SplitByGroup
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.images.npy_header import MAX_HEADER_BYTES
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.tensor_values import npy_layout
from beam_pipelines.sources.listing.class_warnings import class_warnings
from beam_pipelines.sources.cells.box_forms import BoxForms
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.formats.image_folder.class_folders import ALL, read_class_folders
from beam_pipelines.sources.files.layouts import given_already
from beam_pipelines.sources.files.other_files import UnexpectedFiles
from beam_pipelines.sources.listing.group_counts import GroupCounts
from beam_pipelines.sources.source import Source
from beam_pipelines.sources.source import other_images
from beam_pipelines.storage.files import read_start
from beam_pipelines.storage.input_errors import describe_fact
from beam_pipelines.storage.versions import add_version
from tf_input.dataset_format import IMAGE, LABEL, MAX_CATALOG_TEXT_BYTES, OBJECTS, Feature

_ARRAY_ENDS = (".npy", ".NPY")
_MIN_CLASSES = 5  # minimum number of classes for the warning about classes with one image
_MAX_FIRST_ARRAYS = 8  # arrays to keep; at least one must be valid

# Inputs that are processed together.
BATCH_IMAGES = 4096

# Reason -> the missing value and the advice, if more inputs lack this value than the run allows.
_MISSING_VALUES = {
    NO_SPLIT: ("split", "Use --divide rest to divide them, or --split_column='' to ignore the named splits"),
    NO_GROUP: ("group", "Give each input a group, or omit --group"),
    BAD_LABEL: ("valid class", "leave them out with --max_bad_fraction="),
}

_Collector = tuple[str, Callable[[InputRecord], Collection[str]] | None]


@dataclasses.dataclass
class ListedPart:
    """Facts about the inputs in one or more parts of a source.

    Attributes:
        num_images: The number of inputs that were listed, without dead letters.
        num_bytes: The total size of all images in bytes, as far as it is known.
        num_unsized: The number of inputs of unknown size.
        reference_bytes: The size of the references in memory, in bytes.
        num_ignored: The number of files that were ignored.
        dead_letters: The inputs that were rejected.
        missing_values: Reason -> the rejected inputs without a split, a group or a valid class.
        ungrouped: The inputs without a value in the group column, if groups are optional or there is no group column.
        groups: The counts of groups, if no later stage counts them.
        unmatched: The inputs for whose keys `--group_pattern` finds no group.
        without_stratum: The inputs without a value to stratify by.
        splits: The splits that the source assigns; None stands for inputs without a split.
        labels: Feature -> class names that occur.
        several_labels: The features that have more than one class in an input.
        known_labels: Feature -> class names that the source knows without inputs, in order if they are a tuple.
        long_texts: The features with a text that is too long for the catalog.
        raws: The layouts of raw images, at most two per kind, which is enough to see that sizes differ. None stands for
            images with an image format.
        arrays: The first few paths of images in `.npy` files, from which the image layout is read later.
        unused_fields: The columns and fields that are not kept.
        group_names: Names of categories that only group others. They are classes only if an image has them.
        boxes: The counts of boxes whose format is not declared in their table or sample.
        unexpected_files: The unexpected files in class folders; None for other sources.
        versions: The path of each opened file -> its version.
    """

    num_images: int = 0
    num_bytes: int = 0
    num_unsized: int = 0
    reference_bytes: int = 0
    num_ignored: int = 0
    dead_letters: DeadLetterCount = dataclasses.field(default_factory=DeadLetterCount)
    missing_values: dict[str, DeadLetterCount] = dataclasses.field(
        default_factory=lambda: {reason: DeadLetterCount() for reason in _MISSING_VALUES}
    )
    ungrouped: FirstKeys = dataclasses.field(default_factory=FirstKeys)
    groups: GroupCounts = dataclasses.field(default_factory=GroupCounts)
    unmatched: FirstKeys = dataclasses.field(default_factory=FirstKeys)
    without_stratum: FirstKeys = dataclasses.field(default_factory=FirstKeys)
    splits: set[str | None] = dataclasses.field(default_factory=set)
    labels: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    several_labels: set[str] = dataclasses.field(default_factory=set)
    known_labels: dict[str, Collection[str]] = dataclasses.field(default_factory=dict)
    long_texts: set[str] = dataclasses.field(default_factory=set)
    raws: set[RawImage | None] = dataclasses.field(default_factory=set)
    arrays: list[str] = dataclasses.field(default_factory=list)
    unused_fields: UnusedFields = dataclasses.field(default_factory=UnusedFields)
    group_names: set[str] = dataclasses.field(default_factory=set)
    boxes: BoxForms = dataclasses.field(default_factory=BoxForms)
    unexpected_files: UnexpectedFiles | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    def merge(self, other: "ListedPart") -> None:
        """Adds the facts about one more part.

        Raises:
            UserError: The inputs name too many splits (see `add_splits`).
            DataError: A file changed between two parts.
        """
        self.num_images += other.num_images
        self.num_bytes += other.num_bytes
        self.num_unsized += other.num_unsized
        self.reference_bytes += other.reference_bytes
        self.num_ignored += other.num_ignored
        self.dead_letters.merge(other.dead_letters)
        for reason, dead_letters in other.missing_values.items():
            self.missing_values[reason].merge(dead_letters)
        self.ungrouped.merge(other.ungrouped)
        self.groups.merge(other.groups)
        self.unmatched.merge(other.unmatched)
        self.without_stratum.merge(other.without_stratum)
        self.add_splits(other.splits)
        self.long_texts |= other.long_texts
        self.add_raws(other.raws)
        self.add_arrays(other.arrays)
        self.unused_fields.merge(other.unused_fields)
        self.group_names |= other.group_names
        self.boxes.merge(other.boxes)
        self.several_labels |= other.several_labels
        for feature, names in other.labels.items():
            self.labels.setdefault(feature, set()).update(names)
        for feature, names in other.known_labels.items():
            mine = self.known_labels.get(feature, names)
            self.known_labels[feature] = mine if mine == names else {*mine, *names}
        if other.unexpected_files:
            self.unexpected_files = self.unexpected_files or UnexpectedFiles()
            self.unexpected_files.merge(other.unexpected_files)
        for path, version in other.versions.items():
            add_version(self.versions, path, version)

    def add_splits(self, splits: Iterable[str | None]) -> None:
        """Adds splits.

        Raises `UserError` during the listing if there are too many splits, because a complete listing may take hours.
        """
        self.splits.update(splits)
        if len(self.splits) > MAX_SPLITS:
            some = ", ".join(sorted(self.splits - {None})[:3])
            raise UserError(
                f"The inputs name at least {len(self.splits):,} splits ({some}, …), and {MAX_SPLITS} is the limit. "
                "Use --split_column='' to ignore the column. If its values are groups, pass it as --group."
            )

    def add_raws(self, raws: set[RawImage | None]) -> None:
        """Adds layouts.

        For a reproducible result, only the two layouts of each kind that sort first are kept.
        """
        if raws <= self.raws:
            return
        kinds: dict[tuple, list[RawImage]] = {}
        for raw in sorted((self.raws | raws) - {None}):
            kinds.setdefault(raw.kind, []).append(raw)
        self.raws = {raw for others in kinds.values() for raw in others[:2]} | ({None} & (self.raws | raws))

    def add_arrays(self, paths: Iterable[str]) -> None:
        """Adds paths.

        For a reproducible result, only the few paths that sort first are kept.
        """
        self.arrays = sorted({*self.arrays, *paths})[:_MAX_FIRST_ARRAYS]

    def reject_unexpected_files(self, source: Source) -> None:
        """Raises UserError if there are unexpected files. Call this method after the facts about all parts have been
        merged."""
        if self.unexpected_files:
            self.unexpected_files.reject(source.root)

    def empty_groups(self) -> set[str]:
        """Returns the supercategories that are not the class of any object."""
        return self.group_names - self.labels.get(OBJECT_LABEL, set())

    @property
    def num_inputs(self) -> int:
        """The number of inputs, including dead letters."""
        return self.num_images + self.dead_letters.num


def list_part(source: Source, part: str, facts: ListedPart) -> Iterator[list[InputRecord] | DeadLetter]:
    """Lists one part of a source, yields its inputs in batches of `BATCH_IMAGES`, and records facts in `facts`."""
    source.num_ignored = 0
    collect, others = label_collectors(source), other_images(source)
    texts = [feature.name for feature in source.features if feature.kind == "text" and not feature.shape]
    for feature, _ in collect:
        facts.labels.setdefault(feature, set())
    inputs = source.list(part)
    while listed := list(itertools.islice(inputs, BATCH_IMAGES)):
        rejected = [item for item in listed if isinstance(item, DeadLetter)]
        facts.dead_letters.add(rejected)
        for reason in _MISSING_VALUES if rejected else ():
            facts.missing_values[reason].add([entry for entry in rejected if entry.reason == reason])
        yield from rejected
        images = [element for element in listed if not isinstance(element, DeadLetter)] if rejected else listed
        if images:
            _collect_facts(facts, images, collect, others)
            facts.long_texts.update(
                name for name in texts if name not in facts.long_texts and any(_is_long(image.values[name]) for image in images)
            )
            yield images
    facts.num_ignored += source.num_ignored
    facts.known_labels = dict(source.label_names())
    facts.unexpected_files = getattr(source, "unexpected_files", None)  # only sources of class folders have it
    if unused_fields := getattr(source, "unused_fields", None):  # only sources of columns, fields or objects have it
        facts.unused_fields.merge(unused_fields)
    facts.group_names |= getattr(source, "group_names", frozenset())  # only COCO's categories have groups
    if boxes := getattr(source, "boxes", None):  # only sources that accept several box formats have it
        facts.boxes.merge(boxes.take())


def _is_long(text: str) -> bool:
    return len(text) > MAX_CATALOG_TEXT_BYTES or (not text.isascii() and len(text.encode()) > MAX_CATALOG_TEXT_BYTES)


def _collect_facts(facts: ListedPart, batch: list[InputRecord], collect: list[_Collector], others: tuple[str, ...]) -> None:
    columns = InputRecord(*zip(*batch))
    facts.num_images += len(batch)
    sizes = [image_bytes(image, others) for image in batch] if others else columns.num_bytes
    facts.num_bytes += sum(sizes)
    facts.num_unsized += sizes.count(0)
    facts.add_splits(columns.split)
    facts.add_raws(set(columns.raw))
    facts.add_arrays([path for path, raw in zip(columns.path, columns.raw) if raw is None and path.endswith(_ARRAY_ENDS)])
    for feature, names in collect:
        if names is None:
            facts.labels[feature].update(columns.label)
            continue
        for image in batch:
            labels = names(image)
            facts.labels[feature].update(labels)
            if len(labels) > 1:
                facts.several_labels.add(feature)


def label_collectors(source: Source) -> list[_Collector]:
    """Returns each class feature with a function that returns an input's class names for this feature."""
    collectors = []
    for feature in source.features:
        if feature.kind != "class_label":
            continue
        if feature.name == LABEL and not feature.shape:
            collectors.append((LABEL, None))
        elif feature.name == OBJECT_LABEL:
            collectors.append((OBJECT_LABEL, lambda image: image.values[OBJECTS].labels))
        elif feature.shape:
            collectors.append((feature.name, lambda image, name=feature.name: image.values[name]))
        else:
            collectors.append((feature.name, lambda image, name=feature.name: (image.values[name],)))
    return collectors


def make_listing(config: PrepareJob, source: Source, facts: ListedPart) -> Listing:
    """Creates the `Listing` of a run from the facts about all parts of the source.

    Raises:
        UserError: The inputs do not form a valid dataset.
    """
    facts.reject_unexpected_files(source)
    if config.source.can.has_class_folders and config.source.class_folder_depth is None and facts.unexpected_files and facts.unexpected_files.layout:
        _check_class_folders(config, source.root, facts.unexpected_files)
    for reason in (NO_SPLIT, NO_GROUP):
        _check_column(config, facts, reason)
    if not facts.num_images:
        rejected = f" Dead letters:{facts.dead_letters.describe()}" if facts.dead_letters.num else ""
        expected = "readable image" if config.source.has_images else "example"
        raise UserError(f"--input={config.input}: contains no {expected}.{rejected}")
    _check_column(config, facts, BAD_LABEL)
    facts.boxes.check(config.source)
    _check_strata(config, facts)
    splits = _name_splits(config, facts)
    num_spanning, group, in_splits = facts.groups.spanning()
    if num_spanning:
        raise spanning_groups(config, num_spanning, group.decode(), in_splits)
    return Listing(
        source=config.source.kind,
        root=source.root,
        schema=_make_schema(config, source, facts),
        targets=source.targets,
        listed_labels={
            feature: frozenset(names).union(facts.known_labels.get(feature, ()) if config.source.can.has_class_folders else ())
            for feature, names in facts.labels.items()
        },
        splits=splits,
        fractions=config.shares if facts.splits == {None} else None,
        num_inputs=facts.num_inputs,
        num_bytes=0 if facts.num_unsized else facts.num_bytes,
        reference_bytes=facts.reference_bytes,
        num_ignored=facts.num_ignored,
        dead_letters=facts.dead_letters,
        unused_fields=tuple(sorted(facts.unused_fields.names)),
        division=_division_by_hash(config, facts),
        unused_categories=tuple(sorted(map(printable, facts.empty_groups()))),
        warnings=(
            *_group_warnings(facts),
            *_similar_names(facts),
            *facts.boxes.warnings(config.source),
            *_class_folder_warnings(facts),
            *class_warnings(config, _unlisted_classes(config, source, facts), facts.num_images),
        ),
        versions=dict(sorted(facts.versions.items())),
    )


def _check_class_folders(config: PrepareJob, root: str, unexpected_files: UnexpectedFiles) -> None:
    """Raises `UserError` if the class of images in nested folders is unclear."""
    reading = read_class_folders(root, {"": unexpected_files.labels}, config.split_folders)
    if reading and reading.depth != ALL:
        raise UserError(
            f"--input={printable(root)}: {reading.why}. Use --class_folder_depth={reading.depth} if the folder at "
            "that depth is the class, "
            "or --class_folder_depth=all to read each folder as a class."
        )


def _division_by_hash(config: PrepareJob, facts: ListedPart) -> Division | None:
    """Describes how groups were divided among splits by their hash. Returns None if there are no groups, or if splits
    are predefined by the source."""
    groups, nums = facts.groups.sizes()
    if not groups or facts.splits != {None}:
        return None
    by_group = SplitByGroup(config.shares)
    largest = largest_groups(by_group.names, groups, nums, by_group(groups))
    return Division((), config.shares, {}, num_groups=len(groups), largest=largest)


def _unlisted_classes(config: PrepareJob, source: Source, facts: ListedPart) -> dict[str, set[str]]:
    """Returns the class names of each target with one class per example whose class names the user has not listed."""
    listed = {name for name in source.targets if config.source.names_of(name) or name in config.source.first_label_names}
    targets = [feature for feature in source.features if feature.name in source.targets and feature.name not in listed]
    return {
        feature.name: {*facts.labels[feature.name], *facts.known_labels.get(feature.name, ())}
        for feature in targets
        if feature.kind == "class_label" and not feature.shape
    }


def _group_warnings(facts: ListedPart) -> Iterator[str]:
    """Yields a warning if only some inputs have a group."""
    if 0 < facts.ungrouped.num < facts.num_images:
        yield (
            f"group: {facts.ungrouped.num:,} inputs have no group, so each forms its own group "
            f"({facts.ungrouped.describe()}). Pass --group=group to reject them, or --group='' to ignore the column."
        )


def _similar_names(facts: ListedPart) -> Iterator[str]:
    """Yields a warning for each feature with class names that probably mean the same class, such as `Cat` and `cat`."""
    for feature, names in sorted(facts.labels.items()):
        by_descriptor = collections.defaultdict(list)
        for name in sorted(names):
            is_letter = len(name) == 1  # `a` and `A` are classes of handwriting
            look = name if is_letter else " ".join(name.casefold().split())
            by_descriptor[look.lstrip("0") if name.isdecimal() else look].append(name)
        if similar := [some for some in by_descriptor.values() if len(some) > 1]:
            yield (
                f"{feature}: class names that differ only in case, spaces or leading zeros are read as different "
                "classes: "
                f"{' and '.join(repr(printable(name)) for name in similar[0][:3])}. Give them one name if they are one class."
            )


def _class_folder_warnings(facts: ListedPart) -> Iterator[str]:
    """Yields warnings if folders do not seem to be classes, or if single images do not seem to be examples."""
    names = facts.labels.get(LABEL, ())
    if not facts.unexpected_files or not facts.unexpected_files.layout:
        return
    if facts.unexpected_files.num_masks:
        yield (
            f"label: {facts.unexpected_files.num_masks:,} of {facts.num_images:,} images have names like masks, for example "
            f"{printable(facts.unexpected_files.masks)!r}, but are read as separate examples. To read masks, put images and "
            "masks in folders called images and masks, and use --source=masks."
        )
    if len(names) >= _MIN_CLASSES and facts.num_images < 2 * len(names):
        yield (
            f"label: {facts.num_images:,} images in {len(names):,} class folders, so many classes have only one "
            "image. If these folders are not classes, choose the class folders with --class_folder_depth."
        )


def _check_column(config: PrepareJob, facts: ListedPart, reason: str) -> None:
    """Raises `UserError` if too many inputs have no split, no group or no class."""
    missing, (column, advice) = facts.missing_values[reason], _MISSING_VALUES[reason]
    if reason == BAD_LABEL:
        default = "use --default COLUMN=VALUE for empty cells, " if config.source.can.has_key_column else ""
        advice = f"Correct them, {default}or {advice}{sufficient_fraction(facts.dead_letters.num, facts.num_inputs)}"
    if missing.num > config.max_dead_letters(facts.num_inputs):
        example = missing.first[0]
        rows = "rows" if config.source.can.has_columns else "inputs"
        raise UserError(
            f"--input={config.input}: {missing.num:,} of {facts.num_inputs:,} {rows} have no {column}, for example "
            f"{printable(example.path)}: {example.message}. {advice}."
        )


def _check_strata(config: PrepareJob, facts: ListedPart) -> None:
    if facts.unmatched.num:
        raise UserError(
            f"--group_pattern={printable(config.group_pattern)}: does not match {facts.unmatched.num:,} of "
            f"{facts.num_images:,} keys: {facts.unmatched.describe()}. Change the pattern so that it matches each key."
        )
    if facts.without_stratum.num:
        raise UserError(
            f"--stratify={','.join(config.stratify)}: {facts.without_stratum.num:,} of {facts.num_images:,} inputs "
            f"have no value: {facts.without_stratum.describe()}. Add the values, or stratify by another feature."
        )


def _name_splits(config: PrepareJob, facts: ListedPart) -> tuple[str, ...]:
    """Returns the names of the splits, from the source and the options."""
    given, is_open, divide = facts.splits - {None}, None in facts.splits, set(config.source.divide)
    if divide:
        return _name_divided(config, given, is_open)
    if not given:
        return tuple(config.shares)
    if is_open:
        raise UserError(
            f"--input={config.input}: some inputs name their split and others do not. Use --divide {REST} to divide "
            "the others."
        )
    if config.asks_for_shares:
        raise given_already(config, f"--input={config.input}", _how_to_leave_splits(config), given)
    names = order_splits(given)
    if config.stratify or config.splits_from:
        option = "--stratify" if config.stratify else "--splits_from"
        raise UserError(
            f"{option}: the inputs already name their splits ({', '.join(names)}). Use --divide {names[0]} to divide "
            f"that split, or {_how_to_leave_splits(config)} to ignore them."
        )
    return names


def _name_divided(config: PrepareJob, given: set[str], is_open: bool) -> tuple[str, ...]:
    option, divide = f"--divide={','.join(config.source.divide)}", config.source.divide
    names = ", ".join(order_splits(given))
    for split in divide:
        if split != REST and split not in given:
            known = f"They name {names}." if given else "They name no splits: omit --divide."
            raise UserError(f"{option}: no input names a split {split!r}{did_you_mean(split, given) or '.'} {known}")
    if is_open and REST not in divide:
        raise UserError(
            f"{option}: some inputs name no split. Use --divide {','.join(divide)},{REST} to divide them too."
        )
    if not is_open and not given.intersection(divide):
        raise UserError(f"{option}: every input names its split. Choose one of them to divide: {names}.")
    fixed, shares = given.difference(divide), config.shares
    if (both := sorted(fixed.intersection(shares))) and divide != (REST,):
        raise UserError(
            f"{option}: some inputs already name the split {both[0]!r}, and other inputs would be added to it. Choose "
            f"other names in {'--folds' if config.folds is not None else '--splits'}, or use --divide "
            f"{','.join([*divide, *both])}."
        )
    return order_splits(fixed, shares) if fixed else tuple(shares)


def _how_to_leave_splits(config: PrepareJob) -> str:
    if config.source.split_column:
        return "--split_column=''"
    column = " (--split_column='' for a column)" if config.source.can.has_columns else ""
    return f"--split_folders=no{column}"


def _make_schema(config: PrepareJob, source: Source, facts: ListedPart) -> tuple[Feature, ...]:
    features = [Feature("key", "text")]
    if config.source.has_images:
        features.append(_image_feature(config, source.root, facts))
        if config.check != "none":  # otherwise image sizes are unknown
            features += [Feature("height", "integer"), Feature("width", "integer")]
        _check_follows(config, source, facts)
    for feature in source.features:
        if feature.kind == "class_label":
            names, known = facts.labels[feature.name], facts.known_labels.get(feature.name, ())
            if feature.name == OBJECT_LABEL and (empty := facts.empty_groups()):
                known = type(known)(name for name in known if name not in empty)
            is_scalar_each = feature.name not in facts.several_labels if feature.shape else None
            table = make_class_table(config.source, feature.name, names, known, is_scalar_each=is_scalar_each)
            feature = dataclasses.replace(feature, label_names=table)
        if feature.name in facts.long_texts:
            feature = dataclasses.replace(feature, is_long=True)
        if feature.kind == "image":
            feature = _other_image(config, feature.name)
            features += [Feature(f"{feature.name}/{side}", "integer") for side in ("height", "width") if config.check != "none"]
        features.append(feature)
    names = sorted(feature.name for feature in features)
    for name in config.descriptions:
        if name not in names:
            raise UserError(
                f"--describe={name}=…: there is no such feature{did_you_mean(name, names) or '.'} Choose one of "
                f"{', '.join(names)}."
            )
    described = (
        dataclasses.replace(item, description=config.descriptions.get(item.name, item.description)) for item in features
    )
    return tuple(sorted(described, key=lambda feature: feature.name))


def _check_follows(config: PrepareJob, source: Source, facts: ListedPart) -> None:
    """Raises `UserError` if `--check=none` is combined with options that require image headers."""
    if config.check != "none":
        return
    following = [f.name for f in source.features if f.kind in ("mask", "bbox") or (f.kind in ("float", "tensor") and len(f.shape) > 1)]
    if following:
        raise UserError(
            f"--check=none: the size of {following[0]!r} must match the image, but --check=none does not read images. "
            "Use "
            "--check=header."
        )
    if not config.images.is_kept or facts.raws != {None} or facts.arrays:
        raise UserError(
            "--check=none: images that are arrays, or are resized or converted, must be read. Use --check=header or a "
            "stricter check."
        )


def _image_feature(config: PrepareJob, root: str, facts: ListedPart) -> Feature:
    raws = {*facts.raws, *([_first_layout(root, facts.arrays)] if facts.arrays else [])} - {None}
    if any(raw.is_tensor for raw in raws):
        return _image_tensor(config, raws, is_of_files=bool(facts.arrays))
    if config.images.encoding == "file":
        return Feature(IMAGE, "image", dtype="uint16" if config.images.keep_depth else "")
    sizes = {raw and (raw.height, raw.width) for raw in facts.raws}
    exact = config.images.size if config.images.size and config.images.size[0] == "exact" else None
    if exact is None and (len(sizes) > 1 or sizes == {None} or config.images.size):
        raise UserError(
            "--image_encoding=raw: all images must have the same size. Pass one, for example --image_size=exact=32x32."
        )
    height, width = exact[1:] if exact else next(iter(sizes))
    channels = {raw.num_channels if raw else 3 for raw in facts.raws}
    if len(channels) > 1:
        raise UserError(
            "--image_encoding=raw: some arrays are gray and others have colors. Convert them to the same number of "
            "channels."
        )
    return Feature(IMAGE, "pixels", (height, width, channels.pop()))


def _other_image(config: PrepareJob, name: str) -> Feature:
    if config.images.encoding == "file":
        return Feature(name, "image", dtype="uint16" if config.images.keep_depth else "")
    if config.images.size is None or config.images.size[0] != "exact":
        raise UserError(
            f"--image_encoding=raw: all images of {name!r} must have the same size. Pass "
            "--image_size=exact=HEIGHTxWIDTH."
        )
    return Feature(name, "pixels", (*config.images.size[1:], 3))


def _image_tensor(config: PrepareJob, raws: set[RawImage], is_of_files: bool) -> Feature:
    """Returns the feature for images that are stored as tensors in arrays. Raises `UserError` unless all arrays have
    the same dtype and the same number of channels."""
    kinds = sorted({(np.dtype(raw.dtype).name, raw.num_channels) for raw in raws})
    (dtype, num_channels), *others = kinds
    if others:
        types = ", ".join(f"{name} in {number} channels" for name, number in kinds[:3])
        raise UserError(f"The images are arrays of {types}. Convert them to one type and one number of channels.")
    if not config.images.is_kept or config.images.keep_depth:
        raise UserError(
            "--image_size, --image_format, --image_encoding and --keep_depth are only for image files, but these "
            f"images are arrays of {dtype} in {num_channels} channels, which are stored unchanged. Omit these "
            "options; batches(image_size=...) resizes the arrays when they are read."
        )
    sizes = {(raw.height, raw.width) for raw in raws}
    size = sizes.pop() if len(sizes) == 1 and not is_of_files else (None, None)
    return Feature(IMAGE, "tensor", (*size, num_channels), dtype=dtype)


def _first_layout(root: str, paths: list[str]) -> RawImage:
    """Returns the layout of the first valid image that is stored in a `.npy` file."""
    problems = []
    for name in paths:
        path = f"{root}/{name}"
        try:
            return npy_layout(read_start(root, name, MAX_HEADER_BYTES))[0]
        except OSError as error:
            problems.append(f"{printable(path)}: {describe_fact(error, path)}")
        except InvalidInput as error:
            problems.append(f"{printable(path)}: {error}")
    raise UserError(
        f"None of the first .npy files is a readable image: {problems[0]}. Correct them, or exclude them with --ignore."
    )
