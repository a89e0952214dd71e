"""Enables oneDNN, which conftest.py disables. Must be imported before TensorFlow.

Without oneDNN, training on CPUs takes twice as long.
"""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
