"""Maps table columns or record fields to the features of a dataset.

On the command line, a column has the form `[FEATURE=]NAMES[:KIND]`, for example `weather`, `age:float` or, with another
name for the feature, `tree_height=height:float`.

    kind          content of a cell                                           feature
    class         a class name or an integer                                  class_label
    one_hot       several columns: a 1 in the column that has the name of     class_label
                  the class, and a 0 in all others (`class` is a synonym)
    one_hot[N]    a list of N values as in `multi_hot[N]`, with a single 1    class_label
    multi_label   a list, or names separated by "|"; several columns: a 0     class_label, any number of labels
                  or 1 in each column, whose names are the classes
    multi_hot[N]  a list of N values of 0 or 1, for the classes of            class_label, any number of labels
                  `--label_names` (which imply N) or the classes 0 to N-1
    float         a number; several columns: a number in each                 float
    float[N]      a list of N numbers, or N numbers separated by spaces       float, shape (N,)
    integer       an integer; several columns: an integer in each             integer
    text          any string                                                  text
    float[], integer[], text[]: a list in brackets, of any length, or         same kind, shape (None,)
                  numbers separated by spaces, or strings separated by `--label_separator`
    integer[N], text[N]: a list as above, with N items                        same kind, shape (N,)
    mask          the path of a mask                                          mask
    rle           run lengths of a mask; a second column: the class           mask
    image         the path of another image                                   image
    array         the path of a `.npy` file, or nested lists of numbers       float, shape of the first value
    array[H,W,C]  the path of a `.npy` file, or nested lists of numbers       float, given shape
    tensor        the path or the bytes of a `.npy` file                      tensor, dtype and shape of the first value
    tensor[float32,H,?]  also numbers without a header, or nested lists       tensor, given dtype and shape, ? for any
    keypoints     [[x, y], …] or [[x, y, visibility], …]; several columns:    keypoints, shape of the first value
                  x and y of each point
    keypoints[N], keypoints[N,3]: the same, or N times 2 or 3 numbers         keypoints, shape (N, 2) or (N, 3)
"""

import dataclasses
import re
from typing import Mapping, Sequence

from beam_pipelines.columns.column import Column, ColumnForm
from beam_pipelines.columns.keypoints import KEYPOINTS_FORM
from beam_pipelines.errors import UserError, did_you_mean, require
from tf_input.dataset_format import LABEL, MASK, OBJECTS, Feature
from tf_input.stored_kinds import TENSOR_DTYPES

COLUMN_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_OWN_FEATURES = ("image", "key", "weight", "objects")
_IMAGE_SIDES = ("height", "width")  # Features of all examples with an image.
_CATEGORIES = ("category", "categorical", "label", "enum", "bool", "boolean")
_NUMBERS = ("number", "numeric", "numerical", "double", "real", "decimal", "regression", "float32", "float64")

# The KIND in `--label COLUMN:KIND` -> the form of the cells.
FORMS: Mapping[str, ColumnForm] = {
    "class": ColumnForm("class_label", _CATEGORIES, None, feature_shape=(), is_names=True, is_one_class=True),
    "one_hot": ColumnForm("class_label", ("onehot", "dummies"), None, 1, of_several="class", feature_shape=(), is_flags=True, is_one_class=True),
    "multi_label": ColumnForm("class_label", ("tags", "multilabel", "classes"), None, feature_shape=(None,), is_names=True, is_split=True),
    "multi_hot": ColumnForm("class_label", max_sides=1, feature_shape=(None,), is_flags=True),
    "float": ColumnForm("float", _NUMBERS, None, 1, value_type=float),
    "integer": ColumnForm("integer", ("int", "int32", "int64", "long", "count"), None, 1, value_type=int),
    "text": ColumnForm("text", ("str", "string", "varchar"), max_sides=1, value_type=str),
    "mask": ColumnForm("mask", is_image_file=True),
    "rle": ColumnForm("mask", max_columns=2, feature_shape=(), is_runs=True, is_split=True),
    "image": ColumnForm("image", ("photo", "picture"), is_image_file=True),
    "array": ColumnForm("float", max_sides=None, needs_shape=True, is_nested=True),
    "tensor": ColumnForm("tensor", max_sides=None, is_typed=True, needs_shape=True, is_nested=True),
    "keypoints": KEYPOINTS_FORM,
}
POINT_FORMS: Mapping[str, ColumnForm] = {name: form for name, form in FORMS.items() if form.is_points}
_SYNONYMS = {synonym: name for name, form in FORMS.items() for synonym in form.synonyms}

_COLUMN = re.compile(
    r"(?:(?P<feature>[A-Za-z][A-Za-z0-9_.-]{0,63})=)?(?P<names>[^:]+)"
    r"(?::(?P<kind>[a-z_]+)(?P<brackets>\[(?P<dtype>[a-z]+\d*)?(?:(?<!\[),)?(?P<shape>(?:\d{1,10}|\?)(?:,(?:\d{1,10}|\?))*)?\])?)?"
)


def form_of(column: Column) -> ColumnForm:
    """Returns the `ColumnForm` that describes the cells of a column."""
    return FORMS[column.kind]


def feature_of(column: Column) -> Feature:
    """Returns the feature that is made from a column."""
    return form_of(column).feature(column)


def parse_column(option: str, text: str, default_kind: str) -> Column:
    """Parses `[FEATURE=]NAMES[:KIND]`.

    If FEATURE is omitted, the feature is named after the column, and each invalid character is replaced with "_".

    Args:
        option: The name of the option, for messages.
        text: The value of the option.
        default_kind: The kind of the feature if the value contains no kind.

    Raises:
        UserError: The value does not have this form.
    """
    match = _COLUMN.fullmatch(text.strip())
    names = tuple(name.strip() for name in match["names"].split(",")) if match else ()
    kind = match and (match["kind"] or default_kind)
    if not match or not all(names) or kind not in FORMS or len(set(names)) < len(names):
        near = did_you_mean(kind, FORMS, _SYNONYMS) if kind and kind not in FORMS else ""
        expected = f"[FEATURE=]COLUMN[,COLUMN…][:KIND], with one of the kinds {', '.join(FORMS)}"
        raise UserError(f"{option}={text}: invalid value. Give {expected}{near}")
    form, given = FORMS[kind], f"{option}={text}"
    if len(names) > 1 and form.max_columns == 1:
        several = ", ".join(name for name, other in FORMS.items() if other.max_columns != 1)
        raise UserError(f"{given}: several columns cannot form a {kind}. Give one column, or one of the kinds {several}.")
    if form.max_columns and len(names) > form.max_columns:
        raise UserError(f"{given}: {kind} reads at most {form.max_columns} columns, the run lengths and the class. Give RUNS,CLASS:{kind}.")
    sides = match["shape"].split(",") if match["shape"] else []
    shape, dtype = tuple(None if side == "?" else int(side) for side in sides), match["dtype"] or ""
    if form.is_typed and (dtype not in ("", *TENSOR_DTYPES) or match["brackets"] == "[]"):
        raise UserError(f"{given}: {dtype or 'empty brackets'} is not a tensor type. Use one of {', '.join(TENSOR_DTYPES)}.")
    if not form.is_typed and (dtype or None in shape):
        raise UserError(f"{given}: only a tensor can have a type or a variable side (?), such as tensor[float32,?,28].")
    shape = (None,) if match["brackets"] == "[]" else shape
    name = match["feature"] or re.sub(r"[^A-Za-z0-9_.-]", "_", "_".join(names))[:64]
    return Column(name, names, form.of_several or kind if len(names) > 1 else kind, form.parse_shape(given, names, shape), dtype)


def parse_labels(texts: list[str]) -> tuple[Column, ...]:
    """Parses the values of `--label`.

    The feature of a single label is called `label`, or `mask` if the label is a mask. Several labels keep their names.
    `objects=COLUMN` names the column with the classes of boxes.

    Raises:
        UserError: A value is not a valid column, or the values contradict each other.
    """
    if "none" in texts:
        if len(texts) > 1:
            raise UserError("--label=none cannot be used with other labels. Omit it, or the other labels.")
        return ()
    columns = tuple(parse_column("--label", text, "class") for text in texts)
    if len(columns) == 1 and columns[0].name != OBJECTS:
        name = MASK if form_of(columns[0]).is_mask else LABEL
        if _COLUMN.fullmatch(texts[0].strip())["feature"] not in (None, name):
            raise UserError(f"--label={texts[0]}: a single label is always called {name!r}. Omit {columns[0].name}=.")
        return (dataclasses.replace(columns[0], name=name),)
    return columns


def check_names(columns: Sequence[Column]) -> None:
    """Raises `UserError` if the name of a feature is invalid, occurs twice, or is the name of a built-in feature."""
    option, names = "--label or --feature", [column.name for column in columns if OBJECTS not in (column.name, *column.names)]
    for name in names:
        require(COLUMN_PATTERN.fullmatch(name), option, name, "a name of letters, digits, '_', '.', '-'")
        check_reserved_names(name, has_images=False)
        require(names.count(name) == 1, option, name, f"each name only once (a single label is called {LABEL!r})")


def check_reserved_names(name: str, has_images: bool) -> None:
    """Raises `UserError` if a feature has the name of a built-in feature, such as `height` of examples with images."""
    own = (*_OWN_FEATURES, *(_IMAGE_SIDES if has_images else ()))
    require(name not in own, "--label or --feature", name, f"a name other than {', '.join(own)}, such as my_{name}={name}")
