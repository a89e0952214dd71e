"""Defines errors that commands report to the user in a single line.

All other exceptions are bugs, and print a traceback.
"""

import collections
import difflib
import errno
import itertools
import os
import re
from types import MappingProxyType
from typing import Iterable, Iterator, Mapping, Sequence

# Characters that break a line: control characters, and Unicode's line and paragraph separators.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Also characters that reverse the direction of text, so that a terminal shows another name.
_NOT_SHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

# Surrogates that do not represent a byte of a file name. JSON strings can contain them.
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def printable(path: str) -> str:
    """Returns a path for messages, with control characters and invalid bytes escaped."""
    path = _NO_BYTES.sub(lambda match: match[0].encode("unicode_escape").decode(), path)
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return _NOT_SHOWN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escaped(text: str) -> str:
    """Escapes control characters except newlines and tabs, so that text from a dataset cannot control a terminal."""
    return _NOT_SHOWN.sub(lambda match: match[0] if match[0] in "\n\t" else match[0].encode("unicode_escape").decode(), text)


def did_you_mean(name: str, names: Iterable[str], synonyms: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns "; did you mean ...?" with the most similar valid name, or "" if there is none.

    Args:
        name: The unknown name.
        names: The valid names.
        synonyms: A mapping from lower-case names in other tools to valid names.
    """
    near = synonyms.get(name.lower()) or nearest(name, names)
    return f"; did you mean {printable(near)!r}?" if near else ""


def did_you_mean_option(option: str, names: Iterable[str]) -> str:
    """Returns "; did you mean --...?" with the most similar option, or "" if there is none.

    Args:
        option: The unknown option, with or without "=" and a value.
        names: The valid options, with their dashes.
    """
    near = nearest(option.partition("=")[0].strip("-"), (name[2:] for name in names if name.startswith("--")))
    return f"; did you mean --{near}?" if near else ""


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the most similar name, ignoring case, or "" if there is none."""
    by_lower = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else ""


class _ReportedError(Exception):
    """An error that ends a command and is reported in a single line.

    Attributes:
        exit_code: The exit code of the command: 1 if the same command may succeed later, and 2 if it would fail again.
        is_retryable: Whether the same command may succeed later.
        kind: The kind of the error in the file of `--error_json`.
        path: The affected file or directory, or None.
    """

    exit_code, is_retryable, kind = 1, True, "run"

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class UserError(_ReportedError):
    """Raised if the command or its input is invalid. No output is written.

    The class does not extend `ValueError`, because callers catch `ValueError` to handle invalid data.
    """

    exit_code, is_retryable, kind = 2, False, "usage"


class InvalidInput(Exception):
    """Raised if an input is invalid and becomes a dead letter. The message gives the actual and the expected value.

    Attributes:
        reason: A short code for the kind of error, such as `bad_label`, `bad_box`, `bad_image` or `outside`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def require(condition: object, option: str, value: object, expected: str) -> None:
    """Raises a `UserError` about an invalid value of an option, unless a condition is true."""
    if not condition:
        raise UserError(f"{option}={value}: invalid value. Give {expected}.")


def reject_repeated_names(message_start: str, names: Sequence[str]) -> None:
    """Raises a `UserError` if a class name occurs twice in an option or a file."""
    if len(set(names)) < len(names):
        twice, _ = collections.Counter(names).most_common(1)[0]
        raise UserError(f"{message_start} lists the class {printable(twice[:80])!r} twice. List each class name once.")


class RunError(_ReportedError, RuntimeError):
    """Raised if a run fails. Its files are removed, unless the run can be resumed."""


class DataError(RunError):
    """Raised if a run fails because of its inputs, and would fail again."""

    exit_code, is_retryable, kind = 2, False, "data"


class ProblemsFound(RunError):
    """Raised if a command that searches for problems, such as corrupt files, finds any."""

    is_retryable, kind = False, "problems_found"


class StorageError(RunError):
    """Raised if a run fails because of a disk or an object store."""

    kind = "storage"


def reading_error(error: OSError, more: str = "") -> UserError | StorageError:
    """Returns the error to raise if a dataset cannot be read.

    It is a `UserError` if a file is missing or inaccessible. It is a `StorageError` if the problem may be temporary.

    Args:
        error: The original error.
        more: Text to add to the message of a `UserError`.
    """
    message = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    is_user_error = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError))
    is_user_error = is_user_error or error.errno in (errno.ENODEV, errno.ENXIO, errno.EFBIG)  # Irregular or too large.
    return UserError(printable(message) + more) if is_user_error else StorageError(printable(message))


class SilentStoreError(StorageError, OSError):
    """Raised if an object store has not responded successfully for longer than `--store_timeout`."""

    errno = errno.ETIMEDOUT


class EngineError(RunError):
    """Raised if the engine of a job is not reachable or has ended the job."""

    kind = "engine"


class BusyError(RunError):
    """Raised if another run is writing to the same output."""

    kind = "busy"


class StillRunningError(RunError):
    """Raised if a job could not be stopped within the time limit. The files of the job must not be removed."""

    kind = "engine"


# The extra of this distribution that installs each package, by import name.
_EXTRAS = dict.fromkeys(
    "PIL apache_beam defusedxml ijson jinja2 pyarrow pycocotools rich simplejpeg tensorflow_metadata yaml zstandard".split(), "beam"
) | {"tensorflow_transform": "transform", "tfx_bsl": "transform", "array_record": "export", "obstore": "remote", "fsspec": "remote"}


def missing_package(error: ImportError) -> UserError | None:
    """Returns the error to report if an import failed because an extra is not installed. Otherwise, returns None."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if not (extra and isinstance(error, ModuleNotFoundError)):
        return None
    return UserError(f"The package {package} is not installed. Run: pip install 'recordmill[{extra}]'")


_CLASSES = {cls.__name__: cls for cls in (UserError, RunError, DataError, StorageError, SilentStoreError, EngineError, BusyError)}

_STEP = " [while running "  # Beam appends this and the name of the step to messages.


def find_user_facing(error: BaseException) -> UserError | RunError | None:
    """Returns the `UserError` or `RunError` that caused an exception of a Beam runner, or None."""
    for cause in _chain(error):
        user_facing = cause if isinstance(cause, (UserError, RunError)) else _find_in_text(str(cause))
        if user_facing:
            return type(user_facing)(str(user_facing).partition(_STEP)[0], user_facing.path)
    return find_full_disk(error)


_FULL = {os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT)}
_FULL_TEXT = re.compile(rf"\[Errno \d+\] ({'|'.join(map(re.escape, _FULL))})(?:: '([^'\n]*)')?")


def find_full_disk(error: BaseException) -> StorageError | None:
    """Returns the error to report if a full disk or a lack of inodes caused an exception. Otherwise, returns None."""
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno in _FULL.values():
            reason, path = os.strerror(cause.errno), cause.filename
        elif match := _FULL_TEXT.search(str(cause)):  # The traceback of a worker process.
            reason, path = match.groups()
        else:
            continue
        shown = printable(os.fsdecode(path)) if isinstance(path, (str, bytes)) else "A file"
        return StorageError(f"{shown} could not be written: {reason}. Free some space, and run the same command again, with --resume if it says so.")
    return None


def _find_in_text(text: str) -> UserError | RunError | None:
    """Finds the first error class of this module in a traceback's text. Worker processes report errors only as text."""
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        name, _, message = line.partition(": ")
        if cls := _CLASSES.get(name.removeprefix(f"{__name__}.")):
            path, is_of_path, _ = message.partition(" could not be ")  # The format of messages in `storage`.
            items = itertools.takewhile(lambda item: item.startswith("  - "), lines[number:])
            return cls("\n".join([message, *items]), path if is_of_path else None)
    return None


def is_interrupt(error: BaseException) -> bool:
    """Returns whether Ctrl-C caused an exception. Beam may wrap `KeyboardInterrupt` in a `RuntimeError`."""
    return any(isinstance(cause, KeyboardInterrupt) for cause in _chain(error)) or str(error).startswith(
        "KeyboardInterrupt"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # An exception can be its own cause.
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
