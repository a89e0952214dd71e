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

from beam_pipelines.config.columns import Column, parse_column, parse_labels
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError
from beam_pipelines.sources.cells.cells import read_float, read_name, read_text, read_weight
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


CELLS = [
    ("class of a str", "x", "cat", "cat"),
    ("class with blanks around it", "x", " cat ", "cat"),
    ("class with combining characters", "x", "Lo\u0308we", "L\u00f6we"),
    ("class of an int", "x", 7, "7"),
    ("class of digits", "x", "007", "007"),
    ("class of a NumPy integer", "x", np.int64(99_999), "99999"),
    ("class of a whole float", "x", 7.0, "7"),
    ("class of a whole float in text", "x", " 2.0 ", "2"),
    ("class of a whole float in NumPy text", "x", "11.", "11"),
    ("class of a whole NumPy float", "x", np.float32(3), "3"),
    ("class of a number with leading zeros", "x", "02.0", "02.0"),
    ("class of a bool", "x", True, "True"),
    ("class of a NumPy bool", "x", np.bool_(False), "False"),
    ("multi_label of ones", "x:multi_label", [1, 1], ("1",)),
    ("multi_label of ones in a str", "x:multi_label", "[1, 1, 1]", ("1",)),
    ("multi_label of whole floats", "x:multi_label", [2.0, 10.0], ("10", "2")),
    ("float of a bool", "x:float", True, 1.0),
    ("integer of a bool", "x:integer", True, 1),
    ("integer of a whole float", "x:integer", 7.0, 7),
    ("integer of a whole float in text", "x:integer", "-7.00", -7),
    ("class of bytes", "x", "Löwe".encode(), "Löwe"),
    ("class of a list with one item", "x", ["cat"], "cat"),
    ("class of an array with one item", "x", np.array([3]), "3"),
    ("class that looks like HTML", "x", "<b>cat</b>", "<b>cat</b>"),
    ("class that looks like a formula", "x", "=cmd|' /C calc'!A0", "=cmd|' /C calc'!A0"),
    ("multi_label of a str", "x:multi_label", "dog|cat", ("cat", "dog")),
    ("class of many digits", "x", "1" * 200, "1" * 200),
    ("multi_label of a JSON list", "x:multi_label", '["dog", "caf\\u00e9, old"]', ("café, old", "dog")),
    ("multi_label of a Python list", "x:multi_label", " ['dog', \"cat's\",] ", ("cat's", "dog")),
    ("multi_label of a Python set", "x:multi_label", "{'dog', 'cat'}", ("cat", "dog")),
    ("multi_label of a Python tuple", "x:multi_label", "('dog',)", ("dog",)),
    ("multi_label of a list of ints in a str", "x:multi_label", "[10, 2]", ("10", "2")),
    ("multi_label of two class numbers", "x:multi_label", [0, 1], ("0", "1")),
    ("multi_label of an empty list in a str", "x:multi_label", "[]", ()),
    ("multi_label of a name in parentheses", "x:multi_label", "(unknown)|cat", ("(unknown)", "cat")),
    ("multi_label with blanks in names", "x:multi_label", "ice cream|hot dog", ("hot dog", "ice cream")),
    ("multi_hot of a JSON list", "x:multi_hot[4]", "[1, 0, 0, 1]", ("0", "3")),
    ("multi_hot as NumPy prints it", "x:multi_hot[4]", "[0. 1. 0. 1.]", ("1", "3")),
    ("multi_hot with blanks", "x:multi_hot[3]", "0 1 0", ("1",)),
    ("multi_hot of a list of floats", "x:multi_hot[3]", [0.0, 0.0, 1.0], ("2",)),
    ("multi_hot of an array", "x:multi_hot[2]", np.array([True, False]), ("0",)),
    ("multi_label of a list", "x:multi_label", ["dog", "cat", "dog"], ("cat", "dog")),
    ("multi_label of ints", "x:multi_label", [10, 9], ("10", "9")),
    ("multi_label of one int", "x:multi_label", 3, ("3",)),
    ("multi_label of an array", "x:multi_label", np.array([1, 2]), ("1", "2")),
    ("multi_label of an empty str", "x:multi_label", "", ()),
    ("multi_label of None", "x:multi_label", None, ()),
    ("multi_label of an empty list", "x:multi_label", [], ()),
    ("float of a str", "x:float", " -1.5e3 ", -1500.0),
    ("float of an int", "x:float", 2, 2.0),
    ("float of a decimal", "x:float", decimal.Decimal("1.50"), 1.5),
    ("float of a NumPy float", "x:float", np.float32(0.5), 0.5),
    ("floats of a str", "x:float[3]", "1 2.5  -3", (1.0, 2.5, -3.0)),
    ("floats of a list", "x:float[2]", [1, 2.5], (1.0, 2.5)),
    ("floats of an array", "x:float[2]", np.array([1.0, 2.0], np.float32), (1.0, 2.0)),
    ("float vector of a list with one item", "x:float[1]", [4], (4.0,)),
    ("integer of a str", "x:integer", "-7", -7),
    ("largest integer", "x:integer", 2**63 - 1, 2**63 - 1),
    ("text", "x:text", " as it is, <b>", " as it is, <b>"),
    ("text of a number", "x:text", 1.5, "1.5"),
    ("text of a list", "x:text", ["ä"], '["ä"]'),
    ("text of None", "x:text", None, ""),
    ("mask", "x:mask", "masks/1.png", FilePart("masks/1.png")),
    ("array", "x:array[2,3]", "./targets//1.npy", FilePart("targets/1.npy")),
]


@pytest.mark.parametrize("column, cell, expected", [case[1:] for case in CELLS], ids=[case[0] for case in CELLS])
def test_cell_is_converted_to_its_kind(tmp_path: pathlib.Path, column: str, cell: Any, expected: Any) -> None:
    actual = read(tmp_path, column, {"x": cell})
    assert actual == expected
    assert type(actual) is type(expected)


BAD_CELLS = [
    ("empty class", "x", "", "bad_label", "is empty"),
    ("blank class", "x", "  ", "bad_label", "is empty"),
    ("class of None", "x", None, "bad_label", "is empty"),
    ("class of a fraction", "x", 7.5, "bad_label", "7.5"),
    ("class of NaN", "x", math.nan, "bad_label", "nan"),
    ("negative class of a whole float", "x", "-1.0", "bad_label", "'-1'"),
    ("negative class", "x", -1, "bad_label", "-1"),
    ("negative class in digits", "x", "-1", "bad_label", "'-1'"),
    ("class number over 64 bits", "x", 2**63, "bad_label", "9223"),
    ("multi_label in brackets without a list", "x:multi_label", "[cat dog]", "bad_label", "a list such as"),
    ("multi_label as NumPy prints it", "x:multi_label", "['cat' 'dog']", "bad_label", "a list such as"),
    ("multi_label of a list with a fraction", "x:multi_label", "[1.5, 2]", "bad_label", "1.5"),
    ("multi_label of flags", "x:multi_label", "[1, 0, 0, 0]", "bad_label", "multi_hot"),
    ("multi_label of a list of flags", "x:multi_label", [1, 0, 0], "bad_label", "multi_hot"),
    ("multi_label of an array of flags", "x:multi_label", np.array([1.0, 0, 0]), "bad_label", "multi_hot"),
    ("multi_label nested too deep", "x:multi_label", "[" * 9_999 + "]" * 9_999, "bad_label", "a list such as"),
    ("multi_hot with a wrong length", "x:multi_hot[4]", "[1, 0, 0]", "bad_label", "4 values of 0 or 1"),
    ("multi_hot with a 2", "x:multi_hot[3]", [1, 0, 2], "bad_label", "2"),
    ("multi_hot of a name", "x:multi_hot[3]", "cat", "bad_label", "3 values of 0 or 1"),
    ("multi_hot of None", "x:multi_hot[3]", None, "bad_label", "is empty"),
    ("class of two lines", "x", "cat\ndog", "bad_label", r"'cat\ndog'"),
    ("class with an escape", "x", "\x1b[31mcat", "bad_label", r"'\x1b[31mcat'"),
    ("class with a line separator", "x", "a\u2028b", "bad_label", r"'a\u2028b'"),
    ("class with a lone surrogate", "x", "\ud800", "bad_label", r"'\ud800'"),
    ("class of bytes that are not UTF-8", "x", b"caf\xe9", "bad_label", r"b'caf\xe9'"),
    ("class of 257 characters", "x", "c" * 257, "bad_label", "at most 256"),
    ("class of a million characters", "x", "c" * 10**6, "bad_label", "at most 256"),
    ("class of several names", "x", ["cat", "dog"], "bad_label", "['cat', 'dog']"),
    ("class of an object", "x", {"cat": 1}, "bad_label", "{'cat': 1}"),
    ("multi_label with an empty name", "x:multi_label", "cat||dog", "bad_label", "is empty"),
    ("multi_label of a bool", "x:multi_label", [True], "bad_label", "True"),
    ("multi_label of bools", "x:multi_label", [True, False], "bad_label", "multi_hot"),
    ("multi_label of zeros", "x:multi_label", [0, 0], "bad_label", "multi_hot"),
    ("multi_label of a number", "x:multi_label", 0.5, "bad_label", "0.5"),
    ("float of NaN", "x:float", "nan", "bad_value", "'nan'"),
    ("infinite float", "x:float", math.inf, "bad_value", "inf"),
    ("float over 32 bits", "x:float", "1e39", "bad_value", "'1e39'"),
    ("float over 64 bits", "x:float", 10**400, "bad_value", "finite"),
    ("float with underscores", "x:float", "1_000", "bad_value", "'1_000'"),
    ("empty float", "x:float", "", "bad_value", "is empty"),
    ("too few floats", "x:float[3]", "1 2", "bad_value", "3 numbers"),
    ("too many floats", "x:float[1]", [1, 2], "bad_value", "1 numbers"),
    ("nested list of floats", "x:float[2]", [1, [2, 3]], "bad_value", "[2, 3]"),
    ("fraction in text for an integer", "x:integer", "7.5", "bad_value", "'7.5'"),
    ("fraction for an integer", "x:integer", 7.5, "bad_value", "7.5"),
    ("integer of NaN", "x:integer", math.nan, "bad_value", "nan"),
    ("infinite integer", "x:integer", math.inf, "bad_value", "inf"),
    ("integer over 64 bits", "x:integer", 2**63, "bad_value", "64 bit"),
    ("integer of too many digits", "x:integer", "9" * 5000, "bad_value", "64 bit"),
    ("text that is not UTF-8", "x:text", "\udce9", "bad_value", r"\udce9"),
    ("empty mask", "x:mask", "", "bad_value", "is empty"),
    ("mask of a number", "x:mask", 7, "bad_value", "7"),
    ("mask outside the root", "x:mask", "../1.png", "outside", "../1.png"),
    ("array with an absolute path", "x:array[1]", "/etc/passwd", "outside", "/etc/passwd"),
    ("mask of a URL", "x:mask", "gs://bucket/1.png", "outside", "gs://bucket/1.png"),
    ("mask with a NUL", "x:mask", "a\0b", "outside", "a\\\\x00b"),
    ("mask with a lone surrogate", "x:mask", "\ud800", "bad_value", r"\ud800"),
    ("mask of a very long path", "x:mask", "m" * 5000, "bad_value", "4096"),
]


@pytest.mark.parametrize("column, cell, reason, part", [case[1:] for case in BAD_CELLS], ids=[case[0] for case in BAD_CELLS])
def test_rejects_cells_that_do_not_fit_their_kind(tmp_path: pathlib.Path, column: str, cell: Any, reason: str, part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, column, {"x": cell})
    message = str(caught.value)
    assert caught.value.reason == reason and message.startswith("column 'x' ") and part in message
    assert message.isprintable() and len(message) < 500


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


def test_missing_column_is_an_empty_cell(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidInput, match="column 'x' is empty"):
        read(tmp_path, "x", {"y": "cat"})


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
    assert parse_column("--feature", "y,x:integer", "text").feature() == Feature("y_x", "integer", (2,))
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


def test_weight_must_not_be_negative() -> None:
    assert [read_weight(cell) for cell in ("0", 2, 0.5)] == [0.0, 2.0, 0.5]
    for cell in ("-1", -0.5, "nan", "", None):
        with pytest.raises(InvalidInput):
            read_weight(cell)


def test_name_must_be_a_single_line_of_text() -> None:
    assert [read_name("bad_key", cell) for cell in ("a b", 7, b"c", "e\u0301")] == ["a b", "7", "c", "\u00e9"]
    for cell in ("", None, "a\nb", "k" * 5000, "\udce9"):
        with pytest.raises(InvalidInput):
            read_name("bad_key", cell)


def test_reads_text_that_is_not_json() -> None:
    assert read_text({"a": np.float64(1).item(), "b": {1}}) == '{"a": 1.0, "b": "{1}"}'
    assert read_float(np.array(2.5)) == 2.5


# Arrays


def test_shape_of_arrays_is_the_shape_of_the_first(tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((46, 46, 5), np.float32))
    root = Root(os.fspath(tmp_path))
    columns = tuple(parse_column("--label", text, "class") for text in ("maps:array", "other:array[3]", "species"))
    actual = find_array_shapes(columns, functools.partial(resolve_by_cell, {"maps": "a.npy", "other": "none.npy"}, root))
    assert [column.shape for column in actual] == [(46, 46, 5), (3,), ()]
    assert RowMapper(actual, (), SourceConfig(), root).features[0] == Feature("maps", "float", (46, 46, 5))


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
