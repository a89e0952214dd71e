"""Evaluates Python-like conditions over columns, such as `label in ("cat", "dog") and width >= 64`.

Conditions are parsed and never executed as Python code. Unknown syntax is rejected. Missing values are None. The value
None equals only None, and is neither less nor greater than any value.
"""

import ast
import functools
import operator
from typing import Any, Callable, Mapping, NoReturn

import numpy as np

from tf_input.options import suggest_option
from tf_input.selection.columns import Column, TextLists, BinaryColumn

_ALLOWED = (
    "columns, numbers and strings with ==, !=, <, <=, >, >=, in, not in, is None, and, or, not, + - * / // %, "
    "len(...), .startswith(...), .endswith(...), .lower()"
)
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_TEXT_TESTS = {"startswith": str.startswith, "endswith": str.endswith}


def evaluate(text: str, columns: Mapping[str, Column], num_examples: int) -> np.ndarray:
    """Returns whether each example meets a condition, bool [num_examples].

    Args:
        text: The condition.
        columns: The columns by name. Only columns in the condition are accessed. Its KeyError must list the existing
            columns.
        num_examples: The number of examples.

    Raises:
        ValueError: The condition has a syntax error, unsupported syntax, an unknown column or class, or incompatible
            types. The message is one line.
        OSError: Raised by `columns`.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(
            f"condition {text!r} can't be parsed: {getattr(error, 'msg', error)}. "
            "Write for example \"label in ('cat', 'dog') and width >= 64\"."
        ) from None
    try:
        with np.errstate(all="ignore"):
            is_match = _Evaluator(text, columns).value(tree.body)
    except RecursionError:
        raise ValueError(f"condition {text[:60]!r}... is nested too deeply. Use fewer parentheses.") from None
    except (OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"condition {text!r}: {error}") from None
    if not _is_truth(is_match):
        raise ValueError(f"condition {text!r} evaluates to {_kind(is_match)}. Write a condition that is true or false.")
    return np.array(np.broadcast_to(is_match, num_examples))


class _Evaluator:
    """Evaluates the syntax tree of a condition. Scalars are represented as arrays without dimensions."""

    def __init__(self, text: str, columns: Mapping[str, Column]) -> None:
        self._text, self._columns = text, columns

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=None):
                return None
            case ast.Constant(value=str(text)):
                return BinaryColumn(np.zeros((), np.int64), [text])
            case ast.Constant(value=bool() | int() | float() as number):
                return np.asarray(number if abs(number) < 2**63 else float(number))
            case ast.Name(id=name):
                return self._column(name)
            case ast.Attribute(value=ast.Name(id=group), attr=name) if f"{group}/{name}" in self._columns:
                return self._columns[f"{group}/{name}"]
            case ast.BoolOp(op=op, values=nodes):
                combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return functools.reduce(combine, [self._truth(item) for item in nodes])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self._truth(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._calculate(op, self._number(left), self._number(right))
            case ast.Compare(left=left, ops=ops, comparators=rights):
                parts = [self._compare(*pair) for pair in zip([left, *rights], ops, rights)]
                return functools.reduce(np.logical_and, parts)
            case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
                return self._length(argument)
            case ast.Call(func=ast.Attribute(value=owner, attr="lower"), args=[], keywords=[]):
                return self._text_of(owner).map(str.lower)
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[argument], keywords=[]) if name in _TEXT_TESTS:
                texts = tuple(self._constants(argument))
                if not all(isinstance(entry, str) for entry in texts):
                    self._fail(f"{_show(argument)!r} is not a string")
                return self._text_of(owner).look_up(lambda element: _TEXT_TESTS[name](element, texts), False)
        self._fail(f"{_show(node)!r} is not allowed. Use only {_ALLOWED}.")

    def _column(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError as error:
            self._fail(error.args[0])

    def _calculate(self, op: ast.operator, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod)):  # division by zero gives infinity or NaN
            left = left.astype(np.float64)
        return _ARITHMETIC[type(op)](left, right)

    def _compare(self, left_node: ast.expr, op: ast.cmpop, right_node: ast.expr) -> np.ndarray:
        left = self.value(left_node)
        if isinstance(op, (ast.In, ast.NotIn)):
            is_match = self._contains(left_node, left, right_node)
            return ~is_match if isinstance(op, ast.NotIn) else is_match
        right = self.value(right_node)
        is_none = left is None or right is None
        is_equality = isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot))
        if isinstance(op, (ast.Is, ast.IsNot)) and right is not None:
            self._fail(
                f"'is' only works with None. Compare {_show(left_node)!r} and {_show(right_node)!r} by == or !="
            )
        if is_none and is_equality:
            is_match = _is_missing(right if left is None else left)
            return ~is_match if isinstance(op, (ast.NotEq, ast.IsNot)) else is_match
        if is_none or _kind(left) != _kind(right) or isinstance(left, TextLists) or not is_equality and _is_truth(left):
            shown = f"{_show(left_node)} ({_kind(left)}) can't be compared with {_show(right_node)} ({_kind(right)})"
            named = next((entry.names[0] for entry in (left, right) if isinstance(entry, BinaryColumn) and entry.names), None)
            is_list = isinstance(left, TextLists) or isinstance(right, TextLists)
            more = (
                " To test for one of several classes, write `'cat' in label`."
                if is_list
                else f" Use class names, such as {named!r}." if named else ""
            )
            self._fail(f"{shown}.{more}")
        compare = _COMPARISONS[type(op)]
        if not isinstance(left, BinaryColumn):
            return np.asarray(compare(_as_stored(left, right), _as_stored(right, left)))
        if is_equality:
            self._check_names(left_node, left, right)
            self._check_names(right_node, right, left)
        if not right.codes.ndim:
            (other,) = right.values
            return left.look_up(lambda item: compare(item, other), isinstance(op, ast.NotEq))
        lefts, rights = np.broadcast_arrays(left.to_numpy(), right.to_numpy())
        if is_equality:
            return np.asarray(compare(lefts, rights), bool)
        is_there = ~(_is_missing(left) | _is_missing(right))
        is_match = np.zeros(is_there.shape, bool)
        is_match[is_there] = compare(lefts[is_there], rights[is_there])
        return is_match

    def _contains(self, left_node: ast.expr, left: Any, right_node: ast.expr) -> np.ndarray:
        if isinstance(right_node, (ast.Tuple, ast.List, ast.Set)):
            return self._is_one_of(left_node, left, right_node)
        right = self.value(right_node)
        if not isinstance(right, (BinaryColumn, TextLists)) or not isinstance(left, BinaryColumn) or left.codes.ndim:
            self._fail(
                f"{_show(left_node)!r} in {_show(right_node)!r}: write a column in a tuple of values, or a string in "
                "a list column"
            )
        (text,) = left.values
        if isinstance(right, BinaryColumn):
            return right.look_up(lambda item: text in item, False)
        self._check_names(right_node, right.texts, left)
        return right.have(text)

    def _is_one_of(self, left_node: ast.expr, left: Any, right_node: ast.expr) -> np.ndarray:
        wanted = self._constants(right_node)
        expected = str if isinstance(left, BinaryColumn) else (bool, np.bool_) if _is_truth(left) else (int, float)
        if left is None or isinstance(left, TextLists):
            self._fail(
                f"{_show(left_node)} is {_kind(left)}; `in` with a tuple needs a column of single values. "
                "For list columns, write `'cat' in label`."
            )
        for constant in wanted:
            if constant is not None and (not isinstance(constant, expected) or isinstance(constant, bool) and expected == (int, float)):
                self._fail(f"{_show(left_node)} is {_kind(left)}, and can't be compared with {constant!r}")
        if not isinstance(left, BinaryColumn):
            numbers = np.array([entry for entry in wanted if entry is not None])
            is_member = np.isin(left, numbers.astype(np.float32) if left.dtype == np.float32 else numbers)
            return is_member | _is_missing(left) if None in wanted else is_member
        self._check_names(left_node, left, BinaryColumn(np.zeros((), np.int64), [element for element in wanted if element is not None]))
        values = {*wanted}
        return left.look_up(lambda item: item in values, None in wanted)

    def _constants(self, node: ast.expr) -> list[Any]:
        """Returns a list with the constants of a tuple, list or set, or with a single constant."""
        nodes = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
        constants = []
        for node in nodes:
            sign, inner = (-1, node.operand) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else (1, node)
            value = inner.value if isinstance(inner, ast.Constant) else ...
            if not isinstance(value, (str, bool, int, float, type(None))) or sign < 0 and not isinstance(value, (int, float)):
                self._fail(f"{_show(node)!r} is not a constant. Use numbers and quoted strings.")
            constants.append(-value if sign < 0 else value)
        return constants

    def _check_names(self, node: ast.expr, column: BinaryColumn, constants: BinaryColumn) -> None:
        """Rejects unknown class names. A misspelled class name in a condition raises an error, because the condition
        would match no examples."""
        if column.names is None or constants.codes.ndim:
            return
        known = set(column.names)
        for text in constants.values:
            if text not in known:
                shown = ", ".join(column.names[:5]) + (", ..." if len(column.names) > 5 else "")
                self._fail(
                    f"{_show(node)} has no class {text!r}. Use one of {shown}{suggest_option(text, column.names)}"
                )

    def _length(self, node: ast.expr) -> np.ndarray:
        operand = self.value(node)
        if isinstance(operand, TextLists):
            return operand.lengths
        return self._text_of(node).look_up(len, np.nan)

    def _text_of(self, node: ast.expr) -> BinaryColumn:
        if not isinstance(operand := self.value(node), BinaryColumn):
            self._fail(f"{_show(node)} is {_kind(operand)}, not a string")
        return operand

    def _truth(self, node: ast.expr) -> np.ndarray:
        if not _is_truth(operand := self.value(node)):
            self._fail(f"{_show(node)} is {_kind(operand)}, not a condition")
        return operand

    def _number(self, node: ast.expr) -> np.ndarray:
        operand = self.value(node)
        if not isinstance(operand, np.ndarray | np.generic) or _is_truth(operand):
            self._fail(f"{_show(node)} is {_kind(operand)}, not a number")
        return operand

    def _fail(self, message: str) -> NoReturn:
        raise ValueError(f"condition {self._text!r}: {message}")


def _is_truth(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype == bool


def _as_stored(value: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Converts numbers to float32 for comparison with a float32 column, because 0.1 differs in float32 and float64."""
    return value.astype(np.float32) if not value.ndim and value.dtype == np.float64 and other.dtype == np.float32 else value


def _is_missing(value: Any) -> np.ndarray:
    if value is None:
        return np.asarray(True)
    if isinstance(value, BinaryColumn):
        return np.asarray(value.codes < 0)
    return np.zeros(len(value.lengths), bool) if isinstance(value, TextLists) else np.asarray(value != value)


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, BinaryColumn):
        return "a string"
    if isinstance(value, TextLists):
        return "a list of strings"
    return "true or false" if _is_truth(value) else "a number"


def _show(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:60]}..."
