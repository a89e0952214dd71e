"""Reads labels and other values from the fields of a record or of a WebDataset sample."""

import itertools
from typing import Any, Callable, Collection, Iterable, Mapping

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import REST, SourceConfig
from beam_pipelines.elements.input_record import ArrayPart, FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.sources.cells.array_cells import describe_resolved, holds_array, read_array_cell, read_tensor_list, resolve_array
from beam_pipelines.sources.cells.cells import in_column, shown
from beam_pipelines.sources.cells.class_cells import name_integers
from beam_pipelines.sources.cells.column_reader import ColumnReader
from beam_pipelines.sources.cells.missing_cells import check_defaults, fill_row
from beam_pipelines.sources.cells.row_roles import RowRoles
from beam_pipelines.sources.files.roots import Root

_PARTS = ("mask", "image", "array", "tensor")
_ROLES = ("key", "split", "group", "weight")


class FieldReader:
    """Reads the labels and other values of an example from the fields of its record.

    Args:
        config: The options that name the key, split, group and weight fields.
        labels: The columns that a model predicts.
        features: The other columns to keep.
        root: The root of the source.
        found: The names of the existing fields.
        place: Where the names were found, for messages, such as `the first 1,000 records`.
        class_names: Field -> class names that its integers are indexes into, if the dataset has class names.
        open_array: A function that maps a field to the first bytes of its first array file, or to nested lists.

    Attributes:
        features: The features of the fields.
        targets: The names of the features that are labels.
        value_names: The fields whose values `read` needs.
        list_names: The fields that are always lists, even with one value.
        part_names: The fields that `read` needs as a `FilePart` or `ArrayPart`: masks, other images and arrays.

    Raises:
        UserError: A requested field does not exist.
    """

    def __init__(
        self,
        config: SourceConfig,
        labels: tuple[Column, ...],
        features: tuple[Column, ...],
        root: Root,
        found_names: Collection[str],
        shown_source: str,
        class_names: Mapping[str, tuple[str, ...]],
        open_array: Callable[[str], bytes | list],
    ) -> None:
        self._found_names = found_names
        self._shown_source = shown_source
        for option, columns in (("--label", labels), ("--feature", features)):
            for name in dict.fromkeys(name for column in columns for name in column.names):
                self._check_result(option, name)
        labels, features = (
            tuple(_with_shape(column, open_array) for column in columns) for columns in (labels, features)
        )
        columns = (*labels, *features)
        self._parts = [column for column in columns if column.kind in _PARTS]
        self._columns = ColumnReader(*(_without_parts(some) for some in (labels, features)), root, config.names_of, config.separator)
        taken = {name for column in columns for name in column.names}
        given = (config.key_column, config.split_column, config.group, config.weight_column)
        key, *others = (self._find(*role, taken) for role in zip(_ROLES, given))
        self._roles = RowRoles((key,) if key else (), *others, may_omit_split=REST in config.divide, may_omit_group=not config.group)
        self.features = tuple(column.feature() for column in columns) + self._roles.features
        self.targets = tuple(column.name for column in labels)
        self.value_names = tuple(dict.fromkeys((*self._columns.column_names, *self._roles.names)))
        self.list_names = frozenset(column.names[0] for column in columns if column.is_list)
        self.part_names = tuple(dict.fromkeys(column.names[0] for column in self._parts))
        self._defaults = config.defaults
        check_defaults(self._defaults, (*self.value_names, *self.part_names))
        is_given = {name for column in labels for name in column.names if config.names_of(column.name)}
        self._class_names = {
            name: class_names[name]
            for column in columns
            for name in column.names
            if name in class_names and name not in is_given and column.kind in ("class", "multi_label")
        }
        self.label_names = {
            column.name: class_names[column.names[0]]
            for column in columns
            if len(column.names) == 1 and column.names[0] in self._class_names
        } | {column.name: column.positions(config.names_of(column.name)) for column in labels if column.kind == "multi_hot"}

    def read(self, row: Mapping[str, Any], image: InputRecord) -> InputRecord:
        """Adds the values of a record, such as the label, the key and the split, to an image reference.

        Raises:
            InvalidInput: A field is invalid.
        """
        row = fill_row(row, self._defaults)
        for name, names in self._class_names.items():
            row = {**row, name: name_integers(name, row.get(name), names)}
        label, values = self._columns.read(row)
        if self._parts:
            values = {**(values or {}), **{column.name: _read_part(row, column) for column in self._parts}}
        return self._roles.read(row, image._replace(label=label, values=values))

    def _find(self, role: str, given: str | None, taken: set[str]) -> str | None:
        """Returns the name of the field that contains the key, split, group or weight, as requested by an option.
        By default, the field with the usual name is used, if it exists."""
        if given is None:
            return role if role != "key" and role in self._found_names and role not in taken else None
        if given:
            self._check_result("--group" if role == "group" else f"--{role}_column", given)
        return given or None

    def _check_result(self, option: str, name: str) -> None:
        if name not in self._found_names:
            raise unknown_name(option, name, self._found_names, self._shown_source)


def wanted_names(config: SourceConfig, *columns: Column) -> set[str]:
    """Returns the names of all fields that are read from each record."""
    usual = ((config.split_column, "split"), (config.group, "group"), (config.weight_column, "weight"))
    roles = (config.key_column, *(name if given is None else given for given, name in usual))
    return {name for column in columns for name in column.names}.union(name for name in roles if name)


# How many records or samples to search for a name. Writers omit features without a value.
_MAX_SEARCHED = 1_000


def search_names(names_of_records: Iterable[Collection[str]], wanted: Collection[str]) -> tuple[set[str], int]:
    """Returns the field names in the first records, and the number of records that were read.

    Stops when all wanted names are found.
    """
    names: set[str] = set()
    num_searched = 0
    for some in itertools.islice(names_of_records, _MAX_SEARCHED):
        names.update(some)
        num_searched += 1
        if names.issuperset(wanted):
            break
    return names, num_searched


def unknown_name(option: str, name: str, found_names: Collection[str], shown_source: str) -> UserError:
    """Returns the error to raise if an option names a field that does not exist."""
    nearest = did_you_mean(name, found_names)
    return UserError(
        f"{option}: no {printable(name)!r} in {shown_source}{nearest or '.'} Choose one of {describe_names(found_names)}."
    )


def describe_names(names: Collection[str]) -> str:
    """Returns up to 20 names in ascending order, as text for a message."""
    shown = ", ".join(printable(name)[:64] for name in sorted(names)[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "nothing"


def _with_shape(column: Column, open_array: Callable[[str], bytes | list]) -> Column:
    if column.is_resolved:
        return column
    try:
        return resolve_array(column, open_array(column.names[0]))
    except InvalidInput as error:
        name, kind = printable(column.names[0]), "an array" if column.kind == "array" else "a tensor"
        hint = f"State the shape: {describe_resolved(column)}."
        raise UserError(f"The first {name!r} is not {kind}: {error}. {hint}") from None


def _without_parts(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    return tuple(column for column in columns if column.kind not in _PARTS)


def _read_part(row: Mapping[str, Any], column: Column) -> Any:
    name, kind = column.names[0], column.kind
    cell = row.get(name)
    if cell is None:
        raise InvalidInput(f"bad_{kind}", f"column {printable(name)!r} is empty; it must have one {kind}")
    if kind == "array" and holds_array(cell):
        return in_column(name, read_array_cell, cell, column.shape)
    if kind == "tensor" and holds_array(cell):
        return in_column(name, read_tensor_list, cell, column.feature())
    if not isinstance(cell, (FilePart, ArrayPart)):
        raise InvalidInput(f"bad_{kind}", f"column {printable(name)!r} has {shown(cell)}; it must have one {kind}")
    return cell
