"""TFRecords that others wrote: which stored feature means what, found by looking at the first ones.

    layout               stored features
    detection            image/encoded, image/object/bbox/{ymin,xmin,ymax,xmax}, image/object/class/label (TF Object Detection)
    slim                 image/encoded, image/class/label (TF-slim)
    text_boxes           image/encoded, image/object/bbox/{ymin,xmin,ymax,xmax}, image/object/bbox/label (PixelLink)
    raw                  image_raw, height, width, depth, label
    name_shape_data      name, shape, data
    feature_shape_label  feature, shape, label
    image_label          image, label
    values               numbers alone: all features, by their own names
"""

import dataclasses
from typing import Any, Collection, Mapping, Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError  # which TensorFlow brings

from tf_input.dataset_format import LABEL, MASK, OBJECTS, Feature
from tf_input.decoding.schema import parse_examples
from tf_input.foreign.record_columns import BBOX, Column, FirstRecords, Seen, Stored, flat, look_at

_BOXES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
# Ours -> theirs; `?` where records may lack it. In the order in which they are tried: what asks for more comes first.
LAYOUTS: Mapping[str, Mapping[str, Stored]] = {
    "detection": {
        "image": "image/encoded",
        "objects/bbox": _BOXES,
        "objects/label": "image/object/class/label",
        "objects/difficult": "image/object/difficult?",
        "objects/is_crowd": "image/object/is_crowd?",
        "objects/truncated": "image/object/truncated?",
        "key": "image/source_id?",
    },
    "slim": {"image": "image/encoded", "label": "image/class/label", "key": "image/filename?"},
    "text_boxes": {
        "image": "image/encoded",
        "objects/bbox": _BOXES,
        "objects/label": "image/object/bbox/label",
        "key": "image/filename?",
    },
    "raw": {"image": "image_raw", "height": "height", "width": "width", "depth": "depth", "label": "label"},
    "name_shape_data": {"image": "data", "shape": "shape", "key": "name"},
    "feature_shape_label": {"image": "feature", "shape": "shape", "label": "label"},
    "image_label": {"image": "image", "label": "label"},
}


VALUES = "values"  # of records without anything that may be an image: all that they have, by its own names


@dataclasses.dataclass(frozen=True)
class RecordLayout:
    """How to read records.

    Attributes:
        name: One of `LAYOUTS`, "values", "tfds" or "mapping".
        columns: By the feature's name.
        targets: What a model is to predict.
    """

    name: str
    columns: Mapping[str, Column]
    targets: tuple[str, ...]

    @property
    def features(self) -> dict[str, Feature]:
        """The features that records become, by name."""
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
    records: Sequence[bytes], path: str, layout: str | Mapping[str, Stored] | None, label_names: Sequence[str]
) -> RecordLayout:
    """How to read records that are like these.

    Args:
        records: The first ones.
        path: Where the first lies, for messages.
        layout: One of `LAYOUTS`; or our names -> theirs; None: the first of `LAYOUTS` that fits.
        label_names: Class names, if they are known.

    Raises:
        ValueError: One is no `tf.train.Example`, or they lack something.
    """
    try:
        seen = look_at(records)
    except DecodeError as error:
        they_are = "its first record is" if len(records) == 1 else f"one of its first {len(records)} records is"
        raise ValueError(f"{path}: {they_are} no tf.train.Example: {error}") from None
    they_have = "its first record has" if len(records) == 1 else f"its first {len(records)} records have"
    found = f"{they_have} {_describe(seen)}"
    if isinstance(layout, str) and layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: expected one of {', '.join(LAYOUTS)}, or a mapping")
    name = "mapping" if isinstance(layout, Mapping) else layout or _guess(seen, path, found)
    mapping = layout if isinstance(layout, Mapping) else LAYOUTS[name] if name in LAYOUTS else {one: one for one in seen}
    mapping = {ours: theirs for ours, theirs in mapping.items() if not _is_optional(theirs) or theirs[:-1] in seen}
    mapping = {ours: theirs[:-1] if _is_optional(theirs) else theirs for ours, theirs in mapping.items()}
    objects = flat(theirs for ours, theirs in mapping.items() if ours.startswith(f"{OBJECTS}/"))
    if isinstance(layout, str) and not seen.keys() & objects:
        seen |= dict.fromkeys(objects, Seen())  # it says that they are there, though the first images show none
    if not mapping or (missing := _missing(mapping, seen)):
        wanted = f"layout {name} needs {', '.join(missing)}" if mapping else "layout: expected a feature in it"
        raise ValueError(f"{path}: {wanted}; {found}")
    first = FirstRecords(path, they_have, mapping, seen, tuple(label_names))
    columns = {ours: first.column(ours) for ours in mapping if ours not in first.sides}
    return RecordLayout(name, columns, default_targets(columns))


def _is_optional(theirs: Stored) -> bool:
    return isinstance(theirs, str) and theirs.endswith("?")


def _guess(seen: Mapping[str, Seen], path: str, found: str) -> str:
    for name, mapping in LAYOUTS.items():
        if not _missing({ours: theirs for ours, theirs in mapping.items() if not _is_optional(theirs)}, seen):
            return name
    if seen and not any("bytes" in one.storages for one in seen.values()):
        return VALUES
    needed = {name: flat(one for one in mapping.values() if not _is_optional(one)) for name, mapping in LAYOUTS.items()}
    known = "; ".join(f"{name}: {', '.join(names)}" for name, names in needed.items())
    raise ValueError(f"{path}: {found}, which is no known layout ({known}); {_advise(seen)}")


def _advise(seen: Mapping[str, Seen]) -> str:
    """What a user may say of records whose layout is none that is known."""
    known = sorted({mapping["image"] for mapping in LAYOUTS.values()}.intersection(seen), key=len, reverse=True)
    image = known[0] if known else "theirs"
    boxes = f', "{BBOX}": {list(_BOXES)}' if seen.keys() >= set(_BOXES) else ', "label": "theirs"'
    return f'layout={{"image": "{image}"{boxes}}} says what is what; without {"boxes" if "bbox" in boxes else "a label"}, {{"image": "{image}"}}'


def _missing(mapping: Mapping[str, Stored], seen: Mapping[str, Seen]) -> list[str]:
    return [name for name in flat(mapping.values()) if name not in seen]


def _describe(seen: Mapping[str, Seen]) -> str:
    shown = [f"{name} ({one})" for name, one in sorted(seen.items())[:20]]
    return ", ".join(shown) + (f" and {len(seen) - 20} more" if len(seen) > 20 else "") or "no features"
