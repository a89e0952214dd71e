"""Imports TensorFlow in commands without printing TensorFlow's log messages."""

import importlib
import os
import types


def import_tensorflow() -> types.ModuleType:
    """Imports and initializes TensorFlow, and suppresses its log messages on standard error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # TensorFlow logs before it reads the variable
    try:
        tensorflow = importlib.import_module("tensorflow")
        tensorflow.constant(0)
        return tensorflow
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
