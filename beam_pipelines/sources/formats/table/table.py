"""Source `table`: rows of CSV, TSV, JSON Lines or Parquet files. A row is an example, a box, or a value of an image.

The memory use does not depend on the number of rows, unless rows are grouped by image.
"""

import dataclasses
import functools
import itertools
import posixpath
from typing import Any, Collection, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.config.prepare_config import OBJECT_LABEL, PrepareConfig, SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, FilePart, InputRecord
from beam_pipelines.errors import UserError, printable
from beam_pipelines.features.kinds import KINDS
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.images.tensor_values import NPY_MAGIC, npy_layout
from beam_pipelines.sources.cells.box_forms import BoxForms
from beam_pipelines.sources.cells.cells import embedded_bytes, in_column, read_image_path, without_caption_number
from beam_pipelines.sources.cells.array_cells import find_array_shapes, resolve_by_cell
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.cells.missing_cells import check_defaults
from beam_pipelines.sources.cells.objects import ObjectsColumn, RowBoxes
from beam_pipelines.sources.files.embedded_images import Embedded, spool_images
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.layouts import given_already
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.sizes import add_sizes
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.source import other_images
from beam_pipelines.sources.rows.row_files import RowFiles
from beam_pipelines.sources.rows.row_groups import GROUPING_BYTES
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.formats.table.image_rows import ImageRows
from beam_pipelines.sources.formats.table.table_columns import choose_columns, describe_rows, has_names, names_of_integers
from beam_pipelines.sources.rows.table_files import METADATA, TableFile
from beam_pipelines.sources.formats.table.table_rows import FORMATS, TableHead, first_cells, read_first_row, read_head, read_rows, show_columns
from tf_input.dataset_format import IMAGE, OBJECTS

_FILES = ("image", "mask")  # kinds of columns whose cells may contain the bytes of a file

# Extensions of CSV files that the input names directly or by a pattern. In a folder, such files are not read.
_TEXT_ENDINGS = (".txt", ".text", ".dat", ".data")

Listed = InputRecord | DeadLetter

_TABLES = ("*.csv", "*.tsv", "*.jsonl", "*.ndjson", "*.parquet", "*.csv.gz", "*.tsv.gz", "*.jsonl.gz", "*.ndjson.gz")
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

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        source = config.source
        named = {"": "csv"} if config.input.lower().removesuffix(".gz").endswith(_TEXT_ENDINGS) else {}
        super().__init__(config, {**FORMATS, **named}, METADATA)
        self._with_sizes = with_sizes
        self._spool_directory = spool_directory
        files = [*self._files.values()]
        first, head = _first_with_rows(files, source)
        _check_format(first, head, source)
        columns = choose_columns(head, source, first)
        if columns.boxes:
            box_format, box_unit = columns.boxes.box_format or None, columns.boxes.box_unit or None
            source = dataclasses.replace(source, box_format=source.box_format or box_format, box_unit=source.box_unit or box_unit)
        self.detected = describe_rows(columns, source, head, first)
        if columns.pixels:
            source = dataclasses.replace(source, pixel_shape=columns.pixels.shape)
        self.resolved = source = dataclasses.replace(source, rows=columns.rows if self.detected and not columns.pixels else source.rows)
        roles = columns.roles._replace(split=self._choose_split(columns.roles.split, files))
        self._columns = columns = dataclasses.replace(columns, roles=roles)
        self.has_images = columns.has_images
        wanted = (*columns.labels, *source.features)
        if source.has_images and not self.has_images:
            said = {name for column in wanted for name in column.names}
            rest = {name: cell for name, cell in read_first_row(first, source, head.columns).items() if name not in said}
            _check_no_images(rest, first)
        self._table_heads = {first.name: head}
        self._file_columns = {columns.image, *(column.names[0] for column in wanted if column.kind in _FILES)}
        self._name_classes(source, head)
        self._objects = objects = self._open_objects(source, head, first)
        self.unused_fields, self.boxes = (objects.unused_fields, objects.boxes) if objects else (UnusedFields(), BoxForms())
        has_positions = any(column.kind in KINDS for column in wanted)
        for option, is_used in (("box_format", objects), ("box_unit", objects or has_positions)):
            if getattr(source, option) and not is_used:
                problem = f"--{option}: no boxes are read, neither from a column {OBJECTS!r} nor from rows of boxes"
                raise UserError(f"{printable(first.name)}: {problem}. Omit --{option}, or pass --label {OBJECTS}.")
        root = self._root_of(first)
        self._labels, self._features = columns.labels, source.features
        if arrays := tuple(column.names[0] for column in wanted if not column.is_resolved):
            resolve = functools.partial(resolve_by_cell, read_first_row(first, source, arrays), root)
            self._labels, self._features = (find_array_shapes(some, resolve) for some in (columns.labels, source.features))
        self._mapper = self._make_mapper(root)
        self.features, self.targets = self._mapper.features, self._mapper.targets
        self._other_files = tuple(feature.name for feature in self.features if feature.kind in _FILES)
        if columns.are_grouped and columns.image in head.has_bytes:
            raise UserError(f"{printable(first.name)}: --rows={columns.rows}: rows can be grouped only by the paths of images, not by bytes.")
        self._needed = tuple(dict.fromkeys((*columns.names, *self._mapper.value_names, *self._mapper.part_names)))
        check_defaults(source.defaults, self._needed)

    def _name_classes(self, source: SourceConfig, head: TableHead) -> None:
        """Reads the class names of integer columns from the first table. Later tables must have the same class names."""
        columns = self._columns
        unnamed = [label for label in columns.labels if not source.names_of(label.name)]
        names = [name for column in (*columns.labels, *source.features) for name in column.names]
        features = [feature for feature in source.features if all(names.count(name) == 1 for name in feature.names)]
        self._names = names_of_integers((*unnamed, *features), head.class_names)
        classes = [column.names[0] for column in (*unnamed, *features) if has_names(column)]
        if not source.names_of(OBJECT_LABEL):
            classes += [f"{OBJECTS}/{field}" for field in head.object_fields] if columns.objects else []
            classes += [columns.boxes.label] if columns.boxes and columns.boxes.label else []
        self._known_names = {name: head.class_names.get(name, ()) for name in classes}

    def _open_objects(self, source: SourceConfig, head: TableHead, first: TableFile) -> ObjectsColumn | RowBoxes | None:
        if self._columns.objects:
            names = {name.removeprefix(f"{OBJECTS}/"): known for name, known in head.class_names.items() if name.startswith(f"{OBJECTS}/")}
            return ObjectsColumn(head.object_fields, source, names, lambda: first_cells(first, source, OBJECTS))
        boxes = self._columns.boxes
        return RowBoxes(boxes, source, head.class_names.get(boxes.label or "", ())) if boxes else None

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises files called `metadata`, Parquet files, and folders of tables with or without images."""
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
        listed = self._read(file)
        if self._has_embedded(file):
            return spool_images(listed, self._spool_directory)
        return add_sizes(listed, self.root, other_images(self)) if self._with_sizes and self.has_images else listed

    def _has_embedded(self, file: TableFile) -> bool:
        """Returns whether a table file may contain image bytes."""
        if self._columns.pixels:
            return True
        if file.format != "parquet":
            return False
        head = self._table_heads.get(file.name) or read_head(file, self._config.source)
        return not head.has_bytes.isdisjoint(self._file_columns)

    def _make_mapper(self, root: Root) -> RowMapper:
        return RowMapper(
            self._labels,
            self._features,
            self._config.source,
            root,
            roles=self._columns.roles,
            objects=self._objects,
            class_names=self._names,
        )

    def _choose_split(self, column: str | None, files: Iterable[TableFile]) -> str | None:
        """Returns the column that contains splits, or None if folders or file names define the splits."""
        if column is None or (self._config.source.split_column is None and any(file.split for file in files)):
            return None
        if self._config.asks_for_shares and not self._config.source.divide:
            raise given_already(self._config, f"the table, in its column {printable(column)!r},", "--split_column=")
        return column

    def _read(self, file: TableFile) -> Iterator[Listed | Embedded]:
        root = self._root_of(file)
        read = functools.partial(self._read_row, file, root, self._make_mapper(root))
        rows = read_rows(file, self._config.source, self._needed, self._known_names, self.unused_fields)
        if not self._columns.are_grouped:
            return self._read_rows(file, rows, read)
        names: set[str] = set()
        if self._is_in_image_folder(file):
            rows = self._collect_names(rows, names)
        of_images = ImageRows(self._columns, (*self._labels, *self._features), self._needed, self._config.source.defaults)
        grouped = of_images.group(rows, self._spool_directory)
        listed = self._read_rows(file, grouped, lambda number, some: read(number, of_images.combine(some)))
        return itertools.chain(listed, self._note_unnamed_images(file, names)) if self._is_in_image_folder(file) else listed

    def _is_in_image_folder(self, file: TableFile) -> bool:
        """Returns whether a file is a table of boxes that Roboflow writes to the folder of the images."""
        source = self._config.source
        is_beside = not (source.image_root or source.image_folders or source.search_images or source.image_suffix)
        return self._columns.boxes is not None and is_beside and posixpath.basename(file.name) == _ROBOFLOW

    def _collect_names(self, rows: Iterable[tuple[int, Any]], names: set[str]) -> Iterator[tuple[int, Any]]:
        """Yields the rows unchanged, and adds the file name of the image in each row to `names`."""
        for number, row in rows:
            cell = row.get(self._columns.image) if isinstance(row, Mapping) else None
            if isinstance(cell, str):
                names.add(nfc(posixpath.basename(cell.strip())))
            yield number, row

    def _note_unnamed_images(self, file: TableFile, names: Collection[str]) -> Iterator[Listed]:
        """Counts the images in the folder of a table that no row names, for a warning. Yields nothing."""
        _, found = FileListing(Root(self.root, self._config.follow_links), self._config.ignore).top_level(file.folder.rstrip("/"))
        images = [name for name in found if posixpath.splitext(name)[1].lower() in IMAGE_EXTENSIONS]
        if num := sum(nfc(name) not in names for name in images):
            self.noted[f"images in the folder of {printable(file.name)} are in no row of this table, and are left out."] = num
        yield from ()

    def memory_bytes(self, part: str) -> int:
        return GROUPING_BYTES if self._columns.are_grouped else 0

    def _read_row(self, file: TableFile, root: Root, mapper: RowMapper, number: int, row: Mapping[str, Any]) -> InputRecord | Embedded:
        """Converts a row to an input. Raises `InvalidInput` if a cell is invalid for its column."""
        row, column = mapper.fill(row), self._columns.image
        cell = row.get(column) if column else None
        embedded = {}
        if self._columns.pixels:
            embedded[IMAGE], raw = self._columns.pixels.read(row)
            num_bytes = len(embedded[IMAGE])
            record = InputRecord(nfc(f"{file.name}:{number}"), file.name, "", file.split, num_bytes, offset=0, raw=raw)
        elif column is None:
            record = InputRecord(nfc(f"{file.name}:{number}"), file.name, "", file.split, offset=NO_IMAGE)
        elif data := embedded_bytes(cell):
            embedded[IMAGE] = data
            raw = npy_layout(data)[0] if data.startswith(NPY_MAGIC) else None
            record = InputRecord(nfc(f"{file.name}/{number - 1:09d}"), file.name, "", file.split, len(data), offset=0, raw=raw)
        else:
            path = in_column(column, read_image_path, without_caption_number(cell), root, self._config.source.image_suffix)
            record = InputRecord(nfc(path), path, "", file.split)
            if self._is_ignored(record):
                return record  # even if another cell is invalid
        record = mapper.read(row, record)
        for name in self._other_files:
            if isinstance(data := record.values[name], bytes):
                embedded[name] = data
                record = record._replace(values={**record.values, name: FilePart(file.name, 0, len(data))})
        return Embedded(record, embedded) if embedded else record


def _first_with_rows(files: list[TableFile], source: SourceConfig) -> tuple[TableFile, TableHead]:
    """Returns the first file that has columns, and its columns. Skips JSON Lines files without lines."""
    heads = ((file, read_head(file, source)) for file in files)
    return next(((file, head) for file, head in heads if head.columns), (files[0], TableHead(())))


def _check_format(file: TableFile, head: TableHead, source: SourceConfig) -> None:
    """Raises `UserError` if an option does not apply to the format of the first table."""
    if file.format != "csv" and source.delimiter:
        raise UserError(f"{printable(file.name)}: only CSV files have delimiters. Omit --delimiter.")
    if file.format == "parquet" and (source.skip_lines or source.comment):
        raise UserError(f"{printable(file.name)}: Parquet has no lines. Omit --skip_lines and --comment.")
    if file.format != "csv" and source.column_names:
        raise UserError(f"{printable(file.name)}: already names its columns ({show_columns(head.columns)}). Omit --column_names.")


def _check_no_images(row: Mapping[str, Any], file: TableFile) -> None:
    """Raises `UserError` if a column seems to contain images, but is not recognized because of its name."""
    for name, cell in row.items():
        cell_value = cell.get("path") or cell.get("bytes") if isinstance(cell, dict) else cell
        if isinstance(cell_value, bytes) or isinstance(cell_value, str) and cell_value.lower().endswith(tuple(IMAGE_EXTENSIONS)):
            shown, column = "bytes" if isinstance(cell_value, bytes) else printable(repr(cell_value[:80])), printable(name)
            advice = f"Use --image_column={column} if it is, or --image=none for examples without images."
            raise UserError(f"{printable(file.name)}: column {column!r} has {shown}, which may be an image. {advice}")


def _describes_tars(files: Sequence[str]) -> bool:
    """Returns whether there is a tar file of the same name for each Parquet file, as in the output of img2dataset."""
    tables = [name for name in files if name.lower().endswith(".parquet")]
    return bool(tables) and all(f"{name.removesuffix('.parquet')}.tar" in files for name in tables)


def _has_only_tables(names: InputNames) -> bool:
    """Returns whether a folder has tables, but no images or arrays. Otherwise, the tables may be only notes."""
    return not names.has_images and not names.find("*.npy") and bool(names.find(*_TABLES))
