"""What first records say of the features of records that others wrote, and how these become features of ours."""

import dataclasses
import functools
import math
from typing import Any, Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from tf_input.dataset_format import IMAGE, LABEL, MASK, OBJECTS, WEIGHT, Feature

Stored = str | Sequence[str]  # a name that records have; or a list of one, of any number of values; or the names of four sides
_SIDES = ("height", "width", "depth")  # they say how to read pixels
_SHAPE = "shape"  # so does this, where height and width do not
BBOX = f"{OBJECTS}/bbox"
_ENCODED = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF")


@dataclasses.dataclass(frozen=True)
class Column:
    """A feature, and what it is made of.

    Attributes:
        feature: As a model sees it.
        stored: The features that records have, by the names that they have there.
        convert: From the parsed values of these to the feature's.
    """

    feature: Feature
    stored: tuple[Feature, ...]
    convert: Callable[..., Any] = lambda value: value


def flat(stored: Iterable[Stored]) -> list[str]:
    """Returns all names of stored features, those of several columns among them."""
    return [name for one in stored for name in ((one,) if isinstance(one, str) else one)]


@dataclasses.dataclass(frozen=True)
class Seen:
    """What records have by one name.

    Attributes:
        values: Those of the first record that has any.
        counts: How many values a record has.
        storages: "bytes", "float", "int64".
    """

    values: Sequence[Any] = ()
    counts: frozenset[int] = frozenset([0])
    storages: frozenset[str] = frozenset()

    @property
    def storage(self) -> str:
        """The kinds of list that the values came in, such as "bytes"; "empty" where there was no value."""
        return " and ".join(sorted(self.storages)) or "empty"

    @property
    def kind(self) -> str:
        """The kind of a feature for such values."""
        return {"bytes": "text", "float": "float"}.get(self.storage, "integer")

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one record's values; None for a first dimension that differs from record to record."""
        count, *others = self.counts
        return (None,) if others or not count else () if count == 1 else (count,)

    def __str__(self) -> str:
        return f"{self.storage} × {'..'.join(str(count) for count in sorted({min(self.counts), max(self.counts)}))}"


def look_at(records: Sequence[bytes]) -> dict[str, Seen]:
    """What records have, by the names that any of them has; a DecodeError if one is no `tf.train.Example`."""
    examples = [tf.train.Example.FromString(record).features.feature for record in records]
    seen = {}
    for name in dict.fromkeys(name for example in examples for name in example):
        kinds = [example[name].WhichOneof("kind") if name in example else None for example in examples]
        values = [getattr(example[name], kind).value if kind else () for example, kind in zip(examples, kinds)]
        storages = frozenset(kind.removesuffix("_list") for kind in kinds if kind)
        seen[name] = Seen(next(filter(len, values), ()), frozenset(map(len, values)), storages)
    return seen


@dataclasses.dataclass(frozen=True)
class FirstRecords:
    """The first records, and what their features mean.

    Attributes:
        path: Where the first lies, for messages.
        they_have: How messages begin that say what they have.
        mapping: Our names -> theirs.
        seen: What they have, by their names.
        label_names: Class names, if they are known.
    """

    path: str
    they_have: str
    mapping: Mapping[str, Stored]
    seen: Mapping[str, Seen]
    label_names: tuple[str, ...]

    @functools.cached_property
    def sides(self) -> tuple[str, ...]:
        """Our names of what says the shape of pixels, and is no feature of its own; none, where the image has a format."""
        if IMAGE not in self.mapping:
            return ()
        if {"height", "width"} <= self.mapping.keys():
            sides = tuple(name for name in _SIDES if name in self.mapping)
        else:
            sides = (_SHAPE,) if _SHAPE in self.mapping else ()
        (data, *_) = (*self.seen[self._name(IMAGE)].values, b"")
        is_encoded = isinstance(data, bytes) and data.startswith(_ENCODED)
        return () if is_encoded and not self._are_of(sides, data) else sides

    def _are_of(self, sides: Sequence[str], data: bytes) -> bool:
        """Whether the image has as many bytes as these say: pixels may begin like a BMP."""
        try:
            return math.prod(self._pixel_shape(sides) or (0,)) == len(data)
        except ValueError:
            return False

    def column(self, name: str) -> Column:
        """A feature by our name; ValueError if it can't be made of what there is."""
        if mixed := [one for one in flat([self.mapping[name]]) if len(self.seen[one].storages) > 1]:
            raise self._error(name, "values of one type", f"{self.seen[mixed[0]]} in {mixed[0]}")
        if name == BBOX:
            return self._boxes()
        if name == IMAGE:
            return self._image()
        seen = self.seen[self._name(name, or_list=name not in (MASK, WEIGHT))]
        if name == WEIGHT and (seen.storage, seen.counts) != ("float", {1}):
            raise self._error(WEIGHT, "one float", f"{seen}")
        if name in (MASK, WEIGHT):
            return _same(Feature(name, "mask" if name == MASK else "float"), self._name(name))
        has_any_number = not isinstance(self.mapping[name], str) or name.startswith(f"{OBJECTS}/")
        feature = Feature(name, seen.kind, (None,) if has_any_number else seen.shape)
        is_label = name in (LABEL, f"{OBJECTS}/{LABEL}") and seen.kind != "float"
        return self._label(feature) if is_label else self._counted(feature, seen.kind)

    def _name(self, name: str, or_list: bool = False) -> str:
        """Theirs; in a list only if any number of values will do."""
        names = flat([self.mapping[name]])
        if len(names) != 1 or not (or_list or isinstance(self.mapping[name], str)):
            raise ValueError(f"{self.path}: layout: {name}: expected a name; found {names}")
        return names[0]

    def _counted(self, feature: Feature, kind: str, convert: Callable[[Any], Any] = lambda values: values) -> Column:
        """What becomes of values of a kind. A wrong number of them is told here, not by the parser, who knows no way out."""
        stored = self._name(feature.name, or_list=True)
        parts = (Feature(stored, kind, (None,)),)
        if feature.is_ragged:
            return Column(feature, parts, convert)
        message = f"{stored}: expected {math.prod(feature.shape)} of it in each record, as in the first ones; "
        message += f"a layout in which {feature.name} is a list, [{stored}], is for any number of it"
        return Column(feature, parts, lambda values: convert(_fold(values, feature.shape, message)))

    def _boxes(self) -> Column:
        names = flat([self.mapping[BBOX]])
        for name in names:
            if self.seen[name].storage not in ("float", "empty"):
                raise self._error(BBOX, "floats in 0..1", f"{self.seen[name].storage} in {name}")
        feature = Feature(BBOX, "bbox", (None, 4))
        if len(names) == 1:
            return _same(feature, names[0])
        if len(names) != 4:
            raise self._error(BBOX, "one feature, or four: ymin, xmin, ymax, xmax", f"{len(names)}")
        return Column(feature, tuple(Feature(name, "float", (None,)) for name in names), _stack_sides)

    def _label(self, feature: Feature) -> Column:
        names = self.label_names
        label = Feature(feature.name, "class_label", (None,) if feature.shape else (), names)  # any number of labels, if not one
        if feature.kind == "text":
            if not names:
                raise self._error(label.name, "integers, or label_names=... with texts", f"texts in {self.mapping[label.name]}")
            return self._counted(label, "text", _look_up(names))
        if names and (label.name == LABEL or LABEL not in self.mapping):  # else they may be the names of the other
            return self._counted(label, "integer", _check_labels(len(names)))
        return self._counted(label, "integer")

    def _image(self) -> Column:
        stored = self._name(IMAGE)
        seen = self.seen[stored]
        if (seen.storage, seen.counts) != ("bytes", {1}):
            raise self._error(IMAGE, "one string of bytes", f"{seen} in {stored}")
        (data,) = seen.values
        sides = self.sides
        if not sides and data.startswith(_ENCODED):
            return _same(Feature(IMAGE, "image"), stored)
        shape = self._pixel_shape(sides)
        num_bytes = math.prod(shape) if shape else None
        if shape is None or len(data) != num_bytes:
            expected = f"uint8 of shape {shape}" if shape else "a JPEG, PNG, GIF, BMP or WebP, or its shape beside it"
            raise self._error(IMAGE, expected, f"{len(data)} bytes in {stored} that begin with {data[:4]!r}")
        stated = {self._name(side): self.seen[self._name(side)] for side in sides}
        parts = (Feature(name, side.kind, () if len(side.values) == 1 else (len(side.values),)) for name, side in stated.items())
        check = _check_shape(shape, [side.values for side in stated.values()])
        return Column(Feature(IMAGE, "pixels", shape), (Feature(stored, "text"), *parts), check)

    def _pixel_shape(self, sides: Sequence[str]) -> tuple[int, int, int] | None:
        """(height, width, channels) that the record states; None: it does not."""
        if not sides:
            return None
        numbers = [number for side in sides for number in _integers(self.seen[self._name(side)])]
        numbers += [1] * (len(numbers) == 2)  # grey
        if len(numbers) != 3 or min(numbers) < 1 or numbers[2] not in (1, 3):
            raise self._error(IMAGE, "a height, a width, and 1 or 3 channels", f"{numbers} in {', '.join(sides)}")
        return tuple(numbers)

    def _error(self, name: str, expected: str, found: str) -> ValueError:
        return ValueError(f"{self.path}: {name}: expected {expected}; {self.they_have} {found}")


def _same(feature: Feature, stored: str) -> Column:
    return Column(feature, (dataclasses.replace(feature, name=stored),))


def _fold(values: tf.RaggedTensor, shape: tuple[int, ...], message: str) -> tf.Tensor:
    """[batch, None] -> [batch, *shape]."""
    size = tf.constant(math.prod(shape), values.row_splits.dtype)
    with tf.control_dependencies([tf.debugging.assert_equal(values.row_lengths(), size, message)]):
        return tf.ensure_shape(tf.reshape(values.values, (-1, *shape)), (values.shape[0], *shape))


def _integers(side: Seen) -> list[int]:
    """Integers, or the bytes of an array of them: with two or three dimensions, of 8 bytes if there are 16 or 24, else of 4."""
    if side.storage != "bytes":
        return [int(number) for number in side.values]
    data = b"".join(side.values)
    size = 8 if len(data) in (16, 24) else 4
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


def _check_shape(shape: tuple[int, ...], stated: Sequence[Sequence[int | bytes]]) -> Callable[..., tf.Tensor]:
    """All records must state the shape of the first one: a batch of pixels has one."""

    def check(pixels: tf.Tensor, *sides: tf.Tensor) -> tf.Tensor:
        message = f"pixels differ in shape from those of the first record, {shape}"
        checks = [tf.debugging.assert_equal(tf.strings.length(pixels), math.prod(shape), message)]
        for side, expected in zip(sides, stated):
            found = tf.reshape(side, (-1, len(expected)))
            checks.append(tf.debugging.assert_equal(found, tf.constant([list(expected)], side.dtype), message))
        with tf.control_dependencies(checks):
            return tf.identity(pixels)

    return check


def _stack_sides(*sides: tf.RaggedTensor) -> tf.RaggedTensor:
    """Four times [batch, None] -> [batch, None, 4]."""
    message = "a record has different numbers of box sides"
    checks = [tf.debugging.assert_equal(side.row_splits, sides[0].row_splits, message) for side in sides[1:]]
    with tf.control_dependencies(checks):
        return sides[0].with_values(tf.stack([tf.identity(side.values) for side in sides], axis=1))


def _look_up(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Texts -> their places among the names."""
    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant(names), tf.range(len(names), dtype=tf.int64))
    table = tf.lookup.StaticHashTable(pairs, -1)

    def look_up(texts: tf.Tensor) -> tf.Tensor:
        labels = table.lookup(texts)
        return _refuse(labels, texts, labels < 0, "class names that label_names does not have")

    return lambda texts: tf.ragged.map_flat_values(look_up, texts)


def _check_labels(num_classes: int) -> Callable[[Any], Any]:
    """Labels are places among the names."""

    def check(labels: tf.Tensor) -> tf.Tensor:
        are_wrong = (labels < 0) | (labels >= num_classes)
        return _refuse(labels, labels, are_wrong, f"labels that label_names does not have, which names 0..{num_classes - 1}")

    return lambda labels: tf.ragged.map_flat_values(check, labels)


def _refuse(labels: tf.Tensor, found: tf.Tensor, are_wrong: tf.Tensor, message: str) -> tf.Tensor:
    check = tf.debugging.Assert(~tf.reduce_any(are_wrong), [message, tf.boolean_mask(found, are_wrong)])
    with tf.control_dependencies([check]):
        return tf.identity(labels)
