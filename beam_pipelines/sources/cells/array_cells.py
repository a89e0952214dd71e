"""Reads arrays and tensors from cells, which can contain nested lists, bytes or a file name."""

import dataclasses
from typing import Any

import numpy as np

from beam_pipelines.config.columns import Column
from beam_pipelines.elements.input_record import FilePart
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.array_values import array_shape, nested_shape, read_nested
from beam_pipelines.images.tensor_values import read_tensor_header, tensor_of_list
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import read_start
from beam_pipelines.storage.input_errors import describe_fact
from tf_input.dataset_format import Feature

# The maximum size of a `.npy` header.
_HEADER_BYTES = 1 << 16


def holds_array(cell: Any) -> bool:
    """Returns whether a cell contains an array as nested lists instead of a file name."""
    return isinstance(cell, list) and not (len(cell) == 1 and isinstance(cell[0], str))


def read_array_cell(cell: list, shape: tuple[int, ...]) -> np.ndarray:
    """Converts nested lists in a cell to a float32 array of the given shape.

    Raises:
        InvalidInput: The cell does not contain an array of that shape.
    """
    try:
        return read_nested(cell, shape)
    except InvalidInput as error:
        raise InvalidInput(error.reason, f"has {error}") from None


def read_tensor_cell(cell: Any, column: Column, root: Root) -> np.ndarray | bytes | FilePart:
    """Returns the tensor in a cell of nested lists or bytes, or a reference to the file that the cell names.

    Raises:
        InvalidInput: The lists have another dtype or shape, or the cell is not a valid path.
    """
    if isinstance(cell, bytes):
        return cell
    return read_tensor_list(cell, column.feature()) if holds_array(cell) else FilePart(read_path(cell, root))


def read_tensor_list(cell: list, feature: Feature) -> np.ndarray:
    """Converts nested lists in a cell to a tensor.

    Raises:
        InvalidInput: The lists have another dtype or shape than the feature.
    """
    try:
        return tensor_of_list(cell, feature)
    except InvalidInput as error:
        raise InvalidInput(error.reason, f"has {error}") from None


def resolve_array(column: Column, start: bytes | list) -> Column:
    """Sets an unknown shape or dtype of a column according to the first value of the column.

    Args:
        column: The array or tensor column.
        start: The first bytes of the first file, or nested lists of numbers.

    Raises:
        InvalidInput: The data is not an array or tensor.
    """
    if column.kind == "array":
        return dataclasses.replace(column, shape=nested_shape(start) if holds_array(start) else array_shape(start))
    if holds_array(start):
        raise InvalidInput("bad_tensor", "lists of numbers without a type")
    header = read_tensor_header(start)
    return dataclasses.replace(column, shape=column.shape or header.shape, dtype=column.dtype or header.dtype.name)


def describe_resolved(column: Column) -> str:
    """Formats an array or tensor column, including its shape and dtype, as an option value for a message."""
    return f"{printable(column.names[0])}:{'tensor[float32,' if column.kind == 'tensor' else 'array['}HEIGHT,WIDTH,…]"


def probe(column: Column, cell: Any, root: Root) -> Column:
    """Completes a column with the shape and dtype of the array in the first row.

    Raises:
        UserError: The file does not exist, or the data is not an array.
    """
    description = "has " if holds_array(cell) or isinstance(cell, bytes) else ""
    try:
        if description:
            return resolve_array(column, cell)
        name = read_path(cell, root)
        path = f"{root.path}/{name}"
        description = f"names {printable(path)}: "
        return resolve_array(column, read_start(root.path, name, _HEADER_BYTES))
    except OSError as error:
        describe_fact(error, path)  # raises RunError for errors that are not about the file itself
        problem = error.strerror or str(error)
    except InvalidInput as error:
        problem = str(error)
    name, kind = printable(column.names[0]), "an array" if column.kind == "array" else "a tensor"
    raise UserError(
        f"column {name!r} of the first row {description}{problem}. Give it {kind}, or state the shape: "
        f"{describe_resolved(column)}."
    )
