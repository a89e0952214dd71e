"""Combines the rows of a table that belong to the same image into one row."""

from typing import Any, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.config.columns import Column
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.sources.cells.cells import in_column, is_empty, read_name, shown, without_caption_number
from beam_pipelines.sources.cells.missing_cells import fill_row
from beam_pipelines.sources.formats.table.table_columns import TableColumns
from beam_pipelines.sources.formats.table.table_rows import Row
from beam_pipelines.sources.rows.row_groups import NumberedRow, group_rows
from tf_input.dataset_format import OBJECTS


class ImageRows:
    """Groups rows by image. In the combined row, a column has one of these values:

        `text[]`, `float[]`, `integer[]`, `multi_label`, `rle`    the list of all cells
        `objects`                                                 the numbered rows, from which boxes are read
        any other column                                          the value that all rows of the image share

    Args:
        columns: The columns with the image, the key and so on.
        kept: The columns that become labels or features.
        names: The names of all columns to read.
        defaults: The values that replace missing cells, by column.
    """

    def __init__(self, columns: TableColumns, kept: Sequence[Column], names: Sequence[str], defaults: Mapping[str, str]) -> None:
        self._image = columns.image or ""
        self._names = tuple(names)
        self._defaults = defaults
        lists = [column for column in kept if column.shape == (None,) or column.kind in ("multi_label", "rle")]
        self._lists = tuple(dict.fromkeys(name for column in lists for name in column.names))
        boxes = columns.boxes
        of_box = {*boxes.box, boxes.label, *boxes.flags} if boxes else set()
        shared = {self._image, *columns.roles.names, *(boxes.size if boxes else ())}
        shared.update(name for column in kept if column not in lists for name in column.names)
        self._shared = tuple(name for name in names if name in shared or not (name in of_box or name in self._lists))
        self._has_boxes = boxes is not None

    def group(self, rows: Iterable[Row], directory: str | None) -> Iterator[tuple[int, Any]]:
        """Yields the number of the first row of each image, and all numbered rows of the image.

        Args:
            rows: The rows of a file, or errors.
            directory: The folder for temporary files.
        """
        return group_rows(map(self._with_key, rows), self._names, directory)

    def _with_key(self, row: Row) -> tuple[str, int, Mapping[str, Any] | InvalidInput]:
        number, cells = row
        if isinstance(cells, InvalidInput):
            return "", number, cells
        cell = cells.get(self._image)
        path = cell.get("path", cell.get("file_name")) if isinstance(cell, dict) else without_caption_number(cell)
        if path is not cell:
            cells = {**cells, self._image: path}
        try:
            return in_column(self._image, read_name, "bad_value", path), number, cells
        except InvalidInput as error:
            return "", number, error

    def combine(self, rows: Sequence[NumberedRow]) -> Mapping[str, Any]:
        """Combines the rows of an image into one row. Raises `InvalidInput` with the reason `row_conflict` if two rows
        have different values in a column that describes the image."""
        filled = [(number, fill_row(row, self._defaults)) for number, row in rows] if self._defaults else rows
        first, row = filled[0]
        combined = {name: row.get(name) for name in self._shared}
        for number, other in filled[1:]:
            for name, cell in combined.items():
                if cell != (found := other.get(name)) and not (is_empty(cell) and is_empty(found)):
                    raise InvalidInput(
                        "row_conflict",
                        f"column {printable(name)!r} has {shown(cell)} in row {first} and {shown(found)} in row {number}, but "
                        "both rows belong to one image",
                    )
        combined |= {name: [row.get(name) for _, row in filled] for name in self._lists}
        return {**combined, OBJECTS: filled} if self._has_boxes else combined
