"""Creates the class table of a feature. A class table lists the class names in label order."""

import decimal
import re
from typing import Collection, Iterable, Mapping, Sequence

from beam_pipelines.columns.forms import form_of
from beam_pipelines.elements.label_lists import looks_like_list
from beam_pipelines.config.source_config import OBJECT_LABEL, SourceConfig
from beam_pipelines.errors import UserError, did_you_mean, printable
from tf_input.dataset_format import LABEL, OBJECTS

INTEGER = re.compile("0|[1-9][0-9]*")
_FRACTION = re.compile(r"[0-9]+\.[0-9]+")
_NUMBER = re.compile("-?[0-9]+")

# The limits for a class table of integers that has gaps: a number of names, and a multiple of the labels in use.
_MAX_SPARSE_NAMES = 10_000
_MAX_NAMES_PER_CLASS = 10
_MAX_SHOWN = 5


def make_class_table(
    source: SourceConfig, feature: str, found_names: Collection[str], known: Collection[str], *, is_scalar_each: bool | None
) -> tuple[str, ...]:
    """Returns the class names of a feature in label order.

    If all class names are integers, each integer is its own label, and missing integers become classes without
    examples. Names of class folders are always sorted, and the label is the index in the sorted list.

    Args:
        source: The configuration of the source, with the user's options for class names.
        feature: The name of the class feature.
        found_names: The class names that occur in the examples.
        known: The class names that the source declares. A tuple is in label order.
        is_scalar_each: Whether each example has at most one class. None if the feature does not allow several classes.

    Raises:
        UserError: The names do not form a class table, or are probably a mistake.
    """
    given, first = _given_names(source, feature), source.first_label_names.get(feature, ())
    known = given or known
    if isinstance(known, tuple) and known:
        _check_known(feature, set(found_names), known)
        return (*first, *(name for name in known if name not in first))
    names = {*found_names, *known}
    is_of_objects = feature.startswith(f"{OBJECTS}/")
    if not names and not is_of_objects:  # Datasets whose images have no objects are common.
        raise UserError(f"{feature}: none of the inputs has a class. Add classes, or pass --label_names FILE.")
    may_be_numbers = not source.kind.has_class_folders
    if may_be_numbers and not is_of_objects:
        _check_one_each(feature, names, is_scalar_each)
    integers = {name for name in names if INTEGER.fullmatch(name)}
    if first:
        return _continued_table(feature, first, names, integers if may_be_numbers else set())
    if not may_be_numbers or not integers:
        return tuple(sort_class_names(names))
    return _integer_table(feature, integers) if integers == names else _mixed_table(feature, names, integers)


def sort_class_names(names: Iterable[str]) -> list[str]:
    """Sorts class names, numerically if all names are integers ("-2" before "2" before "10", "01" before "1")."""
    names = list(names)
    if not are_integers(names):
        return sorted(names)
    return sorted(names, key=lambda name: (decimal.Decimal(name), name))  # int() rejects very long strings.


def are_integers(names: Iterable[str]) -> bool:
    """Returns whether all class names are integers, possibly with a minus sign or leading zeros."""
    return all(map(_NUMBER.fullmatch, names))


def _given_names(source: SourceConfig, feature: str) -> tuple[str, ...]:
    """Returns the class names that an option gives for a feature, or an empty tuple."""
    columns = [column for column in (*(source.labels or ()), *source.features) if column.name == feature]
    given = source.names_of(feature)
    form = form_of(columns[0]) if columns else None
    return form.class_names(columns[0], given) if form and form.is_flags else given


def _check_known(feature: str, found_names: set[str], known: tuple[str, ...]) -> None:
    if not found_names <= set(known):
        other = min(found_names - set(known))
        raise UserError(f"{feature}: unknown class {other!r}. The given class names are {', '.join(known[:5])}, …")


def _check_one_each(feature: str, names: set[str], is_scalar_each: bool | None) -> None:
    """Raises `UserError` if class names look like lists of classes or like flags (0 and 1)."""
    lists = sorted(filter(looks_like_list, names))
    if lists:
        raise UserError(
            f"{feature}: {len(lists)} of {len(names)} class names look like lists, such as {shorten(lists[0])!r}. Use "
            "the kind multi_label (class names or numbers) or multi_hot[N] (0 or 1 for each class; one_hot[N] if exactly one is 1), or pass "
            "--label_names FILE."
        )
    if is_scalar_each is False and names <= {"0", "1"}:
        raise UserError(
            f"{feature}: all lists contain only the numbers 0 and 1. Use the kind multi_hot[N] (0 or 1 for each "
            "class), or pass "
            "--label_names FILE with the names 0 and 1."
        )


def _continued_table(feature: str, first: tuple[str, ...], names: set[str], integers: set[str]) -> tuple[str, ...]:
    """Appends new class names to the class table of an earlier dataset. Existing classes keep their labels."""
    new = names - set(first)
    if first == tuple(map(str, range(len(first)))) and integers == names:
        return max(first, _integer_table(feature, names | set(first)), key=len)
    if new & integers and not any(map(INTEGER.fullmatch, first)):
        raise UserError(
            f"{feature}: the labels are integers, such as {shorten(min(new & integers))}, but the earlier class names "
            "are not, such as "
            f"{shorten(first[0])!r}. Give class names, or pass --label_names {feature}=FILE with all class names in "
            "their order."
        )
    return (*first, *sort_class_names(new))


def _integer_table(feature: str, names: set[str]) -> tuple[str, ...]:
    largest = max(names, key=lambda name: (len(name), name))
    if len(largest) > 18 or int(largest) >= max(_MAX_SPARSE_NAMES, _MAX_NAMES_PER_CLASS * len(names)):
        raise UserError(
            f"{feature}: the largest label is {shorten(largest)}, but only {len(names):,} labels have an example. If "
            "the labels are "
            "numbers instead of classes, use the kind integer or float. Otherwise pass --label_names FILE."
        )
    return tuple(map(str, range(int(largest) + 1)))


def _mixed_table(feature: str, names: set[str], integers: set[str]) -> tuple[str, ...]:
    """Returns the class table if some class names are integers and others are not, such as hexadecimal numbers.

    Raises `UserError` if most class names are integers, but cannot be used as labels because of the other names.
    """
    table = tuple(sort_class_names(names))
    if len(set(map(len, names))) == 1 and all(map(str.isdecimal, names)):
        return table
    # Steps of one half, such as 1, 1.5 and 2, can be classes. A single fraction among integers is probably a mistake.
    most = 3 / 4 if all(map(_FRACTION.fullmatch, names - integers)) else 1 / 2
    moved = [name for position, name in enumerate(table) if name in integers and name != str(position)]
    if moved and len(integers) > len(names) * most:
        others = ", ".join(repr(shorten(name)) for name in sorted(names - integers)[:3])
        raise UserError(
            f"{feature}: most labels are integers, but not {others}, so the number of class {shorten(moved[0])} would "
            "differ from its "
            "name. Use only integers, the kind float for fractions, or --label_names FILE with all class names."
        )
    return table


def check_class_options(source: SourceConfig, class_features: Sequence[str], masks: Sequence[str] = ()) -> None:
    """Checks that options with class names refer to class features only.

    Args:
        source: The configuration of the source.
        class_features: The names of the class features.
        masks: The names of the masks whose classes may have names.

    Raises:
        UserError: An option names another feature, or two options give the class names of one feature.
    """
    of_masks = not class_features and len(masks) == 1
    is_single = of_masks or list(class_features) in ([LABEL], [OBJECT_LABEL])
    class_features = [*class_features, *masks]
    what_has_names = f"Labels with class names: {', '.join(class_features) or 'none'}."
    if source.label_names and not is_single:
        advice = f"Give LABEL=FILE, such as --label_names {class_features[0]}=FILE." if class_features else "Omit --label_names."
        raise UserError(f"--label_names=FILE applies only to one label or to objects. {what_has_names} {advice}")
    for feature in source.label_names_of:
        if feature not in class_features:
            raise UserError(
                f"--label_names={feature}=…: no class names for {feature!r}{did_you_mean(feature, class_features)}. {what_has_names}"
            )
    both = [feature for feature in class_features if source.names_of(feature) and feature in source.first_label_names]
    if both:
        raise UserError(
            f"--label_names and --label_names_from both name the classes of {both[0]}. Give only one of them."
        )
    if source.first_label_names and not any(feature in source.first_label_names for feature in class_features):
        old = ", ".join(source.first_label_names)
        raise UserError(
            f"--label_names_from: the dataset has classes of {old}, which is no label of the input. {what_has_names}"
        )


def describe_changes(old: Mapping[str, tuple[str, ...]], new: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Returns one line for each class feature whose labels differ between the old and the new dataset."""
    lines = []
    for feature in sorted(old.keys() & new.keys()):
        numbers = {name: number for number, name in enumerate(new[feature])}
        moved = [(name, number) for number, name in enumerate(old[feature]) if numbers.get(name, number) != number]
        if moved:
            some = ", ".join(f"{shorten(name)!r} {number} -> {numbers[name]}" for name, number in moved[:_MAX_SHOWN])
            more = f" and {len(moved) - _MAX_SHOWN:,} more" if len(moved) > _MAX_SHOWN else ""
            lines.append(
                f"{feature}: class numbers differ from the replaced dataset: {some}{more}. Models that were trained on "
                "the replaced "
                "dataset use the old numbers. Pass --label_names_from OLD to keep the numbers of a dataset."
            )
    return lines


def shorten(name: str) -> str:
    """Shortens a class name for messages."""
    return printable(name if len(name) <= 80 else f"{name[:80]}…")
