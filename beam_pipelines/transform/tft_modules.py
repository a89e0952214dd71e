"""Imports TensorFlow Transform, then restores the environment variable that it uses to select Keras 2 as `tf.keras`."""

import os

_VARIABLE = "TF_USE_LEGACY_KERAS"
_before = os.environ.get(_VARIABLE)
try:
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from tensorflow_transform import impl_helper
finally:
    if _before is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = _before

__all__ = ["impl_helper", "tft", "tft_beam"]
