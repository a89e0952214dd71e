"""Converts the fields of records to labels, features, keys, splits, groups and weights.

The kinds that a field can have depend on its dtype and shape, and never on its values. Arrays, tensors, masks and images
are not read during listing; only their location is listed.
"""

import dataclasses
import math
from typing import Callable, Mapping

import numpy as np

from beam_pipelines.columns.column import Column
from beam_pipelines.config.image_config import MAX_IMAGE_PIXELS
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.images.image_headers import MAX_IMAGE_SIDE
from beam_pipelines.images.raw_image import RawImage, layout_of
from beam_pipelines.sources.arrays.array_streams import Field
from beam_pipelines.sources.cells.array_cells import describe_resolved
from beam_pipelines.sources.rows.field_names import choose_roles, describe_names, names_of_fields
from beam_pipelines.sources.rows.row_mapper import RowMapper
from tf_input.dataset_format import LABEL, WEIGHT
from tf_input.stored_kinds import TENSOR_DTYPES

# The maximum size of one value, except for arrays, tensors, masks and images.
_MAX_VALUE_BYTES = 1 << 20

# Kind -> the kinds of NumPy dtypes whose values it can have. Other kinds can have numbers.
_FITTING = {
    **{"class": "iubUS", "multi_label": "iufb", "one_hot": "iufb", "multi_hot": "iufb", "float": "iufb", "integer": "iub", "text": "US"},
    **{"array": "iufb", "tensor": "iufb", "mask": "iub", "image": "iuf", "rle": ""},
}


class ArrayColumns:
    """Reads the values of examples from array fields, whose dtype and shape are known.

    Args:
        config: The options that select columns.
        columns: Column name -> a function that opens the field of that name.
        default: The column of the label if `--label` is not given; None if there is no such column.
        default_features: The features to add if `--label` is not given.
        class_names: Column -> its class names, if the format has them.

    Attributes:
        mapper: Maps the values of the columns to inputs.
    """

    def __init__(
        self,
        config: SourceConfig,
        columns: Mapping[str, Callable[[], Field]],
        default: str | None,
        default_features: tuple[Column, ...] = (),
        class_names: Mapping[str, tuple[str, ...]] = {},
    ) -> None:
        self._columns = columns
        labels, features = config.labels, config.features
        if labels is None:
            if default is None:
                raise UserError(
                    f"No array of labels was found. Pass --label with one of {describe_names(columns)}, or --label none."
                )
            labels = (Column(LABEL, (default,)),)
            taken = {column.name for column in features}
            features += tuple(column for column in default_features if column.name not in taken)
        labels, features = (tuple(map(self._typed, some)) for some in (labels, features))
        self._images = {column.names[0] for column in (*labels, *features) if form_of(column).is_image}
        flags = {}
        for column in (*labels, *features):
            if form_of(column).is_flags:
                given = (config.names_of(column.name) if column in labels else ()) or class_names.get(column.names[0], ())
                flags[column.name] = self._flag_names(column.names[0], given)
        if config.key_column is None and "key" in columns:
            config = dataclasses.replace(config, key_column="key")
        roles = choose_roles(config, labels, features, columns, "the input")
        names = {**names_of_fields(labels, features, config, class_names), **flags}
        self.mapper = RowMapper(labels, features, config, roles=roles, class_names=names)
        for name in {*self.mapper.value_names} - {name for column in (*labels, *features) for name in column.names}:
            self._typed(Column(name, (name,), "float" if name == (config.weight_column or WEIGHT) else "class"))

    def open(self, name: str) -> Field:
        """Returns the first field with the given name. Raises `UserError` if there is no such field."""
        if name not in self._columns:
            nearest = did_you_mean(name, self._columns)
            raise UserError(
                f"There is no {printable(name)!r} in the input{nearest or '.'} Choose one of {describe_names(self._columns)}."
            )
        return self._columns[name]()

    def check(self, name: str, field: Field) -> None:
        """Raises `UserError` if a field differs from the first field of the same name in its type or shape. The sizes of
        images may differ."""
        if name in self._images:
            _check_fit(Column(name, (name,), "image"), name, field)
        elif _comparable(field) != _comparable(first := self.open(name)):
            raise UserError(
                f"{field.records.stream.name}: {printable(name)!r} has the type {_describe(field)}, but "
                f"{_describe(first)} in {first.records.stream.name}. Convert them to the same type and shape."
            )

    def _typed(self, column: Column) -> Column:
        """Returns the column with the shape of its field. Raises `UserError` if the kind does not fit the field."""
        fields = [self.open(name) for name in column.names]
        for name, field in zip(column.names, fields):
            _check_fit(column, name, field)
        return column if len(fields) > 1 and form_of(column).is_resolved(column) else _with_shape(column, fields[0])

    def _flag_names(self, name: str, given: tuple[str, ...]) -> tuple[str, ...]:
        num_values = self.open(name).num_values
        names = given or tuple(map(str, range(num_values)))
        if len(names) != num_values:
            raise UserError(
                f"{printable(name)!r} has {num_values} values for each image, but there are {len(names)} classes. Give "
                "it one value for each class, or correct the class names."
            )
        return names


def raw_layout(field: Field) -> RawImage:
    """Returns the layout of the images in a field. Raises `UserError` if the field's dtype and shape are not those of
    images."""
    name, raw = field.records.stream.name, layout_of(field.shape, field.dtype.str)
    if field.dtype.name not in TENSOR_DTYPES:
        raise UserError(f"{name}: images of {field.dtype.name} are not supported. Convert them to one of {', '.join(TENSOR_DTYPES)}.")
    if raw is None:
        raise UserError(
            f"{name}: has images of shape {list(field.shape)}. Reshape the array to [N,HEIGHT,WIDTH] or [N,HEIGHT,WIDTH,CHANNELS]."
        )
    if raw.height * raw.width > MAX_IMAGE_PIXELS or max(raw.height, raw.width) > MAX_IMAGE_SIDE:
        raise UserError(
            f"{name}: has images of {raw.height}x{raw.width} pixels. Images must have 1 to {MAX_IMAGE_PIXELS} pixels, "
            f"and at most {MAX_IMAGE_SIDE} a side."
        )
    return raw


def _check_fit(column: Column, name: str, field: Field) -> None:
    """Raises `UserError` if a field is unsuitable for a column."""
    shown = printable(name)
    if field.dtype.kind not in _FITTING.get(column.kind, "iuf") or not _fits(column, field):
        sides = ",".join("" if side is None else str(side) for side in column.shape)
        kind = f"{column.kind}[{','.join(filter(None, (column.dtype, sides)))}]" if column.shape else column.kind
        raise UserError(
            f"{shown!r} has the type {_describe(field)}, which cannot be of kind {kind}. Use another kind, such as "
            f"{shown}:{_fitting_kind(field)}."
        )
    if not form_of(column).is_part and not _is_array_of(column, field) and field.num_bytes > _MAX_VALUE_BYTES:
        raise UserError(
            f"{shown!r} has the type {_describe(field)}, more than {_MAX_VALUE_BYTES} bytes for each example. Use {shown}:tensor."
        )


def _fits(column: Column, field: Field) -> bool:
    """Returns whether the shape of a field is suitable for a column."""
    shape, num_values, form = column.shape, field.num_values, form_of(column)
    if len(column.names) > 1:
        return num_values == 1
    if form.is_points:
        return not shape or num_values in (math.prod(shape), shape[0] * 2)
    if _is_array_of(column, field):
        return bool(field.shape) and shape in ((), field.shape)
    if form.is_list(column) and form.value_type is not float:
        return len(field.shape) < 2 and shape in ((None,), field.shape)
    if form.is_image:
        return not raw_layout(field).is_tensor
    if form.is_mask:
        return _is_mask(field)
    if form.is_typed:
        has_type = field.dtype.name in TENSOR_DTYPES and column.dtype in ("", field.dtype.name)
        has_sides = len(shape) == len(field.shape) and all(side in (None, other) for side, other in zip(shape, field.shape))
        return bool(field.shape) and has_type and (has_sides or not shape)
    if form.is_class or form.value_type in (int, str):
        return num_values == 1
    if form.is_names:
        return not _is_array(field)
    return shape in ((), (num_values,)) or form.value_type is float and shape == (None,)


def _with_shape(column: Column, field: Field) -> Column:
    """Returns a column with the kind and the shape that its field requires."""
    form = form_of(column)
    if form.is_points and not column.shape:
        try:
            return dataclasses.replace(column, shape=form.resolve_shape(np.zeros(field.shape).tolist()))
        except InvalidInput as error:
            raise UserError(f"{printable(column.names[0])!r} has {error}. State the shape: {describe_resolved(column)}.") from None
    if form.is_typed:
        return dataclasses.replace(column, shape=column.shape or field.shape, dtype=field.dtype.name)
    if _is_array_of(column, field):
        return dataclasses.replace(column, kind="array", shape=field.shape)
    if form.is_flags or form.is_names and not form.is_one_class:  # For arrays, multi_label and multi_hot have the same meaning.
        return dataclasses.replace(column, kind=column.kind if form.is_flags else "multi_hot", shape=())
    if form.value_type is float and column.shape != (None,):
        return dataclasses.replace(column, shape=(field.num_values,) if column.shape or field.num_values > 1 else ())
    return column


def _fitting_kind(field: Field) -> str:
    """Returns the column kind that an error message should suggest for a field."""
    if field.dtype.kind in "US":
        return "text"
    if _is_array(field):
        return "mask" if _is_mask(field) else f"array[{','.join(map(str, field.shape))}]"
    if field.dtype.kind != "f":
        return "multi_label" if field.num_values > 1 else "class"
    num = field.num_values
    return "float" if num == 1 else f"float[{num}], or multi_hot[{num}] for a 0 or 1 for each class"


def _is_array(field: Field) -> bool:
    """Returns whether the field's value in each record is an array with two or more dimensions."""
    return len(field.shape) > 1 and field.num_values > 1


def _is_array_of(column: Column, field: Field) -> bool:
    """Returns whether a column reads a field as an array of floats."""
    form = form_of(column)
    return form.is_nested and not form.is_typed or form.value_type is float and len(column.names) == 1 and _is_array(field)


def _is_mask(field: Field) -> bool:
    return field.dtype.kind in "iub" and _is_array(field) and (len(field.shape) == 2 or field.shape[2:] == (1,))


def _comparable(field: Field) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype kind and the shape of a field for comparisons. Integers and booleans have the same kind, as do
    strings and bytes. A single number has the shape (1,)."""
    family = {"u": "i", "b": "i", "S": "U"}.get(field.dtype.kind, field.dtype.kind)
    return family, field.shape if _is_array(field) else (field.num_values,)


def _describe(field: Field) -> str:
    return f"{field.dtype.name}{list(field.shape) if field.shape else ''}"
