"""Packages that only who reads URLs needs."""

import importlib
import types


def import_package(name: str) -> types.ModuleType:
    """Imports a package that only some uses need.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ImportError(f"reading URLs needs the package {package}: pip install 'recordmill[remote]'") from None
