"""Describes the table columns or record fields that contain labels and features, and the format of their cells."""

import dataclasses
import math
from typing import Any, Collection, Sequence

import numpy as np

from beam_pipelines.errors import UserError, printable
from tf_input.dataset_format import Feature
from tf_input.stored_kinds import FEATURE_KINDS

_MAX_CLASSES = 1_000_000  # limit for cells with a flag for each class


@dataclasses.dataclass(frozen=True)
class Column:
    """A feature, and the source columns or record fields from which its values are read.

    Attributes:
        name: The name of the feature.
        names: The names of the columns.
        kind: The form of the cells, a key of `forms.FORMS`.
        shape: The shape of a value. (None,) is a list of any length; for `multi_label`, it means that cells are lists.
            None in the shape of a tensor is a dimension of any size. An empty shape is a scalar or, for an array or a
            tensor, the shape of the first value.
        dtype: The dtype of a tensor, such as `float32`. Empty selects the dtype of the first value.
    """

    name: str
    names: tuple[str, ...]
    kind: str = "class"
    shape: tuple[int | None, ...] = ()
    dtype: str = ""

    def __str__(self) -> str:
        sides = [str(side or "?") for side in self.shape]
        inside = ",".join(([self.dtype] if self.dtype else []) + sides)
        shape = "[]" if inside == "?" else f"[{inside}]" if inside else ""  # "[]" is a list of any length
        return f"{self.name}={','.join(self.names)}:{self.kind}{shape}"


@dataclasses.dataclass(frozen=True)
class ColumnForm:
    """A format of cells, such as a class name or a list of numbers. Its name is KIND in options such as
    `--label COLUMN:KIND`.

    Attributes:
        kind: The name of the feature kind.
        synonyms: Names that other tools use, in lower case.
        max_columns: The maximum number of columns that form one feature; None if there is no limit.
        max_sides: The maximum number of dimensions in brackets, as in `float[3]`; None if there is no limit.
        value_type: The type of the numbers or strings in a cell or in a list; None for all other forms.
        of_several: The form that replaces this form if a feature has several columns; empty if this form allows them.
        feature_shape: The shape of the feature, if the column's shape does not determine it.
        is_typed: Whether brackets can contain a dtype, and ? for a dimension of any size.
        needs_shape: Whether the first value determines the shape if the option does not.
        is_names: Whether a cell contains class names, or integers that stand for classes.
        is_flags: Whether a cell contains a flag, 0 or 1, for each class.
        is_one_class: Whether an example has exactly one class.
        is_image_file: Whether a cell can contain an image file, or its path.
        is_nested: Whether a cell can contain nested lists of numbers, or the path of a `.npy` file.
        is_runs: Whether a cell contains the run lengths of a mask.
        is_split: Whether the values of an example can be in several rows of a table.
    """

    kind: str
    synonyms: tuple[str, ...] = ()
    max_columns: int | None = 1
    max_sides: int | None = 0
    value_type: type[float] | type[int] | type[str] | None = None
    of_several: str = ""
    feature_shape: tuple[int | None, ...] | None = None
    is_typed: bool = False
    needs_shape: bool = False
    is_names: bool = False
    is_flags: bool = False
    is_one_class: bool = False
    is_image_file: bool = False
    is_nested: bool = False
    is_runs: bool = False
    is_split: bool = False

    @property
    def is_image(self) -> bool:
        """Whether the feature is an image."""
        return FEATURE_KINDS[self.kind].is_image

    @property
    def is_mask(self) -> bool:
        """Whether the feature is a mask."""
        return FEATURE_KINDS[self.kind].is_file and not self.is_image

    @property
    def is_part(self) -> bool:
        """Whether a cell can contain the location of a file or of an array."""
        return self.is_image_file or self.is_nested

    @property
    def is_class(self) -> bool:
        """Whether a cell contains the name of exactly one class."""
        return self.is_names and self.is_one_class

    @property
    def is_points(self) -> bool:
        """Whether a cell contains the coordinates of points, which `read` converts to an array."""
        return False

    def is_list(self, column: Column) -> bool:
        """Returns whether each value is a one-dimensional list of numbers or strings, and not an array or a tensor."""
        return self.value_type is not None and len(column.shape) == 1

    def is_resolved(self, column: Column) -> bool:
        """Returns whether the shape and the dtype are known before values are read."""
        return not self.needs_shape or bool(column.shape and (column.dtype or not self.is_typed))

    def feature(self, column: Column) -> Feature:
        """Returns the feature that is made from a column."""
        shape = column.shape or ((len(column.names),) if len(column.names) > 1 else ())
        return Feature(column.name, self.kind, shape if self.feature_shape is None else self.feature_shape, dtype=column.dtype)

    def parse_shape(self, given: str, names: Sequence[str], shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Checks the dimensions that an option gives in brackets, and returns the shape of the column.

        Args:
            given: The option and its value, for messages.
            names: The names of the columns.
            shape: The dimensions in brackets; (None,) for empty brackets.

        Raises:
            UserError: The shape is not possible, or does not fit the number of columns.
        """
        has_wrong_sides = self.max_sides is not None and len(shape) > self.max_sides or 0 in shape
        is_open = None in shape and not (self.value_type or self.is_typed)
        has_several = self.max_sides == 1 and len(shape) + len(names) > 2
        if shape and (has_wrong_sides or is_open or has_several):
            raise UserError(
                f"{given}: invalid shape. float, integer, text, one_hot and multi_hot take one dimension, such as float[3]; float[], "
                "integer[] and text[] are lists of any length; array and tensor take any shape. All sides must be above 0."
            )
        if self.is_flags and shape and shape[0] > _MAX_CLASSES:
            raise UserError(f"{given}: too many classes. At most {_MAX_CLASSES:,} are allowed.")
        return shape

    def class_names(self, column: Column, label_names: Collection[str] = ()) -> tuple[str, ...]:
        """Returns the class names of a `one_hot` or `multi_hot` column, in the order of the flags in a cell.

        Raises:
            UserError: The number of classes is unknown, or the label names contradict the shape.
        """
        names = tuple(label_names) or tuple(map(str, range(math.prod(column.shape) if column.shape else 0)))
        if not names or (column.shape and len(names) != column.shape[0]):
            shown = f"{printable(column.names[0])}:{column.kind}"
            number = f"{len(names)} label names are given" if names else "the number of classes is unknown"
            raise UserError(f"{shown}: {number}. Give {shown}[N], or --label_names with N names.")
        return names

    def resolve_shape(self, numbers: list[Any], is_of_object: bool = False) -> tuple[int, ...]:
        """Returns the shape of a feature with points, given its first value as nested lists of numbers. The value of an
        object can also be a flat list, as in COCO. Raises `InvalidInput` if the lists do not determine the shape."""
        raise NotImplementedError

    def read(self, numbers: list[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Converts flat or nested lists of numbers to an array of points. None stands for a missing number. Raises
        `InvalidInput` if the numbers do not form a value of the given shape."""
        raise NotImplementedError
