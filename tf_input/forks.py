"""Processes that are forked after TensorFlow has run, in which it would wait for ever: they are told so at once.

TensorFlow's threads are not in the child, and what they held stays locked. Everything that reads examples uses TensorFlow, so none
can be read there. A process may fork before TensorFlow has run in it, and start others anew (`spawn`) at any time.
"""

import os

from tensorflow.python.eager import context

_ADVICE = (
    "this process was forked after TensorFlow had run, and TensorFlow does not survive that: start processes anew, with "
    "multiprocessing.get_context('spawn') (DataLoader(multiprocessing_context='spawn')), or fork them before anything is read"
)


class _Fork:
    """State of the whole process, because a fork is of the whole process.

    Attributes:
        is_late: Whether this process was forked after TensorFlow had run.
    """

    is_late = False

    @classmethod
    def note(cls) -> None:
        cls.is_late = cls.is_late or _has_run()


def _has_run() -> bool:
    """Whether TensorFlow's runtime was started in this process, or in the one that it was forked from; asking does not start it."""
    found = context.context_safe()
    return found is not None and found._initialized  # nothing public says it without starting it


def check_fork() -> None:
    """That TensorFlow can run in this process.

    Raises:
        RuntimeError: It can't.
    """
    if _Fork.is_late:
        raise RuntimeError(_ADVICE)


os.register_at_fork(after_in_child=_Fork.note)
