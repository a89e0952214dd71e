"""Converts the fields of records to labels, features, keys, splits, groups and weights.

The kinds that a field can have depend on its dtype and shape, and never on its values. Arrays, tensors, masks and images
are not read during listing; only their location is listed.
"""

import dataclasses
import math
from typing import Callable, Collection, Mapping, Sequence

import numpy as np

from beam_pipelines.config.columns import FLAG_KINDS, Column
from beam_pipelines.config.image_config import MAX_IMAGE_PIXELS
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.features.kinds import KINDS
from beam_pipelines.images.image_headers import MAX_IMAGE_SIDE
from beam_pipelines.images.raw_image import RawImage, layout_of
from beam_pipelines.images.tensor_values import describe_tensor
from beam_pipelines.sources.arrays.array_streams import Field
from beam_pipelines.sources.cells.array_cells import describe_resolved
from beam_pipelines.sources.rows.field_names import choose_roles, describe_names, names_of_fields
from beam_pipelines.sources.rows.row_mapper import RowMapper
from tf_input.dataset_format import LABEL, TENSOR_DTYPES, WEIGHT

# The maximum size of one value, except for arrays, tensors, masks and images.
_MAX_VALUE_BYTES = 1 << 20

_FITTING = {
    **{"class": "iubUS", "multi_label": "iufb", "one_hot": "iufb", "multi_hot": "iufb", "float": "iufb", "integer": "iub", "text": "US"},
    **{"array": "iufb", "tensor": "iufb", "mask": "iub", "rle": ""},
}
_SINGLE = ("class", "integer", "text")
_PARTS = ("array", "tensor", "mask", "image")


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
        names: The names of all columns whose values are read.
        part_names: The names of the columns that are referred to by location instead of being read.
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
        self._images = {column.names[0] for column in (*labels, *features) if column.kind == "image"}
        flags = {}
        for column in (*labels, *features):
            if column.kind in FLAG_KINDS:
                given = (config.names_of(column.name) if column in labels else ()) or class_names.get(column.names[0], ())
                flags[column.name] = self._flag_names(column.names[0], given)
        if config.key_column is None and "key" in columns:
            config = dataclasses.replace(config, key_column="key")
        roles = choose_roles(config, labels, features, columns, "the input")
        names = {**names_of_fields(labels, features, config, class_names), **flags}
        self.mapper = RowMapper(labels, features, config, roles=roles, class_names=names)
        self.names, self.part_names = self.mapper.value_names, self.mapper.part_names
        taken = {name for column in (*labels, *features) for name in column.names}
        for name in set(self.names) - taken:
            _check_kind(name, self.open(name), "float" if name == (config.weight_column or WEIGHT) else "class")

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
            return _check_other_image(name, field)
        first = self.open(name)
        if (_family(field), _sides(field)) != (_family(first), _sides(first)):
            raise UserError(
                f"{field.records.stream.name}: {printable(name)!r} has the type {_describe(field)}, but "
                f"{_describe(first)} in {first.records.stream.name}. Convert them to the same type and shape."
            )

    def _typed(self, column: Column) -> Column:
        """Returns the column with the shape of its field. Raises `UserError` if the kind does not fit the field."""
        fields = [self.open(name) for name in column.names]
        if column.kind == "image":
            _check_other_image(column.names[0], fields[0])
            return column
        if column.kind in KINDS:
            return _as_positions(column, fields)
        if column.is_list and column.kind != "float":
            return _as_list(column, fields[0])
        for name, field in zip(column.names, fields):
            _check_kind(name, field, column.kind, is_among_several=len(fields) > 1)
        if column.kind == "tensor":
            return _as_tensor(column, fields[0])
        if column.kind == "array" or (column.kind == "float" and _is_array(fields[0])):
            return _as_array(column, fields[0])
        num_values = _num_values(fields[0])
        if len(fields) == 1 and (column.kind == "multi_label" or column.kind in FLAG_KINDS and column.shape in ((), (num_values,))):
            # For arrays, multi_label and multi_hot have the same meaning.
            return dataclasses.replace(column, kind="one_hot" if column.kind == "one_hot" else "multi_hot", shape=())
        if column.kind not in ("float", *FLAG_KINDS) or len(fields) > 1 or (column.shape == (None,) and column.kind == "float"):
            return column
        if column.shape not in ((), (num_values,)):
            kind = column.kind
            raise _unfit(column.names[0], fields[0], f", which cannot be {kind}[{column.shape[0]}]. Use {kind}[{num_values}].")
        return dataclasses.replace(column, shape=(num_values,) if column.shape or num_values > 1 else ())

    def _flag_names(self, name: str, given: tuple[str, ...]) -> tuple[str, ...]:
        num_values = _num_values(self.open(name))
        names = given or tuple(map(str, range(num_values)))
        if len(names) != num_values:
            raise UserError(
                f"{printable(name)!r} has {num_values} values for each image, but there are {len(names)} classes. Give "
                "it one value for each class, or correct the class names."
            )
        return names


def find_name(names: Collection[str], usual: tuple[str, ...]) -> str | None:
    """Returns the field name that matches the first possible name in `usual`, ignoring case, or None."""
    names_by_lower_case = {name.lower(): name for name in sorted(names, reverse=True)}
    return next((names_by_lower_case[name] for name in usual if name in names_by_lower_case), None)


def raw_layout(field: Field) -> RawImage:
    """Returns the layout of the images in a field. Raises `UserError` if the field's dtype and shape are not those of
    images."""
    name = field.records.stream.name
    if field.dtype.name not in TENSOR_DTYPES:
        raise UserError(
            f"{name}: images of {field.dtype.name} are not supported. Convert them to one of {', '.join(TENSOR_DTYPES)}."
        )
    raw = layout_of(field.shape, field.dtype.str)
    if raw is None:
        raise UserError(
            f"{name}: has images of shape {list(field.shape)}. Reshape the array to [N,HEIGHT,WIDTH] or [N,HEIGHT,WIDTH,CHANNELS]."
        )
    if not 0 < raw.height * raw.width <= MAX_IMAGE_PIXELS or max(raw.height, raw.width) > MAX_IMAGE_SIDE:
        raise UserError(
            f"{name}: has images of {raw.height}x{raw.width} pixels. Images must have 1 to {MAX_IMAGE_PIXELS} pixels, "
            f"and at most {MAX_IMAGE_SIDE} a side."
        )
    return raw


def _unfit(name: str, field: Field, problem: str) -> UserError:
    return UserError(f"{printable(name)!r} has the type {_describe(field)}{problem}")


def _check_other_image(name: str, field: Field) -> None:
    """Raises UserError if a field does not contain images that fit in a PNG."""
    if raw_layout(field).is_tensor:
        raise _unfit(name, field, f". Use {printable(name)}:tensor, or convert it to uint8 in 1, 3 or 4 channels.")


def _as_list(column: Column, field: Field) -> Column:
    """Returns a list column if the field contains a suitable list in each record. Otherwise, raises `UserError`."""
    name, kind = column.names[0], column.kind
    if field.dtype.kind not in _FITTING[kind] or len(field.shape) > 1 or column.shape not in ((None,), field.shape):
        expected = f"{kind}[{column.shape[0] or ''}]. This kind needs a list of such values for each example."
        raise _unfit(name, field, f", which cannot be {expected}")
    if _num_values(field) * field.dtype.itemsize > _MAX_VALUE_BYTES:
        raise _unfit(name, field, f", more than {_MAX_VALUE_BYTES} bytes for each example. Use {printable(name)}:tensor.")
    return column


def _as_positions(column: Column, fields: Sequence[Field]) -> Column:
    """Completes the shape of a column of positions, such as keypoints, from the shape of its fields. Raises `UserError`
    if the dtype or shape of a field is unsuitable."""
    for name, field in zip(column.names, fields):
        num_values, expected = _num_values(field), column.shape[0] * 2 if column.shape else 0
        fits = num_values == 1 if len(fields) > 1 else not column.shape or num_values in (math.prod(column.shape), expected)
        if field.dtype.kind not in "iuf" or not fits or num_values * field.dtype.itemsize > _MAX_VALUE_BYTES:
            raise UserError(
                f"{printable(name)!r} has the type {_describe(field)}, which cannot be {column.kind}{list(column.shape) or ''}. Give it x and y, or x, y and "
                "visibility, of each point."
            )
    if column.shape:
        return column
    try:
        return dataclasses.replace(column, shape=KINDS[column.kind].resolve_shape(np.zeros(fields[0].shape).tolist()))
    except InvalidInput as error:
        raise UserError(f"{printable(column.names[0])!r} has {error}. State the shape: {describe_resolved(column)}.") from None


def _as_array(column: Column, field: Field) -> Column:
    if column.shape not in ((), field.shape):
        name, (asked, found) = column.names[0], (",".join(map(str, shape)) for shape in (column.shape, field.shape))
        raise _unfit(name, field, f", which cannot be {column.kind}[{asked}]. Use {printable(name)}:array[{found}].")
    return dataclasses.replace(column, kind="array", shape=field.shape)


def _as_tensor(column: Column, field: Field) -> Column:
    name, tensor_type = column.names[0], describe_tensor(field.dtype.name, field.shape).replace("[", ",")
    if field.dtype.name not in TENSOR_DTYPES:
        raise _unfit(name, field, f", which cannot be a tensor. Convert it to one of {', '.join(TENSOR_DTYPES)}.")
    has_shape = len(column.shape) in (0, len(field.shape)) and all(side in (None, other) for side, other in zip(column.shape, field.shape))
    if not has_shape or column.dtype not in ("", field.dtype.name):
        raise _unfit(name, field, f". Use {printable(name)}:tensor, or {printable(name)}:tensor[{tensor_type}.")
    return dataclasses.replace(column, shape=column.shape or field.shape, dtype=field.dtype.name)


def _check_kind(name: str, field: Field, kind: str, is_among_several: bool = False) -> None:
    num_values = _num_values(field)
    is_part = kind in _PARTS or (kind == "float" and _is_array(field) and not is_among_several)
    if not is_part and num_values * field.dtype.itemsize > _MAX_VALUE_BYTES:
        raise _unfit(name, field, f", more than {_MAX_VALUE_BYTES} bytes for each image. Use the kind tensor.")
    if field.dtype.kind not in _FITTING[kind] or not _fits_shape(field, kind) or (num_values != 1 and is_among_several):
        other = f"{printable(name)}:{_fitting_kind(field)}"
        raise _unfit(name, field, f", which cannot be of kind {kind}. Use another kind, such as {other}.")


def _fits_shape(field: Field, kind: str) -> bool:
    if kind == "mask":
        return _is_mask(field)
    if kind in ("array", "tensor"):
        return bool(field.shape)
    return _num_values(field) == 1 or (kind not in _SINGLE and (kind != "multi_label" or not _is_array(field)))


def _fitting_kind(field: Field) -> str:
    """Returns the column kind that an error message should suggest for a field."""
    if field.dtype.kind in "US":
        return "text"
    if _is_array(field):
        return "mask" if _is_mask(field) else "array"
    num_values = _num_values(field)
    if field.dtype.kind != "f":
        return "multi_label" if num_values > 1 else "class"
    return "float" if num_values == 1 else f"float[{num_values}], or multi_hot[{num_values}] for a 0 or 1 for each class"


def _is_array(field: Field) -> bool:
    """Returns whether the field's value in each record is an array with two or more dimensions."""
    return len(field.shape) > 1 and _num_values(field) > 1


def _is_mask(field: Field) -> bool:
    return field.dtype.kind in "iub" and _is_array(field) and (len(field.shape) == 2 or field.shape[2:] == (1,))


def _sides(field: Field) -> tuple[int, ...]:
    """Returns the shape of a value, for comparisons. The shape [1] is treated like a single number."""
    return field.shape if _is_array(field) else (_num_values(field),)


def _family(field: Field) -> str:
    """Returns the dtype kind of a field, for comparisons. All integers are treated as equal, as are strings and bytes."""
    return {"u": "i", "b": "i", "S": "U"}.get(field.dtype.kind, field.dtype.kind)


def _num_values(field: Field) -> int:
    return math.prod(field.shape)


def _describe(field: Field) -> str:
    return f"{field.dtype.name}{list(field.shape) if field.shape else ''}"
