"""Detects processes that were forked after obstore was used, and raises an error instead of hanging.

A forked process does not have obstore's threads, so a request would wait for them forever.
"""

import os


class _Fork:
    """Fork state of the whole process.

    Attributes:
        has_run: Whether obstore was used in this process.
        is_late: Whether this process was forked after obstore was used.
    """

    has_run = False
    is_late = False

    @classmethod
    def note(cls) -> None:
        cls.is_late = cls.is_late or cls.has_run


def check_process() -> None:
    """Raises RuntimeError if obstore was used before this process was forked. Otherwise records its use."""
    if _Fork.is_late:
        raise RuntimeError(
            "This process was forked after it had read a URL, which the object store client does not support. Use "
            "multiprocessing.get_context('spawn'), or fork before reading anything."
        )
    _Fork.has_run = True


os.register_at_fork(after_in_child=_Fork.note)
