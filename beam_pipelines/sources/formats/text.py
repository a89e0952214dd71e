"""Source `text`: lists of images in text files, with one line `path label` per image."""

import contextlib
import math
import re
import shlex
from typing import Iterator, Mapping

from beam_pipelines.columns.column import Column
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.cells.array_cells import describe_resolved
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.sources.rows.lines import read_lines
from beam_pipelines.sources.rows.row_files import Row, RowFiles, TableFile
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
    _image = _PATH

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory, _FORMATS)
        labels = (Column(LABEL, (LABEL,)),) if options.source.labels is None else options.source.labels
        for column in (*labels, *options.source.features):
            if _PATH in column.names:
                raise UserError(f"--label or --feature {_PATH}: this is the name of the first field. Choose another name.")
            if form_of(column).is_points and not form_of(column).is_resolved(column):
                advice = f"Use {describe_resolved(column)}"
                raise UserError(f"--label or --feature {printable(column.name)}: the number of fields is unknown. {advice}.")
        self._fields = _Fields((*labels, *options.source.features), options.source.separator)
        if self._fields.num > 1:
            _reject_tables(self._first, options.source)
        self._open_columns(labels, options.source.features)

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        if names.is_folder:
            return _recognise_pets(names)
        if not names.find("*.txt", "*.lst"):
            return None
        reject_other_format(names.path)
        return Recognition(names.name)

    def _rows(self, file: TableFile) -> Iterator[Row]:
        for number, line in read_lines(file.path, file.name, self._source):
            yield number, line if isinstance(line, InvalidInput) else self._fields.split(line)


def _recognise_pets(names: InputNames) -> Recognition | None:
    """Detects the class list of the Oxford-IIIT Pet dataset, which also has masks and boxes."""
    annotations, images = names.folder("annotations"), names.folder("images")
    if annotations is None or images is None or not annotations.find("list.txt") or not annotations.folder("trimaps"):
        return None
    paths = [shlex.quote(f"--{option}={path}") for option, path in (("input", f"{annotations.path}/list.txt"), ("image_root", images.path))]
    return Recognition("annotations/list.txt", options=f"{' '.join(paths)} --image_suffix=.jpg --comment='#' --label class --feature species --feature breed")


# The first line of a table that is not a list: pattern, description, options for the source `table`.
_IMAGE = rf"\S+(?:{'|'.join(map(re.escape, IMAGE_EXTENSIONS))})"
_TABLES = (
    (rf"{_IMAGE}#\d+\s.*", "has a caption after the path of an image", "tab --column_names image,caption --label caption:text[]"),  # Flickr8k
    (rf"\d+\s+{_IMAGE}", "has a number before the path of an image", "space --column_names id,image --label none"),  # CUB
    (r"\d+", "is a number of rows", "space --skip_lines 1 --label COLUMN:integer, with a name from the second line"),  # CelebA
)


def _reject_tables(file: TableFile, source: SourceConfig) -> None:
    """Raises `UserError` if the first line shows that the file is a table for which the source `table` needs options."""
    with contextlib.closing(read_lines(file.path, file.name, source)) as lines:
        line = next((line.strip() for _, line in lines if isinstance(line, str)), "")
    for pattern, description, options in _TABLES:
        if re.fullmatch(pattern, line, re.IGNORECASE):
            advice = f"Pass --source table --delimiter {options}"
            raise UserError(f"{printable(file.name)}: the line {printable(line[:80])!r} {description}. {advice}.")


def _num_fields(column: Column) -> int:
    """Returns the number of fields in a line for each name of a column. A list of any length is a single field."""
    form = form_of(column)
    if form.is_points and len(column.names) == 1:
        return math.prod(column.shape)
    return column.shape[0] or 1 if form.is_list(column) or form.is_flags and column.shape else 1


class _Fields:
    """Splits lines of text into fields.

    Args:
        columns: The columns, in the order of their fields. The first field is the path.
        separator: The separator between class names in a field.

    Attributes:
        num: The number of fields in a line.
    """

    def __init__(self, columns: tuple[Column, ...], separator: str) -> None:
        self._widths = {name: _num_fields(column) for column in columns for name in column.names}
        self.num = 1 + sum(self._widths.values())
        last = columns[-1] if columns else Column("", ())
        form = form_of(last)
        self._takes_rest = len(last.names) == 1 and (form.is_names and not form.is_one_class or last.shape == (None,))
        self._between = " " if form.value_type in (float, int) else separator

    def split(self, line: str) -> Mapping[str, str] | InvalidInput:
        """Returns the cells of a line by name, or an error if the line has the wrong number of fields or contains a NUL
        byte."""
        if "\0" in line:
            return InvalidInput("bad_row", "the line has a NUL byte")
        if "\t" in line:
            fields = [field.strip() for field in line.split("\t")]
        else:  # the path may contain blanks if the number of fields is known
            fields = line.split() if self._takes_rest else line.strip().rsplit(None, self.num - 1)
        if len(fields) != self.num and not (self._takes_rest and len(fields) >= self.num - 1):
            names = " ".join([_PATH, *(name for name, width in self._widths.items() for _ in range(width))])
            problem = f"the line has {len(fields)} fields instead of {self.num}: {names}"
            return InvalidInput("bad_row", f"{problem} (separate the fields by tabs if they contain blanks)")
        row, start = {_PATH: fields[0]}, 1
        for name, width in self._widths.items():
            row[name] = " ".join(fields[start : start + width])
            start += width
        if self._takes_rest:
            row[name] = self._between.join(fields[start - 1 :])
        return row
