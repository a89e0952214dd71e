"""Creates functions that read the value of a feature from the cells of a row."""

import math
from typing import Any, Callable, Collection, Mapping

from beam_pipelines.config.columns import FLAG_KINDS, Column
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.errors import InvalidInput, UserError
from beam_pipelines.features.kinds import KINDS
from beam_pipelines.sources.cells.array_cells import read_part
from beam_pipelines.sources.cells.cells import (
    in_column,
    read_flag,
    read_float,
    read_integer,
    read_list,
    read_numbers,
    read_optional_float,
    read_text,
)
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
from beam_pipelines.sources.cells.run_lengths import run_length_reader
from beam_pipelines.sources.files.roots import Root

_Reader = Callable[[Mapping[str, Any]], Any]


def column_reader(
    column: Column, source: SourceConfig, root: Root | None, allowed: Collection[str] = (), names: tuple[str, ...] = ()
) -> _Reader:
    """Returns a function from a row to the value of a feature. See the module `source` for the types of values.

    Args:
        column: The columns from which the feature is made.
        source: The options for separators and for the suffix of image paths.
        root: The root of the files that cells name; None if cells contain locations instead of file names.
        allowed: The allowed class names of a label; empty allows all names. In a tuple without integers, cells can also
            refer to class names by index.
        names: The class names for class indices in cells, if the source states them.

    Raises:
        UserError: A label has a column for each class, and the name of a column is not a valid class name.
    """
    if column.kind in KINDS:
        return _reader_of_numbers(column)
    if column.kind == "rle":
        return run_length_reader(column, source.label_names_of.get(column.name, source.label_names))
    if len(column.names) == 1:
        return _reader_of_one(column.names[0], _converter(column, source, root, allowed, names))
    if column.kind in ("float", "integer"):
        numbers = [_reader_of_one(name, read_float if column.kind == "float" else read_integer) for name in column.names]
        return lambda row: tuple([read(row) for read in numbers])
    for name in column.names:
        _check_class_column(name, column.kind, allowed)
    flags = [(name, _reader_of_one(name, read_flag)) for name in sorted(column.names)]
    if column.kind == "class":
        return lambda row: read_only_flag({name: read(row) for name, read in flags})
    return lambda row: tuple([name for name, read in flags if read(row)])


def _reader_of_numbers(column: Column) -> _Reader:
    """Returns a function that reads positions, such as keypoints, from one or several cells with numbers."""
    kind, shape = KINDS[column.kind], column.shape
    if len(column.names) == 1:
        return _reader_of_one(column.names[0], lambda cell: kind.read(read_numbers(cell), shape))
    readers = [_reader_of_one(name, read_optional_float) for name in column.names]
    return lambda row: in_column(column.name, kind.read, [read(row) for read in readers], shape)


def _check_class_column(name: str, kind: str, allowed: Collection[str]) -> None:
    try:
        known(class_name(name), allowed)
    except InvalidInput as error:
        raise UserError(f"--label={name}:{kind}: the column's name is used as a class name, but {error}.") from None


def _reader_of_one(name: str, convert: Callable[[Any], Any]) -> _Reader:
    return lambda row: in_column(name, convert, row.get(name))


def _converter(
    column: Column, source: SourceConfig, root: Root | None, allowed: Collection[str], names: tuple[str, ...]
) -> Callable[[Any], Any]:
    if column.kind in FLAG_KINDS:
        positions, read = column.positions(allowed or names), read_one_hot if column.kind == "one_hot" else read_multi_hot
        return lambda cell: read(cell, positions)
    convert = _converter_of_names(column, source, root, allowed, bool(names))
    return (lambda cell: convert(name_integers(cell, names))) if names else convert


def _converter_of_names(
    column: Column, source: SourceConfig, root: Root | None, allowed: Collection[str], is_named: bool
) -> Callable[[Any], Any]:
    match column.kind:
        case "class":
            return lambda cell: read_one_class(column.names[0], cell, allowed)
        case "multi_label":
            return lambda cell: read_classes(cell, allowed, source.separator, are_numbers=is_named or bool(column.shape))
        case "float" | "integer" | "text":
            read = {"float": read_float, "integer": read_integer, "text": read_text}[column.kind]
            if not column.shape:
                return read
            num_values = None if None in column.shape else math.prod(column.shape)
            return lambda cell: read_list(cell, read, num_values, source.separator if column.kind == "text" else None)
    return lambda cell: read_part(cell, column, root, source.image_suffix)
