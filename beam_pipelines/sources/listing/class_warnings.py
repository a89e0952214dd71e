"""Warns about labels that are probably not classes, for example if each example has its own class."""

import os
import re
from typing import Collection, Iterator, Mapping

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.elements.class_tables import shorten
from beam_pipelines.sources.files.label_files import TABLE_ENDINGS

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_MIN_CLASSES = 20  # minimum number of classes for the warning about a class for nearly every example


def class_warnings(config: PrepareConfig, labels: Mapping[str, Collection[str]], num_examples: int) -> Iterator[str]:
    """Yields at most one warning for each target with one class per example.

    Args:
        config: The configuration of the run.
        labels: A mapping from target to its class names. Targets whose class names the user has listed are omitted.
        num_examples: The number of examples.
    """
    for feature, names in sorted(labels.items()):
        if len(names) == 1:
            yield _one_class(config, feature, *names)
        elif not config.source.can.has_class_folders:
            yield from _no_classes(config, feature, names, num_examples)


def _one_class(config: PrepareConfig, feature: str, name: str) -> str:
    table = _table_beside(config.input) if config.source.can.has_class_folders else ""
    advice = f", or --source=table with {table!r} as the input if this table contains the classes" if table else ""
    return (
        f"{feature}: the dataset has only one class, {shorten(name)!r}. If it is not a class, pass --label=none to "
        f"write examples without a label{advice}."
    )


def _no_classes(config: PrepareConfig, feature: str, names: Collection[str], num_examples: int) -> Iterator[str]:
    """Yields a warning if most class names are numbers, some of them with a fraction, or if most examples have their
    own class."""
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    are_numbers = 2 * len(numbers) > len(names)
    fractions = [name for name in numbers if not float(name).is_integer()]
    columns = [column for column in config.source.labels or () if column.name == feature]
    column = shorten(",".join(columns[0].names)) if columns else "COLUMN"
    as_numbers = f"--label={column}:float"
    if not config.source.can.has_columns:
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
