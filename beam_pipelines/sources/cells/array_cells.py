"""Reads arrays, images and masks from cells with nested lists, bytes, a file name, or the location of a file."""

import dataclasses
from typing import Any, Callable, Iterable, Mapping

from beam_pipelines.columns.column import Column
from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.images.arrays import FLOAT_DTYPES, read_array_header, read_lists, tensor_of_list, to_shape
from beam_pipelines.images.npy_header import MAX_HEADER_BYTES
from beam_pipelines.sources.cells.cells import embedded_bytes, read_image_path, read_numbers, read_path, shown
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import read_start
from beam_pipelines.storage.input_errors import describe_fact


def holds_array(cell: Any) -> bool:
    """Returns whether a cell contains an array as nested lists instead of a file name."""
    return isinstance(cell, list) and not (len(cell) == 1 and isinstance(cell[0], str))


def read_part(cell: Any, column: Column, root: Root | None, suffix: str) -> Any:
    """Returns the contents of a cell: an array from nested lists, the bytes of a file, or the location of a file.

    Args:
        cell: The cell of a mask, an image, an array or a tensor.
        column: The column of the cell.
        root: The root of the files that cells name; None if cells contain locations instead of file names.
        suffix: The suffix to append to the paths of images that do not end with it.

    Raises:
        InvalidInput: The lists have another dtype or shape, or the cell is not a valid path.
    """
    kind, form = column.kind, form_of(column)
    if isinstance(cell, (FilePart, ArrayPart)):
        return cell
    if form.is_nested and holds_array(cell):
        try:
            if form.is_typed:
                return tensor_of_list(cell, form.feature(column))
            return to_shape(read_lists(cell, "bad_array"), column.shape, may_be_flat=True)
        except InvalidInput as error:
            raise InvalidInput(error.reason, f"has {error}") from None
    if root is None:
        raise InvalidInput(f"bad_{kind}", f"{'is empty' if cell is None else f'has {shown(cell)}'}; it must have one {kind}")
    if form.is_typed and isinstance(cell, bytes):
        return cell
    if form.is_nested:
        return FilePart(read_path(cell, root))
    return embedded_bytes(cell) or FilePart(read_image_path(cell, root, suffix if form.is_image else ""))


def resolve_array(column: Column, start: bytes | list) -> Column:
    """Determines the shape and dtype of a column from its first value: nested lists, or the first bytes of a file.
    Raises `InvalidInput` if the value is not an array."""
    form = form_of(column)
    if form.is_points:
        return dataclasses.replace(column, shape=form.resolve_shape(read_numbers(start)))
    if not form.is_typed:
        numbers = read_lists(start, "bad_array") if holds_array(start) else read_array_header(start, "bad_array", FLOAT_DTYPES)
        return dataclasses.replace(column, shape=numbers.shape)
    if holds_array(start):
        raise InvalidInput("bad_tensor", "lists of numbers without a type")
    header = read_array_header(start, "bad_tensor")
    return dataclasses.replace(column, shape=column.shape or header.shape, dtype=column.dtype or header.dtype.name)


def find_array_shapes(columns: Iterable[Column], resolve: Callable[[Column], Column]) -> tuple[Column, ...]:
    """Determines unknown shapes and dtypes of columns by calling `resolve`. Raises `UserError` if `resolve` raises
    `InvalidInput`."""
    resolved = []
    for column in columns:
        try:
            resolved.append(column if form_of(column).is_resolved(column) else resolve(column))
        except InvalidInput as error:
            name = printable(column.names[0])
            raise UserError(f"The first {name!r} is not of kind {column.kind}: {error}. State the shape: {describe_resolved(column)}.") from None
    return tuple(resolved)


def describe_resolved(column: Column) -> str:
    """Returns an example of an option value with the shape and dtype of a column, for a message."""
    name = printable(column.names[0])
    if form_of(column).is_points:
        return f"{name}:{column.kind}[N], or {name}:{column.kind}[N,3]"
    return f"{name}:{column.kind}[{'float32,' * form_of(column).is_typed}HEIGHT,WIDTH,…]"


def resolve_by_cell(row: Mapping[str, Any], root: Root, column: Column) -> Column:
    """Determines the shape and dtype of a column from a row, or from the file that the row names. Raises `InvalidInput`
    if there is no array, or the file cannot be read."""
    cell = row.get(column.names[0])
    if holds_array(cell) or isinstance(cell, bytes) or form_of(column).is_points:
        return resolve_array(column, cell)
    name = read_path(cell, root)
    path = f"{root.path}/{name}"
    try:
        return resolve_array(column, read_start(root.path, name, MAX_HEADER_BYTES))
    except OSError as error:
        describe_fact(error, path)  # raises RunError if the cause is not the file, for example a lost connection
        raise InvalidInput("missing", f"{printable(path)}: {error.strerror or error}") from None
    except InvalidInput as error:
        raise InvalidInput(error.reason, f"{printable(path)}: {error}") from None
