"""A program that ends while it holds iterators: these are let go of before the interpreter is taken apart.

TensorFlow reads ahead in threads of its own, which ask Python. One that does so while the interpreter takes itself apart waits for ever,
and whoever lets go of the iterator then, which is the interpreter, waits for it. As long as Python is whole they come to an end.
"""

import atexit
import functools
import gc

import tensorflow as tf


@functools.cache
def let_go_at_exit() -> None:
    """Has the program let go of all iterators over what `tf.data` reads before it ends: for whoever makes an iterator that asks Python."""
    atexit.register(_let_go)


def _let_go() -> None:
    gc.unfreeze()  # objects that a program has frozen are not listed else
    iterators = _with_subclasses(tf.data.Iterator) | _with_subclasses(tf.distribute.DistributedIterator)
    for found in gc.get_objects():
        if type(found) in iterators:
            vars(found).clear()  # what holds it need not be known, nor does TensorFlow say how to close one


def _with_subclasses(kind: type) -> set[type]:
    """To look each of some hundred thousand objects up in these is faster than to ask what it is an instance of."""
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))
