"""What a first record says of the features of records that others wrote, and how these become features of ours."""

import dataclasses
import math
from typing import Any, Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from tf_input.dataset_format import IMAGE, LABEL, MASK, OBJECTS, WEIGHT, Feature

Stored = str | tuple[str, ...]  # names of features that records have
SHAPES = ("height", "width", "depth", "shape")  # they say how to read pixels, and are no features of their own
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
    """All names."""
    return [name for one in stored for name in ((one,) if isinstance(one, str) else one)]


def storage(value: tf.train.Feature) -> str:
    """"bytes", "float", "int64" or "empty"."""
    return (value.WhichOneof("kind") or "empty").removesuffix("_list")


def values_of(value: tf.train.Feature) -> Sequence[Any]:
    """As Python has them."""
    kind = value.WhichOneof("kind")
    return getattr(value, kind).value if kind else ()


@dataclasses.dataclass(frozen=True)
class FirstRecord:
    """A record, and what its features mean.

    Attributes:
        path: Where it lies, for messages.
        mapping: Our names -> theirs.
        values: By their names.
        label_names: Class names, if they are known.
    """

    path: str
    mapping: Mapping[str, Stored]
    values: Mapping[str, tf.train.Feature]
    label_names: tuple[str, ...]

    def column(self, name: str) -> Column:
        """A feature by our name; ValueError if it can't be made of what there is."""
        stored = self.mapping[name]
        if name == BBOX:
            return self._boxes(stored)
        if not isinstance(stored, str):
            raise self._error(name, "one feature", f"{len(stored)} of them")
        value = self.values[stored]
        if name == IMAGE:
            return self._image(stored, value)
        if name == MASK:
            return _same(Feature(MASK, "mask"), stored)
        if name in (LABEL, f"{OBJECTS}/{LABEL}"):
            return self._label(name, stored, value)
        if name == WEIGHT and (storage(value), len(values_of(value))) != ("float", 1):
            raise self._error(name, "one float", f"{storage(value)} × {len(values_of(value))}")
        return _same(Feature(name, _kind(value), self._shape(name, value)), stored)

    def _shape(self, name: str, value: tf.train.Feature) -> tuple[int | None, ...]:
        """Of one example's values: as many as the first has, but of objects any number."""
        count = len(values_of(value))
        return (None,) if name.startswith(f"{OBJECTS}/") else () if count == 1 else (count,)

    def _boxes(self, stored: Stored) -> Column:
        names = flat([stored])
        for name in names:
            if storage(self.values[name]) not in ("float", "empty"):
                raise self._error(BBOX, "floats in 0..1", f"{storage(self.values[name])} in {name}")
        feature = Feature(BBOX, "bbox", (None, 4))
        if len(names) == 1:
            return _same(feature, names[0])
        if len(names) != 4:
            raise self._error(BBOX, "one feature, or four: ymin, xmin, ymax, xmax", f"{len(names)}")
        return Column(feature, tuple(Feature(name, "float", (None,)) for name in names), _stack_sides)

    def _label(self, name: str, stored: str, value: tf.train.Feature) -> Column:
        shape = (None,) if name != LABEL or len(values_of(value)) != 1 else ()
        kind = _kind(value)
        if kind == "float":
            return _same(Feature(name, "float", self._shape(name, value)), stored)
        feature = Feature(name, "class_label", shape, self.label_names)
        if kind == "integer":
            return _same(feature, stored)
        if not self.label_names:
            raise self._error(name, "integers, or label_names=... with texts", f"texts in {stored}")
        return Column(feature, (Feature(stored, "text", shape),), _look_up(self.label_names))

    def _image(self, stored: str, value: tf.train.Feature) -> Column:
        if (storage(value), len(values_of(value))) != ("bytes", 1):
            raise self._error(IMAGE, "one string of bytes", f"{storage(value)} × {len(values_of(value))} in {stored}")
        (data,) = values_of(value)
        sides = [name for name in SHAPES if name in self.mapping]
        shape = self._pixel_shape(sides)
        num_bytes = math.prod(shape) if shape else None
        if len(data) != num_bytes and data.startswith(_ENCODED):
            return _same(Feature(IMAGE, "image"), stored)
        if shape is None or len(data) != num_bytes:
            expected = f"uint8 of shape {shape}" if shape else "a JPEG, PNG, GIF, BMP or WebP, or its shape beside it"
            raise self._error(IMAGE, expected, f"{len(data)} bytes in {stored} that begin with {data[:4]!r}")
        parts = tuple(Feature(self.mapping[side], *_shape_kind(self.values[self.mapping[side]])) for side in sides)
        stated = [values_of(self.values[self.mapping[side]]) for side in sides]
        return Column(Feature(IMAGE, "pixels", shape), (Feature(stored, "text"), *parts), _check_shape(shape, stated))

    def _pixel_shape(self, sides: Sequence[str]) -> tuple[int, int, int] | None:
        """(height, width, channels) that the record states; None: it does not."""
        if not sides:
            return None
        numbers = [number for side in sides for number in _integers(self.values[self.mapping[side]])]
        numbers += [1] * (len(numbers) == 2)  # grey
        if len(numbers) != 3 or min(numbers) < 1 or numbers[2] not in (1, 3):
            raise self._error(IMAGE, "a height, a width, and 1 or 3 channels", f"{numbers} in {', '.join(sides)}")
        return tuple(numbers)

    def _error(self, name: str, expected: str, found: str) -> ValueError:
        return ValueError(f"{self.path}: {name}: expected {expected}; its first record has {found}")


def _same(feature: Feature, stored: str) -> Column:
    return Column(feature, (dataclasses.replace(feature, name=stored),))


def _kind(value: tf.train.Feature) -> str:
    return {"bytes": "text", "float": "float"}.get(storage(value), "integer")


def _shape_kind(value: tf.train.Feature) -> tuple[str, tuple[int, ...]]:
    count = len(values_of(value))
    return _kind(value), () if count == 1 else (count,)


def _integers(value: tf.train.Feature) -> list[int]:
    """Integers, or the bytes of an array of them: with two or three dimensions, of 8 bytes if there are 16 or 24, else of 4."""
    if storage(value) != "bytes":
        return [int(number) for number in values_of(value)]
    data = b"".join(values_of(value))
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
    places = tf.range(len(names), dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.constant(names), places), -1)

    def look_up(texts: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        flat = texts.values if isinstance(texts, tf.RaggedTensor) else texts
        labels = table.lookup(flat)
        unknown = tf.boolean_mask(flat, labels < 0)
        check = tf.debugging.Assert(tf.equal(tf.size(unknown), 0), ["class names that label_names does not have", unknown])
        with tf.control_dependencies([check]):
            labels = tf.identity(labels)
        return texts.with_values(labels) if isinstance(texts, tf.RaggedTensor) else labels

    return look_up
