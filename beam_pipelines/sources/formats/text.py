"""Source `text`: lists of images in text files, with one line `path label` per image."""

import contextlib
import functools
import math
import shlex
from typing import Iterator, Mapping

from beam_pipelines.config.columns import FLAG_KINDS, Column
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.features.kinds import KINDS
from beam_pipelines.sources.cells.array_cells import describe_resolved, find_array_shapes, resolve_by_cell
from beam_pipelines.sources.cells.cells import in_column, read_image_path
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.sizes import add_sizes
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.sources.source import other_images
from beam_pipelines.sources.rows.lines import read_lines
from beam_pipelines.sources.rows.row_files import RowFiles
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.rows.table_files import TableFile
from tf_input.dataset_format import LABEL

_FORMATS = {".txt": "text", ".lst": "text", ".list": "text", "": "text"}
_PATH = "path"  # the name of the first field


class TextList(RowFiles):
    """Lists the inputs of one text file, or of several text files with the same fields."""

    kind = SourceKind(
        name="text",
        summary="a text file with a path and a label in each line",
        options=(
            "labels", "label_names", "label_separator", "features", "image_root", "image_folders", "search_images", "image_suffix", "skip_lines",
            "comment",
        ),
        synonyms=("txt", "list"),
        rows_name_images=True,
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        source = config.source
        super().__init__(config, _FORMATS)
        self._with_sizes = with_sizes
        labels = (Column(LABEL, (LABEL,)),) if source.labels is None else source.labels
        self._fields = _Fields((*labels, *source.features), source.separator)
        self._labels, self._features = labels, source.features
        for column in (*labels, *source.features):
            if column.kind in KINDS and not column.is_resolved:
                raise UserError(f"--label or --feature {printable(column.name)}: the number of fields is unknown. Use {describe_resolved(column)}.")
        if any(not column.is_resolved for column in (*labels, *source.features)):
            first = next(iter(self._files.values()))
            resolve = functools.partial(resolve_by_cell, self._first_row(first), self._root_of(first))
            self._labels, self._features = (find_array_shapes(some, resolve) for some in (labels, source.features))
        self._mapper = self._make_mapper(Root(self.root, config.follow_links))
        self.features, self.targets = self._mapper.features, self._mapper.targets

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        if names.is_folder:
            return _recognise_pets(names)
        if not names.find("*.txt", "*.lst"):
            return None
        reject_other_format(names.path)
        return Recognition(names.name)

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        file = self._files[part]
        root = self._root_of(file)
        read = functools.partial(self._read, file, root, self._make_mapper(root))
        listed = self._read_rows(file, read_lines(file.path, file.name, self._config.source), read)
        return add_sizes(listed, self.root, other_images(self)) if self._with_sizes else listed

    def _make_mapper(self, root: Root) -> RowMapper:
        return RowMapper(self._labels, self._features, self._config.source, root)

    def _first_row(self, file: TableFile) -> Mapping[str, str]:
        with contextlib.closing(read_lines(file.path, file.name, self._config.source)) as lines:
            for _, line in lines:
                with contextlib.suppress(InvalidInput):  # becomes a dead letter during listing
                    if isinstance(line, str):
                        return self._fields.split(line)
        return {}

    def _read(self, file: TableFile, root: Root, mapper: RowMapper, number: int, line: str) -> InputRecord:
        row = self._fields.split(line)
        path = in_column(_PATH, read_image_path, row[_PATH], root, self._config.source.image_suffix)
        record = InputRecord(nfc(path), path, "", file.split)
        return record if self._is_ignored(record) else mapper.read(row, record)


def _recognise_pets(names: InputNames) -> Recognition | None:
    """Recognises the list of classes of the Oxford-IIIT Pet dataset, which also has masks and boxes."""
    annotations, images = names.folder("annotations"), names.folder("images")
    if annotations is None or images is None or not annotations.find("list.txt") or not annotations.folder("trimaps"):
        return None
    paths = [shlex.quote(f"--{option}={path}") for option, path in (("input", f"{annotations.path}/list.txt"), ("image_root", images.path))]
    return Recognition("annotations/list.txt", options=f"{' '.join(paths)} --image_suffix=.jpg --comment='#' --label class --feature species --feature breed")


def _num_fields(column: Column) -> int:
    """Returns the number of fields for each name of a column, which is 1 for a list of any length."""
    if column.kind in KINDS and len(column.names) == 1:
        return math.prod(column.shape)
    return column.shape[0] or 1 if column.is_list or column.kind in FLAG_KINDS and column.shape else 1


class _Fields:
    """Splits lines of text into fields.

    Args:
        columns: The columns, in the order of their fields. The first field is the path.
        separator: The separator between class names in a field.
    """

    def __init__(self, columns: tuple[Column, ...], separator: str) -> None:
        widths: dict[str, int] = {}
        for column in columns:
            for name in column.names:
                widths[name] = _num_fields(column)
        if _PATH in widths:
            raise UserError(f"--label or --feature {_PATH}: this is the name of the first field. Choose another name.")
        self._widths = tuple(widths.items())
        self._num_fields = 1 + sum(widths.values())
        last = columns[-1] if columns else None
        self._takes_rest = last is not None and len(last.names) == 1 and (last.kind == "multi_label" or last.shape == (None,))
        self._between = " " if last is not None and last.kind in ("float", "integer") else separator

    def split(self, line: str) -> Mapping[str, str]:
        """Returns the cells of a line, by name. Raises `InvalidInput` if the line has a wrong number of fields, or a NUL
        byte."""
        if "\0" in line:
            raise InvalidInput("bad_row", "the line has a NUL byte")
        if "\t" in line:
            fields = [field.strip() for field in line.split("\t")]
        else:  # the path may contain blanks if the number of fields is known
            fields = line.split() if self._takes_rest else line.strip().rsplit(None, self._num_fields - 1)
        if len(fields) != self._num_fields and not (self._takes_rest and len(fields) >= self._num_fields - 1):
            names = " ".join([_PATH, *(name for name, width in self._widths for _ in range(width))])
            raise InvalidInput(
                "bad_row",
                f"the line has {len(fields)} fields instead of {self._num_fields}: {names} (separate the fields by "
                "tabs if they contain blanks)",
            )
        row = {_PATH: fields[0]}
        start = 1
        for name, width in self._widths:
            row[name] = " ".join(fields[start : start + width])
            start += width
        if self._takes_rest:
            row[name] = self._between.join(fields[start - 1 :])
        return row
