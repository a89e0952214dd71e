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
import math
import re
from typing import Collection

from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.features import kinds
from tf_input.dataset_format import LABEL, MASK, OBJECTS, Feature
from tf_input.stored_kinds import TENSOR_DTYPES

_MAX_CLASSES = 1_000_000  # Limit for columns with a flag for each class.
LIST_KINDS = ("float", "integer", "text")
FLAG_KINDS = ("one_hot", "multi_hot")  # Kinds whose cells have a flag for each class.
_KINDS_OF_SEVERAL = ("class", "one_hot", "multi_label", "float", "integer", "rle", *kinds.KINDS)  # Kinds that can combine several columns.
KINDS = ("class", "one_hot", "multi_label", "multi_hot", "float", "integer", "text", "mask", "rle", "image", "array", "tensor", *kinds.KINDS)

# Names that other tools use, in lower case, and the corresponding kind.
_SYNONYMS = {
    **dict.fromkeys(("number", "numeric", "numerical", "double", "real", "decimal", "regression", "float32", "float64"), "float"),
    **dict.fromkeys(("int", "int32", "int64", "long", "count"), "integer"),
    **dict.fromkeys(("str", "string", "varchar"), "text"),
    **dict.fromkeys(("category", "categorical", "label", "enum", "bool", "boolean"), "class"),
    **dict.fromkeys(("onehot", "dummies"), "one_hot"),
    **dict.fromkeys(("tags", "multilabel", "classes"), "multi_label"),
    **dict.fromkeys(("photo", "picture"), "image"),
    **dict.fromkeys(("keypoint", "landmarks", "landmark", "points", "pose", "joints"), "keypoints"),
}

_COLUMN = re.compile(
    r"(?:(?P<feature>[A-Za-z][A-Za-z0-9_.-]{0,63})=)?(?P<names>[^:]+)"
    r"(?::(?P<kind>[a-z_]+)(?P<brackets>\[(?P<dtype>[a-z]+\d*)?(?:(?<!\[),)?(?P<shape>(?:\d{1,10}|\?)(?:,(?:\d{1,10}|\?))*)?\])?)?"
)


@dataclasses.dataclass(frozen=True)
class Column:
    """A feature, and the source columns or record fields from which its values are read.

    Attributes:
        name: The name of the feature.
        names: The names of the columns.
        kind: The kind of the feature, one of `KINDS`.
        shape: The shape of a value. (None,) is a list of any length; for `multi_label`, it means that cells are lists.
            None in the shape of a tensor is a dimension of any size. An empty shape is a scalar or, for an array or a
            tensor, the shape of the first value.
        dtype: The dtype of a tensor, such as `float32`. Empty selects the dtype of the first value.
    """

    name: str
    names: tuple[str, ...]
    kind: str = "class"
    shape: tuple[int | None, ...] = ()
    dtype: str = ""

    def __str__(self) -> str:
        inside = [self.dtype] * bool(self.dtype) + [str(side) if side else "?" * (self.kind == "tensor") for side in self.shape]
        shape = f"[{','.join(inside)}]" if inside else ""  # "[]" for a list of any length
        return f"{self.name}={','.join(self.names)}:{self.kind}{shape}"

    @property
    def is_list(self) -> bool:
        """Whether each value is a one-dimensional list of numbers or strings, and not an array or a tensor."""
        return self.kind in LIST_KINDS and len(self.shape) == 1

    def feature(self) -> Feature:
        """Returns the feature for the column."""
        if kind := kinds.KINDS.get(self.kind):
            return kind.make_feature(self.name, self.names, self.shape)
        match self.kind:
            case "rle":
                return Feature(self.name, "mask")
            case "class" | "one_hot":
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
    def is_resolved(self) -> bool:
        """Whether the shape and the dtype are known before values are read."""
        if self.kind not in ("array", "tensor", *kinds.KINDS):
            return True
        return bool(self.shape and (self.dtype or self.kind != "tensor"))

    def positions(self, label_names: Collection[str] = ()) -> tuple[str, ...]:
        """Returns the class names of a `one_hot` or `multi_hot` column, in the order of its values.

        Raises:
            UserError: The number of classes is unknown, or the label names contradict the shape.
        """
        names = tuple(label_names) or tuple(map(str, range(math.prod(self.shape) if self.shape else 0)))
        if not names or (self.shape and len(names) != self.shape[0]):
            column = printable(self.names[0])
            number = f"{len(names)} label names are given" if names else "the number of classes is unknown"
            raise UserError(f"{column}:{self.kind}: {number}. Give {column}:{self.kind}[N], or --label_names with N names.")
        return names


def parse_column(option: str, text: str, default_kind: str) -> Column:
    """Parses `[FEATURE=]NAMES[:KIND]`.

    Without FEATURE, the feature has the name of the column, with "_" instead of invalid characters.

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
    if not match or not all(names) or kind not in KINDS or len(set(names)) < len(names):
        near = did_you_mean(kind, KINDS, _SYNONYMS) if kind and kind not in KINDS else ""
        expected = f"[FEATURE=]COLUMN[,COLUMN…][:KIND], with one of the kinds {', '.join(KINDS)}"
        raise UserError(f"{option}={text}: invalid value. Give {expected}{near}")
    if len(names) > 1 and kind not in _KINDS_OF_SEVERAL:
        expected = f"one column, or one of the kinds {', '.join(_KINDS_OF_SEVERAL)}"
        raise UserError(f"{option}={text}: several columns cannot form a {kind}. Give {expected}.")
    if kind == "rle" and len(names) > 2:
        raise UserError(f"{option}={text}: rle reads at most two columns, the run lengths and the class. Give RUNS,CLASS:rle.")
    sides = match["shape"].split(",") if match["shape"] else []
    shape, dtype = tuple(None if side == "?" else int(side) for side in sides), match["dtype"] or ""
    if kind == "tensor" and (dtype not in ("", *TENSOR_DTYPES) or match["brackets"] == "[]"):
        raise UserError(f"{option}={text}: {dtype or 'empty brackets'} is not a tensor type. Use one of {', '.join(TENSOR_DTYPES)}.")
    if kind != "tensor" and (dtype or None in shape):
        raise UserError(f"{option}={text}: only a tensor can have a type or a variable side (?), such as tensor[float32,?,28].")
    shape = (None,) if match["brackets"] == "[]" else shape
    name = match["feature"] or re.sub(r"[^A-Za-z0-9_.-]", "_", "_".join(names))[:64]
    if special := kinds.KINDS.get(kind):
        return Column(name, names, kind, special.parse_shape(f"{option}={text}", names, shape))
    is_flat = kind in LIST_KINDS or (kind in FLAG_KINDS and shape != (None,))
    has_sides = kind == "tensor" or (kind == "array" and shape != (None,))
    if shape and ((not is_flat and not has_sides) or 0 in shape or (is_flat and len(shape + names) > 2)):
        raise UserError(
            f"{option}={text}: invalid shape. float, integer, text, one_hot and multi_hot take one dimension, such as float[3]; float[], "
            "integer[] and text[] are lists of any length; array and tensor take any shape. All sides must be above 0."
        )
    if kind in FLAG_KINDS and shape and (shape[0] or 0) > _MAX_CLASSES:
        raise UserError(f"{option}={text}: too many classes. At most {_MAX_CLASSES:,} are allowed.")
    kind = "class" if kind == "one_hot" and len(names) > 1 else kind
    return Column(name, names, kind, shape, dtype)


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
        name = MASK if columns[0].kind in ("mask", "rle") else LABEL
        if _COLUMN.fullmatch(texts[0].strip())["feature"] not in (None, name):
            raise UserError(f"--label={texts[0]}: a single label is always called {name!r}. Omit {columns[0].name}=.")
        return (dataclasses.replace(columns[0], name=name),)
    return columns
