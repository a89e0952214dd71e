"""Finds the fields of records and samples that contain the labels, features, keys, splits, groups and weights."""

import itertools
from typing import Callable, Collection, Iterable, Mapping, Sequence

from beam_pipelines.columns.forms import form_of
from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_config import REST, SourceConfig
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.sources.cells.array_cells import find_array_shapes
from beam_pipelines.sources.cells.objects import ObjectReader
from beam_pipelines.sources.rows.row_mapper import RowMapper, RowRoles, check_defaults

_ROLES = ("key", "split", "group", "weight")


def check_fields(labels: Sequence[Column], features: Sequence[Column], found_names: Collection[str], place: str) -> None:
    """Raises `UserError` if `--label` or `--feature` names a field that does not exist. See `choose_roles` for the
    arguments."""
    for option, columns in (("--label", labels), ("--feature", features)):
        for name in (name for column in columns for name in column.names):
            if name not in found_names:
                raise unknown_name(option, name, found_names, place)


def map_fields(
    source: SourceConfig,
    labels: tuple[Column, ...],
    features: tuple[Column, ...],
    found_names: Iterable[Collection[str]],
    resolve: Callable[[Column], Column],
    items: str,
    objects: ObjectReader | None = None,
    class_names: Mapping[str, tuple[str, ...]] = {},
) -> RowMapper:
    """Maps the fields of records or samples to inputs.

    Args:
        source: The options that name the fields.
        labels: The fields that a model predicts, except objects.
        features: The other fields to keep.
        found_names: The names of the fields of each of the first records.
        resolve: Determines the shape and dtype of an array; see `find_array_shapes`.
        items: The plural noun for records in messages.
        objects: The reader of objects; None if no objects are kept.
        class_names: Field -> class names, if its values are class indices.

    Raises:
        UserError: A field that an option names does not exist, or is not an array as requested.
    """
    names, num_searched = search_names(found_names, wanted_names(source, *labels, *features))
    place = f"the first {num_searched:,} {items}"
    check_fields(labels, features, names, place)
    labels, features = (find_array_shapes(columns, resolve) for columns in (labels, features))
    roles = choose_roles(source, labels, features, names, place)
    names_of_features = names_of_fields(labels, features, source, class_names)
    return RowMapper(labels, features, source, roles=roles, objects=objects, class_names=names_of_features)


def choose_roles(
    source: SourceConfig, labels: tuple[Column, ...], features: tuple[Column, ...], found_names: Collection[str], place: str
) -> RowRoles:
    """Chooses the fields with the key, the split, the group and the weight: by options, or else by common names.

    Args:
        source: The options that name the fields.
        labels: The fields that a model predicts.
        features: The other fields to keep.
        found_names: The names of the existing fields.
        place: A description of the searched data for messages, such as `the first 1,000 records`.

    Raises:
        UserError: A field that an option names does not exist.
    """

    def check(option: str, name: str) -> str:
        if name not in found_names:
            raise unknown_name(option, name, found_names, place)
        return name

    def find(role: str, given: str | None) -> str | None:
        if given is None:
            return role if role != "key" and role in found_names and role not in taken else None
        return check("--group" if role == "group" else f"--{role}_column", given) if given else None

    check_fields(labels, features, found_names, place)
    taken = {name for column in (*labels, *features) for name in column.names}
    given = (source.key_column, source.split_column, source.group, source.weight_column)
    key, *others = map(find, _ROLES, given)
    roles = RowRoles((key,) if key else (), *others, may_omit_split=REST in source.divide, may_omit_group=not source.group)
    check_defaults(source.defaults, (*taken, *roles.names))
    return roles


def names_of_fields(
    labels: tuple[Column, ...], features: tuple[Column, ...], source: SourceConfig, class_names: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Converts a mapping from fields to class names to a mapping from features to class names. Omits labels whose class
    names are given by an option."""
    columns = (*(label for label in labels if not source.names_of(label.name)), *features)
    return {
        column.name: class_names[column.names[0]]
        for column in columns
        if len(column.names) == 1 and column.names[0] in class_names and form_of(column).is_names
    }


def wanted_names(config: SourceConfig, *columns: Column) -> set[str]:
    """Returns the names of all fields that are read from each record."""
    usual = ((config.split_column, "split"), (config.group, "group"), (config.weight_column, "weight"))
    roles = (config.key_column, *(name if given is None else given for given, name in usual))
    return {name for column in columns for name in column.names}.union(name for name in roles if name)


# The number of records or samples to search for field names, because a record may omit fields without a value.
_MAX_SEARCHED = 1_000


def search_names(names_of_records: Iterable[Collection[str]], wanted: Collection[str]) -> tuple[set[str], int]:
    """Reads records until all wanted field names are found. Returns the names found, and the number of records read."""
    names: set[str] = set()
    num_searched = 0
    for some in itertools.islice(names_of_records, _MAX_SEARCHED):
        names.update(some)
        num_searched += 1
        if names.issuperset(wanted):
            break
    return names, num_searched


def unknown_name(option: str, name: str, found_names: Collection[str], shown_source: str) -> UserError:
    """Returns the error for an option that names a field that does not exist."""
    nearest = did_you_mean(name, found_names)
    return UserError(
        f"{option}: no {printable(name)!r} in {shown_source}{nearest or '.'} Choose one of {describe_names(found_names)}."
    )


def describe_names(names: Collection[str]) -> str:
    """Formats up to 20 names for a message, in ascending order."""
    shown = ", ".join(printable(name)[:64] for name in sorted(names)[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "nothing"
