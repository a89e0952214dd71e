"""Suppresses unhelpful messages from libraries such as TensorFlow and Beam."""

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
_NONE_BUT_FATAL = "3"  # Failed operations also raise exceptions.


def import_quietly(name: str, *needed: str) -> ModuleType:
    """Imports a module that needs TensorFlow, and suppresses messages from TensorFlow's C++ code.

    The messages stay disabled after the import, unless the user has set `TF_CPP_MIN_LOG_LEVEL`.

    Args:
        name: The name of the module.
        *needed: The packages that must be installed, from the extra `transform`.

    Raises:
        UserError: A package is not installed.
    """
    for package in needed:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed. Run: pip install 'recordmill[transform]'")
    if _LEVEL in os.environ:
        return importlib.import_module(name)
    os.environ[_LEVEL] = _NONE_BUT_FATAL
    with _hidden_stderr():
        return importlib.import_module(name)


@contextlib.contextmanager
def _hidden_stderr() -> Iterator[None]:
    """Context manager that suppresses standard error, including output from C++ code, unless the block fails."""
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


# Loggers that log exceptions of workers. None is the root logger, which engines use.
_LOGGERS_OF_ERRORS = (
    "apache_beam.runners.common",
    "apache_beam.runners.worker.data_plane",
    "apache_beam.runners.worker.sdk_worker",
    None,
)


def quiet_engines() -> None:
    """Suppresses progress logs from engines, and tracebacks of errors that the command reports in one line."""
    from apache_beam.runners.worker import sdk_worker  # Imported here, because some importers may lack Beam.

    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)  # Hides downloads and normal ends.
    logging.getLogger("PrismRunner").setLevel(logging.WARNING)
    logging.getLogger("google.auth._default").setLevel(logging.ERROR)  # Recordmill reports missing credentials.
    for name in _LOGGERS_OF_ERRORS:
        logging.getLogger(name).addFilter(is_no_user_error)
    sdk_worker.print = _print_no_user_error  # A worker in this process also prints tracebacks.
    threading.excepthook = _quiet_broken_streams


def is_no_user_error(record: logging.LogRecord) -> bool:
    """A log filter that hides messages about errors that the command reports."""
    # The warnings of subprocess_server only report that it waits.
    if (record.module, record.levelname) in (("portable_runner", "ERROR"), ("subprocess_server", "WARNING")):
        return False
    error = record.exc_info[1] if record.exc_info else None
    return not _is_broken_stream(error) and not _is_user_error(error or RuntimeError(record.getMessage()))


def _print_no_user_error(text: str, **options: Any) -> None:
    if not _is_user_error(RuntimeError(text)):
        print(text, **options)


def _is_user_error(error: BaseException) -> bool:
    return is_interrupt(error) or find_user_facing(error) is not None


def _quiet_broken_streams(arguments: threading.ExceptHookArgs) -> None:
    """A `threading.excepthook` that ignores gRPC errors in Beam's threads."""
    if not _is_broken_stream(arguments.exc_value):
        threading.__excepthook__(arguments)


def _is_broken_stream(error: BaseException | None) -> bool:
    """Returns whether an error is a lost connection to the Beam runner. The job reports why the runner stopped."""
    import grpc  # Imported here, because some importers may lack gRPC.

    return isinstance(error, grpc.RpcError)


@contextlib.contextmanager
def filtered_logs(is_logged: Callable[[logging.LogRecord], bool], *names: str | None) -> Iterator[None]:
    """Context manager that hides log records.

    Args:
        is_logged: A function that returns whether a record is shown.
        *names: The names of the loggers, or None for the root logger. The root logger's handlers are always included.
    """
    targets = [*map(logging.getLogger, names), *logging.getLogger().handlers]
    for target in targets:
        target.addFilter(is_logged)
    try:
        yield
    finally:
        for target in targets:
            target.removeFilter(is_logged)
