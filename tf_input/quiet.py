"""TensorFlow in a command, of which only what the command says is to be seen."""

import importlib
import os
import types


def import_tensorflow() -> types.ModuleType:
    """TensorFlow, begun with, without what it says of itself on standard error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # as it speaks before it has looked at that
    try:
        tensorflow = importlib.import_module("tensorflow")
        tensorflow.constant(0)
        return tensorflow
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
