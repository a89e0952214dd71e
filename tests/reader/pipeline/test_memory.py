"""Tests how much memory a cached split needs."""

import os
import pathlib
import subprocess
import sys

import pytest

from prepared import prepare_images

SIZE, NUM_IMAGES = (1024, 1024), 64
DECODED_BYTES = NUM_IMAGES * SIZE[0] * SIZE[1] * 3
FIXED_BYTES = 112 << 20  # memory of TensorFlow and of records in flight, which does not grow with the split

LOAD = """
import gc, sys
import tf_input

def memory(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

dataset = tf_input.open(sys.argv[1])
for _ in dataset.batches("train", batch_size=4, cache_in_memory=0, read_buffer=16 << 20).take(2):
    pass
gc.collect()
before = memory("VmRSS")
batches = dataset.batches("train", batch_size=4, seed=0)
peak = memory("VmHWM")
others = [dataset.batches("train", batch_size=8, seed=1, one_hot=True), dataset.batches("train", batch_size=4, shuffle=False, augment=True)]
gc.collect()
print(peak - before, memory("VmRSS") - before, len(dataset.files.memory_cache))
"""


@pytest.mark.slow(20)
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
def test_cached_split_needs_its_decoded_size_once(tmp_path):
    """The test measures the peak memory and the final memory when several readers share a cached split."""
    directory = prepare_images(tmp_path, "--splits=train=1", num_images={"ant": NUM_IMAGES // 2, "bee": NUM_IMAGES // 2}, image_size=SIZE)
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    actual = subprocess.run([sys.executable, "-c", LOAD, directory], env=environment, capture_output=True, text=True, timeout=240)
    assert actual.returncode == 0, actual.stderr[-2000:]
    peak, lasting, num_entries = map(int, actual.stdout.split()[-3:])
    assert max(peak, lasting) <= DECODED_BYTES + FIXED_BYTES and num_entries == 1, (
        peak / DECODED_BYTES, lasting / DECODED_BYTES, num_entries,
    )
