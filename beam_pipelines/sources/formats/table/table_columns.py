"""Finds the table columns that contain the image, the labels, the key and so on, by options or by common names."""

import dataclasses
import math
import re
from typing import Iterable, Mapping, Sequence

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import REST, SourceConfig
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.cells.box_columns import BoxColumns, find_box_columns
from beam_pipelines.sources.cells.pixel_cells import ONE_CELL, PixelColumns, find_pixel_columns, num_pixels, square_shape
from beam_pipelines.sources.cells.row_roles import RowRoles
from beam_pipelines.sources.rows.table_files import TableFile
from beam_pipelines.sources.formats.table.table_rows import TableHead, find_repeated, read_first_row, show_columns
from tf_input.dataset_format import LABEL, OBJECTS

IMAGE_COLUMNS = ("file_name", "image", "image_path", "path", "filename", "filepath", "file")
# Less usual names, which columns beside pixels can also have.
_OTHER_IMAGE_COLUMNS = ("image_name", "img_path", "img", "image_id")
# Usual names of the column with the image in a table where several rows belong to an image.
_SHARED_IMAGE_COLUMNS = (*IMAGE_COLUMNS, "image_name", "image_filename", "imagename", "img_path", "img", "image_id", "imageid")
LABEL_COLUMNS = ("label", "labels", "class", "category")

# A number is never a column name. It shows that the first line is not a header.
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """The columns of a table that contain the image, the labels, the key and so on. None: the table has no such column.

    Attributes:
        image: The column with image paths, or with image bytes in Parquet; None if examples have no image.
        roles: The columns with key, split, group and weight.
        objects: The column with boxes and their classes, in the format of Hugging Face's libraries.
        pixels: The columns with the pixels of an image.
        boxes: The columns of a table in which each row is a box.
        labels: The columns that a model predicts, without objects.
        rows: What a row describes, one of `ROWS`.
    """

    image: str | None
    roles: RowRoles
    objects: str | None
    pixels: PixelColumns | None
    boxes: BoxColumns | None
    labels: tuple[Column, ...]
    rows: str

    @property
    def are_grouped(self) -> bool:
        """Whether several rows can belong to an image."""
        return self.rows != "images"

    @property
    def has_images(self) -> bool:
        """Whether each row names or contains an image."""
        return self.image is not None or self.pixels is not None

    @property
    def has_objects(self) -> bool:
        """Whether there are boxes."""
        return bool(self.objects or self.boxes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns except labels."""
        names = (self.image, *self.roles.names, self.objects, *(self.boxes.names if self.boxes else ()), *(self.pixels.names if self.pixels else ()))
        return tuple(dict.fromkeys(name for name in names if name is not None))


def choose_columns(head: TableHead, config: SourceConfig, file: TableFile) -> TableColumns:
    """Determines the columns with the image, the labels, the key and so on from the first rows of a table.

    Args:
        head: The columns of the table.
        config: The options of the source.
        file: The table, for messages.

    Raises:
        UserError: There is no image or label column, a requested column is missing, or examples would be empty.
    """
    chooser = _Chooser(head.columns, file.name)
    rows = _choose_rows(head, config, chooser, file)
    usual_images = IMAGE_COLUMNS if rows == "images" else _SHARED_IMAGE_COLUMNS
    image = chooser.choose("--image_column", config.image_column, usual_images) if config.has_images else None
    if image is None and rows != "images":
        advice = "Name the column of images with --image_column" if config.has_images else "Omit --image=none"
        raise chooser.error(f"--rows={rows}: rows are grouped by the image column, but there is none", advice)
    pixels = _choose_pixels(chooser, config, image, file) if rows == "images" else None
    image = None if pixels else image
    if image is None and not pixels and config.has_images:
        image = _choose_other_image(chooser, config, file)
    if image is None and not pixels and not config.features:
        keep = "add --feature COLUMN:KIND for each column to keep, such as height:float"
        if not config.has_images:
            raise chooser.error("--image=none leaves examples without features", f"A{keep[1:]}")
        advice = f"Name the column of images with --image_column. For examples without images, {keep}"
        raise chooser.error(f"has none of the columns {', '.join((*IMAGE_COLUMNS, *_OTHER_IMAGE_COLUMNS))}", advice)
    boxes = _choose_boxes(chooser, config, image) if rows == "boxes" and config.labels != () else None
    labels = config.labels
    if labels is None:
        labels = () if boxes else _usual_labels(head, chooser)
    elif boxes:
        labels = tuple(column for column in labels if OBJECTS not in (column.name, *column.names) and column.names != (boxes.label,))
    for column in (*labels, *config.features):
        for name in column.names:
            chooser.choose("--label or --feature", name, ())
    has_objects = any(_means_objects(column, head) for column in labels)
    return TableColumns(
        image=image,
        roles=RowRoles(
            key=chooser.choose_key(config.key_column),
            split=chooser.choose("--split_column", config.split_column, ("split", "usage") if pixels else ("split",)),
            group=chooser.choose("--group", config.group, ("group",)),
            weight=chooser.choose("--weight_column", config.weight_column, ("weight",)),
            may_omit_split=REST in config.divide,
            may_omit_group=not config.group,
        ),
        objects=OBJECTS if has_objects else None,
        pixels=pixels,
        boxes=boxes,
        rows=rows,
        labels=tuple(column for column in labels if not _means_objects(column, head)),
    )


def _usual_labels(head: TableHead, chooser: "_Chooser") -> tuple[Column, ...]:
    name = chooser.choose("--label", None, LABEL_COLUMNS)
    if name is not None:
        return (Column(LABEL, (name,), "multi_label" if name in head.lists else "class"),)
    if OBJECTS in head.structs:
        return (Column(OBJECTS, (OBJECTS,)),)
    raise chooser.error(
        f"has none of the columns {', '.join((*LABEL_COLUMNS, OBJECTS))}",
        "Pass --label COLUMN, --label A,B,C:one_hot for one-hot columns, or --label none",
    )


def _choose_rows(head: TableHead, config: SourceConfig, chooser: "_Chooser", file: TableFile) -> str:
    """Determines what a row describes, one of `ROWS`."""
    if config.rows:
        return config.rows
    image = chooser.choose("--image_column", config.image_column, _SHARED_IMAGE_COLUMNS) if config.has_images else None
    if image is None or OBJECTS in head.columns:
        return "images"
    asks_for_boxes = config.labels is None or any(OBJECTS in (column.name, *column.names) for column in config.labels)
    if asks_for_boxes and find_box_columns(head.columns, image, _used_columns(config)):
        return "boxes"
    columns = (*(config.labels or ()), *config.features)
    collects = any(column.kind == "rle" or (column.kind == "text" and column.shape == (None,)) for column in columns)
    return "values" if collects and find_repeated(file, config, image) else "images"


def _choose_other_image(chooser: "_Chooser", config: SourceConfig, file: TableFile) -> str | None:
    """Returns a column with a less usual name for images, or None. Such a column may contain only numbers of images: if
    `--feature` is given, so that no image is needed, the first cell must be an image or its name."""
    files = {name for column in (*(config.labels or ()), *config.features) if column.kind in ("image", "mask") for name in column.names}
    image = chooser.choose("--image_column", None, [name for name in _OTHER_IMAGE_COLUMNS if name not in files])
    if image is None or not config.features or config.image_suffix:
        return image
    cell = read_first_row(file, config, (image,)).get(image)
    is_image = isinstance(cell, (bytes, dict)) or (isinstance(cell, str) and cell.lower().endswith(tuple(IMAGE_EXTENSIONS)))
    return image if is_image else None


def _used_columns(config: SourceConfig) -> set[str]:
    """Returns the columns that `--label` and `--feature` name."""
    return {name for column in (*(config.labels or ()), *config.features) for name in column.names}


def _choose_pixels(chooser: "_Chooser", config: SourceConfig, image: str | None, file: TableFile) -> PixelColumns | None:
    """Returns the columns with pixels, or None if there are no such columns.

    Raises:
        UserError: The shape of the images is unknown, or `--pixel_shape` is given without pixels.
    """
    used = _used_columns(config)
    columns = [name for name in chooser.columns if name not in used]
    names: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    num = 0
    if config.has_images and image is None:
        names, shape = find_pixel_columns(columns)
        num = len(names)
        names = names or tuple(name for name in columns if name.lower() in ONE_CELL)[:1]
    elif image is not None and (config.image_column or config.pixel_shape):
        names = (image,)
    if len(names) == 1:
        num = num_pixels(read_first_row(file, config, names).get(names[0]))
    if not num:
        if config.pixel_shape:
            advice = "Name the column whose cells are lists of numbers with --image_column, or omit --pixel_shape"
            raise chooser.error("--pixel_shape: no column contains pixels", advice)
        return None
    shape = config.pixel_shape or shape or square_shape(num)
    if not shape or (len(names) > 1 and math.prod(shape) != num):
        option = f"--pixel_shape={','.join(map(str, shape))}: " if shape else ""
        raise UserError(f"{printable(file.name)}: {option}an image has {num:,} numbers. Pass --pixel_shape HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS.")
    return PixelColumns(names, shape)


def _choose_boxes(chooser: "_Chooser", config: SourceConfig, image: str | None) -> BoxColumns:
    """Returns the columns of a box. Its class is the label called `objects`, or else the only label with classes. Raises
    `UserError` if no columns have usual names of boxes, or several labels have classes."""
    boxes = find_box_columns(chooser.columns, image, () if config.rows else _used_columns(config))
    if boxes is None:
        names = "--skip_lines 1 --column_names NAME,…, with the names xmin, ymin, xmax, ymax or x, y, width, height"
        raise chooser.error(f"--rows={config.rows}: no columns are named like the sides of a box", f"Rename them, or pass {names}")
    labels = config.labels or ()
    named = [column for column in labels if OBJECTS in (column.name, *column.names)]
    if not named and len(labels) == 1 and labels[0].kind == "class":
        named = [*labels]
    if len(named) != 1 and labels:
        some = ", ".join(printable(column.name) for column in labels)
        raise chooser.error(
            f"--rows=boxes: --label names {some}", f"Name the column with the class of each box: --label {OBJECTS}=COLUMN"
        )
    if named and (named[0].kind != "class" or len(named[0].names) > 1):
        raise chooser.error(f"--label={OBJECTS}: the class of a box is one column of the kind class", f"Pass --label {OBJECTS}=COLUMN")
    if named and named[0].names != (OBJECTS,):
        boxes = boxes._replace(label=chooser.choose("--label", named[0].names[0], ()))
    return boxes


def describe_rows(columns: TableColumns, source: SourceConfig, head: TableHead, file: TableFile) -> str:
    """Returns a message that says what a row describes, or an empty string if each row clearly describes an image.

    Args:
        columns: The columns of the table.
        source: The options, including the detected format and unit of boxes.
        head: The columns of the table.
        file: The table, for the message.

    Raises:
        UserError: Each row would be read as an image, but an image occurs in several rows and the table has boxes.
    """
    name, boxes = printable(file.name), columns.boxes
    if columns.pixels:
        first, *others = columns.pixels.names
        names = f"the columns {printable(first)} to {printable(others[-1])} contain" if others else f"the column {printable(first)} contains"
        split = f" The column {printable(columns.roles.split)} contains the splits." if columns.roles.split else ""
        return f"{name}: {names} the pixels of images (--pixel_shape={','.join(map(str, columns.pixels.shape))}).{split}"
    grouped = f"Rows are grouped by the column {printable(columns.image or '')}"
    if boxes:
        details = [f"{show_columns(boxes.box)} as {source.box_format or 'xywh'} in {source.box_unit or 'pixels'}"]
        details.append(f"class {printable(boxes.label)}" if boxes.label else "no column with classes: all boxes are of one class")
        details += [f"image size {show_columns(boxes.size)}"] if boxes.size else []
        details += [f"flags {show_columns([*boxes.flags])}"] if boxes.flags else []
        return f"{name}: each row is a box ({'; '.join(details)}). {grouped} (--rows=boxes)."
    if columns.are_grouped:
        return f"{name}: each row is one of several values of an image. {grouped} (--rows={columns.rows})."
    found = None if source.rows or columns.has_objects or columns.image is None else find_box_columns(head.columns, columns.image)
    if found is None:
        return ""
    sides = show_columns(found.box)
    if repeated := find_repeated(file, source, columns.image):
        label = f" --label {printable(source.labels[0].names[0])}" if source.labels else ""
        raise UserError(
            f"{name}: image {printable(repeated)!r} is in several rows, and each row seems to be one box ({sides}). To group "
            f"the rows by image, pass --rows boxes{label}. For one example per row, pass --rows images."
        )
    if _used_columns(source).issuperset(found.box):
        return ""
    return f"{name}: each row is an image (--rows=images), because of --label or --feature. The boxes in {sides} are not read."


def _means_objects(column: Column, head: TableHead) -> bool:
    return column.kind == "class" and column.names == (OBJECTS,) and OBJECTS in head.structs


def names_of_integers(columns: Iterable[Column], class_names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns feature -> class names for features whose columns contain class indices."""
    return {column.name: class_names[column.names[0]] for column in columns if has_names(column) and class_names.get(column.names[0])}


def has_names(column: Column) -> bool:
    """Returns whether a column of this kind can contain class names or class indices."""
    return len(column.names) == 1 and column.kind in ("class", "multi_label", "text")


class _Chooser:
    def __init__(self, columns: Sequence[str], table: str) -> None:
        self.columns = columns
        self._table = table

    def choose(self, option: str, given: str | None, usual: Sequence[str]) -> str | None:
        """Returns the requested column, or the first column that has a usual name (ignoring case), or None."""
        if given is not None:
            if given and given not in self.columns:
                nearest = did_you_mean(given, self.columns)
                raise self.error(f"has no column {printable(given)!r} ({option}){nearest}", "Choose one of them")
            return given or None
        by_name = {name.lower(): name for name in reversed(self.columns)}
        return next((name if name in self.columns else by_name[name] for name in usual if name in by_name), None)

    def choose_key(self, given: str | None) -> tuple[str, ...]:
        """Returns the columns that form the key. In the value of `--key_column`, commas separate several columns."""
        names = [given] if given is None or given in self.columns else given.split(",")
        chosen = (self.choose("--key_column", name and name.strip(), ("key",)) for name in names)
        return tuple(name for name in chosen if name)

    def error(self, problem: str, advice: str) -> UserError:
        names = f"Its columns are {show_columns(self.columns)}" if self.columns else "It has no columns"
        if any(map(_NUMBER.fullmatch, self.columns)):
            names += " (if it has no header, name the columns with --column_names)"
        end = "" if problem.endswith("?") else "."
        return UserError(f"{printable(self._table)}: {problem}{end} {names}. {advice}.")
