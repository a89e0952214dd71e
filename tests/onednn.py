"""Imported before TensorFlow: oneDNN is used, as it is by default, and as conftest.py has it switched off.

By that TensorFlow chooses, as it is imported, its convolutions and what gives it memory; without, a training on CPUs takes twice as long.
"""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
