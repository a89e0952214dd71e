"""What failed in a preprocessing graph on the data, out of what an engine says of it."""

import contextlib
import errno
import logging
import os
import re
from typing import Iterator, NamedTuple

from beam_pipelines.quiet import filtered_logs

# As TensorFlow Transform wraps it, with the whole batch behind.
_WRAPPED = re.compile(r'An error occurred while trying to apply the transformation: "(.*?)"\.\n\s*Batch instances', re.DOTALL)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_BEFORE_REASON = re.compile(
    r"Graph execution error:|Detected at node.*|<stack traces unavailable>|\d+ root error\(s\) found\.|\(0\) [A-Z_]+:"
)
_MAX_REASON = 500
_NOT_WRITABLE = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS)))
# Of TensorFlow Transform, about its cache, which nobody uses here: loops and conditions have new names in each trace.
_OF_THE_CACHE = "cache key varies on repeated tracing"
_LOGGERS = ("apache_beam.runners.common", "absl", None)  # the last is the root, where workers' messages come


class GraphFailure(NamedTuple):
    """An operation that failed.

    Attributes:
        operation: The name of the operation; empty if it is not known.
        reason: The reason of the failure, on one line.
    """

    operation: str
    reason: str


def find_graph_failure(error: BaseException) -> GraphFailure | None:
    """What is behind whatever an engine raised; None if it is nothing in a graph."""
    cause: BaseException | None = error
    while cause is not None:
        if match := _WRAPPED.search(str(cause)):
            return read_graph_failure(match[1])
        cause = cause.__cause__ or cause.__context__
    return None


def read_graph_failure(message: str) -> GraphFailure:
    """What TensorFlow says of a failure -> what failed."""
    node = _NODE.search(message)
    reason = message[: node.start()].rpartition("[[")[0] if node else message
    reason = " ".join(_BEFORE_REASON.sub(" ", reason).split())
    return GraphFailure(node[1] if node else "", reason[:_MAX_REASON])


def find_not_writable(message: str) -> str | None:
    """Why no more can be written, if that is what TensorFlow or an engine says."""
    return next((reason for reason in _NOT_WRITABLE if reason in message), None)


@contextlib.contextmanager
def quiet_graph_failures() -> Iterator[None]:
    """Keeps what the user will be told in one line from being logged first, with a batch of images in hexadecimal digits.

    And what is of no matter to the user.
    """
    with filtered_logs(_is_other, *_LOGGERS):
        yield


def _is_other(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and (find_graph_failure(error) or find_not_writable(str(error))):
        return False
    message = record.getMessage()
    return _OF_THE_CACHE not in message and not _WRAPPED.search(message) and not find_not_writable(message)
