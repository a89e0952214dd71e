"""Tests that a program exits if it stops in the middle of an iteration."""

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from beam_pipelines.__main__ import main

# The programs read at full speed, so that Python code is running at exit. The global iterator is deleted at exit.
PROGRAMS = """
import gc, os, sys, tf_input
import tensorflow as tf
from tf_input.pipeline import input_pipeline

programs = []
for has_strategy in (False, False, True):
    if (program := os.fork()) == 0:
        break
    programs.append(program)
else:
    sys.exit(max(os.waitpid(program, 0)[1] for program in programs) > 0)

if has_strategy:
    devices = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(devices[0], [tf.config.LogicalDeviceConfiguration()] * 2)
data = tf_input.open(sys.argv[1])
train = data.split_reader("train")
plan = train.plan(train.resolve(tf_input.ReadConfig(batch_size=1000, cache_in_memory=0, seed=0)))
batches = input_pipeline.read_batches(plan, lambda inputs, seed, rows: inputs[0]).repeat()
if has_strategy:
    batches = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(batches)
iterator = iter(batches)
for _ in range(130):
    next(iterator)
gc.freeze()  # hides the iterator from the garbage collector, as in servers
print("exits")
"""


@pytest.mark.slow(11)
def test_program_with_an_unfinished_iterator_exits(tmp_path):
    """The test runs three programs because the failure would occur in only half of all runs. These programs run all
    exit handlers, unlike programs of `forked_python`."""
    images = np.random.default_rng(0).integers(0, 256, (20_000, 8, 8), np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(20_000) % 3)
    assert main(["prepare", "--input", str(tmp_path / "images.npz"), "--output", str(tmp_path / "out"), "--splits", "train=1", "--no_report"]) == 0
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    command = [sys.executable, "-c", PROGRAMS, tmp_path / "out"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as programs:
        try:
            stdout, stderr = programs.communicate(timeout=120)
        finally:
            if programs.poll() is None:
                os.killpg(programs.pid, signal.SIGKILL)
    assert (programs.returncode, stdout) == (0, "exits\n" * 3), stderr[-2000:]
