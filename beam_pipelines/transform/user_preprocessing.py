"""Loads the user's module that defines `preprocessing_fn`. Errors name the file, the line and the reason."""

import contextlib
import dataclasses
import functools
import os
import sys
import tokenize
import traceback
import types
from typing import Any, Callable, Iterator, Mapping

from beam_pipelines.errors import UserError, printable

_OPTION = "--preprocessing_module"
_FUNCTION = "preprocessing_fn"


@dataclasses.dataclass(frozen=True)
class UserPreprocessing:
    """The preprocessing function of a user's module.

    The source code of the module is sent to workers, so the module does not have to be installed on them. The module
    can import other modules from its folder if workers can access the folder. On a cluster, other imported modules must
    be installed on the workers.

    Attributes:
        path: The path of the module, as the user gave it.
        file: The absolute path of the module.
        source: The source code of the module.
    """

    path: str
    file: str
    source: str

    @classmethod
    def read(cls, path: str) -> "UserPreprocessing":
        """Reads and executes a module.

        Raises:
            UserError: The module is missing, is not text, fails, or does not define `preprocessing_fn`.
        """
        try:
            with tokenize.open(path) as file:  # Uses the encoding that the file declares.
                source = file.read()
        except (OSError, UnicodeDecodeError, SyntaxError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise UserError(f"{_OPTION}={printable(path)}: {printable(reason)}. Pass a Python file.") from None
        module = cls(path, os.path.abspath(path), source)
        with module.explained():
            function = module.load()
        if not callable(function):
            problem = "defines no" if function is None else f"has a {type(function).__name__} for"
            raise UserError(
                f"{_OPTION}={printable(path)} {problem} {_FUNCTION}. Define it as: def {_FUNCTION}(inputs): ..."
            )
        return module

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        with self._importable():
            return self.load()(dict(inputs))

    def load(self) -> Callable[[dict[str, Any]], Any] | None:
        """Returns the function `preprocessing_fn` of the module, or None."""
        with self._importable():
            return getattr(_load(self.file, self.source), _FUNCTION, None)

    @contextlib.contextmanager
    def _importable(self) -> Iterator[None]:
        folder = os.path.dirname(self.file)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)

    @contextlib.contextmanager
    def explained(self, *others: type[Exception]) -> Iterator[None]:
        """Context manager that converts exceptions from the user's module to one-line errors.

        Args:
            *others: Exception classes that have other causes, and are not converted.

        Raises:
            UserError: The module raised an exception, including SystemExit.
        """
        try:
            yield
        except (UserError, KeyboardInterrupt, *others):
            raise
        except BaseException as error:  # The module can raise exceptions of any class.
            raise self.error(_reason(error), self._line_of(error)) from None

    def error(self, reason: str, line: int | None = None) -> UserError:
        """Returns an error with a reason and a line. By default, the line is the first line of the function."""
        if line is None:
            line = self._first_line()
        line_text = f"{printable(self.path)}, line {line}" if line else printable(self.path)
        return UserError(f"{_OPTION}={line_text}: {reason}")

    def _line_of(self, error: BaseException) -> int | None:
        """Returns the last line of the user's module in the traceback of an error, or None."""
        if isinstance(error, SyntaxError) and error.filename == self.file:
            return error.lineno
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.file]
        return lines[-1] if lines else None

    def _first_line(self) -> int | None:
        with contextlib.suppress(BaseException):
            return self.load().__code__.co_firstlineno
        return None


@functools.lru_cache(maxsize=2)
def _load(file: str, source: str) -> types.ModuleType:
    """Executes the source code of the user's module, once in each process."""
    name = f"recordmill_{os.path.splitext(os.path.basename(file))[0]}"
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # Registered while it runs, because dataclasses look up their module there.
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    finally:
        del sys.modules[name]  # Engines can then pickle the module's definitions by value.
    return module


def _reason(error: BaseException) -> str:
    """Formats an error as a single line with its class and the start of its message."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    words = " ".join(message.split())
    return f"{type(error).__name__}: {words[:500]}" if words else type(error).__name__
