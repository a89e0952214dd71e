"""Imports TensorFlow on first use, so that functions that do not need it work without it.

Modules import `tf` from here instead of `import tensorflow as tf`. They must not use `tf` while they are imported. They
postpone the evaluation of annotations by `from __future__ import annotations`.
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
