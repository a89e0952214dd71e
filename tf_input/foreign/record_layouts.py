"""Determines the features of TFRecords from other tools, using their layout and their first records."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from typing import Any, Callable, Collection, Mapping, Sequence

from google.protobuf.message import DecodeError  # installed with TensorFlow

from tf_input import first_records
from tf_input.dataset_format import IMAGE, LABEL, MASK, OBJECTS, WEIGHT, Feature
from tf_input.decoding.schema import parse_examples
from tf_input.first_records import FieldValues, Stored
from tf_input.foreign import record_columns
from tf_input.foreign.record_columns import Column
from tf_input.foreign.record_numbers import NumberReader
from tf_input.lazy_tensorflow import tf
from tf_input.record_layouts import BBOX, SIDES, Item, Layout


@dataclasses.dataclass(frozen=True)
class RecordLayout:
    """Rules for parsing records.

    Attributes:
        name: One of `record_layouts.LAYOUTS`, "mapping", "values" or "tfds".
        columns: The columns by feature name.
        targets: The names of the target features.
        text: The layout as an argument of `open_tfrecords`; empty if there is none.
    """

    name: str
    columns: Mapping[str, Column]
    targets: tuple[str, ...]
    text: str = ""

    @property
    def features(self) -> dict[str, Feature]:
        """The features of parsed records, by name."""
        return {name: column.feature for name, column in self.columns.items()}

    def parse(self, serialized: tf.Tensor, names: Collection[str]) -> dict[str, Any]:
        """Parses serialized records of this layout, like `schema.parse_examples`."""
        columns = {name: self.columns[name] for name in names}
        stored = {feature.name: feature for column in columns.values() for feature in column.stored}
        parsed = parse_examples(serialized, stored.values())
        columns_by_name: dict[str, Any] = {}
        for name, column in columns.items():
            value = column.convert(*(parsed[part.name] for part in column.stored))
            columns_by_name |= value if isinstance(value, dict) else {name: value}
        return columns_by_name


def find_record_layout(
    records: Sequence[bytes], path: str, layout: str | Mapping[str, Any] | None, label_names: Sequence[str]
) -> RecordLayout:
    """Determines the features of records, given their layout and the first records.

    Args:
        records: The first records.
        path: The path of the first file, for messages.
        layout: The user's layout, as for `record_layouts.parse_layout`. None detects the layout.
        label_names: The class names, if they are known.

    Raises:
        ValueError: A record is not a `tf.train.Example`, or features are missing.
    """
    message_start = "its first records have"
    try:
        examples = [tf.train.Example.FromString(record).features.feature for record in records]
    except DecodeError as error:
        raise ValueError(
            f"{path}: one of its first records is not a tf.train.Example: {error}. For other messages, pass parse=function."
        ) from None
    with contextlib.suppress(DecodeError):
        if any(tf.train.SequenceExample.FromString(record).feature_lists.feature_list for record in records):
            raise ValueError(
                f"{path}: {message_start} a tf.train.SequenceExample, which layouts do not support. Pass parse=function."
            )
    stored = [{name: _values(feature) for name, feature in example.items()} for example in examples]
    seen = first_records.read_values(stored)
    try:
        found_layout = first_records.find_layout(layout, seen, message_start, prefers_text=False)
        first = _FirstRecords(message_start, found_layout, stored, seen, tuple(label_names))
        columns = first.columns()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return RecordLayout(found_layout.name, columns, found_layout.targets, f"{found_layout}")


def _values(feature: tf.train.Feature) -> tuple[str, Sequence[Any]]:
    kind = feature.WhichOneof("kind")
    return (kind.removesuffix("_list"), getattr(feature, kind).value) if kind else ("", ())


@dataclasses.dataclass(frozen=True)
class _FirstRecords:
    """The layout of records, and the values in the first records.

    Attributes:
        message_start: The beginning of messages about the records, as in `find_layout`.
        layout: The layout of the records.
        examples: The stored features of each record.
        seen: The values of each feature in all records, by feature name.
        label_names: The class names, if they are known.
    """

    message_start: str
    layout: Layout
    examples: Sequence[Stored]
    seen: Mapping[str, FieldValues]
    label_names: tuple[str, ...]

    def columns(self) -> dict[str, Column]:
        """Returns the columns of all features, by name.

        Raises:
            ValueError: A feature can't be computed from the stored values.
        """
        names = dict.fromkeys(BBOX if name in SIDES else name for name in self.layout.items if name not in self._sides)
        return {name: self._column(name) for name in names}

    @functools.cached_property
    def _sides(self) -> tuple[str, ...]:
        return first_records.side_items(self.layout, self.seen)

    def _of(self, item: Item) -> FieldValues:
        return self.seen.get(item.name, FieldValues())

    def _column(self, name: str) -> Column:
        items = [self.layout.items[side] for side in (SIDES if name == BBOX and BBOX not in self.layout.items else [name])]
        for item in items:
            if item.number is not None:
                raise ValueError(
                    f"{name}={item}: a number needs raw pixels whose shape it describes. Use a feature instead."
                )
            if len(self._of(item).storages) > 1:
                raise self._error(name, "values of one type", f"{self._of(item)} in {item.name}")
        if name == BBOX:
            return self._boxes(items)
        (item,) = items
        seen = self._of(item)
        if item.is_image:
            return self._other_image(name, item)
        if item.dtype or name == IMAGE:
            return self._numbers(name, item)
        if name == MASK:
            return record_columns.renamed_column(Feature(MASK, "mask"), item.name)
        if name == WEIGHT:
            if (seen.storage, seen.counts) != ("float", {1}):
                raise self._error(WEIGHT, "one float", f"{seen}")
            return record_columns.renamed_column(Feature(WEIGHT, "float"), item.name)
        if item.default:
            seen = self._with_default(name, item, seen)
        has_any_number = item.is_list or name.startswith(f"{OBJECTS}/")
        feature = Feature(name, seen.kind, (None,) if has_any_number else seen.shape)
        is_label = name in (LABEL, f"{OBJECTS}/{LABEL}") and seen.storage != "float"
        return self._label(feature, item) if is_label else self._counted(feature, item, seen.kind)

    def _counted(self, feature: Feature, item: Item, kind: str, convert: Callable[[Any], Any] = lambda values: values) -> Column:
        """Returns the column of a feature with a fixed or variable number of values.

        If the number of values is wrong, an error message suggests how to change the layout.
        """
        parts = (Feature(item.name, kind, (None,)),)
        if feature.is_ragged:
            return Column(feature, parts, convert)
        message = f"{item.name} must have {math.prod(feature.shape)} values in each record, as in the first ones. "
        message += f"For any number of values, use a layout with {feature.name}={item.name}[]; "
        message += f"for records without it, {feature.name}={item.name}?VALUE."
        if not item.default:
            return Column(feature, parts, lambda values: convert(record_columns.fold(values, feature.shape, message)))
        default = _default_of(kind, item)
        return Column(
            feature,
            parts,
            lambda values: convert(record_columns.fold(record_columns.fill(values, default, message), feature.shape, message)),
        )

    def _boxes(self, items: Sequence[Item]) -> Column:
        for item in items:
            if self._of(item).storage not in ("float", "empty"):
                raise self._error(BBOX, "floats in 0..1", f"{self._of(item).storage} in {item.name}")
        feature = Feature(BBOX, "bbox", (None, 4))
        if len(items) == 1:
            return record_columns.renamed_column(feature, items[0].name)
        return Column(feature, tuple(Feature(item.name, "float", (None,)) for item in items), record_columns.stack_sides)

    def _label(self, feature: Feature, item: Item) -> Column:
        names, seen = self.label_names, self._of(item)
        seen = self._with_default(feature.name, item, seen) if item.default else seen
        if feature.name == LABEL and seen.is_multi_hot and not item.is_list:
            names = names or tuple(map(str, range(*seen.counts)))
            if {len(names)} != seen.counts:
                raise self._error(LABEL, f"a 0 or 1 for each of the {len(names)} label names", f"{seen} in {item.name}")
            label = Feature(LABEL, "class_label", (None,), names)
            flags = self._counted(dataclasses.replace(feature, shape=seen.shape), item, "integer", record_columns.class_indices)
            return dataclasses.replace(flags, feature=label)
        # reading records without a label raises an error
        if seen.counts == {0, 1} and not item.is_list and feature.name == LABEL:
            feature = dataclasses.replace(feature, shape=())
        # any number of labels, if not exactly one
        label = Feature(feature.name, "class_label", (None,) if feature.shape else (), names)
        if feature.is_text:
            if not names:
                raise self._error(label.name, "integers, or label_names=... with texts", f"texts in {item.name}")
            return self._counted(label, item, "text", record_columns.look_up(names))
        if names and (label.name == LABEL or LABEL not in self.layout.items):  # the names may belong to `label`
            return self._counted(label, item, "integer", record_columns.check_labels(len(names)))
        return self._counted(label, item, "integer")

    def _other_image(self, name: str, item: Item) -> Column:
        seen = self._of(item)
        is_one = (seen.storage, seen.counts) == ("bytes", {1})
        if not is_one or not first_records.is_encoded(seen.values[0]):
            begins = f", {len(seen.values[0])} bytes that begin with {seen.values[0][:4]!r}" if is_one else ""
            raise self._error(name, "a JPEG, PNG, GIF, BMP or WebP", f"{seen} in {item.name}{begins}")
        return record_columns.renamed_column(Feature(name, "image"), item.name)

    def _numbers(self, name: str, item: Item) -> Column:
        """Returns the column of an encoded image, a raw image or another raw array."""
        seen = self._of(item)
        if (seen.storage, seen.counts) != ("bytes", {1}):
            raise self._error(name, "one string of bytes", f"{seen} in {item.name}")
        (data,) = seen.values
        is_numbers = name in first_records.number_items(self.layout, self.seen)
        if not is_numbers and first_records.is_encoded(data):
            return record_columns.renamed_column(Feature(IMAGE, "image"), item.name)
        if not is_numbers:
            expected = "a JPEG, PNG, GIF, BMP or WebP, or its shape beside it (height and width, or shape)"
            raise self._error(name, expected, f"{len(data)} bytes in {item.name} that begin with {data[:4]!r}")
        try:
            return NumberReader(self.layout, self._sides, self.examples, self.seen).column(name, item)
        except ValueError as error:
            raise ValueError(f"{name}: {self.message_start} {error}") from None

    def _with_default(self, name: str, item: Item, seen: FieldValues) -> FieldValues:
        """Returns the values of a feature with missing values replaced by the default."""
        if not seen.counts <= {0, 1}:
            raise self._error(name, f"one value at most, for the default {item.default!r}", f"{seen} in {item.name}")
        values = seen.values or ([int(item.default)] if item.default.isdecimal() else [item.default.encode()])
        return dataclasses.replace(seen, values=values, counts=frozenset([1]))

    def _error(self, name: str, expected: str, problem: str) -> ValueError:
        return ValueError(f"{name} must be {expected}; {self.message_start} {problem}")


def _default_of(kind: str, item: Item) -> bytes | int | float:
    """Returns the default value of an item, converted to the type of the item.

    Raises:
        ValueError: The default is not a value of this kind.
    """
    try:
        return {"text": str.encode, "integer": int, "float": float}[kind](item.default)
    except ValueError:
        raise ValueError(
            f"{item.name}?{item.default}: the default does not fit a feature of kind {kind}. Use a value of this kind."
        ) from None
