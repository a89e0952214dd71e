"""Packages that only who reads URLs needs."""

import importlib
import types


def import_package(name: str) -> types.ModuleType:
    """Imports one.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ImportError(f"reading URLs needs the package {package}: pip install 'recordmill[remote]'") from None
