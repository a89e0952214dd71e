"""Imports TensorFlow on first use, so that functions that do not need TensorFlow work without it.

Modules import `tf` from this module instead of `import tensorflow as tf`. A module must not use `tf` while it is
imported. If it uses `tf` in annotations, it needs `from __future__ import annotations`.
"""

import importlib
from typing import TYPE_CHECKING, Any


class _Tensorflow:
    def __getattr__(self, name: str) -> Any:
        try:
            tensorflow = importlib.import_module("tensorflow")
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            raise ImportError("TensorFlow is not installed. Run: pip install 'recordmill[tensorflow]'", name="tensorflow") from None
        value = getattr(tensorflow, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _Tensorflow()
