"""Beam looks at the signatures of all methods of a DoFn some eight times for each step of a graph. Here each is looked at once.

That was a fifth of the CPU time of a small `recordmill prepare`, and of what an analysis does beside TensorFlow.
"""

import functools
import inspect
import types
from typing import Any, Callable

from apache_beam.transforms import DoFn, core, userstate

_get_signature = core.get_signature
_get_dofn_specs = userstate.get_dofn_specs
_specs: dict[type[DoFn], tuple[set, set]] = {}  # of this process, which defines each class once


def remember_signatures() -> None:
    """From now on Beam is given the signature that it has had, of the same method of the same class: it depends on no instance.

    Neither do the states and timers that the signatures of a class name.
    """
    core.get_signature = _remembered_signature
    userstate.get_dofn_specs = _remembered_specs


def _remembered_signature(function: Callable[..., Any]) -> inspect.Signature:
    return _of_method(function.__func__) if isinstance(function, types.MethodType) else _get_signature(function)


@functools.lru_cache(maxsize=1 << 12)
def _of_method(function: Callable[..., Any]) -> inspect.Signature:
    return _get_signature(types.MethodType(function, object()))


def _remembered_specs(dofn: DoFn) -> tuple[set, set]:
    if any(isinstance(value, types.MethodType) for value in vars(dofn).values()):  # a method that this instance alone has
        return _get_dofn_specs(dofn)
    if type(dofn) not in _specs:
        _specs[type(dofn)] = _get_dofn_specs(dofn)
    states, timers = _specs[type(dofn)]
    return set(states), set(timers)
