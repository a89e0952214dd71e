"""Finds the image, the labels and all other features in records from other tools.

The module `tf_input.record_layouts` defines the known layouts and the syntax of `--layout`.
"""

import dataclasses
from typing import Any, Callable, Collection, Iterable, Mapping, NamedTuple

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import UserError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.rows.field_names import search_names, unknown_name
from tf_input import first_records, record_layouts
from tf_input.dataset_format import IMAGE, LABEL, MASK, OBJECTS, WEIGHT, Feature
from tf_input.first_records import FieldValues
from tf_input.record_layouts import Item
from tf_input.serialized_example import BadExampleError, SerializedExample

# Items of `--layout` that are not features.
_ROLES = ("key", WEIGHT)


class ObjectsLayout(NamedTuple):
    """Features with one value per object.

    Attributes:
        boxes: Four features with relative ymin, xmin, ymax and xmax, or one feature with these four numbers per object.
        label: The feature with the class of each object.
        flags: Name of a flag after `objects/` -> its feature.
        declared: The features of the flags, if the dataset declares them. Other flags are integers.
    """

    boxes: tuple[str, ...]
    label: str
    flags: Mapping[str, str] = {}
    declared: tuple[Feature, ...] = ()


class Layout(NamedTuple):
    """The names of the record features that contain the image, the label, the key and so on.

    Attributes:
        name: The name of the layout.
        image: The feature with the image's bytes; empty if there are no images.
        key: The feature with the example's key; empty if there is no key.
        weight: The feature with the example's weight; None if the layout has no weight.
        raw: The layout of raw images that all have the same shape; None for all other images.
        objects: The features with the objects; None if there are no objects.
        labels: The columns that a model predicts; None if they are unknown.
        features: The other columns to keep.
        class_names: Feature -> class names, if its integers are class indices.
        shapes: Feature -> the shape of its numbers.
        mask: The feature with a mask that is stored as raw numbers; empty if there is no such mask.
        numbers: Feature with raw numbers, such as pixels, in a bytes value -> the item of the layout that describes it.
        stated: The requested or detected layout; None if the dataset has metadata.
        sides: The layout items that contain the shape of raw numbers.
        counts: Feature -> the numbers of values that records have, among the first records.
        guess: A message about a detected layout; empty if the layout was requested.
        defaults: Feature -> the default value for records without it.
    """

    name: str
    image: str
    key: str = ""
    weight: str | None = None
    raw: RawImage | None = None
    objects: ObjectsLayout | None = None
    labels: tuple[Column, ...] | None = ()
    features: tuple[Column, ...] = ()
    class_names: Mapping[str, tuple[str, ...]] = {}
    shapes: Mapping[str, tuple[int, ...]] = {}
    mask: str = ""
    numbers: Mapping[str, Item] = {}
    stated: record_layouts.Layout | None = None
    sides: tuple[str, ...] = ()
    counts: Mapping[str, frozenset[int]] = {}
    guess: str = ""
    defaults: Mapping[str, str] = {}


def find_layout(examples: Iterable[SerializedExample], source: SourceConfig, path: str) -> Layout:
    """Returns the requested layout, or detects a layout from the first records.

    Args:
        examples: The first records.
        source: The options of the source.
        path: The path of the first file, for messages.

    Raises:
        UserError: The layout is unknown, or the first records do not match it.
    """
    first: list[Mapping[str, Any]] = []
    num_bytes = 0
    for example in examples:
        try:
            first.append({name: (feature.storage, example.values(name)) for name, feature in example.features.items()})
        except BadExampleError:  # becomes a dead letter during listing
            continue
        num_bytes += example.num_bytes
        if len(first) == first_records.MAX_RECORDS or num_bytes >= first_records.MAX_BYTES:
            break
    seen, message_start = first_records.read_values(first), "its first records have"
    try:
        if source.layout is None and source.features and (not source.has_images or _are_values(seen, source)):
            label = {LABEL: Item((LABEL,))} if LABEL in seen else {}
            stated = record_layouts.Layout(record_layouts.VALUES, label)
        else:
            stated = first_records.find_layout(source.layout, seen, message_start, prefers_text=True, needs_label=source.labels is None)
    except ValueError as error:
        option = "--" if str(error).startswith("layout=") else f"{printable(path)}: "
        raise UserError(f"{option}{printable(str(error))}") from None
    sides = first_records.side_items(stated, seen)

    def find_shape(item: Item) -> tuple[int | None, ...]:
        try:
            return first_records.common_shape(first_records.record_shapes(stated, sides, item, first), item.is_list)
        except ValueError as error:
            raise UserError(f"{printable(path)}: {message_start} {printable(str(error))}") from None

    return _layout_of(stated, sides, seen, f"{printable(path)}: {message_start}", source, find_shape)


def _layout_of(
    stated: record_layouts.Layout,
    sides: tuple[str, ...],
    seen: Mapping[str, FieldValues],
    message_start: str,
    source: SourceConfig,
    find_shape: Callable[[Item], tuple[int | None, ...]],
) -> Layout:
    items = stated.items
    of_image = (IMAGE, "height", "width") if IMAGE in items else ()  # features that each example with an image has
    wants_objects = source.labels is None or any(column.names == (OBJECTS,) for column in source.labels)
    objects = _objects_of(stated, seen, message_start) if stated.box_names and wants_objects else None
    columns = {
        name: _column_of(name, item, seen.get(item.name, FieldValues()), find_shape)
        for name, item in items.items()
        if name not in (*sides, *_ROLES, *of_image) and not name.startswith(f"{OBJECTS}/")
    }
    labels = tuple(Column(OBJECTS, (OBJECTS,)) if name == OBJECTS else columns.pop(name) for name in stated.targets)
    named = {name for column in (*(source.labels or ()), *source.features) for name in column.names}
    unused_fields = sorted(seen.keys() - named - {item.name for item in items.values() if item.names})
    description = f"layout {stated.name}: {stated}" + (f"; left out: {', '.join(map(printable, unused_fields))}" if unused_fields else "")
    return Layout(
        stated.name,
        items[IMAGE].name if IMAGE in items and source.has_images else "",
        # In other layouts, keys may not be unique.
        key=items["key"].name if "key" in items and stated.name == record_layouts.MAPPING else "",
        weight=items[WEIGHT].name if WEIGHT in items else None,
        objects=objects,
        labels=labels,
        features=tuple(columns.values()),
        mask=items[MASK].name if MASK in items else "",
        numbers={items[name].name: items[name] for name in first_records.number_items(stated, seen)},
        stated=stated,
        sides=sides,
        counts={name: entry.counts for name, entry in seen.items()},
        guess="" if source.layout else description,
        defaults={item.name: item.default for item in items.values() if item.default},
    )


def _are_values(seen: Mapping[str, FieldValues], source: SourceConfig) -> bool:
    """Returns whether the records contain no images, because every bytes feature has another purpose."""
    columns = (*(source.labels or ()), *source.features)
    named = {LABEL, source.key_column, source.group, source.split_column, *(name for column in columns for name in column.names)}
    return source.image_column is None and not any("bytes" in item.storages and name not in named for name, item in seen.items())


def _objects_of(stated: record_layouts.Layout, seen: Mapping[str, FieldValues], message_start: str) -> ObjectsLayout:
    label = stated.items.get(f"{OBJECTS}/{LABEL}")
    has_objects = any(len(seen[name].values) for name in stated.box_names if name in seen)
    if label is None or has_objects and not seen.get(label.name, FieldValues()).values:
        names = "" if label is None else f" in {label.name}"
        raise UserError(f"{message_start} boxes without classes{names}. Use --label none to keep only the images.")
    others = {name.removeprefix(f"{OBJECTS}/"): item.name for name, item in stated.items.items() if name.startswith(f"{OBJECTS}/")}
    flags = {name: theirs for name, theirs in others.items() if not name.startswith("bbox") and name != LABEL}
    return ObjectsLayout(stated.box_names, label.name, flags)


def _column_of(name: str, item: Item, seen: FieldValues, find_shape: Callable[[Item], tuple[int | None, ...]]) -> Column:
    """Derives the column of a feature from its description in the layout and from its values in the first records."""
    if name == MASK:
        return Column(MASK, (item.name,), "mask")
    if item.default:
        return Column(name, (item.name,), "class" if name == LABEL and seen.storage != "float" else seen.kind)
    if item.is_image:
        return Column(name, (item.name,), "image")
    if item.dtype:
        return Column(name, (item.name,), "tensor", find_shape(item), item.dtype)
    shape = (None,) if item.is_list else seen.shape
    if name != LABEL or seen.storage == "float":
        return Column(name, (item.name,), seen.kind, shape)
    if seen.is_multi_hot and not item.is_list:
        return Column(name, (item.name,), "multi_hot", shape)
    return Column(name, (item.name,), "multi_label" if item.is_list or max(seen.counts) > 1 else "class")


def replace_image(layout: Layout, image: str, examples: Iterable[SerializedExample]) -> Layout:
    """Replaces the image feature of a layout with the feature in `--image_column`. Raises `UserError` if the first
    records do not have such a feature."""
    names, num_searched = search_names((example.features for example in examples), {image})
    if image not in names:
        raise unknown_name("--image_column", image, names, f"the first {num_searched:,} records")
    numbers = {image if name == layout.image else name: item for name, item in layout.numbers.items()}
    return layout._replace(image=image, numbers=numbers)


def choose_fields(source: SourceConfig, layout: Layout) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Returns the columns of the labels and of the other features. Options take precedence over the layout. Raises
    `UserError` if neither the options nor the layout specify the labels, or if no feature is kept."""
    labels = layout.labels if source.labels is None else source.labels
    if labels is None:
        raise UserError("The dataset has no class label, or several. Pass --label with one of its features, or --label none.")
    if source.labels is None and not labels and layout.name == record_layouts.VALUES:
        raise UserError(f"The records have no {LABEL!r}. Pass --label with one of their features, or --label none.")
    labels = tuple(_resolve_list(column, layout.counts.get(column.names[0], ()), source) for column in labels)
    taken = {name for column in (*labels, *source.features) for name in (column.name, *column.names)}
    kept = tuple(column for column in layout.features if taken.isdisjoint((column.name, *column.names)))
    if not layout.image and not source.features and not kept:
        raise UserError("--image=none: pass --feature for each feature to keep, such as --feature x:float[4].")
    return labels, source.features + kept


def _resolve_list(column: Column, counts: Collection[int], source: SourceConfig) -> Column:
    """Converts a column of several classes to a list of any length. The column stays unchanged if each example has one
    value per class, because the values are then flags."""
    is_list = form_of(column).is_names and not form_of(column).is_one_class and bool(set(counts) - {0, len(source.names_of(column.name))})
    return dataclasses.replace(column, shape=(None,)) if is_list else column
