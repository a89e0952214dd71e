"""Packages that only some uses need."""

import importlib
import types


def import_package(name: str, use: str = "reading URLs", wanted: str = "'recordmill[remote]'") -> types.ModuleType:
    """Imports a package that only some uses need.

    Args:
        name: Of the package, or of a module in it.
        use: What needs it.
        wanted: What pip is to install.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ImportError(f"{use} needs the package {package}: pip install {wanted}") from None
