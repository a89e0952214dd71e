"""Columns of a table, or fields of a record, and the features that they become. Plain.

A column is named on the command line as `[FEATURE=]NAMES[:KIND]`, such as `weather`, `age:float`, `cat,dog,bird:multi_label` or,
where the feature is to have another name, `tree_height=height:float`:

    kind          a cell                                                      the feature
    class         a class name, or an integer                                 class_label
    multi_label   a list, or names with a separator ("|") between them; of     class_label, any number of them
                  several columns: 0 or 1 in each, and their names are the classes
    multi_hot[N]  a list of N values of 0 or 1; the classes are                class_label, any number of them
                  `--label_names`, which say N too, or 0 to N-1
    float         a number; of several columns: one in each                   float
    float[N]      a list of N numbers, or N numbers with spaces between them  float, shape (N,)
    integer       an integer                                                  integer
    text          anything                                                    text
    mask          the path of a mask                                          mask
    array         the path of a `.npy` file, or numbers in lists of lists     float, of the first one's shape
    array[H,W,C]  likewise                                                    float, of that shape
"""

import dataclasses
import math
import re
from typing import Any, Callable, Collection, Mapping, Sequence

from beam_pipelines.array_cells import holds_array, probe_shape, read_array_cell
from beam_pipelines.cells import BadCellError, in_column, read_flag, read_float, read_floats, read_integer, read_path, read_text
from beam_pipelines.class_cells import class_name, known, read_classes, read_multi_hot, read_one_class
from beam_pipelines.errors import UserError, printable
from beam_pipelines.label_lists import DEFAULT_SEPARATOR
from beam_pipelines.references import FilePart
from beam_pipelines.sources.roots import Root
from tf_input.dataset_format import LABEL, MASK, Feature

KINDS = ("class", "multi_label", "multi_hot", "float", "integer", "text", "mask", "array")

_COLUMN = re.compile(r"(?:(?P<feature>[A-Za-z][A-Za-z0-9_.-]{0,63})=)?(?P<names>[^:]+)(?::(?P<kind>[a-z_]+)(?:\[(?P<shape>\d+(?:,\d+)*)\])?)?")


@dataclasses.dataclass(frozen=True)
class Column:
    """One feature and where a source has it.

    Attributes:
        name: Of the feature.
        names: Of the columns that it is made of.
        kind: One of `KINDS`.
        shape: Of a value; empty: one value, or, of an array, what the first has.
    """

    name: str
    names: tuple[str, ...]
    kind: str = "class"
    shape: tuple[int, ...] = ()

    def feature(self) -> Feature:
        """Its class names are not known yet."""
        match self.kind:
            case "class":
                return Feature(self.name, "class_label")
            case "multi_label" | "multi_hot":
                return Feature(self.name, "class_label", (None,))
            case "float":
                return Feature(self.name, "float", self.shape or ((len(self.names),) if len(self.names) > 1 else ()))
            case "array":
                return Feature(self.name, "float", self.shape)
        return Feature(self.name, self.kind)


    def positions(self, label_names: Collection[str] = ()) -> tuple[str, ...]:
        """The classes of a multi_hot, in the order of its values.

        Raises:
            UserError: Nobody says how many there are, or two things are said.
        """
        names = tuple(label_names) or tuple(map(str, range(math.prod(self.shape) if self.shape else 0)))
        if not names or (self.shape and len(names) != self.shape[0]):
            column = printable(self.names[0])
            number = f"{len(names)} label names are given" if names else "nothing says how many classes there are"
            raise UserError(f"{column}:multi_hot: {number}; expected {column}:multi_hot[N], or --label_names with N names")
        return names


def parse_column(option: str, text: str, default_kind: str) -> Column:
    """`[FEATURE=]NAMES[:KIND]`; without FEATURE the feature has the column's name, without what a feature's can't hold.

    Raises:
        UserError: It is not of that form.
    """
    match = _COLUMN.fullmatch(text.strip())
    names = tuple(name.strip() for name in match["names"].split(",")) if match else ()
    kind = match and (match["kind"] or default_kind)
    if not match or not all(names) or kind not in KINDS or len(set(names)) < len(names):
        raise UserError(f"{option}={text}: expected [FEATURE=]COLUMN[,COLUMN…][:KIND], with one of the kinds {', '.join(KINDS)}")
    if len(names) > 1 and kind not in ("multi_label", "float"):
        raise UserError(f"{option}={text}: only a multi_label or a float is made of several columns")
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    is_flat = kind in ("float", "multi_hot")
    if shape and ((not is_flat and kind != "array") or 0 in shape or (is_flat and len(shape + names) > 2)):
        raise UserError(f"{option}={text}: expected a shape of one dimension for a float or a multi_hot, or of any for an array")
    return Column(match["feature"] or re.sub(r"[^A-Za-z0-9_.-]", "_", "_".join(names))[:64], names, kind, shape)


def parse_labels(texts: list[str]) -> tuple[Column, ...]:
    """The values of `--label`: one is called `label` in the data set (a mask `mask`), several keep their names."""
    if "none" in texts:
        if len(texts) > 1:
            raise UserError("--label=none goes with no other label")
        return ()
    columns = tuple(parse_column("--label", text, "class") for text in texts)
    if len(columns) == 1:
        name = MASK if columns[0].kind == "mask" else LABEL
        if _COLUMN.fullmatch(texts[0].strip())["feature"] not in (None, name):
            raise UserError(f"--label={texts[0]}: a single label is called {name!r}; drop {columns[0].name}=")
        return (dataclasses.replace(columns[0], name=name),)
    return columns


class ColumnReader:
    """Reads the values of an example from the cells of a row.

    What may be in a cell: see `cells`.

    Args:
        labels: What a model is to predict.
        features: What else is kept.
        root: Where the files lie that cells name.
        names_of: From a label to the class names that it may have; empty: any. Where they are a tuple, and none of them is
            a number, a label n means the n-th of them, from 0.
        separator: What stands between the names in the text of a multi_label.

    Attributes:
        features: What the columns become; class names are not known yet.
        targets: Names of those that are labels.
        column_names: All columns that are needed, each once.

    Raises:
        UserError: Two features have one name, or a column of a multi_label is no class name.
    """

    def __init__(
        self,
        labels: Sequence[Column],
        features: Sequence[Column],
        root: Root,
        names_of: Callable[[str], Collection[str]] = lambda name: (),
        separator: str = DEFAULT_SEPARATOR,
    ) -> None:
        columns = (*labels, *features)
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"--feature={name}: another label or feature has that name already")
        self.features = tuple(column.feature() for column in columns)
        self.targets = tuple(column.name for column in labels)
        self.column_names = tuple(dict.fromkeys(name for column in columns for name in column.names))
        readers = {
            column.name: _make_reader(column, root, names_of(column.name) if column in labels else (), separator)
            for column in columns
        }
        is_single_class = any(column.name == LABEL and column.kind == "class" for column in columns)
        self._read_label = readers.pop(LABEL) if is_single_class else None
        self._readers = tuple(readers.items())

    def read(self, row: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """(class name of the feature `label`, or "", the other features' values, or None), as `sources` states them.

        Raises:
            BadCellError: A cell is not what its column's kind expects.
        """
        label = self._read_label(row) if self._read_label else ""
        return label, {name: read(row) for name, read in self._readers} if self._readers else None


def _make_reader(
    column: Column, root: Root, label_names: Collection[str], separator: str
) -> Callable[[Mapping[str, Any]], Any]:
    if len(column.names) == 1:
        return _reader_of_one(column.names[0], _converter(column, root, label_names, separator))
    if column.kind == "float":
        numbers = [_reader_of_one(name, read_float) for name in column.names]
        return lambda row: tuple([read(row) for read in numbers])
    for name in column.names:
        _check_class_column(name, label_names)
    flags = [(name, _reader_of_one(name, read_flag)) for name in sorted(column.names)]
    return lambda row: tuple([name for name, read in flags if read(row)])


def _check_class_column(name: str, label_names: Collection[str]) -> None:
    try:
        known(class_name(name), label_names)
    except BadCellError as error:
        raise UserError(f"--label={name}:multi_label: as a class name it {error}") from None


def _reader_of_one(name: str, convert: Callable[[Any], Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: in_column(name, convert, row.get(name))


def _converter(column: Column, root: Root, label_names: Collection[str], separator: str) -> Callable[[Any], Any]:
    match column.kind:
        case "class":
            return lambda cell: read_one_class(column.names[0], cell, label_names)
        case "multi_label":
            return lambda cell: read_classes(cell, label_names, separator)
        case "multi_hot":
            names = column.positions(label_names)
            return lambda cell: read_multi_hot(cell, names)
        case "float":
            return (lambda cell: read_floats(cell, math.prod(column.shape))) if column.shape else read_float
        case "integer":
            return read_integer
        case "text":
            return read_text
        case "array":
            return lambda cell: read_array_cell(cell, column.shape) if holds_array(cell) else FilePart(read_path(cell, root))
    return lambda cell: FilePart(read_path(cell, root))


def find_array_shapes(columns: Sequence[Column], first_row: Mapping[str, Any], root: Root) -> tuple[Column, ...]:
    """The columns, with the shape of the first row's array where an array's shape is not stated.

    Raises:
        UserError: There is no such array.
    """
    return tuple(
        dataclasses.replace(column, shape=probe_shape(column.names[0], first_row.get(column.names[0]), root))
        if column.kind == "array" and not column.shape
        else column
        for column in columns
    )
