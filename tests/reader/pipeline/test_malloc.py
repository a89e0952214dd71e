"""Tests that freed memory is reused while a dataset is read."""

import sys

import pytest

import forked_python
from prepared import prepare_images

# Prints the number of page faults for each block of a megabyte (256 pages) that is allocated and freed.
# The 64 blocks use up the memory that was free before.
PROGRAM = """
import resource, sys
import tf_input

batches = tf_input.open(sys.argv[1]).batches("train", batch_size=4, image_size=16, cache_in_memory=0)
for _ in batches:
    pass
blocks = [b"x" * (1 << 20) for _ in range(64)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    b"x" * (1 << 20)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 200)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs malloc of glibc")
def test_freed_memory_is_reused_unless_the_environment_disables_it(tmp_path, monkeypatch):
    directory = prepare_images(tmp_path)
    assert int(forked_python.run("-c", PROGRAM, directory).stdout) < 32
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 17))
    assert int(forked_python.run("-c", PROGRAM, directory).stdout) > 200
