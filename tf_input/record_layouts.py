"""TFRecords that others wrote: which stored feature means what, found by looking at a first record.

    layout               stored features
    detection            image/encoded, image/object/bbox/{ymin,xmin,ymax,xmax}, image/object/class/label (TF Object Detection)
    slim                 image/encoded, image/class/label (TF-slim)
    raw                  image_raw, height, width, depth, label
    name_shape_data      name, shape, data
    feature_shape_label  feature, shape, label
    image_label          image, label
"""

import dataclasses
from typing import Any, Collection, Mapping, Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError  # which TensorFlow brings

from tf_input.dataset_format import IMAGE, LABEL, MASK, OBJECTS, Feature
from tf_input.record_columns import BBOX, SHAPES, Column, FirstRecord, Stored, flat, storage, values_of
from tf_input.schema import parse_examples

# Ours -> theirs; `?` where records may lack it. In the order in which they are tried: what asks for more comes first.
LAYOUTS: Mapping[str, Mapping[str, Stored]] = {
    "detection": {
        "image": "image/encoded",
        "objects/bbox": tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax")),
        "objects/label": "image/object/class/label",
        "objects/difficult": "image/object/difficult?",
        "objects/is_crowd": "image/object/is_crowd?",
        "objects/truncated": "image/object/truncated?",
        "key": "image/source_id?",
    },
    "slim": {"image": "image/encoded", "label": "image/class/label", "key": "image/filename?"},
    "raw": {"image": "image_raw", "height": "height", "width": "width", "depth": "depth", "label": "label"},
    "name_shape_data": {"image": "data", "shape": "shape", "key": "name"},
    "feature_shape_label": {"image": "feature", "shape": "shape", "label": "label"},
    "image_label": {"image": "image", "label": "label"},
}


@dataclasses.dataclass(frozen=True)
class RecordLayout:
    """How to read records.

    Attributes:
        name: One of `LAYOUTS`, "tfds" or "mapping".
        columns: By the feature's name.
        targets: What a model is to predict.
    """

    name: str
    columns: Mapping[str, Column]
    targets: tuple[str, ...]

    @property
    def features(self) -> dict[str, Feature]:
        """By name."""
        return {name: column.feature for name, column in self.columns.items()}

    def parse(self, serialized: tf.Tensor, names: Collection[str]) -> dict[str, Any]:
        """`schema.parse_examples` for records of this layout."""
        columns = {name: self.columns[name] for name in names}
        stored = {feature.name: feature for column in columns.values() for feature in column.stored}
        parsed = parse_examples(serialized, stored.values())
        return {name: one.convert(*(parsed[part.name] for part in one.stored)) for name, one in columns.items()}


def default_targets(names: Collection[str]) -> tuple[str, ...]:
    """A label, or else the objects, or else a mask, or nothing."""
    found = [LABEL] * (LABEL in names) + [OBJECTS] * (BBOX in names) + [MASK] * (MASK in names)
    return tuple(found[:1])


def find_layout(
    record: bytes, path: str, layout: str | Mapping[str, Stored] | None, label_names: Sequence[str]
) -> RecordLayout:
    """How to read records that are like this one.

    Args:
        record: The first.
        path: Where it lies, for messages.
        layout: One of `LAYOUTS`; or our names -> theirs; None: the first of `LAYOUTS` that fits.
        label_names: Class names, if they are known.

    Raises:
        ValueError: It is no `tf.train.Example`, or lacks something.
    """
    try:
        values = dict(tf.train.Example.FromString(record).features.feature)
    except DecodeError as error:
        raise ValueError(f"{path}: its first record is no tf.train.Example: {error}") from None
    if isinstance(layout, str):
        name, mapping = layout, LAYOUTS.get(layout)
        if mapping is None:
            raise ValueError(f"layout={layout!r}: expected one of {', '.join(LAYOUTS)}, or a mapping")
    elif layout is not None:
        name, mapping = "mapping", layout
    else:
        name, mapping = _guess(values, path)
    mapping = {ours: theirs for ours, theirs in mapping.items() if not _is_optional(theirs) or theirs[:-1] in values}
    mapping = {ours: theirs[:-1] if _is_optional(theirs) else theirs for ours, theirs in mapping.items()}
    if IMAGE not in mapping or (missing := _missing(mapping, values)):
        wanted = f"layout {name} needs {', '.join(missing)}" if IMAGE in mapping else "layout: expected an image in it"
        raise ValueError(f"{path}: {wanted}; its first record has {_describe(values)}")
    found = FirstRecord(path, mapping, values, tuple(label_names))
    columns = {ours: found.column(ours) for ours in mapping if ours not in SHAPES}
    return RecordLayout(name, columns, default_targets(columns))


def _is_optional(theirs: Stored) -> bool:
    return isinstance(theirs, str) and theirs.endswith("?")


def _guess(values: Mapping[str, tf.train.Feature], path: str) -> tuple[str, Mapping[str, Stored]]:
    for name, mapping in LAYOUTS.items():
        if not _missing({ours: theirs for ours, theirs in mapping.items() if not _is_optional(theirs)}, values):
            return name, mapping
    needed = {name: flat(one for one in mapping.values() if not _is_optional(one)) for name, mapping in LAYOUTS.items()}
    known = "; ".join(f"{name}: {', '.join(names)}" for name, names in needed.items())
    raise ValueError(
        f"{path}: its first record has {_describe(values)}, which is no known layout ({known}); "
        'layout={"image": "theirs", "label": "theirs"} says what is what'
    )


def _missing(mapping: Mapping[str, Stored], values: Mapping[str, tf.train.Feature]) -> list[str]:
    return [name for name in flat(mapping.values()) if name not in values]


def _describe(values: Mapping[str, tf.train.Feature]) -> str:
    shown = [f"{name} ({storage(value)} × {len(values_of(value))})" for name, value in sorted(values.items())[:20]]
    return ", ".join(shown) + (f" and {len(values) - 20} more" if len(values) > 20 else "") or "no features"
