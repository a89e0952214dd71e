"""Maps the cells of rows to inputs: their labels, features, key, split, group and weight."""

import functools
import math
from typing import Any, Callable, Collection, Mapping, NamedTuple

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.values import NAME_PATTERN
from beam_pipelines.elements.dead_letters import NO_GROUP, NO_SPLIT
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.columns.forms import feature_of, form_of
from beam_pipelines.sources.cells import cells
from beam_pipelines.sources.cells.array_cells import read_part
from beam_pipelines.sources.cells.cells import bad_cell, in_column, is_empty, is_missing, plain, read_list, read_name, read_numbers
from beam_pipelines.sources.cells.class_cells import (
    class_name,
    known,
    name_integers,
    read_classes,
    read_multi_hot,
    read_one_class,
    read_one_hot,
    read_only_flag,
)
from beam_pipelines.sources.cells.objects import ObjectReader
from beam_pipelines.sources.cells.run_lengths import run_length_reader
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from tf_input.dataset_format import LABEL, OBJECTS, WEIGHT, Feature

_SCALARS = {float: cells.read_float, int: cells.read_integer, str: cells.read_text}
_KEY_SEPARATOR = "|"

_Reader = Callable[[Mapping[str, Any]], Any]


class RowRoles(NamedTuple):
    """The columns or fields that contain the key, the split, the group and the weight.

    Attributes:
        key: The columns that form the key of the example; empty if there is no key column.
        split: The column with the split, or None.
        group: The column with the group, or None. All examples of a group stay in the same split.
        weight: The column with the weight, or None.
        may_omit_split: Whether rows without a split are allowed. Otherwise, they are rejected.
        may_omit_group: Whether rows without a group are allowed. If so, each of them is its own group.
    """

    key: tuple[str, ...] = ()
    split: str | None = None
    group: str | None = None
    weight: str | None = None
    may_omit_split: bool = False
    may_omit_group: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that contain the key, split, group or weight."""
        return tuple(name for name in (*self.key, self.split, self.group, self.weight) if name)

    def read(self, row: Mapping[str, Any], record: InputRecord) -> InputRecord:
        """Adds the key, split, group and weight of a row to an input. Raises `InvalidInput` if a cell is invalid."""
        if self.weight:
            weight = in_column(self.weight, cells.read_weight, row.get(self.weight))
            record = record._replace(values={**(record.values or {}), WEIGHT: weight})
        if self.split and (split := in_column(self.split, _read_split, row.get(self.split), self.may_omit_split)):
            record = record._replace(split=split)
        if self.key:
            key = _KEY_SEPARATOR.join([in_column(name, read_name, "bad_key", row.get(name)) for name in self.key])
            record = record._replace(key=key)
        if self.group:
            record = record._replace(group=in_column(self.group, _read_group, row.get(self.group), self.may_omit_group))
        return record


def _read_group(cell: Any, may_lack: bool) -> str:
    if not is_empty(plain(cell, "bad_group")):
        return read_name("bad_group", cell)
    if may_lack:
        return ""
    raise bad_cell(NO_GROUP, cell, "the name of a group")


def _read_split(cell: Any, may_lack: bool) -> str | None:
    if is_empty(cell := plain(cell, "bad_split")):
        if may_lack:
            return None
        raise bad_cell(NO_SPLIT, cell, "a split's name")
    name = read_name("bad_split", cell).strip()
    if split := _split_name(name):
        return split
    advice = ". Replace numbers of splits by names, such as train, validation and test" if name.isdigit() else ""
    raise bad_cell("bad_split", cell, f"a split's name: letters, digits and '_', beginning with a letter{advice}")


@functools.lru_cache(1 << 10)
def _split_name(name: str) -> str | None:
    split = SPLIT_FOLDERS.get(name.lower(), name)
    return split if NAME_PATTERN.fullmatch(split) else None


class RowMapper:
    """Maps rows to inputs. A row is a dictionary from column names to cells. A cell can be a string, a number, a list,
    bytes, or the location of a file or of an array (`FilePart`, `ArrayPart`).

    Args:
        labels: The columns that a model predicts, except objects.
        features: The other columns to keep.
        source: The options for class names, separators, image suffixes and missing cells.
        root: The root of the files that cells name; None if cells contain locations instead of file names.
        roles: The columns with the key, the split, the group and the weight.
        objects: The reader of objects; None if no objects are kept.
        class_names: Feature -> class names, for features whose columns contain class indices.

    Attributes:
        columns: The columns of the labels and features.
        features: The features of the columns, the objects and the weight, without class names.
        targets: The names of the features that are labels.
        value_names: The columns whose values are read.
        part_names: The columns with masks, other images, arrays and tensors.
        list_names: The columns whose cells are always lists, even with one value.
        label_names: Feature -> class names that are known before any row is read.

    Raises:
        UserError: Two features have the same name; or a label has a column for each class, and a column name is not a
            valid class name.
    """

    def __init__(
        self,
        labels: tuple[Column, ...],
        features: tuple[Column, ...],
        source: SourceConfig,
        root: Root | None = None,
        *,
        roles: RowRoles = RowRoles(),
        objects: ObjectReader | None = None,
        class_names: Mapping[str, tuple[str, ...]] = {},
    ) -> None:
        self.columns = columns = (*labels, *features)
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"--feature={name}: another label or feature already has that name. Choose a different name.")
        self._roles, self._objects, self._defaults = roles, objects, source.defaults
        weight = (Feature(WEIGHT, "float"),) if roles.weight else ()
        self.features = (*(feature_of(column) for column in columns), *(objects.features if objects else ()), *weight)
        self.targets = (*(column.name for column in labels), *((OBJECTS,) if objects else ()))
        parts = [column for column in columns if form_of(column).is_part]
        values = [name for column in columns if column not in parts for name in column.names]
        self.value_names = tuple(dict.fromkeys((*values, *roles.names)))
        self.part_names = tuple(dict.fromkeys(column.names[0] for column in parts))
        self.list_names = frozenset(column.names[0] for column in columns if form_of(column).is_list(column))
        allowed = {label.name: source.names_of(label.name) or class_names.get(label.name, ()) for label in labels}
        self.label_names: dict[str, Collection[str]] = {
            column.name: class_names[column.name] for column in columns if column.name in class_names and form_of(column).value_type is not str
        }
        self.label_names |= objects.label_names if objects else {}
        for column in columns:
            if form_of(column).is_class and len(column.names) > 1:
                self.label_names[column.name] = frozenset(map(class_name, column.names))
            elif form_of(column).is_flags and column in labels:
                self.label_names[column.name] = form_of(column).class_names(column, allowed[column.name])
        readers = {
            column.name: _make_reader(column, source, root, allowed.get(column.name, ()), class_names.get(column.name, ()))
            for column in columns
        }
        is_single_class = any(column.name == LABEL and form_of(column).is_one_class for column in columns)
        self._read_label = readers.pop(LABEL) if is_single_class else None
        self._readers = tuple(readers.items())

    def fill(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replaces missing cells in a row by the default values of the columns."""
        if not self._defaults:
            return row
        return {**row, **{name: value for name, value in self._defaults.items() if is_missing(row.get(name))}}

    def read(self, row: Mapping[str, Any], record: InputRecord) -> InputRecord:
        """Adds the label, values, key, split, group and weight in a row to an input. Images and masks in cells are
        added as bytes. Raises `InvalidInput` if a cell is invalid for its column."""
        row = self.fill(row)
        label = self._read_label(row) if self._read_label else ""
        values = {name: read(row) for name, read in self._readers} or None
        record = self._roles.read(row, record._replace(label=label, values=values))
        if self._objects:
            record = record._replace(values={**(record.values or {}), OBJECTS: self._objects.read(row)})
        return record


def check_defaults(defaults: Mapping[str, str], used: Collection[str]) -> None:
    """Raises `UserError` if an option gives a default value for a column that is not used."""
    for name in defaults:
        if name not in used:
            advice = f"{did_you_mean(name, used) or '.'} Choose one of {', '.join(map(printable, sorted(used)[:20]))}"
            raise UserError(f"--default={printable(name)}=…: no label, feature or role uses this column{advice}.")


def _make_reader(
    column: Column, source: SourceConfig, root: Root | None, allowed: Collection[str], names: tuple[str, ...]
) -> _Reader:
    """Returns a function that reads the value of a feature from a row. See the module `source` for the types of values.

    Args:
        column: The columns from which the feature is made.
        source: The options for separators and for the suffix of image paths.
        root: The root of the files that cells name; None if cells contain locations instead of file names.
        allowed: The allowed class names of a label; empty allows all names. If it is a tuple without integers, cells
            can also refer to class names by index.
        names: The class names for class indices in cells, if the source specifies them.

    Raises:
        UserError: A label has a column for each class, and the name of a column is not a valid class name.
    """
    form = form_of(column)
    if form.is_runs:
        return run_length_reader(column, source.label_names_of.get(column.name, source.label_names))
    first, *others = column.names
    if not others:
        read_cell = _make_converter(column, source, root, allowed, names)
        return lambda row: in_column(first, read_cell, row.get(first))
    read_one = cells.read_optional_float if form.is_points else _SCALARS.get(form.value_type, cells.read_flag)
    read_all: Callable[..., list[Any]] = lambda row: [in_column(name, read_one, row.get(name)) for name in column.names]
    if form.is_points:
        return lambda row: in_column(column.name, form.read, read_all(row), column.shape)
    if form.value_type:
        return lambda row: tuple(read_all(row))
    for name in column.names:
        try:
            known(class_name(name), allowed)
        except InvalidInput as error:
            raise UserError(f"--label={name}:{column.kind}: the column's name is used as a class name, but {error}.") from None
    if form.is_one_class:
        return lambda row: read_only_flag(dict(sorted(zip(column.names, read_all(row)))))
    return lambda row: tuple(sorted(name for name, flag in zip(column.names, read_all(row)) if flag))


def _make_converter(
    column: Column, source: SourceConfig, root: Root | None, allowed: Collection[str], names: tuple[str, ...]
) -> Callable[[Any], Any]:
    """Returns a function that converts a cell to the value of a feature. See `_make_reader` for the arguments."""
    form = form_of(column)
    if form.is_flags:
        classes, read_flags = form.class_names(column, allowed or names), read_one_hot if form.is_one_class else read_multi_hot
        return lambda cell: read_flags(cell, classes)
    if form.value_type and column.shape:
        num_values = None if None in column.shape else math.prod(column.shape)
        separator = source.separator if form.value_type is str else None
        read: Callable[[Any], Any] = lambda cell: read_list(cell, _SCALARS[form.value_type], num_values, separator)
    elif form.value_type:
        read = _SCALARS[form.value_type]
    elif form.is_points:
        read = lambda cell: form.read(read_numbers(cell), column.shape)
    elif form.is_class:
        read = lambda cell: read_one_class(column.names[0], cell, allowed)
    elif form.is_names:
        are_numbers = bool(names or column.shape)
        read = lambda cell: read_classes(cell, allowed, source.separator, are_numbers=are_numbers)
    else:
        read = lambda cell: read_part(cell, column, root, source.image_suffix)
    return (lambda cell: read(name_integers(cell, names))) if names else read
