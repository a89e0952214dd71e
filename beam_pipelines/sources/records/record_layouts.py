"""Which feature of a foreign record means what: the layouts that are known, and how one is recognised.

layout               features
detection            image/encoded, image/object/bbox/{ymin,xmin,ymax,xmax}, image/object/class/{text or label}, …
slim                 image/encoded, image/class/label
text_boxes           image/encoded, image/object/bbox/{ymin,xmin,ymax,xmax}, image/object/bbox/label
raw                  image_raw (uint8, row by row), height, width, depth, label
name_shape_data      name, shape, data (uint8, row by row); no label
feature_shape_label  feature (uint8, row by row), shape, label
image_label          image (encoded), label
none                 without an image: what --feature names, and label
a mapping            image=NAME[,label=NAME][,key=NAME][,height=NAME,width=NAME[,depth=NAME]][,shape=NAME]: with a
                     height and a width, or a shape, the image is one of uint8 pixels
"""

from typing import Mapping, NamedTuple

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.records.row_reader import describe_names, unknown_name
from tf_input.dataset_format import LABEL, OBJECTS


class ObjectsLayout(NamedTuple):
    """Features with one value for each object.

    Attributes:
        boxes: Of ymin, xmin, ymax and xmax, relative; or one with these four, an object behind the other.
        labels: Of a class; the first one that records have counts.
        flags: Name of ours behind `objects/` -> name of theirs.
    """

    boxes: tuple[str, ...]
    labels: tuple[str, ...]
    flags: Mapping[str, str] = {}


class Layout(NamedTuple):
    """Names of features.

    Attributes:
        name: Of the layout.
        image: An image's bytes; empty: there are none, but values alone.
        label: A class; empty: none.
        key: The example's key; empty: none.
        height: The height of pixels without a format; empty: `shape` has it.
        width: Their width; empty: `shape` has it.
        depth: The number of their channels; empty: it follows from the number of bytes.
        shape: Their height, width and channels in one feature; empty, and no height: the image has a format.
        raw: Of pixels that all have the same shape; None: they have not.
        objects: None: there are none.
        labels: What a model is to predict; None: `label`, or the objects.
        features: What else is kept in any case.
        class_names: Feature -> names of its integers.
        shapes: Feature -> the shape of its numbers.
    """

    name: str
    image: str
    label: str = ""
    key: str = ""
    height: str = ""
    width: str = ""
    depth: str = ""
    shape: str = ""
    raw: RawImage | None = None
    objects: ObjectsLayout | None = None
    labels: tuple[Column, ...] | None = None
    features: tuple[Column, ...] = ()
    class_names: Mapping[str, tuple[str, ...]] = {}
    shapes: Mapping[str, tuple[int, ...]] = {}

    @property
    def required(self) -> tuple[str, ...]:
        """By what it is recognised."""
        names = (
            self.image,
            self.label,
            self.height,
            self.width,
            self.shape,
            *(self.objects.boxes if self.objects else ()),
        )
        return tuple(name for name in names if name)

    def default_labels(self) -> tuple[Column, ...]:
        """What a model is to predict where `--label` does not say it."""
        if self.labels is not None:
            return self.labels
        if self.objects:
            return (Column(OBJECTS, (OBJECTS,)),)
        return (Column(LABEL, (self.label,)),) if self.label else ()


_BOXES = ObjectsLayout(
    boxes=tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax")),
    labels=("image/object/class/text", "image/object/class/label"),
    flags={name: f"image/object/{name}" for name in ("difficult", "is_crowd", "truncated")},
)
_TEXT_BOXES = _BOXES._replace(labels=("image/object/bbox/label",))
_ENCODED = "image/encoded"
# In the order in which they are tried: what asks for more comes first.
LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("detection", _ENCODED, objects=_BOXES),
        Layout("slim", _ENCODED, "image/class/label"),  # ImageNet's have image/object/bbox/label too, the image's class
        Layout("text_boxes", _ENCODED, objects=_TEXT_BOXES),
        Layout("raw", "image_raw", "label", height="height", width="width", depth="depth"),
        Layout("name_shape_data", "data", shape="shape"),
        Layout("feature_shape_label", "feature", "label", shape="shape"),
        Layout("image_label", "image", "label"),
    )
}
# What `--layout` may say of a folder that describes itself.
DIRECTORY_LAYOUTS = ("recordmill", "tfds")
MAPPING = "mapping"  # the name of one that the user gives
_MAPPED = ("image", "label", "key", "height", "width", "depth", "shape")


def settle_layout(known: Layout | None, source: SourceConfig, kinds: Mapping[str, str], path: str, place: str) -> Layout:
    """The layout of a source's records.

    Args:
        known: What the data set says of itself; None: nothing.
        source: What the user said.
        kinds, path, place: See `find_layout`.

    Raises:
        UserError: It is not known, or the first records are not of that layout.
    """
    layout = known
    if layout is None and not source.layout and (not source.has_images or _are_values(kinds, source)):
        layout = Layout("values", "", LABEL if LABEL in kinds else "")
    if layout is None:
        layout = parse_layout(source.layout) if source.layout else find_layout(kinds, path, place)
    if not source.has_images:
        layout = layout._replace(image="")
    if source.image_column:
        layout = layout._replace(image=source.image_column)
        if layout.image not in kinds:
            raise unknown_name("--image_column", layout.image, kinds, place)
    given = (layout.key, layout.depth) if layout.name == MAPPING else ()
    names = [name for name in (*layout.required, *given) if name and name != layout.label]
    absent = [name for name in names if name not in kinds]
    if absent:
        raise unknown_name(f"--layout={printable(source.layout or layout.name)}", absent[0], kinds, place)
    return layout


def _are_values(kinds: Mapping[str, str], source: SourceConfig) -> bool:
    """Whether nothing is left that an image could be, once the user has said what the features of bytes are."""
    columns = (*(source.labels or ()), *source.features)
    named = {LABEL, source.key_column, source.group_column, source.split_column, *(name for column in columns for name in column.names)}
    is_open = source.image_column is None and bool(source.features)
    return is_open and not any(kind == "bytes" and name not in named for name, kind in kinds.items())


def find_layout(kinds: Mapping[str, str], path: str, place: str) -> Layout:
    """The layout of records that have features of these names.

    Args:
        kinds: Name -> `bytes`, `float` or `int64`, or empty where no record has a value.
        path: Of the first file.
        place: How a message calls the records that were looked at: `the first 64 records`.

    Raises:
        UserError: None is known.
    """
    for layout in LAYOUTS.values():
        has_classes = not layout.objects or not kinds.keys().isdisjoint(layout.objects.labels)
        if kinds.keys() >= set(layout.required) and has_classes:
            return layout
    raise UserError(
        f"{path}: {place} have the features {describe_names(kinds)}, which is no known layout ({', '.join(LAYOUTS)}); "
        f"{_advise(kinds)}"
    )


def _advise(kinds: Mapping[str, str]) -> str:
    """What a user may say of records whose layout is none that is known."""
    known = sorted({layout.image for layout in LAYOUTS.values()}.intersection(kinds), key=len, reverse=True)
    if known and known[0] == _ENCODED:
        problem = "boxes without classes are not kept; " if kinds.keys() >= set(_BOXES.boxes) else ""
        return f"{problem}expected --layout=image={_ENCODED} for the images alone, or --layout=image={_ENCODED},label=NAME for a label too"
    if not known and "bytes" not in kinds.values():
        return "none of them is of bytes, and so an image; expected --feature for each that is kept, such as --feature x:float[4]"
    image = known[0] if known else "NAME"
    return (
        f"expected --layout=image={image},label=NAME; of pixels without a format also height=NAME,width=NAME "
        "or shape=NAME, which records must have; without a label drop label=NAME"
    )


def parse_layout(text: str) -> Layout:
    """Reads `--layout`: `slim`, or `image=image_raw,label=cls,height=h,width=w`.

    Raises:
        UserError: It is neither a known name nor a mapping.
    """
    if text in LAYOUTS:
        return LAYOUTS[text]
    known = f"{', '.join((*LAYOUTS, *DIRECTORY_LAYOUTS))} or image=NAME[,…] with {', '.join(_MAPPED)}"
    fields: dict[str, str] = {}
    for part in text.split(","):
        meaning, _, name = (word.strip() for word in part.partition("="))
        if meaning not in _MAPPED or not name or meaning in fields:
            raise UserError(f"--layout={text}: expected {known}")
        fields[meaning] = name
    if "image" not in fields:
        raise UserError(f"--layout={text}: expected image=NAME in it")
    has_size = "height" in fields, "width" in fields
    if has_size[0] != has_size[1] or ("depth" in fields and not all(has_size)) or ("shape" in fields and any(has_size)):
        raise UserError(f"--layout={text}: expected height and width, and with them depth; or shape alone")
    return Layout(MAPPING, **fields)


def choose_columns(source: SourceConfig, layout: Layout) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Labels and features: those that were named, and else those that belong to the layout.

    Raises:
        UserError: None was named, and the data set has no label, or several.
    """
    labels = source.labels
    if labels is None:
        labels = layout.default_labels()
        if not labels and not layout.image and layout.name != "recordmill":
            raise UserError(f"records have no {LABEL!r}; expected --label with one of their features, or --label none")
        if not labels and layout.name == "tfds":
            raise UserError("the data set has no class label, or several; expected --label with one of its features, or --label none")
    taken = {name for column in (*labels, *source.features) for name in (column.name, *column.names)}
    kept = tuple(column for column in layout.features if taken.isdisjoint((column.name, *column.names)))
    if not layout.image and not source.features and not kept:
        raise UserError("--image=none: expected --feature for each feature that an example is to have, such as --feature x:float[4]")
    return labels, source.features + kept
