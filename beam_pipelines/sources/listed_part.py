"""Collects facts about inputs while parts are listed, and derives the dataset's schema from them."""

import collections
import dataclasses
import itertools
from typing import Callable, Collection, Iterable, Iterator

import numpy as np

from beam_pipelines.config.prepare_config import MAX_SPLITS, REST
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.class_tables import OBJECT_LABEL, make_class_table
from beam_pipelines.elements.dead_letters import BAD_LABEL, NO_GROUP, NO_SPLIT, DeadLetter, DeadLetterCount
from beam_pipelines.elements.division import Division, largest_groups
from beam_pipelines.elements.first_keys import FirstKeys
from beam_pipelines.elements.input_record import InputRecord, image_bytes
from beam_pipelines.elements.listing import Listing, order_splits, torn_groups
from beam_pipelines.elements.split_hashes import SplitByGroup
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.images.npy_header import MAX_HEADER_BYTES
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.tensor_values import npy_layout
from beam_pipelines.sources.cells.box_forms import BoxForms
from beam_pipelines.sources.cells.left_out import LeftOut
from beam_pipelines.sources.folders.class_folders import ALL, read_class_folders
from beam_pipelines.sources.folders.layouts import given_already
from beam_pipelines.sources.folders.other_files import Strays
from beam_pipelines.sources.group_counts import GroupCounts
from beam_pipelines.sources.source import Source, other_images
from beam_pipelines.storage.files import read_start
from beam_pipelines.storage.input_errors import describe_fact
from beam_pipelines.storage.versions import add_version
from tf_input.dataset_format import IMAGE, LABEL, MAX_CATALOG_TEXT_BYTES, OBJECTS, Feature

_MAX_GROUPS_SHOWN = 5
_ARRAY_ENDS = (".npy", ".NPY")
_MIN_CLASSES = 5  # minimum number of classes for the warning about classes with one image
_MAX_FIRST_ARRAYS = 8  # arrays to keep; at least one must be valid

# Inputs that are processed together.
BATCH_IMAGES = 4096

# Reason -> the missing value and the advice, if more inputs lack this value than the run allows.
_LACKS = {
    NO_SPLIT: ("split", "Use --divide rest to place them, or --split_column='' to ignore the splits that inputs name"),
    NO_GROUP: ("group", "Give each input a group, or omit --group"),
    BAD_LABEL: ("valid class", "raise --max_bad_fraction to leave them out"),
}

_Collector = tuple[str, Callable[[InputRecord], Collection[str]] | None]


@dataclasses.dataclass
class ListedPart:
    """Facts about one or several parts of a source.

    Attributes:
        num_images: The number of inputs that were listed, without dead letters.
        num_bytes: The total size of all images in bytes, as far as it is known.
        num_unsized: The number of inputs of unknown size.
        reference_bytes: The size of the references in memory, in bytes.
        num_ignored: The number of files that were ignored.
        dead_letters: The inputs that were rejected.
        lacking: Reason -> the rejected inputs without a split, a group or a valid class.
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
        left_out: The columns and fields that are not kept.
        group_names: Names of categories that only group others. They are classes only if an image has them.
        boxes: The counts of boxes whose format is not declared in their table or sample.
        strays: The unexpected files in class folders; None for other sources.
        versions: The path of each opened file -> its version.
    """

    num_images: int = 0
    num_bytes: int = 0
    num_unsized: int = 0
    reference_bytes: int = 0
    num_ignored: int = 0
    dead_letters: DeadLetterCount = dataclasses.field(default_factory=DeadLetterCount)
    lacking: dict[str, DeadLetterCount] = dataclasses.field(default_factory=lambda: {reason: DeadLetterCount() for reason in _LACKS})
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
    left_out: LeftOut = dataclasses.field(default_factory=LeftOut)
    group_names: set[str] = dataclasses.field(default_factory=set)
    boxes: BoxForms = dataclasses.field(default_factory=BoxForms)
    strays: Strays | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    def merge(self, other: "ListedPart") -> None:
        """Adds the facts about another part.

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
        for reason, dead_letters in other.lacking.items():
            self.lacking[reason].merge(dead_letters)
        self.ungrouped.merge(other.ungrouped)
        self.groups.merge(other.groups)
        self.unmatched.merge(other.unmatched)
        self.without_stratum.merge(other.without_stratum)
        self.add_splits(other.splits)
        self.long_texts |= other.long_texts
        self.add_raws(other.raws)
        self.add_arrays(other.arrays)
        self.left_out.merge(other.left_out)
        self.group_names |= other.group_names
        self.boxes.merge(other.boxes)
        self.several_labels |= other.several_labels
        for feature, names in other.labels.items():
            self.labels.setdefault(feature, set()).update(names)
        for feature, names in other.known_labels.items():
            mine = self.known_labels.get(feature, names)
            self.known_labels[feature] = mine if mine == names else {*mine, *names}
        if other.strays:
            self.strays = self.strays or Strays()
            self.strays.merge(other.strays)
        for path, version in other.versions.items():
            add_version(self.versions, path, version)

    def add_splits(self, splits: Iterable[str | None]) -> None:
        """Adds splits.

        Raises UserError as soon as there are too many splits, because the whole listing may take hours.
        """
        self.splits.update(splits)
        if len(self.splits) > MAX_SPLITS:
            some = ", ".join(sorted(self.splits - {None})[:3])
            raise UserError(
                f"The inputs name at least {len(self.splits):,} splits ({some}, …), and {MAX_SPLITS} is the limit. "
                "Use --split_column='' to ignore the column; if it says which inputs belong together, pass it as "
                "--group."
            )

    def add_raws(self, raws: set[RawImage | None]) -> None:
        """Adds layouts.

        Keeps only the first two layouts of each kind in sorted order, so the result does not depend on the order of the
        inputs.
        """
        if raws <= self.raws:
            return
        kinds: dict[tuple, list[RawImage]] = {}
        for raw in sorted((self.raws | raws) - {None}):
            kinds.setdefault(raw.kind, []).append(raw)
        self.raws = {raw for those in kinds.values() for raw in those[:2]} | ({None} & (self.raws | raws))

    def add_arrays(self, paths: Iterable[str]) -> None:
        """Adds paths.

        Keeps only the first few paths in sorted order, so the result does not depend on the order of the inputs.
        """
        self.arrays = sorted({*self.arrays, *paths})[:_MAX_FIRST_ARRAYS]

    def refuse_strays(self, source: Source) -> None:
        """Raises UserError if there are unexpected files. Call this method after all parts are merged."""
        if self.strays:
            self.strays.refuse(source.root)

    def empty_groups(self) -> set[str]:
        """Returns the categories that are supercategories and that no image has as a class."""
        return self.group_names - self.labels.get(OBJECT_LABEL, set())

    @property
    def num_inputs(self) -> int:
        """The number of inputs: images and dead letters."""
        return self.num_images + self.dead_letters.num


def list_part(source: Source, part: str, found: ListedPart) -> Iterator[list[InputRecord] | DeadLetter]:
    """Yields the inputs of one part in batches of `BATCH_IMAGES`, and adds facts about them to `found`."""
    source.num_ignored = 0
    collect, others = label_collectors(source), other_images(source)
    texts = [feature.name for feature in source.features if feature.kind == "text" and not feature.shape]
    for feature, _ in collect:
        found.labels.setdefault(feature, set())
    inputs = source.list(part)
    while listed := list(itertools.islice(inputs, BATCH_IMAGES)):
        refused = [one for one in listed if isinstance(one, DeadLetter)]
        found.dead_letters.add(refused)
        for reason in _LACKS if refused else ():
            found.lacking[reason].add([one for one in refused if one.reason == reason])
        yield from refused
        images = [one for one in listed if not isinstance(one, DeadLetter)] if refused else listed
        if images:
            _learn(found, images, collect, others)
            found.long_texts.update(
                name for name in texts if name not in found.long_texts and any(_is_long(image.values[name]) for image in images)
            )
            yield images
    found.num_ignored += source.num_ignored
    found.known_labels = dict(source.label_names())
    found.strays = getattr(source, "strays", None)  # only sources of class folders have it
    if left_out := getattr(source, "left_out", None):  # only sources of columns, fields or objects have it
        found.left_out.merge(left_out)
    found.group_names |= getattr(source, "group_names", frozenset())  # only COCO's categories have groups
    if boxes := getattr(source, "boxes", None):  # only sources that accept several box formats have it
        found.boxes.merge(boxes.take())


def _is_long(text: str) -> bool:
    return len(text) > MAX_CATALOG_TEXT_BYTES or (not text.isascii() and len(text.encode()) > MAX_CATALOG_TEXT_BYTES)


def _learn(found: ListedPart, batch: list[InputRecord], collect: list[_Collector], others: tuple[str, ...]) -> None:
    columns = InputRecord(*zip(*batch))
    found.num_images += len(batch)
    sizes = [image_bytes(image, others) for image in batch] if others else columns.num_bytes
    found.num_bytes += sum(sizes)
    found.num_unsized += sizes.count(0)
    found.add_splits(columns.split)
    found.add_raws(set(columns.raw))
    found.add_arrays([path for path, raw in zip(columns.path, columns.raw) if raw is None and path.endswith(_ARRAY_ENDS)])
    for feature, names in collect:
        if names is None:
            found.labels[feature].update(columns.label)
            continue
        for image in batch:
            labels = names(image)
            found.labels[feature].update(labels)
            if len(labels) > 1:
                found.several_labels.add(feature)


def label_collectors(source: Source) -> list[_Collector]:
    """Returns (feature, function that returns an image's class names) for each class feature; None means
    `image.label`."""
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


def make_listing(config: PrepareJob, source: Source, found: ListedPart) -> Listing:
    """Creates the run's `Listing` from the facts about all parts.

    Raises:
        UserError: The inputs do not form a valid dataset.
    """
    found.refuse_strays(source)
    if config.source.can.has_class_folders and config.source.class_folder_depth is None and found.strays and found.strays.layout:
        _check_class_folders(config, source.root, found.strays)
    for reason in (NO_SPLIT, NO_GROUP):
        _check_column(config, found, reason)
    if not found.num_images:
        refused = f" Dead letters:{found.dead_letters.describe()}" if found.dead_letters.num else ""
        what = "readable image" if config.source.has_images else "example"
        raise UserError(f"--input={config.input}: contains no {what}.{refused}")
    _check_column(config, found, BAD_LABEL)
    found.boxes.check(config.source)
    _check_strata(config, found)
    splits = _name_splits(config, found)
    num_torn, group, in_splits = found.groups.torn()
    if num_torn:
        raise torn_groups(config, num_torn, group.decode(), in_splits)
    return Listing(
        source=config.source.kind,
        root=source.root,
        schema=_make_schema(config, source, found),
        targets=source.targets,
        listed_labels={
            feature: frozenset(names).union(found.known_labels.get(feature, ()) if config.source.can.has_class_folders else ())
            for feature, names in found.labels.items()
        },
        splits=splits,
        fractions=config.shares if found.splits == {None} else None,
        num_inputs=found.num_inputs,
        num_bytes=0 if found.num_unsized else found.num_bytes,
        reference_bytes=found.reference_bytes,
        num_ignored=found.num_ignored,
        dead_letters=found.dead_letters,
        left_out=tuple(sorted(found.left_out.names)),
        division=_division_by_hash(config, found),
        warnings=(*_warnings(found), *_similar_names(found), *found.boxes.warnings(config.source), *_class_folder_warnings(found)),
        versions=dict(sorted(found.versions.items())),
    )


def _check_class_folders(config: PrepareJob, root: str, strays: Strays) -> None:
    """Raises UserError if nested class folders were found only during listing, and their class is unclear."""
    reading = read_class_folders(root, {"": strays.labels}, config.split_folders)
    if reading and reading.depth != ALL:
        raise UserError(
            f"--input={printable(root)}: {reading.why}. Use --class_folder_depth={reading.depth} if that is the folder that names the class, "
            "or --class_folder_depth=all to take each folder as a class."
        )


def _division_by_hash(config: PrepareJob, found: ListedPart) -> Division | None:
    """Describes how the hash divides groups among the splits. Returns None if there are no groups, or if the source
    assigns splits."""
    groups, nums = found.groups.sizes()
    if not groups or found.splits != {None}:
        return None
    by_group = SplitByGroup(config.shares)
    largest = largest_groups(by_group.names, groups, nums, by_group(groups))
    return Division((), config.shares, {}, num_groups=len(groups), largest=largest)


def _warnings(found: ListedPart) -> Iterator[str]:
    """Yields warnings about groups and categories."""
    if 0 < found.ungrouped.num < found.num_images:
        yield (
            f"group: inputs without a group form a group each: {found.ungrouped.num:,} "
            f"({found.ungrouped.describe()}). Pass --group=group to reject them, or --group='' to ignore the column."
        )
    if empty := found.empty_groups():
        names = ", ".join(repr(printable(name)) for name in sorted(empty)[:_MAX_GROUPS_SHOWN])
        yield (
            f"{OBJECT_LABEL}: categories without annotations that only group others are no classes ({len(empty):,} found: {names}). "
            "Pass --label_names FILE to choose the classes and their order."
        )


def _similar_names(found: ListedPart) -> Iterator[str]:
    """Yields a warning for each feature with class names that probably mean the same class: `Cat` and `cat`, `01` and
    `1`."""
    for feature, names in sorted(found.labels.items()):
        by_look = collections.defaultdict(list)
        for name in sorted(names):
            is_letter = len(name) == 1  # `a` and `A` are classes of handwriting
            look = name if is_letter else " ".join(name.casefold().split())
            by_look[look.lstrip("0") if name.isdecimal() else look].append(name)
        if similar := [some for some in by_look.values() if len(some) > 1]:
            yield (
                f"{feature}: class names that differ only in case, spaces or leading zeros are different classes: "
                f"{' and '.join(repr(printable(name)) for name in similar[0][:3])}. Give them one name if they are one class."
            )


def _class_folder_warnings(found: ListedPart) -> Iterator[str]:
    """Yields a warning for each sign that folders do not correspond to classes, or that images do not correspond to
    examples."""
    names = found.labels.get(LABEL, ())
    if not found.strays or not found.strays.layout:
        return
    if found.strays.num_masks:
        yield (
            f"label: {found.strays.num_masks:,} of {found.num_images:,} images have names like masks, for example "
            f"{printable(found.strays.masks)!r}, but are read as separate examples. To read masks, put images and "
            "masks in folders called images and masks, and use --source=masks."
        )
    if len(names) >= _MIN_CLASSES and found.num_images < 2 * len(names):
        yield (
            f"label: {found.num_images:,} images in {len(names):,} class folders, so many classes have only one "
            "image. If these folders are not classes, use --class_folder_depth to say which folders are."
        )


def _check_column(config: PrepareJob, found: ListedPart, reason: str) -> None:
    """Raises UserError if the number of inputs without a split, a group or a class exceeds the limit for dead
    letters."""
    missing, (column, advice) = found.lacking[reason], _LACKS[reason]
    if reason == BAD_LABEL:
        default = "use --default COLUMN=VALUE for empty cells, " if config.source.can.has_key_column else ""
        advice = f"Correct them, {default}or {advice}"
    if missing.num > config.max_bad_fraction * found.num_inputs:
        example = missing.first[0]
        rows = "rows" if config.source.can.has_columns else "inputs"
        raise UserError(
            f"--input={config.input}: {missing.num:,} of {found.num_inputs:,} {rows} have no {column}, for example "
            f"{printable(example.path)}: {example.message}. {advice}."
        )


def _check_strata(config: PrepareJob, found: ListedPart) -> None:
    if found.unmatched.num:
        raise UserError(
            f"--group_pattern={printable(config.group_pattern)}: does not match {found.unmatched.num:,} of "
            f"{found.num_images:,} keys: {found.unmatched.describe()}. Change the pattern so that it matches each key."
        )
    if found.without_stratum.num:
        raise UserError(
            f"--stratify={','.join(config.stratify)}: {found.without_stratum.num:,} of {found.num_images:,} inputs "
            f"have no value: {found.without_stratum.describe()}. Add the values, or stratify by another feature."
        )


def _name_splits(config: PrepareJob, found: ListedPart) -> tuple[str, ...]:
    """Returns the names of the splits, from the source and the options."""
    given, is_open, divide = found.splits - {None}, None in found.splits, set(config.source.divide)
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


def _make_schema(config: PrepareJob, source: Source, found: ListedPart) -> tuple[Feature, ...]:
    features = [Feature("key", "text")]
    if config.source.has_images:
        features.append(_image_feature(config, source.root, found))
        if config.check != "none":  # otherwise image sizes are unknown
            features += [Feature("height", "integer"), Feature("width", "integer")]
        _check_follows(config, source, found)
    for feature in source.features:
        if feature.kind == "class_label":
            names, known = found.labels[feature.name], found.known_labels.get(feature.name, ())
            if feature.name == OBJECT_LABEL and (empty := found.empty_groups()):
                known = type(known)(name for name in known if name not in empty)
            is_one_each = feature.name not in found.several_labels if feature.shape else None
            table = make_class_table(config.source, feature.name, names, known, is_one_each=is_one_each)
            feature = dataclasses.replace(feature, label_names=table)
        if feature.name in found.long_texts:
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
        dataclasses.replace(one, description=config.descriptions.get(one.name, one.description)) for one in features
    )
    return tuple(sorted(described, key=lambda feature: feature.name))


def _check_follows(config: PrepareJob, source: Source, found: ListedPart) -> None:
    """Raises UserError if `--check=none` is used with features or image options that need the image header."""
    if config.check != "none":
        return
    following = [f.name for f in source.features if f.kind in ("mask", "bbox") or (f.kind in ("float", "tensor") and len(f.shape) > 1)]
    if following:
        raise UserError(
            f"--check=none: the size of {following[0]!r} must match the image, which this option leaves unread. Use "
            "--check=header."
        )
    if not config.images.is_kept or found.raws != {None} or found.arrays:
        raise UserError(
            "--check=none: arrays, and images to be resized or converted, have to be read. Use --check=header or a "
            "stricter check."
        )


def _image_feature(config: PrepareJob, root: str, found: ListedPart) -> Feature:
    raws = {*found.raws, *([_first_layout(root, found.arrays)] if found.arrays else [])} - {None}
    if any(raw.is_tensor for raw in raws):
        return _image_tensor(config, raws, is_of_files=bool(found.arrays))
    if config.images.encoding == "file":
        return Feature(IMAGE, "image", dtype="uint16" if config.images.keep_depth else "")
    sizes = {raw and (raw.height, raw.width) for raw in found.raws}
    exact = config.images.size if config.images.size and config.images.size[0] == "exact" else None
    if exact is None and (len(sizes) > 1 or sizes == {None} or config.images.size):
        raise UserError(
            "--image_encoding=raw: all images must have the same size. Pass one, for example --image_size=exact=32x32."
        )
    height, width = exact[1:] if exact else next(iter(sizes))
    channels = {raw.num_channels if raw else 3 for raw in found.raws}
    if len(channels) > 1:
        raise UserError(
            "--image_encoding=raw: some arrays are grey and others have colours. Convert them to the same number of "
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
    """Returns the feature for images from arrays, which may have any size. Raises UserError if dtypes or channel counts
    differ."""
    kinds = sorted({(np.dtype(raw.dtype).name, raw.num_channels) for raw in raws})
    (dtype, num_channels), *others = kinds
    if others:
        found = ", ".join(f"{name} in {number} channels" for name, number in kinds[:3])
        raise UserError(f"The images are arrays of {found}. Convert them to one type and one number of channels.")
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
