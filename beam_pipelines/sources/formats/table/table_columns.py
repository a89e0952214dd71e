"""Finds the table columns that contain the image, the labels, the key and so on, by options or by common names."""

import dataclasses
import math
import re
from typing import Any, Mapping, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.config.source_config import REST, SourceConfig
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.cells.box_columns import BOX_COLUMNS, BoxColumns, find_box_columns, near_box_column
from beam_pipelines.sources.cells.cells import without_caption_number
from beam_pipelines.sources.cells.pixel_cells import ONE_CELL, PixelColumns, find_pixel_columns, num_pixels, square_shape
from beam_pipelines.sources.files.paths import is_image_name
from beam_pipelines.sources.files.read_advice import split_advice
from beam_pipelines.sources.formats.table.table_rows import TableHead, read_first_rows, show_columns
from beam_pipelines.sources.rows.row_files import TableFile
from beam_pipelines.sources.rows.row_mapper import RowRoles
from tf_input.dataset_format import LABEL, OBJECTS

_IMAGE_COLUMNS = ("file_name", "image", "image_path", "path", "filename", "filepath", "file")
# Less usual names, which columns beside pixels can also have.
_OTHER_IMAGE_COLUMNS = ("image_name", "img_path", "img", "image_id", "id_code", "image_filename", "imagename", "imageid")
_LABEL_COLUMNS = ("label", "labels", "class", "category")
_NUM_REPEAT_ROWS = 10_000

# A number is never a column name. It shows that the first line is not a header.
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)
_PAIR = re.compile(rf"(.+(?:{'|'.join(map(re.escape, IMAGE_EXTENSIONS))}))_\w+", re.IGNORECASE)


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
        """Whether several rows can belong to the same image."""
        return self.rows != "images"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns except labels."""
        several = [columns.names for columns in (self.roles, self.boxes, self.pixels) if columns]
        names = (self.image, self.objects, *(name for names in several for name in names))
        return tuple(dict.fromkeys(name for name in names if name is not None))


class Chooser:
    """Chooses the columns of a table from its first rows.

    Args:
        head: The columns of the table.
        config: The options of the source.
        file: The table.
    """

    def __init__(self, head: TableHead, config: SourceConfig, file: TableFile) -> None:
        self._head, self._config, self._file = head, config, file
        self._kept = (*(config.labels or ()), *config.features)
        self._used = {name for column in self._kept for name in column.names}

    def columns(self) -> TableColumns:
        """Returns the columns with the image, the labels, the key and so on. Raises `UserError` if there is no image or
        label column, a requested column is missing, or examples would be empty."""
        config = self._config
        image = self._find("--image_column", config.image_column, _IMAGE_COLUMNS) if config.has_images else None
        files = {name for column in self._kept if form_of(column).is_image_file for name in column.names}
        others = [name for name in _OTHER_IMAGE_COLUMNS if name not in files and config.has_images]
        other = image or self._find("", None, others)
        rows, pixels = config.rows or self._find_rows(other), None
        if rows != "images":
            image = other
        else:
            pixels = self._find_pixels(image)
            image = None if pixels else image or (other if other and self._has_images(other) else None)
        self._check_examples(image, pixels, rows)
        boxes = self._find_boxes(image) if rows == "boxes" and config.labels != () else None
        labels = config.labels
        if labels is None:
            labels = () if boxes else self._usual_labels()
        elif boxes:
            labels = tuple(column for column in labels if not _names_objects(column) and column.names != (boxes.label,))
        for name in (name for column in (*labels, *config.features) for name in column.names):
            self._find("--label or --feature", name, ())
        objects = [column for column in labels if form_of(column).is_class and column.names == (OBJECTS,)]
        objects = objects if self._head.object_fields else []
        if misnamed := [column for column in labels if column.name == OBJECTS and column not in objects]:
            name = printable(misnamed[0].names[0])
            problem = f"--label {OBJECTS}={name}: no columns are named like the sides of a box"
            raise self._error(problem, f"Rename them to {BOX_COLUMNS}")
        return TableColumns(
            image=image,
            roles=self._roles(("split", "usage") if pixels else ("split",)),
            objects=OBJECTS if objects else None,
            pixels=pixels,
            boxes=boxes,
            labels=tuple(column for column in labels if column not in objects),
            rows=rows,
        )

    def _check_examples(self, image: str | None, pixels: PixelColumns | None, rows: str) -> None:
        """Raises `UserError` if examples would be empty, or cannot be grouped by image."""
        has_images = self._config.has_images
        if image or pixels or self._config.features and rows == "images":
            return
        if rows != "images":
            advice = "Name the column of images with --image_column" if has_images else "Omit --image=none"
            raise self._error(f"--rows={rows}: rows are grouped by the image column, but there is none", advice)
        keep = "add --feature COLUMN:KIND for each column to keep, such as height:float"
        if not has_images:
            raise self._error("--image=none leaves examples without features", f"A{keep[1:]}")
        for name, cell in self._first_row(self._head.columns).items():
            if isinstance(cell, str) and (pair := _PAIR.fullmatch(cell[:1000])):
                problem = f"column {printable(name)!r} joins the name of an image and a label, as in {printable(cell[:80])!r}"
                raise self._error(problem, split_advice(self._file.path, name, pair[1]))
        advice = f"Name the column of images with --image_column. For examples without images, {keep}"
        raise self._error(f"has none of the columns {', '.join((*_IMAGE_COLUMNS, *_OTHER_IMAGE_COLUMNS))}", advice)

    def _roles(self, splits: Sequence[str]) -> RowRoles:
        config = self._config
        key = config.key_column  # commas separate several columns
        keys = [key] if key is None or key in self._head.columns else [name.strip() for name in key.split(",")]
        chosen = [self._find("--key_column", name, ("key",)) for name in keys]
        return RowRoles(
            key=tuple(name for name in chosen if name),
            split=self._find("--split_column", config.split_column, splits),
            group=self._find("--group", config.group, ("group",)),
            weight=self._find("--weight_column", config.weight_column, ("weight",)),
            may_omit_split=REST in config.divide,
            may_omit_group=not config.group,
        )

    def _usual_labels(self) -> tuple[Column, ...]:
        if name := self._find("--label", None, _LABEL_COLUMNS):
            return (Column(LABEL, (name,), "multi_label" if name in self._head.lists else "class"),)
        if self._head.object_fields:
            return (Column(OBJECTS, (OBJECTS,)),)
        advice = "Pass --label COLUMN, --label A,B,C:one_hot for one-hot columns, or --label none"
        raise self._error(f"has none of the columns {', '.join((*_LABEL_COLUMNS, OBJECTS))}", advice)

    def _find_rows(self, image: str | None) -> str:
        """Determines what a row describes, one of `ROWS`."""
        if image is None or OBJECTS in self._head.columns:
            return "images"
        asks_for_boxes = self._config.labels is None or any(map(_names_objects, self._config.labels))
        if asks_for_boxes and find_box_columns(self._head.columns, image, self._used):
            return "boxes"
        if self._config.labels is None and (near := near_box_column(self._head.columns)):
            problem = f"column {printable(near[0])!r} seems to be {near[1]!r}, because the other three sides of a box are columns"
            raise self._error(problem, f"Rename the column to {near[1]}. If a row is not a box, pass --rows=images")
        collects = any(form_of(column).is_runs or (form_of(column).value_type is str and column.shape == (None,)) for column in self._kept)
        return "values" if collects and self._find_repeated(image) else "images"

    def _find_repeated(self, column: str) -> str | None:
        """Returns the first string that occurs at least twice in a column of the first rows, or None."""
        seen: set[str] = set()
        for row in read_first_rows(self._file, self._config, (column,), _NUM_REPEAT_ROWS):
            text = without_caption_number(row.get(column))
            if isinstance(text, str):
                if text in seen:
                    return text
                seen.add(text)
        return None

    def _has_images(self, column: str) -> bool:
        """Returns whether a column with a less common name contains images. Without `--feature`, this is assumed. With
        `--feature`, examples may have no images, so the first cell must be an image or the name of an image file."""
        if not self._config.features or self._config.image_suffix:
            return True
        cell = self._first_row((column,)).get(column)
        return isinstance(cell, (bytes, dict)) or (isinstance(cell, str) and is_image_name(cell))

    def _first_row(self, columns: tuple[str, ...]) -> Mapping[str, Any]:
        return next(read_first_rows(self._file, self._config, columns), {})

    def _find_pixels(self, image: str | None) -> PixelColumns | None:
        """Returns the columns with pixels, or None if there are no such columns. Raises `UserError` if the shape of the
        images is unknown, or `--pixel_shape` is given without pixels."""
        config, names, shape = self._config, (), ()
        columns = [name for name in self._head.columns if name not in self._used]
        if config.has_images and image is None:
            names, shape = find_pixel_columns(columns)
            names = names or tuple(name for name in columns if name.lower() in ONE_CELL)[:1]
        elif image is not None and (config.image_column or config.pixel_shape):
            names = (image,)
        num = num_pixels(self._first_row(names).get(names[0])) if len(names) == 1 else len(names)
        if not num:
            if config.pixel_shape:
                advice = "Name the column whose cells are lists of numbers with --image_column, or omit --pixel_shape"
                raise self._error("--pixel_shape: no column contains pixels", advice)
            return None
        shape = config.pixel_shape or shape or square_shape(num)
        if not shape or (len(names) > 1 and math.prod(shape) != num):
            option = f"--pixel_shape={','.join(map(str, shape))}: " if shape else ""
            advice = "Pass --pixel_shape HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS"
            raise UserError(f"{printable(self._file.name)}: {option}an image has {num:,} numbers. {advice}.")
        return PixelColumns(names, shape)

    def _find_boxes(self, image: str | None) -> BoxColumns:
        """Returns the columns of a box. The class column is given by the label `objects`, or by the only label. Raises
        `UserError` if no columns are named like the sides of a box, or `--label` does not name the class column."""
        boxes = find_box_columns(self._head.columns, image, () if self._config.rows else self._used)
        if boxes is None:
            advice = f"Rename them to {BOX_COLUMNS}, for example with --skip_lines 1 --column_names NAME,…"
            raise self._error("--rows=boxes: no columns are named like the sides of a box", advice)
        labels = self._config.labels or ()
        named = [column for column in labels if _names_objects(column)]
        if not named and len(labels) == 1 and form_of(labels[0]).is_class:
            named = [*labels]
        advice = f"Name the column with the class of each box: --label {OBJECTS}=COLUMN"
        if labels and len(named) != 1:
            raise self._error(f"--rows=boxes: --label names {', '.join(printable(column.name) for column in labels)}", advice)
        if named and (not form_of(named[0]).is_class or len(named[0].names) > 1):
            raise self._error(f"--label={OBJECTS}: the class of a box is one column of the kind class", advice)
        if named and named[0].names != (OBJECTS,):
            boxes = boxes._replace(label=self._find("--label", named[0].names[0], ()))
        return boxes

    def describe(self, columns: TableColumns, source: SourceConfig) -> str:
        """Returns a message that says what a row describes, or an empty string if each row clearly describes an image.

        Args:
            columns: The columns of the table.
            source: The options, including the detected format and unit of boxes.

        Raises:
            UserError: Each row would be read as an image, but an image occurs in several rows and the table has boxes.
        """
        name, boxes, image = printable(self._file.name), columns.boxes, columns.image
        if columns.pixels:
            first, last = (printable(columns.pixels.names[index]) for index in (0, -1))
            names = f"the columns {first} to {last} contain" if first != last else f"the column {first} contains"
            split = f" The column {printable(columns.roles.split)} contains the splits." if columns.roles.split else ""
            return f"{name}: {names} the pixels of images (--pixel_shape={','.join(map(str, columns.pixels.shape))}).{split}"
        grouped = f"Rows are grouped by the column {printable(image or '')} (--rows={columns.rows})"
        if boxes:
            details = [f"{show_columns(boxes.box)} as {source.box_format or 'xywh'} in {source.box_unit or 'pixels'}"]
            details.append(f"class {printable(boxes.label)}" if boxes.label else "no column with classes: all boxes are of one class")
            details += [f"image size {show_columns(boxes.size)}"] if boxes.size else []
            details += [f"flags {show_columns([*boxes.flags])}"] if boxes.flags else []
            return f"{name}: each row is a box ({'; '.join(details)}). {grouped}."
        if columns.are_grouped:
            return f"{name}: each row is one of several values of an image. {grouped}."
        found = None if source.rows or columns.objects or image is None else find_box_columns(self._head.columns, image)
        if found is None:
            return ""
        sides = show_columns(found.box)
        if repeated := self._find_repeated(image or ""):
            label = f" --label {printable(source.labels[0].names[0])}" if source.labels else ""
            raise UserError(
                f"{name}: image {printable(repeated)!r} is in several rows, and each row seems to be one box ({sides}). To group "
                f"the rows by image, pass --rows boxes{label}. For one example per row, pass --rows images."
            )
        if self._used.issuperset(found.box):
            return ""
        return f"{name}: each row is an image (--rows=images), because of --label or --feature. The boxes in {sides} are not read."

    def _find(self, option: str, given: str | None, usual: Sequence[str]) -> str | None:
        """Returns the requested column, or the first column that has a usual name (ignoring case), or None."""
        columns = self._head.columns
        if given is not None:
            if given and given not in columns:
                problem = f"has no column {printable(given)!r} ({option}){did_you_mean(given, columns)}"
                raise self._error(problem, "Choose one of them")
            return given or None
        by_name = {name.lower(): name for name in reversed(columns)}
        return next((name if name in columns else by_name[name] for name in usual if name in by_name), None)

    def _error(self, problem: str, advice: str) -> UserError:
        names = f"Its columns are {show_columns(self._head.columns)}" if self._head.columns else "It has no columns"
        if any(map(_NUMBER.fullmatch, self._head.columns)):
            names += " (if it has no header, name the columns with --column_names; skip a number of rows with --skip_lines 1)"
        elif len(self._head.columns) == 1 and " " in self._head.columns[0]:
            names += " (if blanks separate the cells, pass --delimiter space)"
        return UserError(f"{printable(self._file.name)}: {problem}{'' if problem.endswith('?') else '.'} {names}. {advice}.")


def _names_objects(column: Column) -> bool:
    return OBJECTS in (column.name, *column.names)
