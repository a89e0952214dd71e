"""What failed in a preprocessing graph on the data, out of what an engine says of it."""

import contextlib
import logging
import re
from typing import Iterator, NamedTuple

# As TensorFlow Transform wraps it, with the whole batch behind.
_WRAPPED = re.compile(r'An error occurred while trying to apply the transformation: "(.*?)"\.\n\s*Batch instances', re.DOTALL)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_BEFORE_REASON = re.compile(
    r"Graph execution error:|Detected at node.*|<stack traces unavailable>|\d+ root error\(s\) found\.|\(0\) [A-Z_]+:"
)
_MAX_REASON = 500
# Of TensorFlow Transform, about its cache, which nobody uses here: loops and conditions have new names in each trace.
_OF_THE_CACHE = "cache key varies on repeated tracing"
_LOGGERS = ("apache_beam.runners.common", "absl", None)  # the last is the root, where workers' messages come


class GraphFailure(NamedTuple):
    """An operation that failed.

    Attributes:
        operation: Its name; empty if it is not known.
        reason: On one line.
    """

    operation: str
    reason: str


def find_graph_failure(error: BaseException) -> GraphFailure | None:
    """What is behind whatever an engine raised; None if it is nothing in a graph."""
    cause: BaseException | None = error
    while cause is not None:
        if match := _WRAPPED.search(str(cause)):
            return _read(match[1])
        cause = cause.__cause__ or cause.__context__
    return None


def _read(message: str) -> GraphFailure:
    node = _NODE.search(message)
    reason = message[: node.start()].rpartition("[[")[0] if node else message
    reason = " ".join(_BEFORE_REASON.sub(" ", reason).split())
    return GraphFailure(node[1] if node else "", reason[:_MAX_REASON])


@contextlib.contextmanager
def quiet_graph_failures() -> Iterator[None]:
    """Keeps what the user will be told in one line from being logged first, with a batch of images in hexadecimal digits.

    And what is of no matter to the user.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    handlers = logging.getLogger().handlers
    targets = [*loggers, *handlers]
    for target in targets:
        target.addFilter(_is_other)
    try:
        yield
    finally:
        for target in targets:
            target.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[1] is not None and find_graph_failure(record.exc_info[1]):
        return False
    message = record.getMessage()
    return _OF_THE_CACHE not in message and not _WRAPPED.search(message)
