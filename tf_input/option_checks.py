"""Checks and conversions of option values, for `read_config`."""

import math
from numbers import Integral, Real
from typing import Any, Hashable, Mapping, Sequence


def names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def is_lengths(value: Any) -> bool:
    if isinstance(value, Mapping):
        lengths = [*value.values()]
        return bool(lengths) and all(isinstance(name, str) for name in value) and all(map(is_length, lengths))
    return is_count(value)


def is_length(value: Any) -> bool:
    return is_count(value) or isinstance(value, (tuple, list)) and len(value) > 0 and all(map(is_count, value))


def is_padding(value: Any) -> bool:
    values = [*value.values()] if isinstance(value, Mapping) else [value]
    return bool(values) and all(isinstance(item, str) or is_number(item) for item in values)


def is_pairs(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in value):
        return False
    indices = [index for pair in value for index in pair]
    return all(is_integer(index) and index >= 0 for index in indices) and len(set(indices)) == len(indices)


def plain_pairs(pairs: Sequence[Sequence[Any]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(second)) for first, second in pairs)


def is_one_of(value: Any, *names: str) -> bool:
    return isinstance(value, str) and value in names


def is_switch(value: Any) -> bool:
    """Returns whether a value equals True or False. Arrays are rejected, because they are not hashable."""
    return isinstance(value, Hashable) and value in (False, True)


def is_names(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def is_size(value: Any) -> bool:
    return is_count(value) or (isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_count, value)))


def is_count(value: Any) -> bool:
    return is_integer(value) and value > 0


def is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_complete(value: Any) -> bool:
    """Returns whether a value is a whole number, including floats such as 1e9."""
    return is_integer(value) or is_number(value) and math.isfinite(value) and value == int(value)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def plain_size(size: Any) -> Any:
    """Returns `image_size` with Python integers, because NumPy integers may overflow."""
    if isinstance(size, Mapping):
        return {name: plain_size(item) for name, item in size.items()}
    if isinstance(size, (tuple, list)):
        return tuple(map(int, size))
    return int(size) if isinstance(size, Integral) else size


def plain_weights(weights: Any) -> Any:
    """Returns `class_weight` with JSON-compatible labels and weights.

    Invalid labels and weights are returned unchanged, and are rejected later, when the classes of the dataset are
    known.
    """
    if isinstance(weights, Mapping):
        return {int(key) if is_integer(key) else key: plain_weights(value) for key, value in weights.items()}
    try:
        return float(weights) if is_number(weights) else weights
    except OverflowError:  # too large for a float; rejected later
        return math.inf


def is_shares(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    return all(is_number(share) and 0 <= share <= 1 for share in value.values()) and abs(sum(value.values()) - 1) < 1e-6


def require(condition: bool, name: str, value: Any, expected: str) -> None:
    if not condition:
        raise ValueError(f"{name}={value!r} is invalid. Pass {expected}.")
