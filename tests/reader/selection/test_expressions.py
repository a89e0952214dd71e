"""Tests the results of conditions on columns, and the one-line errors for invalid conditions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_input.selection.columns import TextLists, BinaryColumn
from tf_input.selection.expressions import evaluate

ROWS = [
    {"label": "cat", "width": 64, "height": 32.0, "path": "a/1.jpg", "tags": ["red", "big"], "group": "p1", "reencoded": None},
    {"label": "dog", "width": 63, "height": None, "path": "b/22.png", "tags": [], "group": None, "reencoded": "cmyk"},
    {"label": "cat", "width": 100, "height": 200.0, "path": "a/3.JPG", "tags": ["blue"], "group": "p2", "reencoded": None},
    {"label": "eel", "width": 1, "height": 0.0, "path": "c", "tags": ["red", "red"], "group": "p1", "reencoded": "cmyk"},
]
CLASSES = ["cat", "dog", "eel", "fox"]


def texts(values: list[str | None], names: list[str] | None = None) -> BinaryColumn:
    known = sorted({value for value in values if value is not None})
    return BinaryColumn(np.array([-1 if value is None else known.index(value) for value in values], np.int64), known, names)


COLUMNS = {name: texts([row[name] for row in ROWS]) for name in ("path", "group", "reencoded")} | {
    "label": texts([row["label"] for row in ROWS], CLASSES),
    "width": np.array([row["width"] for row in ROWS]),
    "height": np.array([np.nan if row["height"] is None else row["height"] for row in ROWS]),
    "price": np.array([0.1, 0.7, 16.5, np.nan], np.float32),
    "tags": TextLists(np.array([len(row["tags"]) for row in ROWS]), texts([tag for row in ROWS for tag in row["tags"]], ["red", "big", "blue"])),
}
COLUMNS["objects/label"] = COLUMNS["tags"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("label == 'cat'", [0, 2]),
        ("'cat' != label", [1, 3]),
        ("label in ('cat', 'dog') and width >= 64", [0, 2]),
        ("label not in ['cat', 'dog']", [3]),
        ("label == 'fox'", []),
        ("width < 64 or label == 'cat'", [0, 1, 2, 3]),
        ("not (width < 64)", [0, 2]),
        ("1 < width <= 64", [0, 1]),
        ("width * 2 - 1 == 127", [0]),
        ("width // 10 == 6 and width % 2 == 1", [1]),
        ("width / height > 1", [0, 3]),
        ("-width < -63", [0, 2]),
        ("width in (1, 64.0, -3)", [0, 3]),
        # Missing values are None.
        ("height >= 0", [0, 2, 3]),
        ("not height >= 0", [1]),
        ("height is None", [1]),
        ("height != 32", [1, 2, 3]),
        ("group == 'p1'", [0, 3]),
        ("group != 'p1'", [1, 2]),
        ("group not in ('p1', 'p2')", [1]),
        ("group in ('p1', None)", [0, 1, 3]),
        ("reencoded is not None", [1, 3]),
        ("reencoded == None", [0, 2]),
        ("height in (None, 32)", [0, 1]),
        # Strings and lists of strings.
        ("len(path) == 7 and path.lower().endswith('.jpg')", [0, 2]),
        ("path.startswith(('a/', 'c'))", [0, 2, 3]),
        ("'2' in path", [1]),
        ("path > 'b'", [1, 3]),
        ("len(group) == 2", [0, 2, 3]),
        ("'red' in tags", [0, 3]),
        ("len(tags) >= 2 and 'blue' not in tags", [0, 3]),
        ("'big' in objects.label", [0]),
        ("label < path", []),
        ("True", [0, 1, 2, 3]),
        ("(width > 1) == (label != 'eel')", [0, 1, 2, 3]),
        ("width < 10000000000000000000000", [0, 1, 2, 3]),
        ("\n label == 'dog'\n", [1]),
        # Columns of float32, which cannot represent 0.1 exactly.
        ("price == 0.1 or price in (0.7, 3)", [0, 1]),
        ("price <= 0.1 or 16.5 <= price", [0, 2]),
        ("price < width and price * 10 >= 6", [1, 2]),
        ("price is None", [3]),
    ],
)
def test_condition_selects_expected_rows(text, expected):
    actual = evaluate(text, COLUMNS, len(ROWS))
    assert actual.dtype == bool and actual.shape == (len(ROWS),)
    assert np.flatnonzero(actual).tolist() == expected


_NUMBERS = st.sampled_from(["width", "3", "64", "width + 1", "width * width - 7", "len(path)", "-width"])
_COMPARED = st.tuples(_NUMBERS, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), _NUMBERS).map(" ".join)
_NAMED = st.sampled_from(["label == 'cat'", "label in ('dog', 'eel')", "'red' in tags", "group is None", "group != 'p1'", "'/' in path"])
_CONDITIONS = st.recursive(
    _COMPARED | _NAMED,
    lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: "({} {} {})".format(*parts)) | inner.map("(not {})".format),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(_CONDITIONS)
def test_condition_equals_evaluation_by_python_for_each_row(text):
    expected = [eval(text, {}, row) for row in ROWS]
    assert evaluate(text, COLUMNS, len(ROWS)).tolist() == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("labl == 'cat'", ": labl"),
        ("label == 'kat'", "label has no class 'kat'"),
        ("label in ('cat', 'bird')", "label has no class 'bird'"),
        ("'rad' in tags", "tags has no class 'rad'"),
        ("label == 3", "such as 'cat'"),
        ("width == 'wide'", "width (a number) can't be compared with 'wide' (a string)"),
        ("width in ('wide',)", "compared with 'wide'"),
        ("width in (True,)", "compared with True"),
        ("label in (3,)", "compared with 3"),
        ("label in width", "'label' in 'width'"),
        ("tags == 'red'", "`'cat' in label`"),
        ("tags in ('red',)", "tags is a list"),
        ("width < None", "width (a number)"),
        ("width is 64", "'is' only works with None"),
        ("width", "a number"),
        ("width and label == 'cat'", "width is a number"),
        ("not label", "label is a string"),
        ("label + 1 == 2", "label is a string"),
        ("width.lower() == 'a'", "width is a number"),
        ("path.startswith(3)", "'3' is not "),
        ("width in (width, 3)", "'width'"),
        ("__import__('os').system('true')", "is not allowed"),
        ("path.__class__ == 'a'", "'path.__class__' is not allowed"),
        ("(lambda: True)()", "'(lambda: True)()' is not allowed"),
        ("[x for x in (1,)] == 1", "'[x for x in (1,)]' is not allowed"),
        ("width ** 1000000 > 1", "'width ** 1000000' is not allowed"),
        ("width if True else 1", "'width if True else 1' is not allowed"),
        ("len(path, path) == 1", "'len(path, path)' is not allowed"),
        ("b'a' == path", "\"b'a'\" is not allowed"),
        ("(width := 3) == 3", "'(width := 3)' is not allowed"),
        ("(width", "'(' was never closed"),
        ("width == 1; label", "Write for example"),
        ("import os", "Write for example"),
        ("width == 1\x00", "Write for example"),
        ("(" * 300 + "width" + ")" * 300 + " == 1", "too many nested parentheses"),
        ("not " * 5000 + "width == 1", "Write for example"),
        ("width == 1 / 0 * " + "9" * 400, "too large"),
    ],
)
def test_invalid_condition_raises_one_line_error(text, message):
    with pytest.raises(ValueError) as caught:
        evaluate(text, COLUMNS, len(ROWS))
    shown = str(caught.value)
    assert shown.startswith(f"condition {text!r}") and message in shown and "\n" not in shown


def test_only_columns_in_the_condition_are_read():
    requested = []

    class RecordingDict(dict):
        def __getitem__(self, name):
            requested.append(name)
            return super().__getitem__(name)

    evaluate("label == 'cat' and width > 1", RecordingDict(COLUMNS), len(ROWS))
    assert sorted(requested) == ["label", "width"]
