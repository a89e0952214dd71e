"""Cells that have an array in them, as lists of numbers, or name the file of one."""

from typing import Any

import numpy as np

from beam_pipelines.errors import Refusal, UserError, printable
from beam_pipelines.images.array_values import array_shape, nested_shape, read_nested
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.folders.roots import Root
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.input_errors import describe_fact

# As much as the header of a `.npy` file ever takes.
_HEADER_BYTES = 1 << 16


def holds_array(cell: Any) -> bool:
    """Whether a cell has an array itself, not the name of a file: JSON and Parquet have lists of lists."""
    return isinstance(cell, list) and not (len(cell) == 1 and isinstance(cell[0], str))


def read_array_cell(cell: list, shape: tuple[int, ...]) -> np.ndarray:
    """Reads a cell of nested lists into a float32 array of the given shape.

    Raises:
        Refusal: The cell has an array of another shape, or none.
    """
    try:
        return read_nested(cell, shape)
    except Refusal as error:
        raise Refusal(error.reason, f"has {error}") from None


def probe_shape(name: str, cell: Any, root: Root) -> tuple[int, ...]:
    """The shape of the array that a cell of the first row has, or names the file of.

    Raises:
        UserError: There is no such file, or it is no array.
    """
    found = "has " if holds_array(cell) else ""
    try:
        if holds_array(cell):
            return nested_shape(cell)
        path = f"{root.path}/{read_path(cell, root)}"
        found = f"names {printable(path)}: "
        return array_shape(files_at(path).read_range(path, 0, _HEADER_BYTES))
    except OSError as error:
        describe_fact(error, path)  # RunError where it says nothing about the array
        problem = error.strerror or str(error)
    except Refusal as error:
        problem = str(error)
    name = printable(name)
    raise UserError(f"column {name!r} of the first row {found}{problem}; expected an array, or its shape: {name}:array[HEIGHT,WIDTH,…]")
