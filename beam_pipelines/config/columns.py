"""Columns of a table, or fields of a record, and the features that they become.

A column is named on the command line as `[FEATURE=]NAMES[:KIND]`, such as `weather`, `age:float`, `cat,dog,bird:multi_label` or,
where the feature is to have another name, `tree_height=height:float`:

    kind          a cell                                                      the feature
    class         a class name, or an integer; of several columns: a 1 in      class_label
                  one of them, whose name is the class
    multi_label   a list, or names with a separator ("|") between them; of     class_label, any number of them
                  several columns: 0 or 1 in each, and their names are the classes
    multi_hot[N]  a list of N values of 0 or 1; the classes are                class_label, any number of them
                  `--label_names`, which say N too, or 0 to N-1
    float         a number; of several columns: one in each                   float
    float[N]      a list of N numbers, or N numbers with spaces between them  float, shape (N,)
    integer       an integer; of several columns: one in each                 integer
    text          anything                                                    text
    float[], integer[], text[]: a list of any length, in brackets; numbers also with spaces    of that kind, shape (None,)
    between them, texts with `--label_separator`; integer[N], text[N]: N of them               or (N,)
    mask          the path of a mask                                          mask
    image         the path of another image                                   image
    array         the path of a `.npy` file, or numbers in lists of lists     float, of the first one's shape
    array[H,W,C]  the path of a `.npy` file, or numbers in lists of lists     float, of that shape
    tensor        the path of a `.npy` file, or the bytes of one              tensor, of the first one's type and shape: exact
    tensor[float32,H,?]  the same, or numbers without a header, or in lists   tensor, of that type and shape; "?": any number
"""

import dataclasses
import math
import re
from typing import Collection

from beam_pipelines.errors import UserError, printable
from tf_input.dataset_format import LABEL, MASK, TENSOR_DTYPES, Feature

_MAX_CLASSES = 1_000_000  # of a multi_hot
LIST_KINDS = ("float", "integer", "text")
_KINDS_OF_SEVERAL = ("class", "multi_label", "float", "integer")  # kinds that several columns make together
KINDS = ("class", "multi_label", "multi_hot", "float", "integer", "text", "mask", "image", "array", "tensor")

_COLUMN = re.compile(
    r"(?:(?P<feature>[A-Za-z][A-Za-z0-9_.-]{0,63})=)?(?P<names>[^:]+)"
    r"(?::(?P<kind>[a-z_]+)(?P<brackets>\[(?P<dtype>[a-z]+\d*)?(?:(?<!\[),)?(?P<shape>(?:\d{1,10}|\?)(?:,(?:\d{1,10}|\?))*)?\])?)?"
)


@dataclasses.dataclass(frozen=True)
class Column:
    """One feature and where a source has it.

    Attributes:
        name: The name of the feature.
        names: The names of the columns that the feature is made of.
        kind: The kind of the feature, one of `KINDS`.
        shape: The shape of a value; empty: one value, or, for an array or a tensor, the shape that the first one has; (None,): a list of
            any length, of a multi_label one that is known to be it. None: a side of a tensor that differs.
        dtype: The type of a tensor's numbers, such as `float32`; empty: the type that the first one has.
    """

    name: str
    names: tuple[str, ...]
    kind: str = "class"
    shape: tuple[int | None, ...] = ()
    dtype: str = ""

    @property
    def is_list(self) -> bool:
        """Whether an example has a list of numbers or texts, of any length or of one; but no array."""
        return self.kind in LIST_KINDS and len(self.shape) == 1

    def feature(self) -> Feature:
        """The feature that the column becomes; its class names are not known yet."""
        match self.kind:
            case "class":
                return Feature(self.name, "class_label")
            case "multi_label" | "multi_hot":
                return Feature(self.name, "class_label", (None,))
            case "float" | "integer":
                return Feature(self.name, self.kind, self.shape or ((len(self.names),) if len(self.names) > 1 else ()))
            case "array":
                return Feature(self.name, "float", self.shape)
            case "tensor":
                return Feature(self.name, "tensor", self.shape, dtype=self.dtype)
        return Feature(self.name, self.kind, self.shape)

    @property
    def is_settled(self) -> bool:
        """Whether nothing of an array or a tensor is left to what the first has."""
        return self.kind not in ("array", "tensor") or bool(self.shape and (self.dtype or self.kind == "array"))

    def positions(self, label_names: Collection[str] = ()) -> tuple[str, ...]:
        """The classes of a multi_hot, in the order of its values.

        Raises:
            UserError: Nothing says how many classes there are, or two things say so.
        """
        names = tuple(label_names) or tuple(map(str, range(math.prod(self.shape) if self.shape else 0)))
        if not names or (self.shape and len(names) != self.shape[0]):
            column = printable(self.names[0])
            number = f"{len(names)} label names are given" if names else "nothing says how many classes there are"
            raise UserError(f"{column}:multi_hot: {number}; expected {column}:multi_hot[N], or --label_names with N names")
        return names


def parse_column(option: str, text: str, default_kind: str) -> Column:
    """Parses `[FEATURE=]NAMES[:KIND]`; without FEATURE the feature has the column's name, without what a feature's can't hold.

    Args:
        option: The name of the option, for messages.
        text: The column, as it is typed.
        default_kind: The kind of the feature where the text names none.

    Raises:
        UserError: The text is not of that form.
    """
    match = _COLUMN.fullmatch(text.strip())
    names = tuple(name.strip() for name in match["names"].split(",")) if match else ()
    kind = match and (match["kind"] or default_kind)
    if not match or not all(names) or kind not in KINDS or len(set(names)) < len(names):
        raise UserError(f"{option}={text}: expected [FEATURE=]COLUMN[,COLUMN…][:KIND], with one of the kinds {', '.join(KINDS)}")
    if len(names) > 1 and kind not in _KINDS_OF_SEVERAL:
        expected = f"one column, or one of the kinds {', '.join(_KINDS_OF_SEVERAL)}"
        raise UserError(f"{option}={text}: a {kind} cannot be made of several columns; expected {expected}")
    sides = match["shape"].split(",") if match["shape"] else []
    shape, dtype = tuple(None if side == "?" else int(side) for side in sides), match["dtype"] or ""
    if kind == "tensor" and (dtype not in ("", *TENSOR_DTYPES) or match["brackets"] == "[]"):
        raise UserError(f"{option}={text}: {dtype or 'nothing'} is no type of a tensor; expected one of {', '.join(TENSOR_DTYPES)}")
    if kind != "tensor" and (dtype or None in shape):
        raise UserError(f"{option}={text}: only a tensor has a type, or a side that differs; expected tensor[float32,28,28], for example")
    shape = (None,) if match["brackets"] == "[]" else shape
    is_flat = kind in LIST_KINDS or (kind == "multi_hot" and shape != (None,))
    has_sides = kind == "tensor" or (kind == "array" and shape != (None,))
    if shape and ((not is_flat and not has_sides) or 0 in shape or (is_flat and len(shape + names) > 2)):
        raise UserError(
            f"{option}={text}: expected a shape of one dimension for a float, an integer, a text or a multi_hot, nothing in the brackets "
            "for any number of the first three, or any shape for an array or a tensor, with sides above 0"
        )
    if kind == "multi_hot" and shape and (shape[0] or 0) > _MAX_CLASSES:  # which all have names, before anything is read
        raise UserError(f"{option}={text}: expected at most {_MAX_CLASSES:,} classes")
    return Column(match["feature"] or re.sub(r"[^A-Za-z0-9_.-]", "_", "_".join(names))[:64], names, kind, shape, dtype)


def parse_labels(texts: list[str]) -> tuple[Column, ...]:
    """Parses the values of `--label`: one is called `label` in the data set (a mask `mask`), several keep their names.

    Raises:
        UserError: A text is no column, or the texts do not go together.
    """
    if "none" in texts:
        if len(texts) > 1:
            raise UserError("--label=none goes with no other label; expected it alone")
        return ()
    columns = tuple(parse_column("--label", text, "class") for text in texts)
    if len(columns) == 1:
        name = MASK if columns[0].kind == "mask" else LABEL
        if _COLUMN.fullmatch(texts[0].strip())["feature"] not in (None, name):
            raise UserError(f"--label={texts[0]}: a single label is called {name!r}; expected no {columns[0].name}=")
        return (dataclasses.replace(columns[0], name=name),)
    return columns
