"""Beam looks at the signatures of all methods of a DoFn some eight times for each step of a graph. Here each is looked at once.

That was a seventh of the CPU time of a small `recordmill prepare`, and of what an analysis does beside TensorFlow.
"""

import functools
import inspect
import types
from typing import Any, Callable

from apache_beam.transforms import core

_get_signature = core.get_signature


def remember_signatures() -> None:
    """From now on Beam is given the signature that it has had, of the same method of the same class: it depends on no instance."""
    core.get_signature = _remembered_signature


def _remembered_signature(function: Callable[..., Any]) -> inspect.Signature:
    return _of_method(function.__func__) if isinstance(function, types.MethodType) else _get_signature(function)


@functools.lru_cache(maxsize=1 << 12)
def _of_method(function: Callable[..., Any]) -> inspect.Signature:
    return _get_signature(types.MethodType(function, object()))
