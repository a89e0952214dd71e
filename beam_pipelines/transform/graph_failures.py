"""Reads the reason why a preprocessing graph failed from an engine's error messages."""

import contextlib
import errno
import logging
import os
import re
from typing import Iterator, NamedTuple

from beam_pipelines.quiet import filtered_logs

# The format of TensorFlow Transform's errors, which contain the whole batch.
_WRAPPED = re.compile(r'An error occurred while trying to apply the transformation: "(.*?)"\.\n\s*Batch instances', re.DOTALL)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_BEFORE_REASON = re.compile(
    r"Graph execution error:|Detected at node.*|<stack traces unavailable>|\d+ root error\(s\) found\.|\(0\) [A-Z_]+:"
)
_MAX_REASON = 500
_NOT_WRITABLE = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS)))
# TensorFlow Transform warns that its cache does not work, because loops and conditions get new names in each trace. The
# cache is not used here.
_OF_THE_CACHE = "cache key varies on repeated tracing"
_LOGGERS = ("apache_beam.runners.common", "absl", None)  # None is the root logger, which receives messages of workers.


class GraphFailure(NamedTuple):
    """A failed graph operation.

    Attributes:
        operation: The name of the operation, or an empty string if it is unknown.
        reason: The reason for the failure, as a single line.
    """

    operation: str
    reason: str


def find_graph_failure(error: BaseException) -> GraphFailure | None:
    """Returns the graph failure that caused an engine error, or None if the error has another cause."""
    cause: BaseException | None = error
    while cause is not None:
        if match := _WRAPPED.search(str(cause)):
            return read_graph_failure(match[1])
        cause = cause.__cause__ or cause.__context__
    return None


def read_graph_failure(message: str) -> GraphFailure:
    """Extracts the operation and the reason from a TensorFlow error message."""
    node = _NODE.search(message)
    reason = message[: node.start()].rpartition("[[")[0] if node else message
    reason = " ".join(_BEFORE_REASON.sub(" ", reason).split())
    return GraphFailure(node[1] if node else "", reason[:_MAX_REASON])


def find_not_writable(message: str) -> str | None:
    """Returns the reason if an error message says that the disk is full or not writable. Otherwise, returns None."""
    return next((reason for reason in _NOT_WRITABLE if reason in message), None)


@contextlib.contextmanager
def quiet_graph_failures() -> Iterator[None]:
    """Suppresses log messages that are irrelevant or contain whole batches of images."""
    with filtered_logs(_is_other, *_LOGGERS):
        yield


def _is_other(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and (find_graph_failure(error) or find_not_writable(str(error))):
        return False
    message = record.getMessage()
    return _OF_THE_CACHE not in message and not _WRAPPED.search(message) and not find_not_writable(message)
