"""Releases tf.data iterators at exit, before the interpreter shuts down.

TensorFlow's prefetching threads call Python functions. If a thread of an iterator calls Python while the interpreter
shuts down, the call never returns, and releasing the iterator takes forever. The threads of an iterator end normally if
the iterator is released before the shutdown.
"""

from __future__ import annotations

import atexit
import functools
import gc

from tf_input.lazy_tensorflow import tf



@functools.cache
def close_iterators_at_exit() -> None:
    """Makes Python release all tf.data iterators at exit. Call it before creating iterators that call Python."""
    atexit.register(_close_iterators)


def _close_iterators() -> None:
    gc.unfreeze()  # `gc.get_objects` does not list frozen objects
    iterators = _with_subclasses(tf.data.Iterator) | _with_subclasses(tf.distribute.DistributedIterator)
    for iterator in gc.get_objects():
        if type(iterator) in iterators:
            vars(iterator).clear()  # TensorFlow has no public method that closes an iterator


def _with_subclasses(kind: type) -> set[type]:
    """Returns a class and all of its subclasses. Looking up types in this set is faster than `isinstance`."""
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))
