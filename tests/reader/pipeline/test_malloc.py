"""Memory that was freed is used again while a dataset is read."""

import sys

import pytest

import forked_python
from prepared import prepare_images

# How many pages are new to the process for each piece of a megabyte that is filled and freed: of 256. What lay free of such pieces before is in use.
PROGRAM = """
import resource, sys
import tf_input

batches = tf_input.open(sys.argv[1]).batches("train", batch_size=4, image_size=16, memory_budget=0)
for _ in batches:
    pass
held = [b"x" * (1 << 20) for _ in range(64)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    b"x" * (1 << 20)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 200)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc's malloc")
def test_freed_memory_is_used_again_and_the_environment_says_otherwise(tmp_path, monkeypatch):
    directory = prepare_images(tmp_path)
    assert int(forked_python.run("-c", PROGRAM, directory).stdout) < 32
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 17))
    assert int(forked_python.run("-c", PROGRAM, directory).stdout) > 200
