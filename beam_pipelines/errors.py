"""The errors that a run shows to its user, as one clear line each. Anything else is a bug and keeps its traceback."""

import difflib
import errno
import itertools
import os
import re
from typing import Iterable, Iterator

# What would break a line: control characters, and Unicode's line and paragraph separators.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

# Halves of surrogate pairs that stand for no byte of a file name: JSON can spell them.
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def printable(path: str) -> str:
    """Writes a path as a message shows it: on one line, whatever bytes it is of."""
    path = _NO_BYTES.sub(lambda match: match[0].encode("unicode_escape").decode(), path)
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escaped(text: str) -> str:
    """Escapes control characters except line ends and tabs, so that text from a dataset cannot control the terminal."""
    return CONTROL.sub(lambda match: match[0] if match[0] in "\n\t" else match[0].encode("unicode_escape").decode(), text)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A text to add to a message of a name that is not there: the nearest of those that are; empty where none is near."""
    by_lower = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {printable(by_lower[near[0]])!r}?" if near else ""


class _Told(Exception):
    """An error that ends a command, and is told in one line.

    Attributes:
        exit_code: The exit code of the command: 2 where the same command would fail again; 1 where it may not.
        is_retryable: Whether the same command may succeed at another time.
        kind: The kind of the error for programs, as `--error_json` has it.
        path: The path of the file or directory that the error is about; None: it is about none.
    """

    exit_code, is_retryable, kind = 1, True, "run"

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class UserError(_Told):
    """The command or its input is not fit to run: nothing is written.

    It is no ValueError, so that handlers of values that cannot be read do not catch it, and it does not pass for one of them.
    """

    exit_code, is_retryable, kind = 2, False, "usage"


class Refusal(Exception):
    """An input, or a part of one, that is rejected: it becomes a dead letter. One line: the value found and the value expected.

    Attributes:
        reason: A short code, the same for like cases: `bad_label`, `bad_box`, `bad_image`, `outside`, …
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def require(condition: object, option: str, value: object, expected: str) -> None:
    """Raises UserError unless an option's value is what is expected of it."""
    if not condition:
        raise UserError(f"{option}={value}: expected {expected}")


class RunError(_Told, RuntimeError):
    """A run came to no end: what it wrote is removed, unless another one can go on from it."""


class DataError(RunError):
    """A run ended because of its inputs, and would end so again."""

    exit_code, is_retryable, kind = 2, False, "data"


class FoundError(RunError):
    """A command that looks for something came to its end, and has found it: damage, say.

    As with `grep`, its exit code tells that apart.
    """

    is_retryable, kind = False, "found"


class StorageError(RunError):
    """A run ended because a disk or a store did not give or take what it should."""

    kind = "storage"


def reading_error(error: OSError, more: str = "") -> UserError | StorageError:
    """The error that a command ends with that could not read a data set.

    A file that is not there, or that we may not read, is a mistake of the user's; all else may be mended by another time.

    Args:
        error: The error that reading has raised.
        more: A text to add to the message where the mistake is the user's.
    """
    message = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    is_of_the_place = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError))
    is_of_the_place = is_of_the_place or error.errno in (errno.ENODEV, errno.ENXIO, errno.EFBIG)  # no regular file, or a huge one
    return UserError(printable(message) + more) if is_of_the_place else StorageError(printable(message))


class SilentStoreError(StorageError, OSError):
    """A store has answered nothing useful for so long that it is not waited for any more; also for who expects an OSError."""

    errno = errno.ETIMEDOUT


class EngineError(RunError):
    """A run ended because its engine cannot be reached, or ended the job for no reason of ours."""

    kind = "engine"


class BusyError(RunError):
    """Another run is at work on the same output."""

    kind = "busy"


class StillRunningError(RunError):
    """Nobody waits for the job any more, and it could not be stopped: what it has written must stay, also after Ctrl-C."""

    kind = "engine"


# The extra of this distribution that installs a package, by the name that Python imports.
_EXTRAS = dict.fromkeys(
    "PIL apache_beam defusedxml ijson jinja2 pyarrow pycocotools rich simplejpeg tensorflow_metadata zstandard".split(), "beam"
) | {"tensorflow_transform": "transform", "tfx_bsl": "transform", "array_record": "export", "obstore": "remote", "fsspec": "remote"}


def missing_package(error: ImportError) -> UserError | None:
    """Returns the error to show if an import failed because an extra is not installed; None for any other failed import."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if not (extra and isinstance(error, ModuleNotFoundError)):
        return None
    return UserError(f"The package {package} is not installed. Run: pip install 'recordmill[{extra}]'")


_CLASSES = {cls.__name__: cls for cls in (UserError, RunError, DataError, StorageError, SilentStoreError, EngineError, BusyError)}

_STEP = " [while running "  # Beam appends this to a message, and the step's name


def find_user_facing(error: BaseException) -> UserError | RunError | None:
    """Returns the user-facing error behind whatever a runner raised, without the runner's additions; None if there is none."""
    for cause in _chain(error):
        found = cause if isinstance(cause, (UserError, RunError)) else _find_in_text(str(cause))
        if found:
            return type(found)(str(found).partition(_STEP)[0], found.path)
    return find_full_disk(error)


_FULL = {os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT)}
_FULL_TEXT = re.compile(rf"\[Errno \d+\] ({'|'.join(map(re.escape, _FULL))})(?:: '([^'\n]*)')?")


def find_full_disk(error: BaseException) -> StorageError | None:
    """Returns the error to show if a full disk, or one without free inodes, is behind an error; None otherwise."""
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno in _FULL.values():
            reason, path = os.strerror(cause.errno), cause.filename
        elif found := _FULL_TEXT.search(str(cause)):  # of a worker process, which hands over its traceback
            reason, path = found.groups()
        else:
            continue
        shown = printable(os.fsdecode(path)) if isinstance(path, (str, bytes)) else "A file"
        return StorageError(f"{shown} could not be written: {reason}. Free some space, and run the same command again, with --resume if it says so.")
    return None


def _find_in_text(text: str) -> UserError | RunError | None:
    """The first error of ours in a traceback: a runner with worker processes hands over no more than its text.

    There its line begins with the class's name, behind that of this module; the items of a list follow on lines of their own.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        name, _, message = line.partition(": ")
        if cls := _CLASSES.get(name.removeprefix(f"{__name__}.")):
            path, is_of_path, _ = message.partition(" could not be ")  # as `storage` has it
            items = itertools.takewhile(lambda item: item.startswith("  - "), lines[number:])
            return cls("\n".join([message, *items]), path if is_of_path else None)
    return None


def is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C is behind an error: Beam wraps even that into a RuntimeError."""
    return any(isinstance(cause, KeyboardInterrupt) for cause in _chain(error)) or str(error).startswith(
        "KeyboardInterrupt"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # Python lets an error be its own cause
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
