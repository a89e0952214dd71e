"""Side effects on the whole process: checks after a fork, the order of events at exit, and the settings of malloc.

A forked process has no threads of its parent, but inherits the locks that these threads had acquired. Therefore reading
would hang in a process that was forked after TensorFlow or the object store client `obstore` had run. This module
raises an error instead. A process can fork before it reads anything, and can use the start method "spawn" at any time.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import os
import sys

from tf_input.lazy_tensorflow import tf

_AFTER_TENSORFLOW = (
    "This process was forked after TensorFlow had run, which TensorFlow does not support. Use "
    "multiprocessing.get_context('spawn') (DataLoader(multiprocessing_context='spawn')), or fork before reading "
    "anything."
)
_AFTER_CLIENT = (
    "This process was forked after it had read a URL, which the object store client does not support. Use "
    "multiprocessing.get_context('spawn'), or fork before reading anything."
)
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # constants of malloc.h
_NUM_BYTES = 4 << 20  # larger blocks, such as windows, are still returned


class _Forks:
    """Fork state of the whole process.

    Attributes:
        has_used_client: Whether obstore was used in this process.
        is_after_client, is_after_tensorflow: Whether this process was forked after obstore was used, or after TensorFlow
            had run.
    """

    has_used_client = is_after_client = is_after_tensorflow = False

    @classmethod
    def note(cls) -> None:
        cls.is_after_client |= cls.has_used_client
        cls.is_after_tensorflow |= _has_run_tensorflow()


def _has_run_tensorflow() -> bool:
    """Returns whether TensorFlow's runtime was started in this process or its parent, without starting it."""
    if (eager := sys.modules.get("tensorflow.python.eager.context")) is None:
        return False
    context = eager.context_safe()
    return context is not None and context._initialized  # The public functions would start the runtime.


def check_fork() -> None:
    """Raises RuntimeError if this process was forked after TensorFlow had run."""
    if _Forks.is_after_tensorflow:
        raise RuntimeError(_AFTER_TENSORFLOW)


def check_client_fork() -> None:
    """Raises RuntimeError if obstore was used before this process was forked. Otherwise records its use."""
    if _Forks.is_after_client:
        raise RuntimeError(_AFTER_CLIENT)
    _Forks.has_used_client = True


os.register_at_fork(after_in_child=_Forks.note)


@functools.cache
def close_iterators_at_exit() -> None:
    """Makes Python release all tf.data iterators at exit, before the interpreter shuts down.

    TensorFlow's prefetching threads call Python functions. If a thread of an iterator calls Python while the interpreter
    shuts down, the call never returns, and releasing the iterator takes forever. The threads of an iterator end normally
    if the iterator is released before the shutdown. Call this function before creating iterators that call Python.
    """
    atexit.register(_close_iterators)


def _close_iterators() -> None:
    gc.unfreeze()  # `gc.get_objects` does not list objects that the program has frozen
    iterators = _with_subclasses(tf.data.Iterator) | _with_subclasses(tf.distribute.DistributedIterator)
    for iterator in gc.get_objects():
        if type(iterator) in iterators:
            vars(iterator).clear()  # TensorFlow has no public method that closes an iterator


def _with_subclasses(kind: type) -> set[type]:
    """Returns a class and all of its subclasses. Looking up types in this set is faster than `isinstance`."""
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))


def keep_freed_memory() -> None:
    """Makes malloc keep freed blocks of less than 4 MiB, unless environment variables set other limits.

    With Python 3.11 or later, TensorFlow changes malloc for the whole process when an iterator over a generator is
    created (`ApplyPython311MemoryPatch`, with `mallopt`). As a result, malloc requests each block of 128 KiB or more
    from the system, and returns it to the system as soon as it is freed. Therefore, each large record and each decoded
    image needs new memory pages. If photos are 2000 pixels wide, allocating these pages takes a quarter of the reading
    time. Call this function after the first iterator over a generator has been created. The function has no effect on
    systems without `mallopt`.
    """
    if mallopt := sys.platform == "linux" and getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, _limit("MALLOC_MMAP_THRESHOLD_", _NUM_BYTES))
        mallopt(_TRIM_THRESHOLD, _limit("MALLOC_TRIM_THRESHOLD_", 2 * _NUM_BYTES))


def _limit(variable: str, default: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else default
