"""Imports modules that need TensorFlow, whose C++ tells of its host before it can be told not to."""

import contextlib
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from types import ModuleType
from typing import Iterator

from beam_pipelines.errors import UserError

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_NONE_BUT_FATAL = "3"  # what an op's failure has to say comes as an exception too


def import_quietly(name: str, *needed: str) -> ModuleType:
    """Imports a module. What the user set `TF_CPP_MIN_LOG_LEVEL` to holds; else TensorFlow is silent from now on.

    Args:
        name: Of the module.
        *needed: Packages that it imports, of the extra `transform`.

    Raises:
        UserError: One of these is not installed.
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
