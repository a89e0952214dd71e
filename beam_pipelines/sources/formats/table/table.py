"""Source `table`: rows of CSV, TSV, JSON Lines or Parquet files. Each row is an example, or a box or value of an
example.

The memory use does not depend on the number of rows.
"""

import dataclasses
import posixpath
from typing import Any, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import OBJECT_LABEL, SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import UserError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.images.arrays import NPY_MAGIC, npy_layout
from beam_pipelines.sources.cells.cells import embedded_bytes, without_caption_number
from beam_pipelines.sources.cells.objects import ObjectsColumn, RowBoxes
from beam_pipelines.sources.files.embedded_images import Embedded, spool_images
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.paths import is_image_name, nfc
from beam_pipelines.sources.files.layouts import given_already
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.formats.table.image_rows import GROUPING_BYTES, combine_rows
from beam_pipelines.sources.formats.table.table_columns import Chooser
from beam_pipelines.sources.formats.table.table_rows import FORMATS, TableHead, read_first_rows, read_head, read_rows, show_columns
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.rows.row_files import Row, RowFiles, TableFile
from beam_pipelines.sources.rows.row_mapper import RowMapper, check_defaults
from tf_input.dataset_format import IMAGE, OBJECTS


# Extensions of CSV files that the input names directly or by a pattern. In a folder, such files are not read.
_TEXT_ENDINGS = (".txt", ".text", ".dat", ".data")

Listed = InputRecord | DeadLetter

_TABLES = ("*.csv", "*.tsv", "*.jsonl", "*.ndjson", "*.parquet", "*.csv.gz", "*.tsv.gz", "*.jsonl.gz", "*.ndjson.gz")
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_ROBOFLOW = "_annotations.csv"
_MARKERS = ("metadata.csv", "metadata.jsonl", _ROBOFLOW, "*.parquet")
_IMAGE_FOLDERS = ("images", "jpegimages", "img", "imgs")


class Table(RowFiles):
    """Lists the inputs of one table, or of several tables with the same columns."""

    kind = SourceKind(
        name="table",
        summary="CSV, JSON Lines or Parquet",
        options=(
            "labels", "label_names", "label_separator", "features", "has_images", "rows", "image_column", "key_column",
            "split_column", "group", "weight_column", "column_names", "defaults", "image_root", "image_folders", "search_images", "image_suffix", "pixel_shape",
            "bad_boxes", "drawn_on", "box_format", "box_unit", "skip_lines", "comment", "delimiter",
        ),
        synonyms=("csv", "tsv", "json", "jsonl", "ndjson", "parquet", "pandas", "dataframe"),
        rows_name_images=True,
    )

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        is_text = options.input.lower().removesuffix(".gz").endswith(_TEXT_ENDINGS)
        super().__init__(options, spool_directory, {**FORMATS, **({"": "csv"} if is_text else {})}, _METADATA)
        files, source = [*self._files.values()], options.source
        heads = ((file, read_head(file, source)) for file in files)
        # JSON Lines files without lines have no columns.
        self._first, head = next(((file, head) for file, head in heads if head.columns), (files[0], TableHead(())))
        _check_format(self._first, head, source)
        chooser = Chooser(head, source, self._first)
        columns = chooser.columns()
        if columns.boxes:
            box_format, box_unit = source.box_format or columns.boxes.box_format, source.box_unit or columns.boxes.box_unit
            source = dataclasses.replace(source, box_format=box_format or None, box_unit=box_unit or None)
        self.detected = chooser.describe(columns, source)
        if columns.pixels:
            source = dataclasses.replace(source, pixel_shape=columns.pixels.shape)
        elif self.detected:
            source = dataclasses.replace(source, rows=columns.rows)
        self.resolved = self._source = source
        columns = dataclasses.replace(columns, roles=columns.roles._replace(split=self._choose_split(columns.roles.split)))
        self._columns, self._image = columns, columns.image
        self.has_images = bool(columns.image or columns.pixels)
        kept = (*columns.labels, *source.features)
        if source.has_images and not self.has_images:
            _check_no_images(self._first_row(head.columns), {name for column in kept for name in column.names}, self._first)
        if columns.are_grouped and columns.image in head.has_bytes:
            problem = f"--rows={columns.rows}: rows can be grouped only by the paths of images, not by bytes"
            raise UserError(f"{printable(self._first.name)}: {problem}.")
        self._table_heads = {self._first.name: head}
        self._file_columns = {columns.image, *(column.names[0] for column in kept if form_of(column).is_image_file)}
        objects = self._open_objects(head)
        if objects:
            self.unused_fields, self.boxes = objects.unused_fields, objects.boxes
        has_positions = any(form_of(column).is_points for column in kept)
        for option, is_used in (("box_format", objects), ("box_unit", objects or has_positions)):
            if getattr(source, option) and not is_used:
                problem = f"--{option}: no boxes are read, neither from a column {OBJECTS!r} nor from rows of boxes"
                raise UserError(f"{printable(self._first.name)}: {problem}. Omit --{option}, or pass --label {OBJECTS}.")
        names = self._name_classes(head)
        self._open_columns(columns.labels, source.features, roles=columns.roles, objects=objects, class_names=names)
        self._other_files = tuple(feature.name for feature in self.features if feature.is_file)
        self._needed = tuple(dict.fromkeys((*columns.names, *self._mapper.value_names, *self._mapper.part_names)))
        check_defaults(source.defaults, self._needed)

    def _name_classes(self, head: TableHead) -> dict[str, tuple[str, ...]]:
        """Returns a mapping from features to the class names that the first table specifies for columns of class
        indices. Later tables must have the same class names."""
        columns, source = self._columns, self._source
        names = [name for column in (*columns.labels, *source.features) for name in column.names]
        unnamed = [label for label in columns.labels if not source.names_of(label.name)]
        # If two features read a column, both get the integers.
        unnamed += [feature for feature in source.features if names.count(feature.names[0]) == 1]
        unnamed = [column for column in unnamed if len(column.names) == 1]
        named = [column for column in unnamed if form_of(column).is_names or form_of(column).value_type is str]
        classes = [column.names[0] for column in named]
        if not source.names_of(OBJECT_LABEL):
            classes += [f"{OBJECTS}/{field}" for field in head.object_fields] if columns.objects else []
            classes += [columns.boxes.label] if columns.boxes and columns.boxes.label else []
        self._known_names = {name: head.class_names.get(name, ()) for name in classes}
        return {column.name: known for column in named if (known := self._known_names[column.names[0]])}

    def _open_objects(self, head: TableHead) -> ObjectsColumn | RowBoxes | None:
        columns, source = self._columns, self._source
        if columns.objects:
            prefix = f"{OBJECTS}/"
            names = {name.removeprefix(prefix): known for name, known in head.class_names.items() if name.startswith(prefix)}
            first_cells = lambda: (row.get(OBJECTS) for row in read_first_rows(self._first, source, (OBJECTS,)))
            return ObjectsColumn(head.object_fields, source, names, first_cells)
        return RowBoxes(columns.boxes, source, head.class_names.get(columns.boxes.label or "", ())) if columns.boxes else None

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Detects files called `metadata`, Parquet files, and folders of tables with or without images."""
        if not names.is_folder:
            table = names.find(*_TABLES)
            return Recognition(table, Certainty.MARKER) if table else None
        for folder in (names, *names.below):
            if (table := folder.find(*_MARKERS)) and not _describes_tars(folder.files):
                is_marker = folder is names or not table.lower().endswith(".parquet")
                return Recognition(table, Certainty.MARKER if is_marker else Certainty.LAYOUT)
        if names.below and len(names.below) == len(names.folders) and all(not folder.folders and _has_only_tables(folder) for folder in names.below):
            return Recognition(f"{names.folders[0]}/{names.below[0].find(*_TABLES)}", Certainty.MARKER)
        is_alone = all(name.lower() in _IMAGE_FOLDERS for name in names.folders)
        return Recognition(names.find(*_TABLES), Certainty.EXTENSION) if is_alone and _has_only_tables(names) else None

    def list(self, part: str) -> Iterator[Listed]:
        file = self._files[part]
        if self._has_embedded(file):
            return spool_images(self._read_rows(file, self._rows(file)), self._spool_directory)
        return super().list(part)

    def _first_row(self, columns: tuple[str, ...]) -> Mapping[str, Any]:
        return next(read_first_rows(self._first, self._source, columns), {})

    def _rows(self, file: TableFile) -> Iterator[Row]:
        rows = read_rows(file, self._source, self._needed, self._known_names, self.unused_fields)
        if not self._columns.are_grouped:
            return rows
        source = self._source
        is_beside = not (source.image_root or source.image_folders or source.search_images or source.image_suffix)
        if self._columns.boxes and is_beside and posixpath.basename(file.name) == _ROBOFLOW:
            rows = self._note_unnamed_images(file, rows)
        return combine_rows(rows, self._columns, self._mapper.columns, self._needed, self._mapper.fill, self._spool_directory)

    def _has_embedded(self, file: TableFile) -> bool:
        """Returns whether a table file may contain image bytes."""
        if self._columns.pixels or file.format != "parquet":
            return bool(self._columns.pixels)
        head = self._table_heads.get(file.name) or read_head(file, self._source)
        return not head.has_bytes.isdisjoint(self._file_columns)

    def _choose_split(self, column: str | None) -> str | None:
        """Returns the column that contains splits, or None if folders or file names define the splits."""
        if column is None or (self._source.split_column is None and any(file.split for file in self._files.values())):
            return None
        if self._options.asks_for_shares and not self._source.divide:
            raise given_already(self._options, f"the table, in its column {printable(column)!r},", "--split_column=")
        return column

    def _note_unnamed_images(self, file: TableFile, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows unchanged. At the end, counts the images in the table's folder that are in no row, for a
        warning. For example, Roboflow's tables of boxes omit images without boxes."""
        names: set[str] = set()
        for number, row in rows:
            if isinstance(row, Mapping) and isinstance(cell := row.get(self._image), str):
                names.add(nfc(posixpath.basename(cell.strip())))
            yield number, row
        _, found = FileListing(Root(self.root, self._options.follow_links), self._options.ignore).top_level(file.folder.rstrip("/"))
        images = [name for name in found if is_image_name(name)]
        if num := sum(nfc(name) not in names for name in images):
            self.noted[f"images in the folder of {printable(file.name)} are in no row of this table, and are left out."] = num

    def _image_path(self, cell: Any) -> Any:
        return without_caption_number(cell)

    def memory_bytes(self, part: str) -> int:
        return GROUPING_BYTES if self._columns.are_grouped else 0

    def _read_row(
        self, file: TableFile, root: Root, mapper: RowMapper, number: int, row: Mapping[str, Any]
    ) -> InputRecord | Embedded:
        cell, embedded = row.get(self._image), {}
        if self._columns.pixels:
            embedded[IMAGE], raw = self._columns.pixels.read(row)
            key = nfc(f"{file.name}:{number}")
        elif data := embedded_bytes(cell):
            embedded[IMAGE], raw = data, npy_layout(data) if data.startswith(NPY_MAGIC) else None
            key = nfc(f"{file.name}/{number - 1:09d}")
        else:
            record = super()._read_row(file, root, mapper, number, row)
        if embedded:
            record = mapper.read(row, InputRecord(key, file.name, "", file.split, len(embedded[IMAGE]), offset=0, raw=raw))
        for name in self._other_files if record.values else ():  # an ignored image has no values
            if isinstance(data := record.values[name], bytes):
                embedded[name] = data
                record = record._replace(values={**record.values, name: FilePart(file.name, 0, len(data))})
        return Embedded(record, embedded) if embedded else record


def _check_format(file: TableFile, head: TableHead, source: SourceConfig) -> None:
    """Raises `UserError` if an option does not apply to the format of the first table."""
    if file.format != "csv" and source.delimiter:
        raise UserError(f"{printable(file.name)}: only CSV files have delimiters. Omit --delimiter.")
    if file.format == "parquet" and (source.skip_lines or source.comment):
        raise UserError(f"{printable(file.name)}: Parquet has no lines. Omit --skip_lines and --comment.")
    if file.format != "csv" and source.column_names:
        raise UserError(f"{printable(file.name)}: already names its columns ({show_columns(head.columns)}). Omit --column_names.")


def _check_no_images(row: Mapping[str, Any], kept: set[str], file: TableFile) -> None:
    """Raises `UserError` if a column that is not kept seems to contain images, but is not recognized by its name."""
    for name in row.keys() - kept:
        cell = row[name].get("path") or row[name].get("bytes") if isinstance(row[name], dict) else row[name]
        if isinstance(cell, bytes) or isinstance(cell, str) and is_image_name(cell):
            shown, column = "bytes" if isinstance(cell, bytes) else printable(repr(cell[:80])), printable(name)
            advice = f"Use --image_column={column} if it is, or --image=none for examples without images."
            raise UserError(f"{printable(file.name)}: column {column!r} has {shown}, which may be an image. {advice}")


def _describes_tars(files: Sequence[str]) -> bool:
    """Returns whether there is a tar file of the same name for each Parquet file, as in the output of img2dataset."""
    tables = [name for name in files if name.lower().endswith(".parquet")]
    return bool(tables) and all(f"{name.removesuffix('.parquet')}.tar" in files for name in tables)


def _has_only_tables(names: InputNames) -> bool:
    """Returns whether a folder has tables, but no images or arrays. Otherwise, the tables may be only notes."""
    return not names.has_images and not names.find("*.npy") and bool(names.find(*_TABLES))
