"""Maps the cells of rows to inputs: their labels, features, key, split, group and weight."""

from typing import Any, Callable, Mapping, Protocol

from beam_pipelines.config.columns import FLAG_KINDS, Column
from beam_pipelines.config.prepare_config import OBJECT_LABEL, SourceConfig
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.cells.class_cells import class_name
from beam_pipelines.sources.cells.column_reader import column_reader
from beam_pipelines.sources.cells.missing_cells import fill_row
from beam_pipelines.sources.cells.row_roles import RowRoles
from beam_pipelines.sources.files.roots import Root
from tf_input.dataset_format import LABEL, OBJECTS, Feature

_PARTS = ("mask", "image", "array", "tensor")  # kinds whose cells may contain the location of a file or of an array


class ObjectsOfRow(Protocol):
    """Reads the objects of a row.

    Attributes:
        features: The features of the objects.
        class_names: The class names of the objects, in order; empty if the source does not state them.
    """

    features: tuple[Feature, ...]
    class_names: tuple[str, ...]

    def read(self, row: Mapping[str, Any]) -> Objects:
        """Reads the objects of a row. Raises `InvalidInput` if they are invalid."""


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
        objects: ObjectsOfRow | None = None,
        class_names: Mapping[str, tuple[str, ...]] = {},
    ) -> None:
        columns = (*labels, *features)
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"--feature={name}: another label or feature already has that name. Choose a different name.")
        self._roles, self._objects, self._defaults = roles, objects, source.defaults
        self.features = (*(column.feature() for column in columns), *(objects.features if objects else ()), *roles.features)
        self.targets = (*(column.name for column in labels), *((OBJECTS,) if objects else ()))
        parts = [column for column in columns if column.kind in _PARTS]
        values = [name for column in columns if column not in parts for name in column.names]
        self.value_names = tuple(dict.fromkeys((*values, *roles.names)))
        self.part_names = tuple(dict.fromkeys(column.names[0] for column in parts))
        self.list_names = frozenset(column.names[0] for column in columns if column.is_list)
        allowed = {label.name: source.names_of(label.name) or class_names.get(label.name, ()) for label in labels}
        self.label_names = _known_names(columns, objects, class_names) | {
            label.name: label.positions(allowed[label.name]) for label in labels if label.kind in FLAG_KINDS
        }
        readers: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            column.name: column_reader(column, source, root, allowed.get(column.name, ()), class_names.get(column.name, ()))
            for column in columns
        }
        is_single_class = any(column.name == LABEL and column.kind in ("class", "one_hot") for column in columns)
        self._read_label = readers.pop(LABEL) if is_single_class else None
        self._readers = tuple(readers.items())

    def fill(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replaces missing cells in a row by the default values of the columns."""
        return fill_row(row, self._defaults) if self._defaults else row

    def read(self, row: Mapping[str, Any], record: InputRecord) -> InputRecord:
        """Adds the values and roles in a row to an input. Images and masks in cells are added as bytes. Raises
        `InvalidInput` if a cell is invalid for its column."""
        row = self.fill(row)
        label = self._read_label(row) if self._read_label else ""
        values = {name: read(row) for name, read in self._readers} or None
        record = self._roles.read(row, record._replace(label=label, values=values))
        if self._objects:
            record = record._replace(values={**(record.values or {}), OBJECTS: self._objects.read(row)})
        return record


def _known_names(
    columns: tuple[Column, ...], objects: ObjectsOfRow | None, class_names: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...] | frozenset[str]]:
    names = {column.name: class_names[column.name] for column in columns if column.name in class_names and column.kind != "text"}
    if objects and objects.class_names:
        names[OBJECT_LABEL] = objects.class_names
    several = {column.name: frozenset(map(class_name, column.names)) for column in columns if column.kind == "class" and len(column.names) > 1}
    return names | several
