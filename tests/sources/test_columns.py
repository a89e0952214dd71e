"""Tests how table cells of each type are read from the formats that sources use, and which cells are rejected."""

import dataclasses
import decimal
import functools
import math
import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.columns.column import Column
from beam_pipelines.columns.forms import feature_of, parse_column, parse_labels
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError
from beam_pipelines.sources.cells.cells import read_name
from beam_pipelines.sources.cells.class_cells import class_name, read_class
from beam_pipelines.sources.cells.array_cells import find_array_shapes, resolve_by_cell
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.rows.row_mapper import RowMapper
from made_images import write_files
from tf_input.dataset_format import Feature


def read_row(mapper: RowMapper, row: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Returns the label and the values of a row."""
    record = mapper.read(row, InputRecord("key", "path", "", None))
    return record.label, record.values


def read(root: pathlib.Path, column: str, row: dict[str, Any], **options: Any) -> Any:
    """Returns the value of a feature column in a row."""
    parsed = dataclasses.replace(parse_column("--feature", column, "class"), name="value")
    label, values = read_row(RowMapper((), (parsed,), SourceConfig(**options), Root(os.fspath(root))), row)
    assert label == "" and list(values) == ["value"]
    return values["value"]


TWO_CLASSES = ("cat", "dog")
# Column -> cells and expected values.
CELLS: dict[str, list[tuple[Any, Any]]] = {
    "x": [
        *(("cat", "cat"), (" cat ", "cat"), ("Lo\u0308we", "L\u00f6we"), ("Löwe".encode(), "Löwe"), (["cat"], "cat"), ("<b>cat</b>", "<b>cat</b>")),
        *((7, "7"), ("007", "007"), (np.int64(99_999), "99999"), (7.0, "7"), (" 2.0 ", "2"), ("11.", "11"), (np.float32(3), "3"), ("02.0", "02.0")),
        *((True, "True"), (np.bool_(False), "False"), (np.array([3]), "3"), ("=cmd|' /C calc'!A0", "=cmd|' /C calc'!A0"), ("1" * 200, "1" * 200)),
    ],
    "x:multi_label": [
        *(([1, 1], ("1",)), ("[1, 1, 1]", ("1",)), ([2.0, 10.0], ("10", "2")), ("[10, 2]", ("10", "2")), ([0, 1], ("0", "1")), ([10, 9], ("10", "9"))),
        *(("dog|cat", TWO_CLASSES), ("{'dog', 'cat'}", TWO_CLASSES), (["dog", "cat", "dog"], TWO_CLASSES), ("('dog',)", ("dog",)), (3, ("3",))),
        *(('["dog", "caf\\u00e9, old"]', ("café, old", "dog")), (" ['dog', \"cat's\",] ", ("cat's", "dog")), (np.array([1, 2]), ("1", "2"))),
        *(("(unknown)|cat", ("(unknown)", "cat")), ("ice cream|hot dog", ("hot dog", "ice cream")), *((cell, ()) for cell in ("[]", "", None, []))),
    ],
    "x:multi_hot[4]": [("[1, 0, 0, 1]", ("0", "3")), ("[0. 1. 0. 1.]", ("1", "3"))],
    "x:multi_hot[3]": [("0 1 0", ("1",)), ([0.0, 0.0, 1.0], ("2",))],
    "x:multi_hot[2]": [(np.array([True, False]), ("0",))],
    "x:float": [(True, 1.0), (" -1.5e3 ", -1500.0), (2, 2.0), (decimal.Decimal("1.50"), 1.5), (np.float32(0.5), 0.5), (np.array(2.5), 2.5)],
    "x:float[1]": [([4], (4.0,))],
    "x:float[2]": [([1, 2.5], (1.0, 2.5)), (np.array([1.0, 2.0], np.float32), (1.0, 2.0)), (np.array([1.5, 2]), (1.5, 2.0))],
    "x:float[3]": [("1 2.5  -3", (1.0, 2.5, -3.0))],
    "x:float[]": [("[]", ()), (None, ())],
    "x:integer": [(True, 1), (7.0, 7), ("-7.00", -7), ("-7", -7), (2**63 - 1, 2**63 - 1)],
    "x:integer[]": [
        *(("1 2  3", (1, 2, 3)), (" 1,2 , 3 ", (1, 2, 3)), ("[1, -2]", (1, -2)), ("[1 2 3]", (1, 2, 3)), ("['1', '2']", (1, 2)), ("", ())),
        *((7, (7,)), ((1, 2), (1, 2))),
    ],
    "x:text": [(" as it is, <b>", " as it is, <b>"), (1.5, "1.5"), (["ä"], '["ä"]'), (None, ""), ({"a": 1.0, "b": {1}}, '{"a": 1.0, "b": "{1}"}')],
    "x:text[]": [("a|b c|", ("a", "b c", "")), ('["a|b", 3]', ("a|b", "3")), (["a", "b"], ("a", "b")), (b"a|b", ("a", "b"))],
    "x:mask": [("masks/1.png", FilePart("masks/1.png"))],
    "x:array[2,3]": [("./targets//1.npy", FilePart("targets/1.npy"))],
}


@pytest.mark.parametrize("column", CELLS)
def test_cell_is_converted_to_its_kind(tmp_path: pathlib.Path, column: str) -> None:
    for cell, expected in CELLS[column]:
        actual = read(tmp_path, column, {"x": cell})
        assert actual == expected and type(actual) is type(expected), repr(cell)


# Column -> cells, and a part of the message.
BAD_CELLS: dict[str, list[tuple[Any, str]]] = {
    "x": [
        *(("", "is empty"), ("  ", "is empty"), (None, "is empty"), (7.5, "7.5"), (math.nan, "nan"), ("-1.0", "'-1'"), (-1, "-1"), ("-1", "'-1'")),
        *((2**63, "9223"), ("cat\ndog", r"'cat\ndog'"), ("\x1b[31mcat", r"'\x1b[31mcat'"), ("a\u2028b", r"'a\u2028b'"), ("\ud800", r"'\ud800'")),
        *((b"caf\xe9", r"b'caf\xe9'"), ("c" * 257, "at most 256"), ("c" * 10**6, "at most 256"), (["cat", "dog"], "['cat', 'dog']"), ({"cat": 1}, "{'cat': 1}")),
    ],
    "x:multi_label": [
        *(("[cat dog]", "a list such as"), ("['cat' 'dog']", "a list such as"), ("[" * 9_999 + "]" * 9_999, "a list such as"), ("[1.5, 2]", "1.5")),
        *(("[1, 0, 0, 0]", "multi_hot"), ([1, 0, 0], "multi_hot"), (np.array([1.0, 0, 0]), "multi_hot"), ([True, False], "multi_hot"), ([0, 0], "multi_hot")),
        *(("cat||dog", "is empty"), ([True], "True"), (0.5, "0.5")),
    ],
    "x:multi_hot[4]": [("[1, 0, 0]", "4 values of 0 or 1")],
    "x:multi_hot[3]": [([1, 0, 2], "2"), ("cat", "3 values of 0 or 1"), (None, "is empty")],
    "x:float": [("nan", "'nan'"), (math.inf, "inf"), ("1e39", "'1e39'"), (10**400, "finite"), ("1_000", "'1_000'"), ("1,5", "decimal point"), ("", "is empty")],
    "x:float[]": [([1.0, math.inf], "has inf"), (["1,5"], "has '1,5'")],
    "x:float[1]": [([1, 2], "1 numbers")],
    "x:float[2]": [([1, [2, 3]], "[2, 3]")],
    "x:float[3]": [("1 2", "3 numbers")],
    "x:integer": [("7.5", "'7.5'"), (7.5, "7.5"), (math.nan, "nan"), (math.inf, "inf"), (2**63, "64 bit"), ("9" * 5000, "64 bit")],
    "x:integer[]": [("1,,2", "is empty"), ("1 2.5", "has '2.5'"), ([2**63], "64 bits"), ("[1, [2]]", "has [2]"), ({"a": 1}, "has {")],
    "x:text": [("\udce9", r"\udce9")],
    "x:text[]": [("[a b]", "has '[a b]'")],
    "x:mask": [
        *(("", "is empty"), (7, "7"), ("../1.png", "../1.png"), ("gs://bucket/1.png", "gs://bucket/1.png"), ("a\0b", "a\\\\x00b")),
        *(("\ud800", r"\ud800"), ("m" * 5000, "4096")),
    ],
    "x:array[1]": [("/etc/passwd", "/etc/passwd")],
}
OUTSIDE = ("../1.png", "gs://bucket/1.png", "a\0b", "/etc/passwd")


@pytest.mark.parametrize("column", BAD_CELLS)
def test_rejects_cells_that_do_not_fit_their_kind(tmp_path: pathlib.Path, column: str) -> None:
    for cell, part in BAD_CELLS[column]:
        with pytest.raises(InvalidInput) as caught:
            read(tmp_path, column, {"x": cell})
        message, is_class = str(caught.value), column == "x" or ":multi" in column
        is_outside = isinstance(cell, str) and cell in OUTSIDE
        assert caught.value.reason == ("bad_label" if is_class else "outside" if is_outside else "bad_value"), repr(cell)[:99]
        assert message.startswith("column 'x' ") and part in message and message.isprintable() and len(message) < 500


@pytest.mark.parametrize(
    "cell, expected",
    [
        ([0.0, 1.0, 0.0], ["c:float[3]", "c:multi_hot[3]", "c:one_hot[3]"]),
        ([0, 1, 1, 0], ["c:float[4]", "c:multi_hot[4]"]),
        ([0.25, 0.75], ["c:float[2]"]),
        ([0, 1], ["c:float[2]", "c:multi_hot[2]", "c:one_hot[2]", "c:multi_label"]),
        ([3, 17], ["c:float[2]", "c:multi_label"]),
        (["cat", "dog"], ["c:multi_label"]),
        (0.5, ["c:float"]),
        (-1, ["c:integer"]),
        (["a", 1], []),
    ],
)
def test_error_lists_the_kinds_that_can_read_the_cell(tmp_path: pathlib.Path, cell: Any, expected: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_row(make_mapper(tmp_path, ["c"]), {"c": cell})
    assert re.findall(r"\bc:[^ ,]+", str(caught.value)) == expected
    for kind in expected:  # each listed kind reads the cell
        label, values = read_row(make_mapper(tmp_path, [kind]), {"c": cell})
        assert label or values["label"] is not None


def test_feature_may_be_named_differently_from_its_column() -> None:
    column = parse_column("--feature", "tree_height=height:float", "text")
    assert column == Column("tree_height", ("height",), "float")
    assert [label.name for label in parse_labels(["a=b", "c"])] == ["a", "c"]
    with pytest.raises(UserError, match="--label=a=b: "):
        parse_labels(["a=b"])


def test_multi_label_of_several_columns_uses_their_names(tmp_path: pathlib.Path) -> None:
    cells = [("1", "0", ""), (1, 0, None), (True, False, "false"), ("true", 0.0, np.int64(0)), (np.bool_(True), "0", 0), ("1.0", "0.0", "0.")]
    for dog, cat, bird in cells:
        row = {"dog": dog, "cat": cat, "bird": bird}
        assert read(tmp_path, "dog,cat,bird:multi_label", row) == ("dog",), row
        assert read(tmp_path, "dog,cat,bird:class", row) == "dog", row
    assert read(tmp_path, "dog,cat:multi_label", {"dog": 1, "cat": "TRUE"}) == ("cat", "dog")


@pytest.mark.parametrize("dog, cat", [(0, 0), (1, 1), ("", None)])
def test_class_of_several_columns_needs_exactly_one_1(tmp_path: pathlib.Path, dog: Any, cat: Any) -> None:
    with pytest.raises(InvalidInput, match="2 columns") as caught:
        read(tmp_path, "dog,cat:class", {"dog": dog, "cat": cat})
    assert caught.value.reason == "bad_label"


@pytest.mark.parametrize("cell", ["yes", 2, -1, 0.5, "1.5", [1, 2], math.nan])
def test_multi_label_of_several_columns_rejects_other_values(tmp_path: pathlib.Path, cell: Any) -> None:
    with pytest.raises(InvalidInput, match="column 'cat' has .*0, 1, false, true"):
        read(tmp_path, "dog,cat:multi_label", {"dog": 1, "cat": cell})


def test_numbers_of_several_columns_keep_the_given_order(tmp_path: pathlib.Path) -> None:
    assert read(tmp_path, "y,x:float", {"x": "1", "y": 2}) == (2.0, 1.0)
    assert read(tmp_path, "y,x:integer", {"x": "1", "y": 2.0}) == (2, 1)
    assert feature_of(parse_column("--feature", "y,x:integer", "text")) == Feature("y_x", "integer", (2,))
    with pytest.raises(InvalidInput, match="column 'x' has 'one'"):
        read(tmp_path, "y,x:float", {"x": "one", "y": 2})


# Labels


def make_mapper(root: pathlib.Path, labels: list[str], features: list[str] = [], label_names: tuple[str, ...] = ()) -> RowMapper:
    columns, parsed = parse_labels(labels), tuple(parse_column("--feature", text, "class") for text in features)
    source = SourceConfig(label_names_of={column.name: label_names for column in columns})
    return RowMapper(columns, parsed, source, Root(os.fspath(root)))


def test_single_class_label_is_returned_separately(tmp_path: pathlib.Path) -> None:
    mapper = make_mapper(tmp_path, ["species"], ["age:float", "camera"])
    assert mapper.features == (Feature("label", "class_label"), Feature("age", "float"), Feature("camera", "class_label"))
    assert (mapper.targets, mapper.value_names) == (("label",), ("species", "age", "camera"))
    assert read_row(mapper, {"species": "cat", "age": "3", "camera": "A"}) == ("cat", {"age": 3.0, "camera": "A"})
    assert read_row(make_mapper(tmp_path, ["species"]), {"species": "cat"}) == ("cat", None)


def test_feature_called_label_becomes_the_label(tmp_path: pathlib.Path) -> None:
    assert read_row(make_mapper(tmp_path, ["none"], ["label"]), {"label": "cat"}) == ("cat", None)


LABEL_NAMES: list[tuple[tuple[str, ...], Any, str | None]] = [
    # Label names, cell, expected class; None rejects the cell.
    *((("cat", "dog"), cell, label) for cell, label in ((0, "cat"), ("1", "dog"), ("dog", "dog"), ("1.0", "dog"), ("bird", None), (2, None))),
    *((("9", "1", "none"), cell, label) for cell, label in ((9, "9"), ("1", "1"), ("none", "none"), (0, None))),  # no indices
    (("1.0", "2.0"), "2.0", "2.0"),  # label names are matched exactly
    (("0", "1", "2"), 2.0, "2"),
]


@pytest.mark.parametrize("label_names, cell, expected", LABEL_NAMES)
def test_class_is_a_label_name_or_its_index(tmp_path: pathlib.Path, label_names: tuple[str, ...], cell: Any, expected: str | None) -> None:
    mapper = make_mapper(tmp_path, ["species", "tags:multi_label"], ["camera"], label_names=label_names)
    if expected is None:
        for row in ({"species": cell}, {"species": label_names[0], "tags": [cell]}):
            with pytest.raises(InvalidInput, match=f"{len(label_names)} label names") as caught:
                read_row(mapper, {"camera": "A", **row})
            assert caught.value.reason == "bad_label"
    else:
        values = {"species": expected, "tags": (expected,), "camera": "A"}  # label names apply to labels only
        assert read_row(mapper, {"species": cell, "tags": [cell], "camera": "A"}) == ("", values)


def test_rejects_conflicting_columns(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="--feature=label: "):
        make_mapper(tmp_path, ["species"], ["label:text"])
    with pytest.raises(UserError, match="--label=bird:multi_label: .* 2 label names"):
        make_mapper(tmp_path, ["cat,bird:multi_label"], label_names=("cat", "dog"))
    with pytest.raises(UserError, match="--label=-1:multi_label"):
        make_mapper(tmp_path, ["cat,-1:multi_label"])


def test_classes_of_a_multi_hot_are_the_label_names(tmp_path: pathlib.Path) -> None:
    mapper = make_mapper(tmp_path, ["x:multi_hot"], label_names=("cat", "dog", "ant"))
    assert read_row(mapper, {"x": "[1, 0, 1]"}) == ("", {"label": ("ant", "cat")})
    for labels, names, message in (
        (["x:multi_hot"], (), "number of classes"),
        (["x:multi_hot[9999999999]"], (), r"--label=x:multi_hot\[9999999999\]:"),
        (["x:multi_hot[2]"], ("a", "b", "c"), "3 label names"),
    ):
        with pytest.raises(UserError, match=message):
            make_mapper(tmp_path, labels, label_names=names)
    with pytest.raises(InvalidInput, match="multi_hot.*--label_names"):  # two flags could be two class numbers
        read_row(make_mapper(tmp_path, ["x:multi_label"], label_names=("cat", "dog")), {"x": [1, 0]})
    assert read_row(make_mapper(tmp_path, ["x:multi_label"]), {"x": [1, 0]}) == ("", {"label": ("0", "1")})


@pytest.mark.parametrize(
    "separator, cell, expected",
    [
        (" ", "haze  primary", ("haze", "primary")),
        (";", "animal; dog", ("animal", "dog")),
        (",", "animal,dog", ("animal", "dog")),
        (" / ", "a / b/c", ("a", "b/c")),
        (";", '["a;b", "c"]', ("a;b", "c")),
        (";", "a|b", ("a|b",)),
    ],
)
def test_separator_splits_multi_label_cells(tmp_path, separator, cell, expected) -> None:
    assert read(tmp_path, "x:multi_label", {"x": cell}, label_separator=separator) == expected


# Single cells


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_class_name_is_normalized_or_rejected(text: str) -> None:
    try:
        name = class_name(text)
    except InvalidInput:
        return
    assert name == name.strip() and 0 < len(name) <= 256 and len(name.splitlines()) == 1
    assert name.encode().decode() == name == read_class(name)


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.floats())))
def test_any_cell_is_read_or_rejected(cell: Any) -> None:
    root = Root(os.getcwd())
    for kind in ("class", "multi_label", "float", "integer", "text", "mask"):
        try:
            read_row(RowMapper((), (Column("x", ("x",), kind),), SourceConfig(), root), {"x": cell})
        except InvalidInput as error:
            assert str(error).isprintable() and error.reason in ("bad_label", "bad_value", "outside")


def test_name_must_be_a_single_line_of_text() -> None:
    assert [read_name("bad_key", cell) for cell in ("a b", 7, b"c", "e\u0301")] == ["a b", "7", "c", "\u00e9"]
    for cell in ("", None, "a\nb", "k" * 5000, "\udce9"):
        with pytest.raises(InvalidInput):
            read_name("bad_key", cell)


# Arrays


@pytest.mark.parametrize(
    "cell, part",
    [("no.npy", "No such file"), ("../a.npy", "../a.npy"), (None, "is empty"), ("pickled.npy", "pickled.npy")],
)
def test_unreadable_first_array_asks_for_the_shape(
    tmp_path: pathlib.Path, cell: str | None, part: str
) -> None:
    np.save(tmp_path / "pickled.npy", np.array([{}], object), allow_pickle=True)
    write_files(tmp_path, {})
    with pytest.raises(UserError) as caught:
        resolve = functools.partial(resolve_by_cell, {"maps": cell}, Root(os.fspath(tmp_path)))
        find_array_shapes((Column("maps", ("maps",), "array"),), resolve)
    assert part in str(caught.value) and "maps:array[HEIGHT,WIDTH,…]" in str(caught.value)
