"""Converts the cells of a row to the feature values of an example."""

import math
from typing import Any, Callable, Collection, Mapping, Sequence

from beam_pipelines.config.columns import Column
from beam_pipelines.config.label_lists import DEFAULT_SEPARATOR
from beam_pipelines.elements.input_record import FilePart
from beam_pipelines.errors import InvalidInput, UserError
from beam_pipelines.sources.cells.array_cells import holds_array, probe, read_array_cell, read_tensor_cell
from beam_pipelines.sources.cells.cells import (
    in_column,
    read_flag,
    read_float,
    read_integer,
    read_list,
    read_other_file,
    read_path,
    read_text,
)
from beam_pipelines.sources.cells.class_cells import class_name, known, read_classes, read_multi_hot, read_one_class, read_only_flag
from beam_pipelines.sources.files.roots import Root
from tf_input.dataset_format import LABEL


class ColumnReader:
    """Converts the cells of rows to feature values (see `cells` for the formats of cells).

    Args:
        labels: The columns that a model predicts.
        features: The other columns to keep.
        root: The root of the files that cells name.
        names_of: A function from a label to its allowed class names; empty allows all names. If they are a tuple
            without numbers, an integer in a cell is an index into them.
        separator: The separator between class names in the text of a multi-label column.
        suffix: The suffix to append to image paths that do not end with it.

    Attributes:
        features: The features of the columns. Class names are not known yet.
        targets: The names of the features that are labels.
        column_names: The unique names of all columns that are read.

    Raises:
        UserError: Two features have the same name, or a column of a multi-label is not a valid class name.
    """

    def __init__(
        self,
        labels: Sequence[Column],
        features: Sequence[Column],
        root: Root,
        names_of: Callable[[str], Collection[str]] = lambda name: (),
        separator: str = DEFAULT_SEPARATOR,
        suffix: str = "",
    ) -> None:
        columns = (*labels, *features)
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise UserError(
                    f"--feature={name}: another label or feature already has that name. Choose a different name."
                )
        self.features = tuple(column.feature() for column in columns)
        self.targets = tuple(column.name for column in labels)
        self.column_names = tuple(dict.fromkeys(name for column in columns for name in column.names))
        readers = {
            column.name: _make_reader(column, root, names_of(column.name) if column in labels else (), separator, suffix)
            for column in columns
        }
        is_single_class = any(column.name == LABEL and column.kind == "class" for column in columns)
        self._read_label = readers.pop(LABEL) if is_single_class else None
        self._readers = tuple(readers.items())

    def read(self, row: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """Returns the class name of the feature `label` (or ""), and the values of all features except `label` (or
        None).

        The module `source` describes the types of the feature values. Images and masks that are stored in a cell are
        returned as bytes.

        Raises:
            InvalidInput: A cell is invalid for the kind of its column.
        """
        label = self._read_label(row) if self._read_label else ""
        return label, {name: read(row) for name, read in self._readers} if self._readers else None


def _make_reader(
    column: Column, root: Root, label_names: Collection[str], separator: str, suffix: str
) -> Callable[[Mapping[str, Any]], Any]:
    if len(column.names) == 1:
        return _reader_of_one(column.names[0], _converter(column, root, label_names, separator, suffix))
    if column.kind in ("float", "integer"):
        numbers = [_reader_of_one(name, read_float if column.kind == "float" else read_integer) for name in column.names]
        return lambda row: tuple([read(row) for read in numbers])
    for name in column.names:
        _check_class_column(name, column.kind, label_names)
    flags = [(name, _reader_of_one(name, read_flag)) for name in sorted(column.names)]
    if column.kind == "class":
        return lambda row: read_only_flag({name: read(row) for name, read in flags})
    return lambda row: tuple([name for name, read in flags if read(row)])


def _check_class_column(name: str, kind: str, label_names: Collection[str]) -> None:
    try:
        known(class_name(name), label_names)
    except InvalidInput as error:
        raise UserError(f"--label={name}:{kind}: the column's name is used as a class name, but {error}.") from None


def _reader_of_one(name: str, convert: Callable[[Any], Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: in_column(name, convert, row.get(name))


def _converter(column: Column, root: Root, label_names: Collection[str], separator: str, suffix: str) -> Callable[[Any], Any]:
    match column.kind:
        case "class":
            return lambda cell: read_one_class(column.names[0], cell, label_names)
        case "multi_label":
            return lambda cell: read_classes(cell, label_names, separator, are_numbers=bool(column.shape))
        case "multi_hot":
            names = column.positions(label_names)
            return lambda cell: read_multi_hot(cell, names)
        case "float" | "integer" | "text":
            read = {"float": read_float, "integer": read_integer, "text": read_text}[column.kind]
            if not column.shape:
                return read
            num_values = None if None in column.shape else math.prod(column.shape)
            return lambda cell: read_list(cell, read, num_values, separator if column.kind == "text" else None)
        case "array":
            return lambda cell: read_array_cell(cell, column.shape) if holds_array(cell) else FilePart(read_path(cell, root))
        case "tensor":
            return lambda cell: read_tensor_cell(cell, column, root)
    return lambda cell: read_other_file(cell, root, suffix if column.kind == "image" else "")


def find_array_shapes(columns: Sequence[Column], first_row: Mapping[str, Any], root: Root) -> tuple[Column, ...]:
    """Completes array columns without a shape or dtype with the shape and dtype of the arrays in the first row.

    Raises:
        UserError: The first row has no such array.
    """
    return tuple(column if column.is_resolved else probe(column, first_row.get(column.names[0]), root) for column in columns)
