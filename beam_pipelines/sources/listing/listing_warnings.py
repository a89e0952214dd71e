"""Warns about inputs that were probably misinterpreted, for example if each example has its own class."""

import collections
import os
import re
from typing import Collection, Iterator, Mapping

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.elements.class_tables import shorten
from beam_pipelines.errors import printable
from beam_pipelines.sources.files.label_files import TABLE_ENDINGS
from beam_pipelines.sources.files.layouts import split_of
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.source import Source
from tf_input.dataset_format import LABEL

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_MIN_CLASSES = 20  # minimum number of classes for the warning about a class for nearly every example
_MIN_FOLDERS = 5  # minimum number of classes for the warning about class folders with one image


def listing_warnings(options: PrepareOptions, source: Source, facts: ListedFacts) -> Iterator[str]:
    """Yields a warning for each sign that the inputs were probably misinterpreted."""
    yield from _group_warnings(facts)
    yield from _similar_names(facts)
    yield from facts.problems.boxes.warnings(options.source)
    for name, positions in sorted(facts.problems.positions.items()):
        yield from positions.warnings(name, options.source)
    yield from (f"{num:,} {rest}" for rest, num in sorted(facts.problems.noted.items()))
    for name, num in collections.Counter((options.source.mask_colors or {}).values()).items():
        if num > 1:
            yield f"mask: {num} colors or values have the class {printable(name)!r}, and become one class. Check the file with the classes."
    yield from _class_folder_warnings(facts)
    yield from class_warnings(options, _unlisted_classes(options, source, facts), facts.counts.num_images)


def class_warnings(options: PrepareOptions, labels: Mapping[str, Collection[str]], num_examples: int) -> Iterator[str]:
    """Yields at most one warning for each target. `labels` maps targets with one class per example to their class
    names."""
    for feature, names in sorted(labels.items()):
        if len(names) == 1:
            yield _one_class(options, feature, *names)
        elif not options.source.kind.has_class_folders:
            yield from _no_classes(options, feature, names, num_examples)


def _unlisted_classes(options: PrepareOptions, source: Source, facts: ListedFacts) -> dict[str, set[str]]:
    """Returns the class names of each target with one class per example, by name. Targets whose class names an option
    lists are omitted."""
    listed = {name for name in source.targets if options.source.names_of(name) or name in options.source.first_label_names}
    targets = [feature for feature in source.features if feature.name in source.targets and feature.name not in listed]
    return {
        feature.name: {*facts.schema.labels[feature.name], *facts.schema.known_names(feature.name)}
        for feature in targets
        if feature.is_categorical and not feature.shape
    }


def _group_warnings(facts: ListedFacts) -> Iterator[str]:
    """Yields a warning if only some inputs have a group."""
    if 0 < facts.splits.ungrouped.num < facts.counts.num_images:
        yield (
            f"inputs without a group: {facts.splits.ungrouped.num:,} ({facts.splits.ungrouped.describe()}). Each of them forms its own "
            f"group. Pass --group=group to reject them, or --group='' to ignore the column."
        )


def _similar_names(facts: ListedFacts) -> Iterator[str]:
    """Yields a warning for each feature with class names that probably mean the same class, such as `Cat` and `cat`."""
    for feature, names in sorted(facts.schema.labels.items()):
        by_descriptor = collections.defaultdict(list)
        for name in sorted(names):
            is_letter = len(name) == 1  # `a` and `A` are different classes in handwriting datasets
            look = name if is_letter else " ".join(name.casefold().split())
            by_descriptor[look.lstrip("0") if name.isdecimal() else look].append(name)
        if similar := [some for some in by_descriptor.values() if len(some) > 1]:
            yield (
                f"{feature}: class names that differ only in case, spaces or leading zeros are read as different classes: "
                f"{' and '.join(repr(printable(name)) for name in similar[0][:3])}. Give them one name if they are one class."
            )


def _class_folder_warnings(facts: ListedFacts) -> Iterator[str]:
    """Yields warnings if class folders do not seem to be classes, or if images seem to be the masks of other images."""
    names, files = facts.schema.labels.get(LABEL, ()), facts.problems.unexpected_files
    if not files:
        return
    for folder in sorted(files.split_folders):
        if (split := split_of(folder)) not in facts.splits.names:
            yield f"split folder {printable(folder)!r} contains no images, so the dataset has no split {printable(split)!r}."
    if not files.layout:
        return
    if files.masks.num:
        yield (
            f"label: {files.masks.num:,} of {facts.counts.num_images:,} images have names like masks, for example "
            f"{printable(files.masks.first[0])!r}, but are read as separate examples. To read masks, put images and "
            "masks in folders called images and masks, and use --source=masks."
        )
    if len(names) >= _MIN_FOLDERS and facts.counts.num_images < 2 * len(names):
        yield (
            f"label: {facts.counts.num_images:,} images in {len(names):,} class folders, so many classes have only one "
            "image. If these folders are not classes, choose the class folders with --class_folder_depth."
        )


def _one_class(options: PrepareOptions, feature: str, name: str) -> str:
    table = _table_beside(options.input) if options.source.kind.has_class_folders else ""
    advice = f", or --source=table with {table!r} as the input if this table contains the classes" if table else ""
    if options.label_pattern is None:
        advice += ", or --label_pattern=REGEX if the names of the files contain the classes"
    return (
        f"{feature}: the dataset has only one class, {shorten(name)!r}. If it is not a class, pass --label=none to "
        f"write examples without a label{advice}."
    )


def _no_classes(options: PrepareOptions, feature: str, names: Collection[str], num_examples: int) -> Iterator[str]:
    """Yields a warning if the class names seem to be numbers to predict, or if most examples have their own class."""
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    are_numbers = 2 * len(numbers) > len(names)
    fractions = [name for name in numbers if not float(name).is_integer()]
    columns = [column for column in options.source.labels or () if column.name == feature]
    column = shorten(",".join(columns[0].names)) if columns else "COLUMN"
    as_numbers = f"--label={column}:float"
    if not options.source.kind.has_columns:
        as_numbers = "a table as input, with --label=COLUMN:float"
    if are_numbers and fractions:
        yield (
            f"{feature}: {len(names):,} different values such as {shorten(min(fractions))!r} are read as classes. If "
            f"they are numbers to predict, pass {as_numbers}."
        )
    elif len(names) >= _MIN_CLASSES and 2 * len(names) > num_examples:
        advice = "they are not classes, choose another --label"
        if are_numbers:
            advice = f"they are numbers to predict, pass {as_numbers}"
        example = shorten(min(names))
        yield f"{feature}: {num_examples:,} examples have {len(names):,} classes, such as {example!r}. If {advice}."


def _table_beside(location: str) -> str:
    """Returns the name of the first table in the parent folder of a local folder, or "" if there is none."""
    try:
        names = sorted(os.listdir(os.path.dirname(os.path.abspath(location)))) if os.path.isdir(location) else []
    except OSError:
        return ""
    tables = (name for name in names if name.lower().endswith(TABLE_ENDINGS) and not name.startswith("."))
    return shorten(next(tables, ""))
