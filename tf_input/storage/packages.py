"""Packages that only some uses need."""

import importlib
import types


def import_package(name: str, use: str = "reading URLs", wanted: str = "'recordmill[remote]'") -> types.ModuleType:
    """Imports a package that only some uses need.

    Args:
        name: The name of the package, or of a module in it.
        use: The name of what needs it.
        wanted: The name of what pip is to install.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ImportError(f"{use} needs the package {package}: pip install {wanted}") from None
