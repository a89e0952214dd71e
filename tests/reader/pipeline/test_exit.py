"""A program that ends amid a pass: it ends."""

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from beam_pipelines.__main__ import main

# As fast as they can, so that Python is at work when a program ends. Its module holds the iterator, which is then taken apart.
PROGRAMS = """
import gc, os, sys, tf_input
import tensorflow as tf
from tf_input.epochs.iterator_state import Position
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
plan = train.plan(train.resolve(tf_input.ReadConfig(batch_size=1000, memory_budget=0, seed=0)))
batches = input_pipeline.read_batches(plan, lambda inputs, seed, rows: inputs[0], Position()).repeat()
if has_strategy:
    batches = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(batches)
held = iter(batches)
for _ in range(130):
    next(held)
gc.freeze()  # as servers do, and no collector lists the iterator any more
print("ends")
"""


@pytest.mark.slow(11)
def test_a_program_that_holds_an_iterator_ends(tmp_path):
    """Three of them, since without care each second one would not. They are forked off an interpreter that has imported TensorFlow, and are
    taken apart at their end, which those of `forked_python` are not."""
    images = np.random.default_rng(0).integers(0, 256, (20_000, 8, 8), np.uint8)
    np.savez(tmp_path / "made.npz", images=images, labels=np.arange(20_000) % 3)
    assert main(["prepare", "--input", str(tmp_path / "made.npz"), "--output", str(tmp_path / "out"), "--splits", "train=1", "--no_report"]) == 0
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    command = [sys.executable, "-c", PROGRAMS, tmp_path / "out"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as programs:
        try:
            said, complained = programs.communicate(timeout=120)
        finally:
            if programs.poll() is None:
                os.killpg(programs.pid, signal.SIGKILL)
    assert (programs.returncode, said) == (0, "ends\n" * 3), complained[-2000:]
