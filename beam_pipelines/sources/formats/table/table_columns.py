"""Finds the table columns that contain the image, the labels, the key and so on, by options or by common names."""

import dataclasses
import re
from typing import Iterable, Mapping, Sequence

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import REST, SourceConfig
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.sources.cells.row_roles import RowRoles
from beam_pipelines.sources.rows.table_files import TableFile
from beam_pipelines.sources.formats.table.table_rows import TableHead, find_repeated, show_columns
from tf_input.dataset_format import LABEL, OBJECTS

IMAGE_COLUMNS = ("file_name", "image", "image_path", "path", "filename", "filepath", "file")
LABEL_COLUMNS = ("label", "labels", "class", "category")

# Columns that together form one box, by lower-case names without punctuation and without a prefix such as `bbox_`.
_BOX_COLUMNS = {
    "xyxy": (
        *(("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"), ("x0", "y0", "x1", "y1")),
        ("left", "top", "right", "bottom"),
    ),
    "xywh": (
        *(("x", "y", "w", "h"), ("x", "y", "width", "height")),
        *(("left", "top", "width", "height"), ("xmin", "ymin", "width", "height")),
    ),
    "cxcywh": tuple(
        (x, y, w, h)
        for x, y in (("xc", "yc"), ("xcenter", "ycenter"), ("cx", "cy"))
        for w, h in ("wh", ("width", "height"))
    ),
}
_BOX_PREFIX = re.compile("(bounding_?box|bbox|bndbox|box)_?(?=.)")
_BOX_COLUMN = ("bbox", "box", "bndbox", "boundingbox")

# Numbers are never column names, but cells of a row.
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """The columns of a table that contain the image, the labels, the key and so on. An attribute is None if the table
    has no column for it.

    Attributes:
        image: The column with image paths, or with image bytes in Parquet; None if examples have no image.
        roles: The columns with key, split, group and weight.
        objects: The column with boxes and their classes, in the format of Hugging Face's libraries.
        labels: The columns that a model predicts, without objects.
    """

    image: str | None
    roles: RowRoles
    objects: str | None
    labels: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns except labels."""
        names = (self.image, *self.roles.names, self.objects)
        return tuple(dict.fromkeys(name for name in names if name is not None))


def choose_columns(head: TableHead, config: SourceConfig, file: TableFile) -> TableColumns:
    """Determines the columns with the image, the labels, the key and so on from the first rows of a table.

    Args:
        head: The existing columns.
        config: The options of the source.
        file: The table, for messages.

    Raises:
        UserError: There is no image or label column, a requested column is missing, or examples would be empty.
    """
    chooser = _Chooser(head.columns, file.name)
    image = chooser.choose("--image_column", config.image_column, IMAGE_COLUMNS) if config.has_images else None
    if image is None and not config.features:
        keep = "add --feature COLUMN:KIND for each column to keep, such as height:float"
        if not config.has_images:
            raise chooser.error("--image=none leaves examples without features", f"A{keep[1:]}")
        advice = f"Name the column of images with --image_column. For examples without images, {keep}"
        raise chooser.error(f"has none of the columns {', '.join(IMAGE_COLUMNS)}", advice)
    labels = config.labels
    if labels is None:
        labels = _usual_labels(head, chooser)
        if labels[0].names != (OBJECTS,):
            _refuse_boxes(head, config, file, image, labels[0].names[0])
    for column in (*labels, *config.features):
        if column.names == (OBJECTS,) and OBJECTS not in head.columns:
            _refuse_boxes(head, config, file, image, chooser.choose("--label", None, LABEL_COLUMNS))
        for name in column.names:
            chooser.choose("--label or --feature", name, ())
    has_objects = any(_means_objects(column, head) for column in labels)
    return TableColumns(
        image=image,
        roles=RowRoles(
            key=chooser.choose_key(config.key_column),
            split=chooser.choose("--split_column", config.split_column, ("split",)),
            group=chooser.choose("--group", config.group, ("group",)),
            weight=chooser.choose("--weight_column", config.weight_column, ("weight",)),
            may_omit_split=REST in config.divide,
            may_omit_group=not config.group,
        ),
        objects=OBJECTS if has_objects else None,
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
        "Pass --label COLUMN, --label A,B,C:class for one-hot columns, or --label none",
    )


def find_box_columns(columns: Sequence[str]) -> tuple[list[str], str]:
    """Returns the columns whose names show that they form a box together, and the corresponding `--box_format`.

    Without such columns, both are empty. If a single column contains boxes, the format is empty.
    """
    plain = {_BOX_PREFIX.sub("", re.sub(r"[^a-z0-9]", "", name.lower())): name for name in reversed(columns)}
    several = ((names, form) for form, known in _BOX_COLUMNS.items() for names in known if set(names) <= plain.keys())
    names, form = next(several, ([name for name in _BOX_COLUMN if name in plain][:1], ""))
    return [name for name in columns if name in {plain[item] for item in names}], form


def _refuse_boxes(head: TableHead, config: SourceConfig, file: TableFile, image: str | None, label: str | None) -> None:
    """Raises an error for tables with one box per row, because the boxes would be lost.

    Raises:
        UserError: There are columns of a box.
    """
    columns, form = find_box_columns(head.columns)
    if not columns:
        return
    many = "columns" if len(columns) > 1 else "column"
    advice = f"To read one class for each image, without boxes, pass --label {printable(label or 'COLUMN')}."
    repeated = image and find_repeated(file, config, image)
    if repeated:
        advice = f"Image {printable(repeated)!r} is in several rows. First group the rows by image."
    raise UserError(
        f"{printable(file.name)}: each row seems to be one box: {many} {show_columns(columns)}. {advice} "
        f"For boxes, write a row for each image in JSON Lines or Parquet, with a column {OBJECTS}: "
        '{"bbox": [[…], …], "category": [name, …]}, and pass '
        f"--label {OBJECTS} --box_format {form or 'FORMAT (xywh, xyxy or cxcywh)'}."
    )


def _means_objects(column: Column, head: TableHead) -> bool:
    return column.kind == "class" and column.names == (OBJECTS,) and OBJECTS in head.structs


def names_of_integers(columns: Iterable[Column], class_names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns feature -> class names. The integers in the feature's column are indices into the class names."""
    return {column.name: class_names[column.names[0]] for column in columns if has_names(column) and class_names.get(column.names[0])}


def has_names(column: Column) -> bool:
    """Returns whether a column of this kind can contain class names or class indices."""
    return len(column.names) == 1 and column.kind in ("class", "multi_label", "text")


class _Chooser:
    def __init__(self, columns: Sequence[str], table: str) -> None:
        self._columns = columns
        self._table = table

    def choose(self, option: str, given: str | None, usual: Sequence[str]) -> str | None:
        """Returns the requested column, or the first column that has a usual name (ignoring case), or None."""
        if given is not None:
            if given and given not in self._columns:
                nearest = did_you_mean(given, self._columns)
                raise self.error(f"has no column {printable(given)!r} ({option}){nearest}", "Choose one of them")
            return given or None
        by_name = {name.lower(): name for name in reversed(self._columns)}
        return next((name if name in self._columns else by_name[name] for name in usual if name in by_name), None)

    def choose_key(self, given: str | None) -> tuple[str, ...]:
        """Returns the columns of the key. A key can consist of several columns, which are separated by commas in the
        option."""
        names = [given] if given is None or given in self._columns else given.split(",")
        chosen = (self.choose("--key_column", name and name.strip(), ("key",)) for name in names)
        return tuple(name for name in chosen if name)

    def error(self, problem: str, advice: str) -> UserError:
        names = f"Its columns are {show_columns(self._columns)}" if self._columns else "It has no columns"
        if any(map(_NUMBER.fullmatch, self._columns)):
            names += " (if it has no header, name the columns with --column_names)"
        end = "" if problem.endswith("?") else "."
        return UserError(f"{printable(self._table)}: {problem}{end} {names}. {advice}.")
