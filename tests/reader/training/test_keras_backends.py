"""Tests that Keras trains on the same batches with every backend. Each backend runs in a separate process."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from analysed import analysed_images
from made_images import encode
from prepared import mixed_images, picture

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.mark.slow(20)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras_trains_with_other_backend(backend, tmp_path_factory, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    datasets = [mixed_images(tmp_path_factory), *[analysed_images(tmp_path_factory)] * (backend == "jax")]
    np.save(tmp_path / "images.npy", np.stack([picture(seed, (12, 18)) for seed in range(8)]))
    command = [sys.executable, ROOT / "tests/keras_backend_training.py", datasets[0], tmp_path, tmp_path / "images.npy", *datasets[1:]]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Compiled code runs only for a few steps, so it is not optimized, and equal models are compiled once.
    jax = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true", "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    jax |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    environment = {**os.environ, "KERAS_BACKEND": backend, **jax, "PYTHONPATH": paths}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0 and f"trained on {backend}" in run.stdout, run.stderr[-4000:]
    if backend == "jax":
        served = tf.saved_model.load(str(tmp_path / "served/1"))
        images = tf.constant([encode(picture(index), "PNG") for index in range(5)])
        assert served.signatures["serving_default"](image=images)["scores"].shape == (5, 3)
