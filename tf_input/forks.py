"""Detects processes that were forked after TensorFlow had run, and raises an error instead of hanging.

A forked child process has no TensorFlow threads, but inherits the locks that these threads had acquired. Reading
examples in the child process would therefore hang. A process can fork before it runs TensorFlow, and can use the start
method "spawn" at any time.
"""

import os
import sys

_ADVICE = (
    "This process was forked after TensorFlow had run, which TensorFlow does not support. Use "
    "multiprocessing.get_context('spawn') (DataLoader(multiprocessing_context='spawn')), or fork before reading "
    "anything."
)


class _Fork:
    """Fork state of the whole process.

    Attributes:
        is_late: Whether this process was forked after TensorFlow had run.
    """

    is_late = False

    @classmethod
    def note(cls) -> None:
        cls.is_late = cls.is_late or _has_run()


def _has_run() -> bool:
    """Returns whether TensorFlow's runtime was started in this process or its parent, without starting it."""
    if (eager := sys.modules.get("tensorflow.python.eager.context")) is None:
        return False
    context = eager.context_safe()
    return context is not None and context._initialized  # The public functions would start the runtime.


def check_fork() -> None:
    """Raises RuntimeError if this process was forked after TensorFlow had run."""
    if _Fork.is_late:
        raise RuntimeError(_ADVICE)


os.register_at_fork(after_in_child=_Fork.note)
