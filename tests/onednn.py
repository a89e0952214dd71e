"""Enables oneDNN, which conftest.py disables. Must be imported before TensorFlow.

Training on CPUs takes twice as long if oneDNN is disabled.
"""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
