"""Imports optional packages."""

import importlib
import types


def import_package(name: str, use: str = "reading URLs", wanted: str = "'recordmill[remote]'") -> types.ModuleType:
    """Imports an optional package.

    Args:
        name: The name of the package, or of a module in the package.
        use: The action that needs the package, for the message.
        wanted: The argument of `pip install`, for the message.

    Raises:
        ImportError: The package is not installed. The message contains the command that installs the package.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ImportError(f"{use} needs the package {package}: pip install {wanted}") from None
