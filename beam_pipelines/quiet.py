"""Keeps libraries from telling more than a user is told by us: in logs, on the standard error output, in threads that end."""

import contextlib
import importlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import threading
from types import ModuleType
from typing import Any, Callable, Iterator

from beam_pipelines.errors import UserError, find_user_facing, is_interrupt

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_NONE_BUT_FATAL = "3"  # what an op's failure has to say comes as an exception too


def import_quietly(name: str, *needed: str) -> ModuleType:
    """Imports a module that needs TensorFlow, whose C++ tells of its host before it can be told not to.

    What the user set `TF_CPP_MIN_LOG_LEVEL` to holds; else TensorFlow is silent from now on.

    Args:
        name: The name of the module.
        *needed: The names of packages that the module imports, of the extra `transform`.

    Raises:
        UserError: A package that is needed is not installed.
    """
    for package in needed:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed; expected: pip install 'recordmill[transform]'")
    if _LEVEL in os.environ:
        return importlib.import_module(name)
    os.environ[_LEVEL] = _NONE_BUT_FATAL
    with _held_back():
        return importlib.import_module(name)


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Holds back what is written to the standard error output, by C++ too, and shows it if the block fails and is not interrupted."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        except Exception:
            file.seek(0)
            with open(saved, "wb", closefd=False) as stream:
                shutil.copyfileobj(file, stream)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


# Loggers of the exceptions of workers in this process; None: the root, which has the messages of engines.
_LOGGERS_OF_ERRORS = ("apache_beam.runners.common", "apache_beam.runners.worker.sdk_worker", None)


def quiet_engines() -> None:
    """Keeps engines from logging each of their steps, and from showing the traceback of an error that the command reports in one line."""
    from apache_beam.runners.worker import sdk_worker  # which the command has loaded; others that import this module have no Beam

    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)  # downloads, and each ordinary end
    logging.getLogger("PrismRunner").setLevel(logging.WARNING)
    logging.getLogger("google.auth._default").setLevel(logging.ERROR)  # that there are no credentials, which we tell
    for name in _LOGGERS_OF_ERRORS:
        logging.getLogger(name).addFilter(is_no_user_error)
    sdk_worker.print = _print_no_user_error  # a worker in this process also prints its tracebacks
    threading.excepthook = _quiet_broken_streams


def is_no_user_error(record: logging.LogRecord) -> bool:
    """Whether a log record is shown: not an error that the command reports in one line, with its traceback in Python or Java.

    Nor is an error that comes with the failure of the job.
    """
    # the second waits, that is all
    if (record.module, record.levelname) in (("portable_runner", "ERROR"), ("subprocess_server", "WARNING")):
        return False
    return not _is_user_error(record.exc_info[1] if record.exc_info else RuntimeError(record.getMessage()))


def _print_no_user_error(text: str, **options: Any) -> None:
    if not _is_user_error(RuntimeError(text)):
        print(text, **options)


def _is_user_error(error: BaseException) -> bool:
    return is_interrupt(error) or find_user_facing(error) is not None


def _quiet_broken_streams(arguments: threading.ExceptHookArgs) -> None:
    """Passes over threads of Beam's that still read from an engine that has been stopped."""
    import grpc  # which has long been loaded

    if not isinstance(arguments.exc_value, grpc.RpcError):
        threading.__excepthook__(arguments)


@contextlib.contextmanager
def filtered_logs(is_told: Callable[[logging.LogRecord], bool], *names: str | None) -> Iterator[None]:
    """Keeps some records from being told within a block.

    Args:
        is_told: Says of a record whether it is told.
        *names: The names of the loggers; None: the root, with its handlers.
    """
    targets = [*map(logging.getLogger, names), *logging.getLogger().handlers]
    for target in targets:
        target.addFilter(is_told)
    try:
        yield
    finally:
        for target in targets:
            target.removeFilter(is_told)
